"""``from boost_ext import Model`` where ``from mindspore import Model`` stood."""

from boost_ext.ms.training.model import Model

__all__ = ["Model"]
