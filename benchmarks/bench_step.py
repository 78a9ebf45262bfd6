"""A whole training step beside MindSpore's own cells: a small network, where what a step adds shows, and DimReduce."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from boost_ext.bench.frameworks import mindspore_or_none
from boost_ext.bench.harness import Case, Peer
from boost_ext.bench.peers import in_mode, settled

# The steps train; at this learning rate they arrive nowhere, and every call has the same answer.
REST = 1e-30


def network(ms: Any) -> Any:
    nn = ms.nn
    net = nn.SequentialCell(
        nn.Conv2d(1, 8, 3, weight_init="ones"),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dense(512, 10, weight_init="normal"),
    )
    ms.load_param_into_net(
        net,
        {
            p.name: ms.Parameter(ms.Tensor(np.linspace(-0.1, 0.1, p.size, dtype=np.float32).reshape(p.shape)))
            for p in net.trainable_params()
        },
    )
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    return nn.WithLossCell(net, loss).set_train()


def caller(ms: Any, cell: Any, mode: int, inputs: Any) -> tuple[Callable[[], Any], Any]:
    def call() -> Any:
        loss = cell(*inputs)
        loss = loss[0] if isinstance(loss, tuple) else loss
        return settled([loss])[0].asnumpy()

    return call, partial(in_mode, mode)


def small_network(quick: bool) -> Iterator[Case]:
    ms = mindspore_or_none()
    if ms is None:
        return
    from boost_ext import boost, optim

    rng = np.random.default_rng(0)
    inputs = (
        ms.Tensor(rng.standard_normal((32, 1, 8, 8)).astype(np.float32)),
        ms.Tensor(rng.integers(0, 10, 32).astype(np.int32)),
    )
    modes = {"PyNative": ms.PYNATIVE_MODE, "graph": ms.GRAPH_MODE}

    def theirs(mode: int) -> tuple[Callable[[], Any], Any]:
        net = network(ms)
        optimizer = ms.nn.Momentum(net.trainable_params(), REST, 0.9)
        return caller(ms, ms.nn.TrainOneStepCell(net, optimizer).set_train(), mode, inputs)

    def ours(mode: int, scaled: bool, package: Any = ms.nn, **kwargs: Any) -> Callable[[], Any]:
        net = network(ms)
        optimizer = package.Momentum(net.trainable_params(), REST, 0.9)
        if scaled:
            from boost_ext.amp import DynamicLossScaleManager

            update = DynamicLossScaleManager(2.0**10).get_update_cell()
            cell = boost.BoostTrainOneStepWithLossScaleCell(net, optimizer, update, **kwargs)
        else:
            cell = boost.BoostTrainOneStepCell(net, optimizer, **kwargs)
        return caller(ms, cell, mode, inputs)[0]

    reference = network(ms)(*inputs).asnumpy()
    for label, mode in modes.items():
        run, around = theirs(mode)
        peer = Peer(f"MS TrainOneStepCell {label}", run, goal=1.0, around=around)
        variants = (
            {"step": {"compile": "step"}}
            if label == "graph"
            else {c: {"compile": c} for c in ("step", "network", "off")}
        )
        for compile, kwargs in variants.items():
            what = label if label == "graph" else f'{label} compile="{compile}"'
            yield Case(f"step {what}", ours(mode, False, **kwargs), lambda: reference, (peer,), around=around)
        for what, scaled, package in (
            ("with dynamic loss scale", True, ms.nn),
            ("with optim.Momentum", False, optim),
            ("with optim.Momentum and dynamic loss scale", True, optim),
        ):
            yield Case(f"step {what} {label}", ours(mode, scaled, package), lambda: reference, (peer,), around=around)


def dim_reduce(label: str, quick: bool) -> Iterator[Case]:
    """The whole step with a trivial network: its cost is that of the algorithm."""
    ms = mindspore_or_none()
    if ms is None:
        return
    from mindspore.boost.dim_reduce import DimReduce

    from boost_ext import boost
    from boost_ext.config import DimReduceConfig

    n, k = (100_000, 8) if quick else (10_000_000, 32)

    class Slice(ms.nn.Cell):  # type: ignore[name-defined]
        """A network that costs nothing: its loss needs only the first weights."""

        def __init__(self) -> None:
            super().__init__()
            self.w = ms.Parameter(ms.Tensor(np.zeros(n, np.float32)), name="w")

        def construct(self, x: Any) -> Any:
            return (self.w[:1024] * x).mean() + 1.0

    class Theirs(ms.nn.Cell):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            net = Slice()
            optimizer = ms.nn.SGD(net.trainable_params(), REST)
            self.net, self.weights = net, ms.ParameterTuple(net.trainable_params())
            self.clone = self.weights.clone(prefix="clone", init="same")
            self.grad = ms.ops.GradOperation(get_by_list=True)
            P = np.load(path)
            self.dim_reduce = DimReduce(net, optimizer, self.weights, P, k, 0.55, 0.9, 0.001, 0.4, 0, 1)

        def construct(self, x: Any) -> Any:
            loss = self.net(x)
            grads = self.grad(self.net, self.weights)(x)
            one = ms.ops.ones_like(loss)
            return ms.ops.depend(loss, self.dim_reduce(loss, grads, one, self.weights, self.clone, x))

    inputs = (ms.Tensor([2.0], ms.float32),)
    mode, goal = (ms.PYNATIVE_MODE, 50.0) if label == "PyNative" else (ms.GRAPH_MODE, 8.0)
    dtype = "int8" if "int8" in label else None
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "P.npy"
        P = np.random.default_rng(0).standard_normal((k, n), dtype=np.float32)
        P /= np.float32(n**0.5)
        np.save(path, P)
        del P
        # At rest all searches fail: both try two points.
        config = DimReduceConfig(n_components=k, pca_mat_path=str(path), pca_mat_dtype=dtype, max_search=2)
        net = Slice()
        cell = boost.BoostTrainOneStepCell(net, ms.nn.SGD(net.trainable_params(), REST), dim_reduce=config)
        ours, around = caller(ms, cell, mode, inputs)
        run, their_mode = caller(ms, Theirs(), mode, inputs)
        yield Case(
            f"DimReduce step {label}, k={k}, n={n:.0e}",
            ours,
            lambda: np.float64(1.0),
            (Peer(f"boost.DimReduce {label}", run, goal=goal, around=their_mode),),
            traffic=2 * k * n * (1 if dtype == "int8" else 4) + 40 * n,
            bandwidth_goal=0.8,
            around=around,
        )


PROCESSES = (small_network, *(partial(dim_reduce, label) for label in ("PyNative", "graph", "graph, int8 P")))
