"""Draws docs/overview.svg, the picture of the documentation's first page, from the tables of docs/benchmarks.md.

``python -m benchmarks.overview`` writes it again. The colours are readable on a light and on a dark page.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["PICTURE", "drawn"]

DOCS = Path(__file__).resolve().parents[1] / "docs"
PICTURE = DOCS / "overview.svg"
NETWORKS = {
    "bert": "BERT, 29 million parameters",
    "gpt": "GPT, 29 million parameters",
    "lenet5": "LeNet5",
    "mobilenetv2-32": "MobileNetV2, 32 pixels",
    "resnet18-112": "ResNet-18, 112 pixels",
    "resnet18-32": "ResNet-18, 32 pixels",
    "resnet50-64": "ResNet-50, 64 pixels",
}
WIDTH, ROW, TITLE, BAR = 400, 40, 44, 9
LONGEST = 1.15
"""Times MindSpore's time that the width stands for."""
TEXT, TRACK, OURS = "#767f8a", "#767f8a55", "#0d9488"


class Group(NamedTuple):
    """Some bars under one title."""

    title: str
    mode: str
    bars: tuple[tuple[str, str], ...]
    """Networks and levels."""


GROUPS = (
    Group(
        "PYNATIVE_MODE, a step at level O0",
        "PYNATIVE_MODE",
        (("lenet5", "O0"), ("gpt", "O0"), ("bert", "O0"), ("resnet18-112", "O0")),
    ),
    Group(
        "GRAPH_MODE, a step at level O0",
        "GRAPH_MODE",
        (("mobilenetv2-32", "O0"), ("resnet18-32", "O0"), ("gpt", "O0"), ("resnet50-64", "O0")),
    ),
    Group(
        "GRAPH_MODE, a step of a training at level O2",
        "GRAPH_MODE",
        (("mobilenetv2-32", "O2"), ("resnet18-32", "O2"), ("gpt", "O2"), ("resnet50-64", "O2")),
    ),
)


def ratios(page: str) -> dict[tuple[str, str], float]:
    """By network and mode, and variant, MindSpore's wall time over ours: the newest of the tables of steps."""
    section = page.partition("<!-- benchmark: networks -->\n")[2].partition("<!-- end -->")[0]
    found: dict[tuple[str, str], float] = {}
    for block in section.split("\n\n"):  # the newest first
        head, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines())
        if head[0] != "network, mode" or "steps" in head:  # of whole trainings
            continue
        network = ""
        for row in rows[1:]:
            network = row[0] or network
            found.setdefault((network, row[1]), float(row[head.index("ratio")]))  # the first is that of the wall time
    return found


def drawn(page: str) -> str:
    """The picture of the page's tables, an SVG document."""
    found = ratios(page)
    body, y = [], 22
    body.append(_text(0, y, "Time, beside mindspore.Model (grey)", size=15, weight="bold"))
    for group in GROUPS:
        y += TITLE
        body.append(_text(0, y, group.title, weight="bold"))
        for network, level in group.bars:
            y += ROW
            ratio = found[f"{network}, {group.mode}", f"{level}, nn"]
            label = NETWORKS[network] + (f", {level}" if level != "O0" else "")
            body += _bar(y, label, ratio)
    height = y + 24
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            'role="img" font-family="system-ui, sans-serif">',
            *body,
            "</svg>\n",
        ]
    )


def _bar(y: int, label: str, ratio: float) -> Iterator[str]:
    yield _text(0, y, label)
    yield _text(WIDTH, y, f"{ratio:.2f} times as fast", anchor="end")
    for length, colour in ((1.0, TRACK), (1 / ratio, OURS)):
        width = WIDTH * length / LONGEST
        yield f'<rect x="0" y="{y + 7}" width="{width:.1f}" height="{BAR}" rx="2" fill="{colour}"/>'


def _text(x: int, y: int, text: str, *, size: int = 14, weight: str = "normal", anchor: str = "start") -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{TEXT}">'
        f"{text}</text>"
    )


if __name__ == "__main__":
    from boost_ext.files import write_text

    write_text(PICTURE, drawn((DOCS / "benchmarks.md").read_text(encoding="utf-8")))
