"""AdaSum over ranks: ``python -m benchmarks.adasum_ranks [--quick] [--ranks 2 4] [--out DIR]``.

For each number of ranks, on this machine, in turns: ours; one all-reduce of the same vector; the same algorithm with
the same exchanges, its arithmetic written with MindSpore's ops. Answers are compared with the simulator first. Then the
measured constants are projected to more ranks. With ``--measured FILE`` nothing is measured: plot and page are made
again from what a run has written.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from boost_ext.files import write_text

TENSORS = 60
SMALL = 256  # elements: what such an exchange takes is its latency


def deltas(rank: int, n: int) -> list[Any]:
    from boost_ext.bench.data import split, uniform

    return split(uniform(n, 1000 + rank), tensors_of(n))


def tensors_of(n: int) -> int:
    return TENSORS if n >= 1_000_000 else 6  # compiling MindSpore's ops for many takes long


def cells(rank: int, ranks: int, n: int) -> tuple[dict[str, Callable[[], Any]], Callable[[], Any], Callable[[], Any]]:
    """What is timed, by name; and what ours and MindSpore's version end with."""
    from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

    from boost_ext.boost import AdaSum
    from boost_ext.ms.step import adasum

    def parameters(name: str, arrays: Sequence[Any]) -> ParameterTuple:
        return ParameterTuple(
            Parameter(Tensor(a), name=f"{name}{i}", requires_grad=False) for i, a in enumerate(arrays)
        )

    mine = deltas(rank, n)
    zeros = [np.zeros_like(array) for array in mine]

    class Ours(nn.Cell):
        def __init__(self) -> None:
            super().__init__(auto_prefix=False)
            self.deltas, self.old, self.weights = (
                parameters(name, arrays) for name, arrays in (("delta", mine), ("old", zeros), ("weight", zeros))
            )
            self.adasum = AdaSum(rank, 1, ranks, self.weights)

        def construct(self) -> Any:
            return ops.depend(self.weights[0][0], self.adasum(self.deltas, self.weights, self.old))

    class OpsPair(nn.Cell):
        """:class:`boost_ext.ms.step.adasum._Pair` in MindSpore's ops."""

        def __init__(self, rank: int, exchange: Any, holds_bf16: bool, index: int, sizes: Sequence[int]) -> None:
            super().__init__(auto_prefix=False)
            self.all_dots = adasum._Gather(rank, exchange.holders)
            self.index, self.sizes, self.holders = index, tuple(sizes), len(exchange.holders)

        def construct(self, a: Any, b: Any) -> Any:
            begin, end, first = self.index * a.shape[0], (self.index + 1) * a.shape[0], 0
            rows, pieces = (), ()
            for size in self.sizes:
                low, high = max(first, begin) - begin, min(first + size, end) - begin
                if low < high:
                    x, y = a[low:high], b[low:high]
                    rows = (*rows, ops.stack(((x * y).sum(), (x * x).sum(), (y * y).sum())))
                    pieces = (*pieces, (low, high))
                else:
                    rows = (*rows, ops.zeros((3,), a.dtype))
                    pieces = (*pieces, (0, 0))
                first += size
            dots = self.all_dots(ops.concat(rows)).reshape((self.holders, -1, 3)).sum(0) + 1e-12
            parts = ()
            last = 0
            for t in range(len(self.sizes)):
                low, high = pieces[t]
                if low < high:
                    of_a, of_b = 1 - dots[t, 0] / (2 * dots[t, 1]), 1 - dots[t, 0] / (2 * dots[t, 2])
                    parts = (*parts, of_a * a[low:high] + of_b * b[low:high])
                    last = high
            if last < a.shape[0]:
                parts = (*parts, a[last:])
            return ops.concat(parts)

    class WithOps(nn.Cell):
        def __init__(self) -> None:
            super().__init__(auto_prefix=False)
            native, adasum._Pair = adasum._Pair, OpsPair
            inner = adasum._Vector(adasum.schedule(rank, 1, ranks), parameters("like", mine), "vector")
            adasum._Pair = native
            self.deltas, self.weights = parameters("delta", mine), parameters("weight", zeros)
            self.inner, self.gather = inner.steps, inner.gather
            self.padding = Tensor(np.zeros(inner.vector.size - n, np.float32))
            part = inner.vector.size // len(inner.apply_plan.asnumpy()[2:])
            self.order = [int(i) for i in np.argsort(inner.apply_plan.asnumpy()[2:])]
            self.part, self.shapes = part, [a.shape for a in mine]
            self.sizes = [a.size for a in mine]

        def construct(self) -> Any:
            flat = ()
            for delta in self.deltas:
                flat = (*flat, delta.reshape((-1,)))
            own = ops.concat((*flat, self.padding))
            for step in self.inner:
                own = step(own)
            gathered, parts = self.gather(own), ()
            for i in self.order:
                parts = (*parts, gathered[i * self.part : (i + 1) * self.part])
            whole, first = ops.concat(parts), 0
            for i in range(len(self.weights)):
                size = self.sizes[i]
                ops.assign(self.weights[i], 0 - whole[first : first + size].reshape(self.shapes[i]))
                first += size
            return self.weights[0][0]

    class Mean(nn.Cell):
        def __init__(self, size: int) -> None:
            super().__init__(auto_prefix=False)
            self.vector = Parameter(Tensor(np.ones(size, np.float32)), name="vector", requires_grad=False)
            self.all_reduce = ops.AllReduce()

        def construct(self) -> Any:
            return (self.all_reduce(self.vector) * (1 / ranks))[0]

    class Small(nn.Cell):
        def __init__(self, operation: Any) -> None:
            super().__init__(auto_prefix=False)
            self.vector = Parameter(Tensor(np.ones(SMALL, np.float32)), name="vector", requires_grad=False)
            self.operation = operation

        def construct(self) -> Any:
            return self.operation(self.vector)[0]

    ours, with_ops = Ours(), WithOps()
    timed = {
        "ours": ours,
        "MindSpore ops": with_ops,
        "all-reduce mean": Mean(n),
        "latency of a gather": Small(ops.AllGather()),
        "latency of a sum of two": Small(ops.AllReduce("sum", adasum.group_of((rank & ~1, rank | 1)))),
    }
    calls = {name: lambda cell=cell: cell().asnumpy() for name, cell in timed.items()}
    return calls, lambda: ours.weights, lambda: with_ops.weights


