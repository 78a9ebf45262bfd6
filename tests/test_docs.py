"""The documentation site, as far as ``make docs`` does not check it."""

from __future__ import annotations

from benchmarks.overview import DOCS, PICTURE, drawn


def test_the_picture_shows_the_measured_numbers():
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert PICTURE.read_text(encoding="utf-8") == drawn(page), "draw it again: python -m benchmarks.overview"
