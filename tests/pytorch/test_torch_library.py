"""The ops as operators of PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from boost_ext import _core, ops  # noqa: E402
from boost_ext.torch.library import LEFT_OUT, OPERATORS  # noqa: E402

OURS = torch.ops.boost_ext


def test_every_op_is_there_and_says_what_it_writes():
    steps = [f"{rule}_step" for rule in _core.optimizer_rules()]
    assert set(OPERATORS) == {*_core.schemas(), *steps} - set(LEFT_OUT)
    for name, described in _core.schemas().items():
        if name in OPERATORS:
            schema = getattr(OURS, name).default._schema
            written = {a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
            assert written == {a["name"] for a in described if a["written"]}, name
    assert "max_moments2=None" in str(OURS.adam_step.default._schema)


def step(weights: Any, grads: Any, moments: Any, squares: Any, count: Any, averages: Any) -> Any:
    lr = torch.full((1,), 0.01)
    count.add_(1)
    found = torch.zeros(1)
    OURS.unscale_and_check(grads, torch.full((1,), 0.5), found)
    OURS.adamw_step(weights, grads, moments, squares, lr, count, weight_decay=0.1, skip=found)
    OURS.ema_update(averages, weights, 0.9)
    return sum(w.max() for w in averages)  # of the same bits in any order


def arguments() -> list[Any]:
    made = torch.Generator().manual_seed(0)
    lists = [[torch.rand(s, generator=made) for s in ((5,), (3, 4))] for _ in range(5)]
    weights, grads, moments, squares, averages = lists
    return [weights, grads, moments, squares, torch.zeros(1, dtype=torch.int32), averages]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_one_graph_has_the_bits_of_plain_calls(backend):
    plain, compiled = arguments(), arguments()
    graph = torch.compile(step, fullgraph=True, backend=backend)
    for _ in range(3):
        assert torch.equal(step(*plain), graph(*compiled))
    for a, b in zip(plain, compiled, strict=True):
        for x, y in zip(a, b, strict=True) if isinstance(a, list) else [(a, b)]:
            assert torch.equal(x, y)
    direct = arguments()
    ops.unscale_and_check(direct[1], 0.5)
    ops.adamw_step(*direct[:4], lr=0.01, step=1, weight_decay=0.1)
    again = arguments()
    step(*again)
    assert all(torch.equal(x, y) for x, y in zip(direct[0], again[0], strict=True))


def test_a_report_is_written_where_it_is_given():
    grads, found, rows = [torch.tensor([2.0, torch.inf]), torch.ones(3)], torch.zeros(1), torch.zeros(2, 4).double()
    OURS.unscale_and_check(grads, torch.full((1,), 0.5), found, rows)
    assert found.item() == 1
    assert rows.tolist() == [[1, 0, 1, 1], [0, 0, -1, 0.5]]


def test_a_write_is_seen_by_autograd_and_by_what_comes_after():
    x = torch.randn(4, requires_grad=True)
    y = x.exp()
    versions = [y._version]
    OURS.ema_update([y.detach()], [torch.ones(4)], 0.5)
    assert y._version > versions[0]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("name", ["ema_update", "accumulate", "global_norm", "momentum_step"])
def test_pytorch_checks_an_operator(name):
    a, b = [torch.rand(5)], [torch.rand(5)]
    calls = {
        "ema_update": ((a, b, 0.5), {}),
        "accumulate": ((a, b, 0.5, False), {}),
        "global_norm": ((a, torch.zeros(1, dtype=torch.float64)), {}),
        "momentum_step": ((a, b, [torch.rand(5)], torch.ones(1)), {}),
    }
    torch.library.opcheck(getattr(OURS, name), *calls[name])
