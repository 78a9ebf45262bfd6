"""What to say where a package is missing that an extra of boost_ext brings."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

__all__ = ["imported", "missing"]

_LAST = (3, 12)
"""The last Python that MindSpore 2.10 has wheels for."""


def missing(extra: str, module: str, error: ImportError) -> ImportError:
    """The error for a module that could not be imported."""
    what = f"this needs {module}, which could not be imported ({error})"
    if module == "mindspore" and sys.version_info[:2] > _LAST:
        here = ".".join(map(str, sys.version_info[:2]))
        return ImportError(f"{what}; MindSpore 2.10 needs Python 3.10 to 3.12, and this is Python {here}")
    return ImportError(f"{what}; install it with: pip install 'boost_ext[{extra}]'")


def imported(extra: str, module: str) -> ModuleType:
    """A module that an extra brings, or the error of :func:`missing`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing(extra, module, error) from error
