"""boost_ext: native kernels and training cells that make MindSpore training faster.

This module and :mod:`boost_ext.ops` need NumPy only; :mod:`boost_ext.boost`, :mod:`boost_ext.amp` and ``Model`` need
MindSpore (``pip install boost_ext[mindspore]``).
"""

import importlib
from typing import Any

from boost_ext import convolutions, ops
from boost_ext._core import build_info, num_threads, set_num_threads
from boost_ext.adasum import adasum_simulate

__all__ = ["__version__", "adasum_simulate", "build_info", "num_threads", "ops", "set_num_threads"]

__version__: str = build_info()["version"]


def __getattr__(name: str) -> Any:
    """``boost_ext.Model``, which imports MindSpore when it is first asked for."""
    if name != "Model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.import_module("boost_ext.model").Model
    except ImportError as error:
        raise ImportError(
            f"boost_ext.Model needs mindspore, which could not be imported ({error}); "
            "install it with: pip install 'boost_ext[mindspore]'"
        ) from error


convolutions.notice()