def worker(n: int, rounds: int, out: Path) -> None:
    """One rank."""
    import mindspore as ms
    from mindspore.communication import get_group_size, get_rank, init

    from boost_ext import adasum_simulate

    ms.set_device("CPU")
    ms.set_context(mode=ms.GRAPH_MODE)
    init()
    rank, ranks = get_rank(), get_group_size()
    calls, ours, with_ops = cells(rank, ranks, n)
    for name, tolerance, weights in (("ours", 0.0, ours), ("MindSpore ops", 1e-5, with_ops)):
        calls[name]()
        if rank == 0:
            for got, delta in zip(weights(), adasum_simulate([deltas(r, n) for r in range(ranks)]), strict=True):
                np.testing.assert_allclose(got.asnumpy(), 0 - delta, rtol=0, atol=tolerance * np.abs(delta).max())
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():  # which compiles what is left
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            calls["latency of a gather"]()  # all start together
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    write_text(out / f"rank_{rank}.json", json.dumps(times))


def measure(ranks: int, n: int, rounds: int, out: Path) -> dict[str, Any]:
    """Medians of the slowest rank of each round, in milliseconds."""
    from tests.distributed.launch import launch

    from benchmarks.adasum_traffic import bytes_sent, least_bytes
    from boost_ext.adasum import schedule

    out = out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    # Ranks compile for different times, and the others wait in the first exchange.
    env = {"MS_CPU_COMM_OP_TIMEOUT": "600"}
    arguments = ["worker", str(n), str(rounds), str(out)]
    launch(Path(__file__).resolve(), ranks, *arguments, folder=out, timeout=900, env=env).require_success()
    each = [json.loads((out / f"rank_{r}.json").read_text()) for r in range(ranks)]
    slowest = {name: [max(rank[name][i] for rank in each) for i in range(rounds)] for name in each[0]}
    plan = schedule(0, 1, ranks)
    return {
        "ranks": ranks,
        "elements": n,
        "milliseconds": {name: 1e3 * statistics.median(times) for name, times in slowest.items()},
        "quartiles": {name: [1e3 * q for q in statistics.quantiles(times, n=4)] for name, times in slowest.items()},
        "bytes": {
            "ours": bytes_sent(plan, n, 4, tensors_of(n), gathers_in_groups=False),
            "where groups can gather": bytes_sent(plan, n, 4, tensors_of(n)),
            "least": least_bytes(n, 4, ranks),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adasum_ranks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and few: only whether it all runs")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/adasum_ranks"))
    parser.add_argument("--measured", type=Path, metavar="FILE", help="adasum_ranks.json of a run")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="docs/benchmarks.md: the numbers, and the plot beside it"
    )
    options = parser.parse_args()
    for ranks in options.ranks:
        if ranks < 2 or ranks & (ranks - 1):
            parser.error(f"--ranks must be powers of two from 2 on, got {ranks}")

    from boost_ext.machine import Watch

    from . import report
    from .adasum_projection import page, plot, projections

    if options.measured is not None:
        document = json.loads(options.measured.read_text())
    else:
        watch = Watch()
        n, rounds = (600_000, 2) if options.quick else (25_000_000, options.rounds)
        rows = [measure(ranks, n, rounds, options.out / str(ranks)) for ranks in sorted(options.ranks)]
        document = report.machine(1) | {"quick": options.quick, "rounds": rounds, "rows": rows}
        document["others"] = round(watch.others(), 3)
    document["projections"] = projections(document["rows"], tensors_of(document["rows"][0]["elements"]))
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / "adasum_ranks.json", json.dumps(document, indent=1) + "\n")
    text = page(document)
    plot(options.out / "adasum_ranks.png", document)
    if options.page is not None:
        report.update_section(options.page, "adasum_ranks", text)
        plot(options.page.with_name("adasum_ranks.png"), document)
    print("\n".join(text))
    print(f"written to {options.out}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        from benchmarks import adasum_ranks

        adasum_ranks.worker(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    else:
        main()
