"""boost_ext: native kernels and training cells that make MindSpore training faster.

This module and :mod:`boost_ext.ops` need NumPy only; :mod:`boost_ext.boost`, :mod:`boost_ext.amp` and ``Model`` need
MindSpore (``pip install boost_ext[mindspore]``). The public modules load at first use: ``boost_ext.optim.Adam``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from boost_ext import native_module

native_module.choose()  # before what imports _core

from boost_ext import convolutions, ops  # noqa: E402
from boost_ext._core import build_info, num_threads, set_num_threads  # noqa: E402
from boost_ext.adasum import adasum_simulate  # noqa: E402

if TYPE_CHECKING:
    from boost_ext import (  # noqa: F401
        amp,
        boost,
        callbacks,
        checkpoint,
        config,
        cuda,
        distributed,
        model,
        nn,
        optim,
        pca,
        plan,
    )
    from boost_ext.model import Model  # noqa: F401

__all__ = ["__version__", "adasum_simulate", "build_info", "num_threads", "ops", "set_num_threads"]

__version__: str = build_info()["version"]

_AT_FIRST_USE = (
    *("amp", "boost", "callbacks", "checkpoint", "config", "cuda", "distributed", "model", "nn", "optim", "pca"),
    "plan",
)


def __getattr__(name: str) -> Any:
    """A public module, or ``Model``, which imports MindSpore when it is first asked for."""
    if name in _AT_FIRST_USE:
        return importlib.import_module(f"boost_ext.{name}")
    if name != "Model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("boost_ext.model").Model


def __dir__() -> list[str]:
    return sorted([*__all__, *_AT_FIRST_USE, "Model", "convolutions"])


convolutions.notice()
