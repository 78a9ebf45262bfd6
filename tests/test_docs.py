"""The documentation site, as far as ``make docs`` does not check it."""

from __future__ import annotations

from benchmarks.overview import DOCS, PICTURE, drawn

import boost_ext

PACKAGE = DOCS.parent / "python" / "boost_ext"


def test_the_picture_shows_the_measured_numbers():
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert PICTURE.read_text(encoding="utf-8") == drawn(page), "draw it again: python -m benchmarks.overview"


def test_the_reference_has_a_page_for_every_public_module():
    modules = [name for name in dir(boost_ext) if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()]
    assert {"ops", "optim"} <= set(modules)
    for name in modules:
        assert f"::: boost_ext.{name}\n" in (DOCS / "api" / f"{name}.md").read_text(encoding="utf-8")
