"""What it costs to get from MindSpore into a native op and back, over small tensors: the work is nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from boost_ext.bench.frameworks import mindspore_or_none
from boost_ext.bench.harness import Case, Peer
from boost_ext.bench.peers import in_mode


def cases(quick: bool) -> Iterator[Case]:
    ms = mindspore_or_none()
    if ms is None:
        return
    from boost_ext.ms import native

    class Held(ms.nn.Cell):  # type: ignore[name-defined]
        """The op on its own parameters, as the training cells call it."""

        def __init__(self, op: Any, count: int) -> None:
            super().__init__()
            self.op = op
            self.scale = ms.Parameter(ms.Tensor([1.0], ms.float32), name="scale")
            self.report = ms.Parameter(ms.Tensor(np.zeros((count, 4))), name="report")
            self.tensors = ms.ParameterTuple(
                ms.Parameter(ms.Tensor(np.ones(16, np.float32)), name=f"p{i}") for i in range(count)
            )

        def construct(self) -> Any:
            return self.op(self.tensors, self.scale, self.report)

    class Nothing(ms.nn.Cell):  # type: ignore[name-defined]
        """A graph with one small op: the floor of a call."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = ms.Parameter(ms.Tensor([1.0], ms.float32), name="scale")

        def construct(self) -> Any:
            return self.scale < 0

    class Finite(ms.nn.Cell):  # type: ignore[name-defined]
        """The same question in MindSpore's own ops."""

        def __init__(self, count: int) -> None:
            super().__init__()
            self.tensors = Held(native.UnscaleAndCheckReport(), count).tensors

        def construct(self) -> Any:
            found = False
            for t in self.tensors:
                found = ms.ops.logical_or(found, ms.ops.logical_not(ms.ops.isfinite(t).all()))
            return ms.ops.reshape(found, (1,))

    def call(cell: Any, mode: int) -> Any:
        with in_mode(mode):
            return cell().asnumpy()

    for count in (1, 60) if quick else (1, 60, 300):
        for label, mode in (("PyNative, by pointer", 1), ("graph, by ops.Custom", 0)):
            mode = ms.PYNATIVE_MODE if mode else ms.GRAPH_MODE
            ours = Held(native.UnscaleAndCheckReport(), count)
            peers = [Peer("MS isfinite", partial(call, Finite(count), mode))]
            if mode == ms.GRAPH_MODE:
                peers.append(Peer("an empty graph", partial(call, Nothing(), mode)))
            yield Case(
                f"crossing {label}, {count} tensors",
                partial(call, ours, mode),
                lambda: np.zeros(1),
                tuple(peers),
            )
