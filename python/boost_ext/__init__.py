"""boost_ext: native kernels and training cells that make MindSpore training faster.

This module and :mod:`boost_ext.ops` need NumPy only; :mod:`boost_ext.boost`, :mod:`boost_ext.amp` and ``Model`` need
MindSpore (``pip install boost_ext[mindspore]``), and :mod:`boost_ext.torch` needs PyTorch. The public modules load at
first use: ``boost_ext.optim.Adam``.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from boost_ext import native_module

native_module.choose()  # before what imports _core

from boost_ext import convolutions, ops  # noqa: E402
from boost_ext._core import (  # noqa: E402
    build_info,
    float32_matmul_precision,
    num_threads,
    set_float32_matmul_precision,
    set_num_threads,
)
from boost_ext.adasum import adasum_simulate  # noqa: E402

if TYPE_CHECKING:
    from boost_ext import amp as amp
    from boost_ext import boost as boost
    from boost_ext import callbacks as callbacks
    from boost_ext import checkpoint as checkpoint
    from boost_ext import config as config
    from boost_ext import cuda as cuda
    from boost_ext import distributed as distributed
    from boost_ext import environment as environment
    from boost_ext import health as health
    from boost_ext import local_steps as local_steps
    from boost_ext import model as model
    from boost_ext import nn as nn
    from boost_ext import optim as optim
    from boost_ext import pca as pca
    from boost_ext import pca_span as pca_span
    from boost_ext import plan as plan
    from boost_ext import run_log as run_log
    from boost_ext import run_report as run_report
    from boost_ext import torch as torch
    from boost_ext import writers as writers
    from boost_ext.model import Model as Model

__all__ = [
    "__version__",
    "adasum_simulate",
    "build_info",
    "float32_matmul_precision",
    "num_threads",
    "ops",
    "set_float32_matmul_precision",
    "set_num_threads",
]

__version__: str = build_info()["version"]

if "mindspore" in sys.modules and not (os.environ.get("BOOST_EXT_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS")):
    # MindSpore sets OMP_NUM_THREADS to 1 for the process, which os.environ does not show: nobody asked for that.
    from boost_ext.machine import cores_allowed as _cores_allowed

    set_num_threads(min(_cores_allowed() or 1, 1024))

_AT_FIRST_USE = (
    "amp",
    "boost",
    "callbacks",
    "checkpoint",
    "config",
    "cuda",
    "distributed",
    "environment",
    "health",
    "local_steps",
    "model",
    "nn",
    "optim",
    "pca",
    "pca_span",
    "plan",
    "run_log",
    "run_report",
    "torch",
    "writers",
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
