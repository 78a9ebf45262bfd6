"""Stands where ``mindspore.boost.adasum`` stood."""

from boost_ext.ms.adasum import AdaSum

__all__ = ["AdaSum"]
