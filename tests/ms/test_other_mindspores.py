"""What MindSpore announces to remove may go, and a version that was never tested is named once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_TRAINS = """
import mindspore as ms
import mindspore.ops.operations._grad_ops
import numpy as np
from mindspore import Tensor, nn

REMOVED = ("Momentum", "AdamWeightDecay", "Lamb", "LazyAdam", "AdamOffload", "AdaSumByGradWrapCell",
           "AdaSumByDeltaWeightWrapCell", "LARS", "FTRL", "ProximalAdagrad")
for name in REMOVED:
    delattr(nn, name)
del mindspore.ops.operations._grad_ops.SliceGrad  # of which the faster functions of compiled steps are made

import boost_ext
from boost_ext import amp, boost, callbacks, checkpoint, distributed, optim
from boost_ext import nn as ours
from boost_ext.ms.training import doctor, swaps
import boost_ext.demo.runs

ms.set_context(mode=ms.GRAPH_MODE)
x, y = Tensor(np.ones((4, 3), np.float32)), Tensor(np.zeros((4, 2), np.float32))
for made in (
    lambda p: nn.SGD(p, 0.1, momentum=0.9),
    lambda p: optim.Momentum(p, 0.1, 0.9),
    lambda p: optim.LARS(optim.Momentum(p, 0.1, 0.9)),
    lambda p: optim.AdamWeightDecay(p),
):
    net = nn.SequentialCell(nn.Dense(3, 5), nn.ReLU(), nn.Dense(5, 2))
    step = amp.build_train_network(net, made(net.trainable_params()), nn.MSELoss(), boost_level="O1",
                                   boost_config_dict={"grad_freeze": {"total_steps": 4}})
    losses = [float(step(x, y)[0].asnumpy()) for _ in range(3)]
    assert losses[2] < losses[0], losses
print("trained")
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False, cwd=folder
    )


def test_trains_without_the_classes_that_are_to_go(tmp_path: Path) -> None:
    (tmp_path / "trains.py").write_text(_TRAINS)  # the graph compiler reads sources from files
    done = run("import trains", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "trained"


def test_a_version_that_was_never_tested_is_named_once(tmp_path: Path) -> None:
    code = "import mindspore\nmindspore.__version__ = {!r}\nimport boost_ext.optim, boost_ext.boost, boost_ext.amp"
    text = "boost_ext was tested with MindSpore 2.10"
    assert run(code.format("2.11.0"), tmp_path).stderr.count(f"{text}, and this is MindSpore 2.11.0") == 1
    assert text not in run(code.format("2.10.1"), tmp_path).stderr
