"""Replaces ``mindspore.boost.dim_reduce``."""

from boost_ext.ms.subspace.dim_reduce import DimReduce

__all__ = ["DimReduce"]
