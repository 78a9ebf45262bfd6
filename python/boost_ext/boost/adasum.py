"""Replaces ``mindspore.boost.adasum``."""

from boost_ext.ms.adasum import AdaSum

__all__ = ["AdaSum"]
