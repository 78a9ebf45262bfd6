"""The environment variables with which MindSpore is fast on this machine. Needs no MindSpore.

``ONEDNN_MAX_CPU_ISA``: see :mod:`boost_ext.convolutions`.

``MS_DEV_HOST_BLOCKING_RUN``: in PYNATIVE_MODE MindSpore 2.10 hands each op to a chain of threads, which spin while they
wait for one another. On one or two cores they take the time from each other, and from the op (docs/benchmarks.md). With
the value 1 the thread that calls an op runs it. MindSpore reads the variable once, at the first op.
"""

from __future__ import annotations

import os

from boost_ext import convolutions, machine

__all__ = ["DISPATCH", "FEW_CORES", "advice", "make_fast", "missing", "settings"]

DISPATCH = "MS_DEV_HOST_BLOCKING_RUN"
"""The environment variable by which MindSpore runs an op in the thread that calls it, if it is 1."""
FEW_CORES = 2
"""The most cores on which that was measured to be faster."""


def missing() -> dict[str, str]:
    """The variables that this machine needs and that are not set, with the values that they need.

    Returns:
        dict. A variable that is set to anything is the user's choice, and not in it.

    Examples:
        >>> import os
        >>> from boost_ext import environment
        >>> os.environ.update(ONEDNN_MAX_CPU_ISA="AVX2", MS_DEV_HOST_BLOCKING_RUN="0")
        >>> environment.missing()
        {}
    """
    found = {convolutions.VARIABLE: convolutions.FAST} if convolutions.needs_limit() else {}
    if not os.environ.get(DISPATCH) and machine.usable_cores() <= FEW_CORES:
        found[DISPATCH] = "1"
    return found


def make_fast(*only: str) -> dict[str, str]:
    """Set the missing variables for this process and those that it starts. Call it before MindSpore is imported.

    Args:
        only: names of variables, to set no others. oneDNN's makes matrix products slower on a CPU with AVX-512, so
            whoever has no convolutions leaves it out.

    Returns:
        dict, what was set.

    Examples:
        >>> from boost_ext import environment
        >>> changed = environment.make_fast()  # before MindSpore is imported
        >>> environment.missing()
        {}
    """
    changed = {name: value for name, value in missing().items() if name in only or not only}
    os.environ.update(changed)
    return changed


def settings() -> dict[str, str]:
    """What is set of these variables: it belongs to every time of MindSpore.

    Examples:
        >>> import os
        >>> from boost_ext import environment
        >>> os.environ.update(ONEDNN_MAX_CPU_ISA="AVX2", MS_DEV_HOST_BLOCKING_RUN="1")
        >>> environment.settings()
        {'ONEDNN_MAX_CPU_ISA': 'AVX2', 'MS_DEV_HOST_BLOCKING_RUN': '1'}
    """
    return {name: value for name in (convolutions.VARIABLE, DISPATCH) if (value := os.environ.get(name))}


def advice() -> dict[str, str]:
    """What is slow here, and the remedy for it.

    Returns:
        dict: sentences, by what they speed up, also on what the user has set to be slow; empty if nothing is slow.

    Examples:
        >>> import os
        >>> from boost_ext import environment
        >>> os.environ.update(ONEDNN_MAX_CPU_ISA="AVX2", MS_DEV_HOST_BLOCKING_RUN="1")
        >>> environment.advice()
        {}
    """
    found = {} if (text := convolutions.advice()) is None else {"convolutions": text}
    if os.environ.get(DISPATCH) != "1" and machine.usable_cores() <= FEW_CORES:
        found["PYNATIVE_MODE"] = (
            f"MindSpore's threads spin while they wait for one another, and there are no more than {FEW_CORES} cores, "
            f"where it made steps up to 6 times as long. Set {DISPATCH}=1 before MindSpore starts. Compiled steps and "
            "GRAPH_MODE do not need it."
        )
    return found
