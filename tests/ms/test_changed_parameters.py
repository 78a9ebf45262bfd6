"""A Parameter that changes dtype or shape after a step, which is refused by its name: nothing is written beyond it.

In processes of their own: where it is not refused, the heap is destroyed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor
from tests.ms.tiers import in_pynative_mode

from boost_ext import optim
from boost_ext.ms import native

SETUP = """
import sys
import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from boost_ext import boost, optim

def tensor(*shape, dtype=np.float32):
    return Tensor(np.ones(shape, dtype))

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w, self.b = Parameter(tensor(64, 32), name="w"), Parameter(tensor(32), name="b")

    def construct(self, x):
        return (ops.matmul(x, ops.cast(self.w, ms.float32)) + self.b).mean()

CHANGES = {
    "dtype": lambda p: p.set_dtype(ms.float16),
    "wide": lambda p: p.set_dtype(ms.float64),
    "small": lambda p: p.set_data(tensor(7), slice_shape=True),
    "large": lambda p: p.set_data(tensor(640, 32), slice_shape=True),
    "turned": lambda p: p.set_data(tensor(32, 64), slice_shape=True),
    "strided": lambda p: p.set_data(tensor(32, 64).T),
}
WHICH = {
    "weight": lambda net, opt: net.w,
    "state": lambda net, opt: opt.moment1[0],
    "step": lambda net, opt: opt.global_step,
}

def refused(which, change, step, target):
    step()
    CHANGES[change](target)
    try:
        step()
    except ValueError as error:
        print(which, change, str(error).split(" (change")[0])
    else:
        print(which, change, "nothing")

def grads(net):
    return tuple(Tensor(np.ones(p.shape, np.float32)) for p in (net.w, net.b))
"""

EAGER = """
for which in WHICH:
    for change in CHANGES:
        if which != "step" or change in ("dtype", "wide"):
            net = Net()
            opt = optim.Adam(net.trainable_params(), 0.1)
            at_first = grads(net)
            refused(which, change, lambda: opt(at_first), WHICH[which](net, opt))
"""

COMPILED = """
ms.set_context(mode=int(sys.argv[1]))
for make in (optim.Adam, nn.Adam):
    for which, change in (("weight", "dtype"), ("state", "dtype"), ("state", "small"), ("step", "wide")):
        net = Net()
        opt = make(net.trainable_params(), 0.1)
        cell = boost.BoostTrainOneStepCell(net, opt).set_train()
        refused(which, change, lambda: cell(tensor(4, 64)), WHICH[which](net, opt))
"""

OTHERS = """
for make in (lambda p: optim.LARS(optim.Momentum(p, 0.1, 0.9)), lambda p: optim.AdaFactor(p)):
    net = Net()
    opt = make(net.trainable_params())
    at_first = grads(net)
    refused("weight", "dtype", lambda: opt(at_first), net.w)
"""

NAMES = {"weight": "w", "state": "moment1.w", "step": "global_step"}
SHAPES = {"weight": "(64, 32)", "state": "(64, 32)", "step": "(1,)"}
GOT = {"dtype": "Float16 {}", "wide": "Float64 {}", "small": "Float32 (7,)", "large": "Float32 (640, 32)"}
GOT["turned"] = "Float32 (32, 64)"


def lines(script: str, *arguments: str) -> list[str]:
    path = Path("script.py")  # the graph compiler reads it
    path.write_text(SETUP + script)
    command = [sys.executable, str(path), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr[-3000:]
    return [line for line in run.stdout.splitlines() if line.split(" ")[0] in NAMES]


def expected(owner: str, which: str, change: str) -> str:
    if change == "strided":
        return f"{which} {change} {owner}: {NAMES[which]} must be C-contiguous, got a strided Tensor"
    shape = SHAPES[which]
    was = f"{'Int32' if which == 'step' else 'Float32'} {shape}"
    got = GOT[change].format(shape)
    return f"{which} {change} {owner}: {NAMES[which]} must keep its dtype and shape, {was}, got {got}"


def test_an_eager_optimizer() -> None:
    cases = [(w, c) for w in NAMES for c in (*GOT, "strided") if w != "step" or c in ("dtype", "wide")]
    assert lines(EAGER) == [expected("Adam", *case) for case in cases]


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])
@in_pynative_mode
def test_a_compiled_step(mode: int) -> None:
    cases = [("weight", "dtype"), ("state", "dtype"), ("state", "small"), ("step", "wide")]
    assert lines(COMPILED, str(mode)) == [expected("training step", *case) for _ in range(2) for case in cases]


def test_other_optimizers() -> None:
    assert lines(OTHERS) == [expected(owner, "weight", "dtype") for owner in ("Momentum", "AdaFactor")]


def test_half_precision_since_the_optimizer_was_made() -> None:
    """Then there are no masters, and small steps would be lost."""
    weight = Parameter(Tensor(np.ones(8, np.float32)), name="w")
    optimizer = optim.Adam([weight], 0.1)
    weight.set_dtype(ms.float16)
    message = r"Adam: w must keep the dtype that it had when the optimizer was made, got Float16"
    with pytest.raises(ValueError, match=message):
        optimizer((Tensor(np.ones(8, np.float16)),))


def test_storage_may_move() -> None:
    """One Tensor alone, too."""
    weight = Parameter(Tensor(np.ones(8, np.float32)), name="w")
    fixed = native.fixed_arrays(weight, "owner")
    weight.set_data(Tensor(np.zeros(8, np.float32)))
    native.require_same(fixed)
    weight.set_data(Tensor(np.zeros(9, np.float32)), slice_shape=True)
    with pytest.raises(ValueError, match=r"owner: w must keep its dtype and shape, Float32 \(8,\), got Float32 \(9,\)"):
        native.require_same(fixed)


def test_arrays_of_others_are_refused() -> None:
    with pytest.raises(TypeError, match=r"owner: tensors\[0\] must be a Tensor of MindSpore, got numpy.ndarray"):
        native.fixed_arrays(np.ones(3, np.float32), "owner")
