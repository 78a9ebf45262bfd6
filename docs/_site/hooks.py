"""Where the site and the repository's web view differ."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT_PAGES = ("CONTRIBUTING.md", "CHANGELOG.md")
"""They lie in the root of the repository, one folder above ``docs``, and in the root of the site."""

_TO_ROOT_PAGES = re.compile(rf"\]\(\.\./((?:\.\./)*(?:{'|'.join(map(re.escape, ROOT_PAGES))}))")
_CELL = re.compile(r"<td.*?</td>", re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    root = Path(config.config_file_path).parent
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, abs_src_path=str(root / name)))
    return files


def on_page_markdown(markdown: str, page: Page, **kwargs: Any) -> str:
    if page.file.src_uri in ROOT_PAGES:
        return markdown.replace("](docs/", "](")
    return _TO_ROOT_PAGES.sub(r"](\1", markdown)


def on_page_content(html: str, **kwargs: Any) -> str:
    """The web view takes the backslash of an escaped ``|`` out of code in a table, Python-Markdown leaves it there."""
    return _CELL.sub(lambda cell: cell[0].replace("\\|", "|"), html)
