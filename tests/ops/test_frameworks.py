"""What frameworks expect of those who take their arrays: PyTorch is told what was written, JAX's are not written. The
real ones, where they are installed: test_torch.py."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest

from boost_ext import ops
from dtypes import normal

from .cases import Case
from .producers import DTensor, JaxArray, OldTorchTensor, TorchTensor
from .test_arguments import EACH_OP, each_argument, refused_last


@pytest.fixture(params=[TorchTensor, OldTorchTensor])
def tensor(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Every call of increment_version."""
    calls: list[list[Any]] = []
    torch = types.ModuleType("torch")
    torch.is_grad_enabled = lambda: True  # type: ignore[attr-defined]
    graph = types.SimpleNamespace(increment_version=lambda tensors: calls.append(list(tensors)))
    torch.autograd = types.SimpleNamespace(graph=graph)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    return calls


def wrapped(value: Any, kind: Any, made: list[Any]) -> Any:
    if isinstance(value, np.ndarray):
        made.append(kind(value))
        return made[-1]
    return [wrapped(v, kind, made) for v in value] if isinstance(value, list) else value


@EACH_OP
def test_pytorch_is_told_what_was_written_once_a_call(case: Case, tensor, told, rng):
    written: list[Any] = []
    read: list[Any] = []
    arguments = {
        name: wrapped(value, tensor, written if name in case.arrays and case.arrays[name].written else read)
        for name, value in case.make(rng).items()
    }
    case(arguments)
    assert [sorted(map(id, call)) for call in told] == ([sorted(map(id, written))] if written else [])


@EACH_OP
def test_written_once_though_others_are_no_tensors(case: Case, tensor, told, rng):
    """NumPy arrays have no versions."""
    arguments = case.make(rng)
    case(arguments)
    assert told == []
    for name in case.arrays:
        made: list[Any] = []
        case({**arguments, name: wrapped(arguments[name], tensor, made)})
        assert sum(map(len, told)) == (len(made) if case.arrays[name].written else 0), name
        told.clear()
        arguments = case.make(rng)


def test_what_is_not_written_keeps_its_version(tensor, told, rng):
    grads = [tensor(normal(rng, 20))]
    ops.unscale_and_check(grads, 1.0)
    ops.global_norm(grads)
    with pytest.raises(ValueError, match="factor must be finite"):
        ops.accumulate(grads, [normal(rng, 20)], float("nan"))
    with pytest.raises(ValueError, match="must have 3 elements, got 20"):
        ops.accumulate(grads, [normal(rng, 3)], 1.0)
    assert told == []
    ops.clip_by_global_norm(grads, 0.1)
    out = tensor(np.zeros(1))
    ops.global_norm(grads, out=out)
    assert told == [grads, [out]]


def test_what_pytorch_says_of_a_version_comes_through(tensor, told, rng):
    def refuse(_: Any) -> None:
        raise RuntimeError("no versions here")

    sys.modules["torch"].autograd.graph.increment_version = refuse  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="no versions here"):
        ops.centralize(tensor(normal(rng, (3, 4))))


def test_tensors_that_record(told, rng):
    x = TorchTensor(normal(rng, 20))
    x.requires_grad = True
    text = r"accumulate: accumulators\[0\] must not require a gradient while PyTorch records them"
    with pytest.raises(ValueError, match=text):
        ops.accumulate([x], [normal(rng, 20)], 1.0)
    sys.modules["torch"].is_grad_enabled = lambda: False  # type: ignore[attr-defined]
    ops.accumulate([x], [normal(rng, 20)], 1.0)
    assert told == [[x]]


def test_distributed_tensors(told, rng):
    text = r"^global_norm: tensors\[1\] must be a tensor of this process alone, such as x.to_local\(\), got DTensor$"
    with pytest.raises(TypeError, match=text):
        ops.global_norm([normal(rng, 3), DTensor(normal(rng, 3))])


@each_argument(lambda case, argument: argument.written)
def test_jax_arrays_are_not_written(case, name, rng):
    text = r"must be writable, got a JAX array, which is immutable: write to a copy, numpy.array\(x\), and make .*$"
    jax_array = refused_last(case, rng, name, JaxArray, ValueError, text)
    assert jax_array is None


@each_argument(lambda case, argument: not argument.written)
def test_jax_arrays_are_read(case, name, rng):
    arguments = case.make(rng)
    case({**arguments, name: wrapped(arguments[name], JaxArray, [])})


def test_jax_arrays_are_checked_where_nothing_is_written(rng):
    array = normal(rng, 20)
    assert not ops.unscale_and_check(JaxArray(array), 1.0)


def a_generator(arrays: Any) -> Any:
    return (a for a in arrays)


@pytest.mark.parametrize(
    ("new", "kind"), [(a_generator, "generator"), (set, "set"), (lambda a: dict.fromkeys(a), "dict")]
)
@each_argument(lambda case, argument: not argument.alone)
def test_what_holds_arrays_must_be_a_list_or_tuple(case, name, new, kind, rng):
    arguments = case.make(rng)
    arguments[name] = new(range(2))
    text = rf"{name} must be an array or a list or tuple of arrays \(NumPy, MindSpore or DLPack\), got {kind}$"
    if case.op == "pca_back_project" and name == "out":
        text = f"out must be a list or tuple of lists of arrays, got {kind}$"
    with pytest.raises(TypeError, match=f"^{case.op}: {text}"):
        case(arguments)


def test_a_parameter_without_a_gradient(rng):
    text = (
        r"global_norm: tensors\[1\] must be an array \(NumPy, MindSpore or DLPack\), got None \(a parameter without a "
    )
    with pytest.raises(TypeError, match=f"^{text}gradient is left out, in every list\\)$"):
        ops.global_norm([normal(rng, 3), None])
