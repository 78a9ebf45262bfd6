"""The ops on MindSpore's tensors and parameters, by pointer: they see and change what MindSpore sees."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from boost_ext import ops
from dtypes import SUMMED, UNIT

pytestmark = pytest.mark.usefixtures("isa")

TYPES = {"float32": ms.float32, "float16": ms.float16, "bfloat16": ms.bfloat16}
EACH_TYPE = pytest.mark.parametrize("kind", TYPES)


def tensor(values: np.ndarray, kind: str = "float32") -> Tensor:
    """By way of float32: NumPy knows bfloat16 only through ml_dtypes, which MindSpore does not take."""
    return Tensor(values.astype(np.float32)).astype(TYPES[kind])


def values(x: Tensor) -> np.ndarray:
    return x.astype(ms.float32).asnumpy().astype(np.float64)


def precision(kind: str) -> float:
    """Of a norm, which is a root."""
    return 1e-12 + SUMMED[kind] / 2


def close(actual: Tensor, expected: np.ndarray, kind: str) -> None:
    np.testing.assert_allclose(values(actual), expected, rtol=4 * UNIT[kind], atol=1e-6)


@EACH_TYPE
def test_written_in_place(rng, kind):
    x = tensor(rng.standard_normal((5, 7)), kind)
    before = values(x)
    assert not ops.unscale_and_check([x, tensor(np.ones(3))], 0.5)
    np.testing.assert_array_equal(values(x), before * 0.5)


@EACH_TYPE
def test_parameters(rng, kind):
    p = Parameter(tensor(rng.standard_normal((5, 7)), kind), name="p")
    before = values(p)
    ops.centralize(p)
    close(p, before - before.mean(1, keepdims=True), kind)


@EACH_TYPE
def test_results_of_pending_operations_are_waited_for(rng, kind):
    """PyNative runs ahead of us: the pointer must be of finished data."""
    x = tensor(rng.standard_normal(200_000), kind)
    for _ in range(5):
        x = x + 0 * x
        norm = ops.global_norm(x)
    assert norm == pytest.approx(np.linalg.norm(values(x)), rel=1e-6)


@EACH_TYPE
def test_mindspore_goes_on_with_what_was_written(rng, kind):
    x = tensor(rng.standard_normal(1000), kind)
    before = values(x)
    for _ in range(3):
        ops.unscale_and_check(x, 0.5)
        x = x * 2
    np.testing.assert_array_equal(values(x), before)


@EACH_TYPE
def test_contiguous_slices_are_views(rng, kind):
    x = tensor(rng.standard_normal((6, 8)), kind)
    before = values(x)
    rows = x[2:4]
    assert ops.global_norm(rows) == pytest.approx(np.linalg.norm(before[2:4]), rel=precision(kind))


@EACH_TYPE
@pytest.mark.parametrize("cut", [lambda x: x[:, 1:3], lambda x: x.T, lambda x: x[::2]], ids=["columns", "T", "step"])
def test_strided_views_are_refused(rng, kind, cut):
    x = tensor(rng.standard_normal((6, 8)), kind)
    view = cut(x)
    assert not view.is_contiguous()
    with pytest.raises(ValueError, match=r"^centralize: grads\[1\] must be C-contiguous, got a strided array$"):
        ops.centralize([x, view])
    assert ops.global_norm(view.contiguous()) == pytest.approx(np.linalg.norm(values(view)), rel=precision(kind))


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0), (1, 1, 1)])
def test_shapes(shape):
    x = Tensor(np.ones(shape, np.float32))
    assert ops.global_norm([x, x]) == np.sqrt(2 * np.prod(shape))


@pytest.mark.parametrize(
    ("dtype", "text"),
    [(ms.int64, "Int64"), (ms.uint8, "uint8"), (ms.complex64, "Complex64"), (ms.float64, "float64")],
    ids=str,
)
def test_other_types_are_refused(dtype, text):
    with pytest.raises(TypeError, match=rf"^global_norm: tensors\[1\] must be float32, .*, got {text}$"):
        ops.global_norm([Tensor([1.0]), Tensor([1, 2, 3], dtype)])


def test_every_op_takes_tensors_and_arrays_together(rng):
    arrays = {n: rng.standard_normal((3, 40)).astype(np.float32) for n in "abcdefg"}
    ts = {n: Tensor(x.copy()) for n, x in arrays.items()}
    P = rng.standard_normal((4, 120)).astype(np.float32)

    gk = ops.pca_project(Tensor(P), [ts["a"]])
    np.testing.assert_array_equal(gk, ops.pca_project(P, arrays["a"]))
    out = [Tensor(np.zeros((3, 40), np.float32))]
    ops.pca_back_project(Tensor(P), [Tensor(gk)], [out])
    expected = ops.pca_back_project(P, [gk], [[np.zeros((3, 40), np.float32)]])
    np.testing.assert_array_equal(out[0].asnumpy(), expected[0][0])

    ops.adasum_pair([ts["a"]], [arrays["b"]], [ts["c"]])
    np.testing.assert_array_equal(ts["c"].asnumpy(), ops.adasum_pair(arrays["a"], arrays["b"]))
    np.testing.assert_array_equal(ops.adasum_dots(ts["a"], ts["b"]), ops.adasum_dots(arrays["a"], arrays["b"]))

    B = Tensor(np.eye(4, dtype=np.float32))
    assert ops.bfgs_update(B, Tensor(gk), Tensor(gk))
    expected = np.eye(4, dtype=np.float32)
    ops.bfgs_update(expected, gk, gk)
    np.testing.assert_array_equal(B.asnumpy(), expected)

    ops.dim_reduce_trial(ts["d"], ts["e"], ts["f"], Tensor(np.float32([0.5])))
    np.testing.assert_array_equal(ts["d"].asnumpy(), arrays["e"] + np.float32(0.5) * arrays["f"])
    coefficients = {"gamma": 0.5, "alpha": 2.0, "rho": 0.25}
    ops.dim_reduce_apply(ts["g"], ts["a"], ts["b"], ts["f"], ts["b"], **coefficients)
    ops.dim_reduce_apply(arrays["g"], arrays["a"], arrays["b"], arrays["f"], arrays["b"], **coefficients)
    np.testing.assert_array_equal(ts["b"].asnumpy(), arrays["b"])
    np.testing.assert_array_equal(ts["g"].asnumpy(), arrays["g"])

    scale, counters = Tensor([8.0], ms.float32), Tensor([1, 0, 0], ms.int32)
    ops.loss_scale_update(scale, counters, True)
    assert scale.asnumpy() == [4]
    assert counters.asnumpy().tolist() == [2, 1, 1]


def test_results_are_not_allocated_for_tensors():
    x = Tensor([1.0, 2.0])
    with pytest.raises(
        ValueError, match=r"^adasum_pair: out must be given unless a holds NumPy or PyTorch arrays, got "
    ):
        ops.adasum_pair(x, x)


def test_overlap_of_a_tensor_with_its_numpy_view():
    x = Tensor(np.ones(16, np.float32))
    with pytest.raises(ValueError, match=r"^adasum_pair: out\[0\] is written and must not overlap"):
        ops.adasum_pair(x[:8], x[8:], x.asnumpy()[4:12])


def test_gradients_of_a_network():
    net = nn.SequentialCell(nn.Dense(6, 5), nn.ReLU(), nn.Dense(5, 2))
    x = Tensor(np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32))
    grads = ms.grad(lambda data: net(data).sum(), None, net.trainable_params())(x)
    flat = np.concatenate([g.asnumpy().ravel() for g in grads]).astype(np.float64)
    assert ops.global_norm([g.contiguous() for g in grads]) == pytest.approx(np.linalg.norm(flat), rel=1e-12)


class Holder(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.p = Parameter(Tensor(np.ones(4, np.float32)), name="p")


def test_storage_that_moves():
    """set_data and loading put a parameter elsewhere; the next call must follow."""
    net = Holder()
    assert ops.global_norm(net.p) == 2
    net.p.set_data(Tensor(np.full(4, 3, np.float32)))
    assert ops.global_norm(net.p) == 6
    ms.load_param_into_net(net, {"p": Parameter(Tensor(np.full(4, 0.5, np.float32)), name="p")})
    assert ops.global_norm(net.p) == 1
