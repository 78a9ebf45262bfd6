"""What the reference needs of the sources, beside mkdocstrings' own reading of them."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:func|class|mod|meth|data|attr|exc|obj):`~?([\w.]+)`")
_QUOTE = re.compile(r"(?<=: )(?=>=? )")
"""Where the description of an argument begins with ``>= 1``, which Markdown would take for a quotation."""


class Docstrings(griffe.Extension):
    """Roles of Sphinx become links where the site has the name, and code elsewhere. Names of MindSpore are left out."""

    def on_module(self, *, mod: griffe.Module, **kwargs: Any) -> None:
        for name, member in list(mod.members.items()):
            if member.is_alias and member.target_path.startswith("mindspore"):  # nothing of it is read
                mod.del_member(name)

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            around = obj.module.path if obj.is_module or obj.is_class else obj.parent.path
            text = _QUOTE.sub(r"\\", obj.docstring.value)
            obj.docstring.value = _ROLE.sub(lambda found: _link(found[1], around), text)


def _link(name: str, around: str) -> str:
    target = name if name.startswith(("boost_ext", "mindspore")) else f"{around}.{name}"
    return f'<autoref optional identifier="{target}"><code>{name}</code></autoref>'
