"""Dimension-reduced training of bfloat16 weights, and with a bfloat16 matrix."""

from pathlib import Path
from typing import Any

import mindspore as ms
import ml_dtypes
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from tests.ms.test_dim_reduce import K, N, Regression, config, definition, matrix, momentum, state, tensors
from tests.ms.test_dim_reduce import start as start_weights
from tests.ms.tiers import in_graph_mode, standard

from boost_ext import boost, optim, pca

__all__ = ["matrix"]  # the fixture


class Narrow(nn.Cell):
    """Regression with bfloat16 weights, and one of them frozen."""

    def __init__(self) -> None:
        super().__init__()
        for name, value in zip("wb", start_weights(), strict=True):
            setattr(self, name, Parameter(Tensor(value.astype(ml_dtypes.bfloat16)), name=name))
        self.shift = Parameter(Tensor(np.zeros(1, ml_dtypes.bfloat16)), name="shift", requires_grad=False)

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        w, b, shift = (ops.cast(p, ms.float32) for p in (self.w, self.b, self.shift))
        return ((ops.matmul(x, w) + b + shift - y) ** 2).mean()


def narrowed(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


@pytest.mark.parametrize("compile", ["step", "off"])
@standard(lambda p: p.graph == (p.compile == "step"))
def test_bfloat16_weights(mode: int, compile: str, matrix: Path) -> None:
    """Beside the definition with weights that are rounded; near a tie it may round the other way."""
    net, c = Narrow(), config(matrix, alpha=0.05, max_search=8)
    optimizer = optim.Momentum(net.trainable_params(), 0.3, 0.5)
    cell = boost.BoostTrainOneStepCell(net, optimizer, dim_reduce=c, compile=compile)
    expected = definition(np.load(matrix).astype(np.float64), c, 0.3, 0.5, 12, narrowed)
    for t, want in enumerate(expected):
        loss, overflow, _ = cell(*tensors(t))
        assert not overflow.asnumpy()
        np.testing.assert_allclose(loss.asnumpy(), want.loss, rtol=2e-3)
        np.testing.assert_allclose(state(cell).accepted_rho.asnumpy(), [want.rho], rtol=1e-6)
        for p, w in zip(net.trainable_params(), want.weights, strict=True):
            assert p.dtype == ms.bfloat16
            np.testing.assert_allclose(p.asnumpy().astype(np.float64), w, rtol=2.0**-7, atol=2e-3)
    assert expected[-1].loss < 0.8 * expected[0].loss
    assert {w.dtype for w in cell.apply_slot.weights_clone} == {ms.bfloat16}


@in_graph_mode
def test_a_refused_step_restores_the_bits(mode: int, matrix: Path) -> None:
    net = Narrow()
    cell = boost.BoostTrainOneStepCell(
        net, optim.SGD(net.trainable_params(), 1e4), dim_reduce=config(matrix, alpha=0.0)
    )
    before = [p.asnumpy().copy() for p in net.get_parameters()]
    cell(*tensors(0))
    assert state(cell).accepted_rho.asnumpy().tolist() == [0.0]
    for p, w in zip(net.get_parameters(), before, strict=True):
        np.testing.assert_array_equal(p.asnumpy().view(np.uint16), w.view(np.uint16), err_msg=p.name)


@pytest.fixture(scope="module")
def narrow_matrix(matrix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``boost-ext pca --dtype bfloat16`` leaves it."""
    path = tmp_path_factory.mktemp("pca") / "narrow.npy"
    pca.save_matrix(path, np.load(matrix).astype(ml_dtypes.bfloat16))
    return path


def held_bytes(cell: nn.Cell) -> dict[str, int]:
    """Of everything as large as the matrix that the cell holds."""
    return {p.name: p.nbytes for p in cell.get_parameters() if p.size >= K * N}


@pytest.mark.parametrize("given", [{}, {"pca_mat_dtype": "bfloat16"}], ids=["as its file is", "by its key"])
@standard(lambda p: p.graph == bool(p.given))
def test_a_bfloat16_matrix(mode: int, given: dict[str, Any], matrix: Path, narrow_matrix: Path) -> None:
    """Held as it is, a half of float32's memory, and trained with as the definition does with the same numbers."""
    net = Regression()
    compile = "step" if mode == ms.GRAPH_MODE else "off"  # once as a primitive, once by pointers
    c = config(matrix if given else narrow_matrix, alpha=0.05, **given)
    cell = boost.BoostTrainOneStepCell(net, momentum(net), dim_reduce=c, compile=compile)
    P = np.load(matrix).astype(ml_dtypes.bfloat16)
    assert state(cell).pca_mat.dtype == ms.bfloat16
    assert held_bytes(cell) == {"dim_reduce.pca_mat": 2 * K * N}
    np.testing.assert_array_equal(state(cell).pca_mat.asnumpy().view(np.uint16), P.view(np.uint16))
    for t, want in enumerate(definition(P.astype(np.float64), c, 0.3, 0.5, 8)):
        loss, _, _ = cell(*tensors(t))
        np.testing.assert_allclose(loss.asnumpy(), want.loss, rtol=1e-4)
        np.testing.assert_allclose(state(cell).accepted_rho.asnumpy(), [want.rho], rtol=1e-6)
        for p, w in zip(net.trainable_params(), want.weights, strict=True):
            np.testing.assert_allclose(p.asnumpy(), w, rtol=1e-3, atol=1e-4)


def test_a_state_with_bfloat16(matrix: Path, narrow_matrix: Path) -> None:
    """Weights and matrix: 2 + 2 steps are the bits of 4; with another matrix it is refused."""
    ms.set_context(mode=ms.PYNATIVE_MODE)

    def cell(path: Path) -> nn.Cell:
        net = Narrow()
        optimizer = optim.Momentum(net.trainable_params(), 0.3, 0.5)
        return boost.BoostTrainOneStepCell(net, optimizer, dim_reduce=config(path), compile="off")

    whole, first, second = (cell(narrow_matrix) for _ in range(3))
    for t in range(4):
        whole(*tensors(t))
    for t in range(2):
        first(*tensors(t))
    saved = first.state_dict()
    second.load_state_dict(saved)
    for t in range(2, 4):
        second(*tensors(t))
    for a, b in zip(whole.network.trainable_params(), second.network.trainable_params(), strict=True):
        np.testing.assert_array_equal(a.asnumpy().view(np.uint16), b.asnumpy().view(np.uint16))
    with pytest.raises(ValueError, match="the pca matrix must be that of the state"):
        cell(matrix).load_state_dict(saved)
