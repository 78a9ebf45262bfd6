"""Dimension-reduced training with the matrix in int8 codes."""

from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, ParameterTuple, Tensor, nn
from tests import oracle
from tests.ms.test_dim_reduce import Regression, config, definition, matrix, momentum, state, tensors

from boost_ext import boost, ops
from boost_ext.ms import native

__all__ = ["matrix"]  # the fixture


def test_matches_the_definition_with_the_matrix_of_the_codes(mode: int, matrix: Path) -> None:
    net = Regression()
    compile = "step" if mode == ms.GRAPH_MODE else "off"  # once as a primitive, once by pointers
    c = config(matrix, alpha=0.05, pca_mat_dtype="int8")
    cell = boost.BoostTrainOneStepCell(net, momentum(net), dim_reduce=c, compile=compile)
    codes, scale = ops.quantize_projection(np.load(matrix))
    P = oracle.dequantize_projection(codes.astype(np.float64), scale.astype(np.float64))
    assert 0 < abs(P - np.load(matrix)).max() < 0.01
    expected = definition(P, c, 0.3, 0.5, 12)
    assert {s.rho > 0 for s in expected} == {True, False}, "both outcomes of the line search occur"
    for t, want in enumerate(expected):
        loss, _, _ = cell(*tensors(t))
        np.testing.assert_allclose(loss.asnumpy(), want.loss, rtol=1e-4)
        np.testing.assert_allclose(state(cell).accepted_rho.asnumpy(), [want.rho], rtol=1e-6)
        np.testing.assert_allclose(state(cell).bk.asnumpy(), want.B, rtol=2e-3, atol=2e-4)
        for p, w in zip(net.trainable_params(), want.weights, strict=True):
            np.testing.assert_allclose(p.asnumpy(), w, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(state(cell).pca_mat.asnumpy(), codes)
    np.testing.assert_array_equal(state(cell).pca_mat_scale.asnumpy(), scale)


class Projections(nn.Cell):
    """Both ops on one matrix of codes."""

    def __init__(self, codes: np.ndarray, scale: np.ndarray, like: list[np.ndarray]) -> None:
        super().__init__()
        self.P, self.scale = Parameter(Tensor(codes), name="codes"), Parameter(Tensor(scale), name="scale")
        self.project, self.back_project = native.PcaProject(), native.PcaBackProject()
        self.gk = Parameter(Tensor(np.zeros(len(codes), np.float32)), name="gk")
        self.v = Parameter(Tensor(np.arange(len(codes), dtype=np.float32)), name="v")
        zeros = [[Parameter(Tensor(np.zeros_like(a)), name=f"{n}{i}") for i, a in enumerate(like)] for n in "ab"]
        self.a, self.b = (ParameterTuple(z) for z in zeros)

    def construct(self, *grads: Tensor) -> tuple[Tensor, Tensor]:
        projected = self.project(self.P, grads, self.gk, self.scale)
        return projected, self.back_project(self.P, self.gk, self.v, self.a, self.b, self.scale)


def test_the_ops_in_both_modes(mode: int) -> None:
    rng = np.random.default_rng(2)
    grads = [rng.standard_normal(s).astype(np.float32) for s in ((10,), (30, 20), (3,))]
    codes, scale = ops.quantize_projection(rng.standard_normal((5, 613)))
    cell = Projections(codes, scale, grads)
    cell(*map(Tensor, grads))
    P = oracle.dequantize_projection(codes.astype(np.float64), scale)
    gk = cell.gk.asnumpy()
    np.testing.assert_allclose(gk, oracle.pca_project(P, grads), rtol=1e-5, atol=1e-4)
    for out, vector in ((cell.a, gk), (cell.b, cell.v.asnumpy())):
        for p, want in zip(out, oracle.pca_back_project(P, vector, grads), strict=True):
            np.testing.assert_allclose(p.asnumpy(), want, rtol=1e-5, atol=1e-4)


def test_a_state_is_of_its_codes_and_scales(matrix: Path) -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)

    def cell(**changes) -> nn.Cell:
        net = Regression()
        return boost.BoostTrainOneStepCell(net, momentum(net), dim_reduce=config(matrix, **changes), compile="off")

    codes = cell(pca_mat_dtype="int8")
    saved = codes.state_dict()
    assert not [name for name in saved if "pca_mat" in name and not name.endswith("constant.pca_matrix")]
    cell(pca_mat_dtype="int8").load_state_dict(saved)
    inner = state(codes)
    inner.pca_mat_scale.set_data(Tensor(2 * inner.pca_mat_scale.asnumpy()))
    for other in (codes, cell()):
        with pytest.raises(ValueError, match="the pca matrix must be that of the state"):
            other.load_state_dict(saved)
