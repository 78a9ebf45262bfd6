"""Replaces ``mindspore.boost.adasum``."""

from boost_ext.ms.step.adasum import AdaSum

__all__ = ["AdaSum"]
