"""boost-ext doctor stops before anything is trained, whatever trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mindspore as ms
import pytest
from tests.ms import doctored
from typer.testing import Result

from boost_ext.ms.training.doctor import run_script

run, script = doctored.run, doctored.script

LOOPS = {
    "an optimizer": ("o = optim.Adam(net.trainable_params())", "o(grads())", "Adam"),
    "one that wraps another": ("o = optim.LARS(optim.SGD(net.trainable_params(), 0.1))", "o(grads())", "LARS"),
    "its own method": (
        "o = optim.Lamb(net.trainable_params(), 0.1)",
        "o.step_unless(no, one, grads())",
        "Lamb.step_unless",
    ),
    "one of the script": (
        "class Mine(optim.SGD):\n    def __call__(self, g):\n        return self.construct(g)\n"
        "o = Mine(net.trainable_params(), 0.1)",
        "o(grads())",
        "Mine",
    ),
    "a cell around it": (
        "o = optim.Momentum(net.trainable_params(), 0.1, 0.9)\nclass Step(nn.Cell):\n"
        "    def __init__(self):\n        super().__init__()\n        self.o = o\n"
        "    def construct(self, g):\n        return self.o(g)\nstep = Step()",
        "step(grads())",
        "Momentum",
    ),
    "a jit function": (
        "o = optim.Adam(net.trainable_params())\n@ms.jit\ndef step(g):\n    return o(g)",
        "step(grads())",
        "Adam in the graph of step",
    ),
    "a function captured by its bytecode": (
        "o = optim.Adam(net.trainable_params())\n@ms.jit(capture_mode='bytecode')\ndef step(g):\n    return o(g)",
        "step(grads())",
        "Adam",
    ),
    "a jit function that hides it": (
        "o = [optim.Adam(net.trainable_params())]\n@ms.jit\ndef step(g):\n    return o[0](g)",
        "step(grads())",
        "Adam in a graph",
    ),
    "the cells of freeze_cell": (
        "network, o = boost.GradientFreeze(2, 1, 0.5, 8).freeze_generate(nn.WithLossCell(net, loss_fn), optimizer)\n"
        "step = boost.freeze_cell(False, network, o, 1.0, ops.GradOperation(get_by_list=True, sens_param=True), False)",
        "step[0](x, y)",
        "TrainFreezeCell",
    ),
    "accumulation": ("o = boost.GradientAccumulation(2, optimizer)", "o(grads(), one)", "GradientAccumulation"),
    "a group of FreezeOpt": ("o = boost.FreezeOpt(optimizer)", "o.opts[0](grads())", "Step"),
    "a native op": (
        "from boost_ext.ms import native\nop = native.Accumulate()",
        "op(grads(), grads(), one, no)",
        "Accu",
    ),
    "a function on arrays": (
        "from boost_ext import ops as o",
        "o.sgd_step(net.fc.weight.asnumpy(), net.fc.weight.asnumpy(), learning_rate=0.1)",
        "boost_ext.ops.sgd_step",
    ),
}
OWN_LOOP = """
from boost_ext import boost, optim
import atexit
gradient = ms.value_and_grad(lambda: loss_fn(net(x), y), None, ms.ParameterTuple(net.trainable_params()))
grads = lambda: gradient()[1]
no, one = Tensor([False]), Tensor([1.0], ms.float32)
def weights():
    return [p.asnumpy().copy() for p in net.get_parameters()]
if sys.argv[1] == "graph":
    grads = lambda: tuple(Tensor(p.asnumpy()) for p in net.trainable_params())
    ms.set_context(mode=ms.GRAPH_MODE)
{make}
before = weights()
try:
    {step}
finally:
    same = all(np.array_equal(a, b) for a, b in zip(before, weights()))
    open("same.txt", "w").write(str(same))
