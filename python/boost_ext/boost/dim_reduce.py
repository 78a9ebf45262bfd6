"""Stands where ``mindspore.boost.dim_reduce`` stood."""

from boost_ext.ms.dim_reduce import DimReduce

__all__ = ["DimReduce"]
