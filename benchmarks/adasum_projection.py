"""What the measured constants of AdaSum over ranks make of more ranks, and how well they fit what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from boost_ext.files import save_figure

__all__ = ["page", "plot", "projections"]

PROJECTED = (2, 4, 8, 16, 32, 64, 128, 256, 512)
PRINTED = (2, 4, 8, 64, 512)
MEAN, GATHER, SUM = "all-reduce mean", "AdaSum, groups can gather", "AdaSum, groups can only add up"
MEASURED = {MEAN: "all-reduce mean", SUM: "ours"}  # MindSpore's CPU backend can only add up


def projections(rows: Sequence[dict[str, Any]], tensors: int) -> list[dict[str, Any]]:
    """Milliseconds by number of ranks, once for the constants of each run.

    A collective costs its latency, taken as constant, and its bytes at the rate of that run's all-reduce. AdaSum also
    costs what its time in that run has more than that: arithmetic, copies, ranks that wait for one another. It grows as
    the elements of a rank's passes do, with 1 - 1 / ranks. So both lines of a run go through what it measured. A run in
    which ranks share cores has the higher constants; the two are a range.
    """
    from benchmarks.adasum_traffic import bytes_sent, least_bytes
    from boost_ext.adasum import schedule

    found = []
    for row in rows:
        n, took = row["elements"], row["milliseconds"]
        latency = took["latency of a gather"]
        rate = row["bytes"]["least"] / max(took["all-reduce mean"] - latency, 1e-3)  # bytes a millisecond

        def exchange(ranks: int, n: int = n, latency: float = latency, rate: float = rate) -> dict[str, float]:
            plan = schedule(0, 1, ranks)
            collectives = (2 * len(plan.levels) + 1) * latency
            return {
                MEAN: latency + least_bytes(n, 4, ranks) / rate,
                GATHER: collectives + bytes_sent(plan, n, 4, tensors) / rate,
                SUM: collectives + bytes_sent(plan, n, 4, tensors, gathers_in_groups=False) / rate,
            }

        rest = max(took["ours"] - exchange(row["ranks"])[SUM], 0.0) / (1 - 1 / row["ranks"])
        each = {}
        for ranks in PROJECTED:
            costs = exchange(ranks)
            each[str(ranks)] = {name: t + (name != MEAN) * rest * (1 - 1 / ranks) for name, t in costs.items()}
        found.append({"of": row["ranks"], "latency": latency, "bytes per ms": rate, "rest": rest, "ranks": each})
    return found


def page(document: dict[str, Any]) -> list[str]:
    """The section of docs/benchmarks.md."""
    return list(_page(document))


def _page(document: dict[str, Any]) -> Iterator[str]:
    rows, lines = document["rows"], document["projections"]
    yield (
        f"{document['date'][:10]}, {document['cpu']}, {document['cores']} cores; {rows[0]['elements']:.2g} float32, "
        f"medians of {document['rounds']} rounds in turns."
    )
    yield ""
    yield "| ranks | ours ms | MindSpore ops | ratio | one all-reduce (mean) | ours beside it | bytes | the least |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        ms, sent = row["milliseconds"], row["bytes"]
        ours, peer, mean = ms["ours"], ms["MindSpore ops"], ms["all-reduce mean"]
        yield (
            f"| {row['ranks']} | {ours:.0f} | {peer:.0f} | {peer / ours:.2f} | {mean:.0f} | {ours / mean:.2f} times | "
            f"{sent['ours'] / 1e6:.0f} MB | {sent['least'] / 1e6:.0f} MB |"
        )
    yield ""
    by = " / ".join(str(line["of"]) for line in lines)
    yield f"Projected ms, by the constants of {by} ranks:"
    yield ""
    yield f"| ranks | {MEAN} | {GATHER} | {SUM} |"
    yield "|---|---|---|---|"
    for ranks in PRINTED:
        each = [" / ".join(f"{line['ranks'][str(ranks)][name]:.0f}" for line in lines) for name in (MEAN, GATHER, SUM)]
        yield f"| {ranks} | {' | '.join(each)} |"
    yield ""
    for line in lines:
        shared = ", which shared cores" if line["of"] > document["cores"] else ""
        yield (
            f"- **By {line['of']} ranks**{shared}: {line['latency']:.2g} ms a collective, "
            f"{line['bytes per ms'] / 1e6:.3f} GB/s, {line['rest']:.0f} ms times 1 - 1 / ranks for the rest. "
            "Beside the measured:"
        )
        yield f"  {', '.join(_misses(line, rows))}."


def _misses(line: dict[str, Any], rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        projected, took = line["ranks"][str(row["ranks"])], row["milliseconds"]
        for name, key in MEASURED.items():
            yield f"{projected[name] / took[key] - 1:+.0%} {key} on {row['ranks']} ranks"


def plot(path: Path, document: dict[str, Any]) -> None:
    """A band for each cost, from the constants of one run to those of the other; points for what was measured."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    rows, lines = document["rows"], document["projections"]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, colour in ((MEAN, "#888888"), (GATHER, "#27804a"), (SUM, "#2c5aa0")):
        curves = [[line["ranks"][str(r)][name] for r in PROJECTED] for line in lines]
        for curve in curves:
            axes.plot(PROJECTED, curve, color=colour, linewidth=0.8)
        lower, upper = ([f(values) for values in zip(*curves, strict=True)] for f in (min, max))
        axes.fill_between(PROJECTED, lower, upper, color=colour, alpha=0.25, label=f"{name}, projected")
    for name, colour in (("all-reduce mean", "#888888"), ("ours", "#2c5aa0"), ("MindSpore ops", "#c0392b")):
        measured = [row["milliseconds"][name] for row in rows]
        axes.plot([row["ranks"] for row in rows], measured, "o", color=colour, label=f"{name}, measured")
    axes.set_xscale("log", base=2)
    axes.set_xticks(PROJECTED, [str(r) for r in PROJECTED])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("ranks")
    axes.set_ylabel(f"ms for {rows[0]['elements']:.1e} float32")
    axes.grid(linewidth=0.3)
    axes.legend(fontsize=7)
    runs = " to ".join(str(line["of"]) for line in lines)
    title = f"measured: all ranks on one machine, {document['cpu']}; projected: by the constants of {runs} ranks"
    axes.set_title(title, fontsize=8)
    save_figure(path, figure, dpi=130)