"""


class TestLoopsOfTheirOwn:
    @pytest.mark.parametrize("loop", LOOPS)
    def test_stops_at_the_first_call_of_ours(self, script: Callable[[str], Path], mode: int, loop: str) -> None:
        make, step, named = LOOPS[loop]
        text = OWN_LOOP.format(make=make, step=step)
        report = run_script(script(text), ["graph" if mode == ms.GRAPH_MODE else "pynative"])
        assert report.outcome.startswith("stopped before the first call of "), report.outcome
        assert named in report.outcome
        assert "train_it.py:" in report.outcome
        assert Path("same.txt").read_text() == "True"
        assert report.healthy
        assert Path("rank_0").exists() == ("in a graph" in named), "MindSpore's file on a compilation that failed"

    def test_optimizers_are_named(self, run: Callable[..., Result], script: Callable[[str], Path]) -> None:
        text = "from boost_ext import optim\no = optim.Adam(net.trainable_params())\n"
        text += "nn.TrainOneStepCell(nn.WithLossCell(net, loss_fn), o)(x, y)"
        result = run(script(text))
        assert result.exit_code == 0, result.output
        assert "Optimizer of boost_ext: Adam, built at train_it.py:24" in result.output
        assert "No training cell" not in result.output

    def test_a_script_that_catches_everything(self, script: Callable[[str], Path]) -> None:
        text = "for i in range(3):\n    try:\n        optimizer(tuple(p.value() for p in optimizer.parameters))\n"
        text += "    except BaseException as error:\n        print(type(error))"
        report = run_script(script(text))
        assert report.outcome.startswith("stopped before the first call of Momentum, at train_it.py:25")

    def test_without_any_optimizer(self, script: Callable[[str], Path]) -> None:
        text = doctored.NETWORK.replace("optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)", "")
        path = script("")
        path.write_text(text + "ms.value_and_grad(lambda: loss_fn(net(x), y), None, net.fc.weight)()")
        report = run_script(path)
        assert report.outcome.startswith(
            "stopped before the first gradient, in a script without an optimizer, at train"
        )

    def test_layers_of_ours_are_no_step(self, script: Callable[[str], Path]) -> None:
        text = "from boost_ext import boost, Model\ndrop = boost.Dropout(p=0.5)\ndrop.set_train()\ndrop(x)\n"
        report = run_script(script(text + "Model(net, loss_fn, optimizer).train(1, data)"))
        assert report.outcome.startswith("stopped before Model.train")
        assert len(report.cells) == 1


class TestPlainScripts:
    """What would be applied, and where to change the script."""

    @pytest.mark.parametrize(
        ("code", "lines"),
        [
            (
                "model = ms.Model(net, loss_fn, optimizer)\nmodel.train(1, data)",
                ['train_it.py:23: boost_ext.Model(..., boost_level="O1") instead of mindspore.Model(...)'],
            ),
            (
                "step = nn.TrainOneStepCell(nn.WithLossCell(net, loss_fn), optimizer)\nstep(x, y)",
                ["train_it.py:23: boost_ext.boost.BoostTrainOneStepCell(...), or boost_ext.amp.build_train_network("],
            ),
            (
                "sense = Tensor([1024.0], ms.float32)\n"
                "step = nn.TrainOneStepWithLossScaleCell(nn.WithLossCell(net, loss_fn), optimizer, sense)\nstep(x, y)",
                ["train_it.py:24: boost_ext.boost.BoostTrainOneStepWithLossScaleCell(...)"],
            ),
            (
                "gradient = ms.value_and_grad(lambda: loss_fn(net(x), y), None, optimizer.parameters)\n"
                "loss, grads = gradient()\noptimizer(grads)",
                [
                    "train_it.py:25: the step that begins with the gradient: step = boost_ext.amp.build_train_network(",
                    "train_it.py:20: boost_ext.optim.Momentum(...) instead of mindspore.nn.Momentum(...)",
                ],
            ),
        ],
    )
    def test_plan_and_lines(
        self, run: Callable[..., Result], script: Callable[[str], Path], code: str, lines: list[str]
    ) -> None:
        result = run(script(code))
        text = " ".join(result.output.split())
        assert result.exit_code == 1
        assert "stopped before" in text
        assert "What boost_level O1 would do" in text
        assert "level O1 leaves it out (less_bn.bn_flag switches it on)" in text
        assert "freeze_p=0.7" in text
        for line in lines:
            assert line in text
        assert not Path("after.txt").exists()
