"""``boost-ext info``: what was built, what this machine has, what is used. All that a bug report needs."""

from __future__ import annotations

import os
from typing import Any

from rich.markup import escape
from rich.table import Table

import boost_ext
from boost_ext import convolutions, environment, machine

__all__ = ["facts", "table"]


def facts() -> dict[str, Any]:
    """As JSON knows it: the build, and under ``machine``, ``packages``, ``convolutions`` and ``dispatch`` what it found
    here."""
    return {
        **boost_ext.build_info(),
        "machine": machine.facts(),
        "packages": machine.versions(),
        "convolutions": {"limit": convolutions.limit(), "advice": convolutions.advice()},
        "dispatch": {
            "blocking": os.environ.get(environment.DISPATCH),
            "advice": environment.advice().get("PYNATIVE_MODE"),
        },
    }


def table(known: dict[str, Any]) -> Table:
    """Those facts; on a narrow terminal long ones go on in the next line."""
    here = known["machine"]
    rows = {
        "system": f"{here['system']}, {here['libc'] or 'unknown libc'}",
        "CPU": here["cpu"],
        "has": " ".join(here["features"]),
        "cores": _cores(here),
        "memory": _memory(here),
        "load": str(here["load"]),
        "compiler": known["compiler"],
        "flags": known["flags"],
        "CUDA": _cuda(known["cuda"]),
        "Ascend": _built(known["ascend"]),
        "sets built": ", ".join(known["built_isas"]),
        "sets found": ", ".join(known["cpu_isas"]),
        "used": f"{known['isa']}, {known['threads']} threads",
        convolutions.VARIABLE: known["convolutions"]["limit"] or "not set",
        "convolutions": convolutions.state(),
        environment.DISPATCH: known["dispatch"]["blocking"] or "not set",
        "PYNATIVE_MODE": f"slow: set {environment.DISPATCH}=1" if known["dispatch"]["advice"] else "fast",
        **known["packages"],
    }
    result = Table(title=f"boost_ext {known['version']}", title_justify="left", show_header=False, box=None)
    result.add_column(style="bold", overflow="fold")
    result.add_column(overflow="fold")
    for name, value in rows.items():
        result.add_row(name, "[dim]not installed[/]" if value is None else escape(value))
    return result


def _cores(here: dict[str, Any]) -> str:
    text = f"{here['cores']}, {here['cores_allowed']} allowed"
    return text if here["cores_limit"] is None else f"{text}, the time of {here['cores_limit']:g}"


def _memory(here: dict[str, Any]) -> str:
    kinds = {"memory": "", "memory_free": " free", "memory_limit": " allowed"}
    known = [f"{here[key] / 2**30:.1f} GiB{what}" for key, what in kinds.items() if here[key] is not None]
    return ", ".join(known) or "unknown"


def _built(backend: dict[str, Any] | None) -> str:
    return "not built in" if backend is None else "emulated" if backend["emulated"] else "built in"


def _cuda(backend: dict[str, Any] | None) -> str:
    text = _built(backend)
    return text if backend is None else f"{text}, runtime {backend['runtime']}, {' '.join(backend['architectures'])}"
