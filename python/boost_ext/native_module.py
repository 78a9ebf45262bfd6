"""Which native module is used: that of boost-ext-cuda, with the CUDA kernels, where it is installed."""

from __future__ import annotations

import importlib.util
import sys

__all__ = ["choose"]


def choose() -> None:
    """Let ``boost_ext._core`` be ``boost_ext_cuda._core``, before anything imports it.

    Raises:
        ImportError: the two distributions are of different versions.
    """
    if importlib.util.find_spec("boost_ext_cuda") is None:
        return
    from importlib.metadata import version

    ours, theirs = version("boost_ext"), version("boost-ext-cuda")
    if ours != theirs:
        raise ImportError(
            f"boost_ext {ours} needs boost-ext-cuda of the same version, got {theirs}; "
            f"install it with: pip install boost-ext-cuda=={ours}"
        )
    package = sys.modules["boost_ext"]
    package._core = sys.modules["boost_ext._core"] = importlib.import_module("boost_ext_cuda._core")  # type: ignore[attr-defined]
