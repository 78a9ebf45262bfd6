"""Optimizers that only the training cells may step: what AutoBoost has switched on with them is done by the cell."""

from __future__ import annotations

from typing import Any

from mindspore import nn

from boost_ext.ms.core.optimizer_copy import twin

__all__ = ["for_cells", "released"]


_REFUSED = (
    "AutoBoost: its optimizer must be given to BoostTrainOneStepCell, build_train_network or Model of boost_ext, got a "
    "call with gradients, which would train without what AutoBoost was asked for (accumulation, dim_reduce, adasum, "
    "common.fused_optimizer or common.check_overflow)"
)


class _ForCells:
    """In front of an optimizer's class. A step by anyone else would leave out, without a word, what was asked for."""

    released_class: type

    def construct(self, gradients: Any) -> Any:
        raise TypeError(_REFUSED)

    def __call__(self, gradients: Any) -> Any:
        raise TypeError(_REFUSED)


_classes: dict[type, Any] = {}


def _class_for_cells(cls: type) -> Any:
    if cls not in _classes:
        own = {"__module__": cls.__module__, "__doc__": cls.__doc__, "released_class": cls}
        _classes[cls] = type(cls)(cls.__name__, (_ForCells, cls), own)
    return _classes[cls]


def for_cells(optimizer: nn.Optimizer, options: Any) -> nn.Optimizer:
    """An optimizer on the state of the given one, with ``boost_options``, that raises TypeError where it is called."""
    plain = released(optimizer)
    copy: nn.Optimizer = twin(plain, _class_for_cells(type(plain)))
    copy.boost_options = options
    return copy


def released(optimizer: Any) -> Any:
    """The optimizer as a training cell may step it, on the state of the given one; anything else as it is."""
    cls = getattr(type(optimizer), "released_class", None)
    return optimizer if cls is None else twin(optimizer, cls)
