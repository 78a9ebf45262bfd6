"""Slow convolutions of MindSpore on this CPU, and the remedy. Needs no MindSpore.

oneDNN 3.10, which MindSpore 2.10 brings, computes convolutions larger than 1 × 1 with its reference kernel where it
finds AVX-512, and with a fast one where it does not (docs/benchmarks.md). An environment variable hides AVX-512 from
oneDNN, which reads it once: after MindSpore's first convolution or matrix product it is too late to set it. Compiled
training steps have kernels of their own (boost_ext/ms/core/fast_convolutions.py).
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys

from boost_ext._core import build_info

__all__ = ["FAST", "VARIABLE", "advice", "are_slow", "limit", "make_fast", "needs_limit", "notice", "state"]

VARIABLE = "ONEDNN_MAX_CPU_ISA"
"""The environment variable by which oneDNN takes a limit."""
FAST = "AVX2"
"""The widest instruction set that every CPU with AVX-512 has and that brings no reference kernel."""

# In oneDNN's order; DNNL was its name before.
_VARIABLES = (VARIABLE, "DNNL_MAX_CPU_ISA")
# oneDNN ignores values that it does not know: whatever is not in here leaves AVX-512 on.
_WITHOUT_AVX512 = {"sse41", "avx", "avx2", "avx2_vnni", "avx2_vnni_2"}


def limit() -> str | None:
    """The instruction set that the environment limits oneDNN to.

    Returns:
        str, as it was written, known to oneDNN or not; None if nothing is set. An empty variable is not set.

    Examples:
        >>> import os
        >>> from boost_ext import convolutions
        >>> os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"
        >>> convolutions.limit()
        'AVX2'
    """
    return next((value for name in _VARIABLES if (value := os.environ.get(name))), None)


def _has_avx512() -> bool:
    return "avx512" in build_info()["cpu_isas"]


def are_slow() -> bool:
    """Whether this CPU has AVX-512 and the environment does not hide it from oneDNN.

    Returns:
        bool. It looks at the current environment, not at the value that oneDNN has read already.

    Examples:
        >>> import os
        >>> from boost_ext import convolutions
        >>> os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"
        >>> convolutions.are_slow()
        False
    """
    return _has_avx512() and (limit() or "").lower() not in _WITHOUT_AVX512


def state() -> str:
    """How MindSpore convolves here, and why, in a few words.

    Returns:
        str.

    Examples:
        >>> from boost_ext import convolutions
        >>> convolutions.state().split(":")[0] in ("fast", "slow")
        True
    """
    if are_slow():
        return f"slow: set {VARIABLE}={FAST}"
    return f"fast: oneDNN is limited to {limit()}" if _has_avx512() else "fast: no AVX-512"


def advice() -> str | None:
    """The remedy for slow convolutions.

    Returns:
        str, a sentence; None if they are fast.

    Examples:
        >>> from boost_ext import convolutions
        >>> (convolutions.advice() is None) is not convolutions.are_slow()
        True
    """
    if not are_slow():
        return None
    return (
        "this CPU has AVX-512, where MindSpore 2.10 computes convolutions larger than 1x1 by a kernel that was "
        "60 times slower where it was measured; if the network has any, and boost_ext does not compile its steps, set "
        f"{VARIABLE}={FAST} before MindSpore starts (not otherwise: matrix products are slower with it)."
    )


def needs_limit() -> bool:
    """Whether the variable is missing: this CPU needs a limit, and none is set.

    Examples:
        >>> import os
        >>> from boost_ext import convolutions
        >>> os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"
        >>> convolutions.needs_limit()
        False
    """
    return limit() is None and _has_avx512()


def make_fast() -> bool:
    """Set the variable for this process and those that it starts, on a CPU that needs it.

    Any limit that is set already stays: the user has chosen it. Call it before MindSpore is imported.

    Returns:
        bool, whether it was set.

    Examples:
        >>> from boost_ext import convolutions
        >>> changed = convolutions.make_fast()  # before MindSpore is imported
    """
    if not needs_limit():
        return False
    os.environ[VARIABLE] = FAST
    return True


def notice() -> None:
    """Log, as a warning of the logger ``boost_ext``, that the variable is missing on a CPU that needs it.

    Nothing if MindSpore is not installed, if any limit is set, and in the command ``boost-ext``, which sets the
    variable or shows the advice itself.

    Examples:
        >>> import os
        >>> from boost_ext import convolutions
        >>> os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"
        >>> convolutions.notice()  # nothing to say: a limit is set
    """
    command = os.path.basename(getattr(sys, "argv", [""])[0]) in ("boost-ext", "-m")
    if needs_limit() and not command and importlib.util.find_spec("mindspore") is not None:
        logging.getLogger("boost_ext").warning(
            "%s is not set: %s `boost-ext run script.py` does it for you.", VARIABLE, advice()
        )
