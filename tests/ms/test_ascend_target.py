"""device_target Ascend, on a machine without an NPU: cells are built there, and refuse to run, in words of ours.

MindSpore refuses such a target where it has no NPU, so the one function that is asked for it answers for it.
"""

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import mindspore as ms
import mindspore._c_expression as ms_core
import numpy as np
import pytest
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from boost_ext import boost, optim
from boost_ext.ms import native

TARGET = ms_core.ms_ctx_param.device_target
ask = ms_core.MSContext.get_param

CELLS = {name: () for name in native.__all__ if isinstance(getattr(native, name), type)}
CELLS |= {"DropoutKey": (0,), "DroppedOut": (0.5, False), "LossScaleUpdate": (2.0, 1000, 2.0**24)}
for base in ("NativeCell", "PackedCell"):
    del CELLS[base]


@contextmanager
def ascend() -> Iterator[None]:
    def get_param(self, key):
        return "Ascend" if key == TARGET else ask(self, key)

    ms_core.MSContext.get_param = get_param
    try:
        assert ms.get_context("device_target") == "Ascend"
        yield
    finally:
        ms_core.MSContext.get_param = ask


def refused(op: str, call: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError) as caught:
        call()
    assert str(caught.value).splitlines()[0] == (
        f"{op}: device_target must be CPU, got Ascend; cells and optimizers of boost_ext run on the CPU alone, "
        "boost_ext.ops on NPU tensors too (docs/ascend.md)"
    )


class Net(nn.Cell):
    """A writing op and a pure one, inside another cell."""

    def __init__(self) -> None:
        super().__init__()
        self.clip = native.ClipByGlobalNorm()
        self.clip_norm, self.scale = Tensor([9.0], ms.float32), Tensor([1.0], ms.float32)
        self.flatten = native.Flatten()
        self.out = Parameter(Tensor([0.0], ms.float32), name="out")
        self.weights = ParameterTuple([Parameter(Tensor([3.0, 4.0], ms.float32), name="w")])

    def construct(self, pure: bool) -> Tensor:
        if pure:
            return self.flatten(self.weights)
        return ops.depend(self.out, self.clip(self.weights, self.clip_norm, self.scale, self.out))


@pytest.mark.parametrize("name", CELLS)
def test_every_cell_can_be_built(name):
    with ascend():
        getattr(native, name)(*CELLS[name])


def test_cells_refuse(mode):
    with ascend():
        net = Net()
        for pure, op in ((False, "clip_by_global_norm"), (True, "joined")):
            refused(op, lambda pure=pure: net(pure))
            refused(op, lambda pure=pure: ms.jit(net.construct)(pure))
        refused("adasum_part_keep", lambda: native.AdasumPartKeep()(*[Tensor(np.zeros(4))] * 4))
    assert net.out.asnumpy() == 0
    # What counts is the device where the cell runs, not where it was made; and copies are cells like others.
    for cell in (net, copy.deepcopy(net)):
        assert cell(False).asnumpy() == 5
        assert cell(True).asnumpy().tolist() == [3, 4]
    pickled = pickle.loads(pickle.dumps(net.flatten))
    assert pickled((Tensor([3.0, 4.0], ms.float32),)).asnumpy().tolist() == [3, 4]
    with ascend():
        refused("clip_by_global_norm", lambda: Net()(False))


@pytest.mark.parametrize("compile", ["step", "off"])
def test_training_refuses(compile):
    with ascend():
        network = nn.WithLossCell(nn.Dense(2, 1), nn.MSELoss())
        optimizer = optim.Momentum(network.trainable_params(), 0.1, 0.9)
        before = [p.asnumpy().copy() for p in network.trainable_params()]
        step = boost.BoostTrainOneStepCell(network, optimizer, compile=compile)
        x = Tensor(np.ones((3, 2), np.float32))
        refused("check_report", lambda: step(x, x[:, :1]))
        refused("Momentum", lambda: optimizer(tuple(p * 1.0 for p in network.trainable_params())))
    for p, b in zip(network.trainable_params(), before, strict=True):
        np.testing.assert_array_equal(p.asnumpy(), b)


def test_less_bn_rewrites_there():
    with ascend():
        network = nn.SequentialCell(nn.Dense(2, 3), nn.Dense(3, 1))
        assert boost.LessBN(network, fn_flag=True)(Tensor(np.ones((1, 2), np.float32))).shape == (1, 1)
