"""boost-ext doctor: what a configuration or a script really uses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import pytest
from mindspore import nn
from tests.ms import doctored
from typer.testing import Result

from boost_ext import ops
from boost_ext.ms.training import first_step
from boost_ext.ms.training.doctor import run_script
from boost_ext.scripts import mindspore_boost_uses

run, script = doctored.run, doctored.script


class TestConfiguration:
    @pytest.fixture
    def config(self, tmp_path: Path) -> Callable[[Any], Path]:
        def write(content: Any) -> Path:
            path = tmp_path / "boost.json"
            path.write_text(json.dumps(content))
            return path

        return write

    def test_plan(self, run: Callable[..., Result], config: Callable[[Any], Path]) -> None:
        result = run(config({"grad_freeze": {"freeze_p": 0.5}}), "--level", "O1")
        assert result.exit_code == 0, result.output
        assert "boost plan: level O1, mode auto" in result.output
        assert "freeze_p=0.5" in result.output

    @pytest.mark.parametrize(("level", "freeze_p"), [("O1", 0.7), ("O2", 0.6)])
    def test_a_levels_own_defaults(
        self, run: Callable[..., Result], config: Callable[[Any], Path], level: str, freeze_p: float
    ) -> None:
        for mode in ("auto", "manual"):
            text = " ".join(run(config({}), "--level", level, "--mode", mode).output.split())
            assert f"freeze_p={freeze_p}" in text
            assert f"level {level} leaves it out (less_bn.fn_flag switches it on)" in text
        everything = {"bn_flag": True, "fn_flag": True}
        given = run(config({"less_bn": everything, "grad_freeze": {"freeze_p": 0.6}}), "--level", level).output
        assert "freeze_p=0.6" in given
        assert "leaves it out" not in given

    def test_mode_and_ranks(self, run: Callable[..., Result], config: Callable[[Any], Path]) -> None:
        path = config({"boost": {"adasum": True}})
        assert "mode auto ignores" in run(path).output
        for ranks, text in (
            (4, "4 ranks with common.device_number 8 are one"),
            (12, "must divide the number of ranks"),
        ):
            assert text in " ".join(run(path, "--mode", "manual", "--ranks", ranks).output.replace("│", "").split())

    @pytest.mark.parametrize(
        ("content", "options", "message"),
        [
            ({"boost": {"adasun": True}}, [], "did you mean 'adasum'"),
            ({"grad_freeze": {"freeze_p": "a"}}, [], "freeze_p: must be a number"),
            ({}, ["--level", "O4"], "level must be one of"),
            ({}, ["--mode", "some"], "boost.mode: must be one of"),
            ({}, ["--mode", "enable_all"], "dim_reduce.weight_load_dir"),
            ({}, ["argument"], "a configuration takes no arguments"),
        ],
    )
    def test_refused(
        self,
        run: Callable[..., Result],
        config: Callable[[Any], Path],
        content: Any,
        options: list[str],
        message: str,
    ) -> None:
        result = run(config(content), *options)
        assert result.exit_code == 1
        assert message in " ".join(result.output.split())
        assert "Traceback" not in result.output

    def test_slow_convolutions(
        self, run: Callable[..., Result], config: Callable[[Any], Path], pretend: Callable[..., None]
    ) -> None:
        path = config({})
        pretend(avx512=True)
        assert "set ONEDNN_MAX_CPU_ISA=AVX2" in run(path).output
        pretend(avx512=True, onednn="AVX2")
        assert "ONEDNN" not in run(path).output

    def test_missing(self, run: Callable[..., Result], tmp_path: Path) -> None:
        result = run(tmp_path / "no.json")
        assert result.exit_code == 1
        assert "target must be an existing .json or .py file" in result.output


class TestScript:
    def test_model(self, run: Callable[..., Result], script: Callable[[str], Path]) -> None:
        path = script(
            """
            from boost_ext import Model
            model = Model(net, loss_fn, optimizer, boost_level="O2")
            model.train(1, data)
            """
        )
        result = run(path)
        text = " ".join(result.output.split())
        assert result.exit_code == 0, result.output
        assert "stopped before Model.train, at train_it.py:26" in text
        assert "BoostTrainOneStepCell, built at train_it.py:25" in text
        assert 'removed=["bn1"]' in text
        assert "removed 1 of 2 batch norms" in text
        assert "trains: 6 parameters of 71 elements" in text
        assert "freeze_p=0.6" in text
        assert "frozen elements of each group: 0: 0.0%" in text
        assert not Path("after.txt").exists()

    @pytest.mark.parametrize(
        ("own", "told"), [("", True), ("import os; os.environ['ONEDNN_MAX_CPU_ISA'] = 'AVX2'", False)]
    )
    def test_slow_convolutions(
        self,
        run: Callable[..., Result],
        script: Callable[[str], Path],
        pretend: Callable[..., None],
        own: str,
        told: bool,
    ) -> None:
        pretend(avx512=True)
        result = run(script(f"{own}\nfrom boost_ext import Model\nModel(net, loss_fn, optimizer).train(1, data)"))
        assert result.exit_code == 0, result.output
        assert ("set ONEDNN_MAX_CPU_ISA=AVX2" in result.output) == told

    def test_cells_without_a_plan(self, script: Callable[[str], Path]) -> None:
        report = run_script(
            script(
                """
                from boost_ext import boost
                loss_net = nn.WithLossCell(net, loss_fn)
                cell = boost.BoostTrainOneStepCell(loss_net, optimizer, accumulation_steps=4)
                other = boost.BoostTrainOneStepWithLossScaleCell(loss_net, optimizer, Tensor(64.0))
                try:
                    other(x, y)
                except Exception:
                    pass
                """
            )
        )
        assert report.outcome.startswith(
            "stopped before the first call of BoostTrainOneStepWithLossScaleCell, at train_it"
        )
        assert [cell.cell for cell in report.cells] == ["BoostTrainOneStepCell", "BoostTrainOneStepWithLossScaleCell"]
        assert [cell.plan for cell in report.cells] == [None, None]
        assert report.cells[0].facts["micro-batches for each update"] == "4"
        assert report.cells[1].facts["loss scale"] == "64"
        assert report.healthy

    def test_amp_and_arguments(self, script: Callable[[str], Path]) -> None:
        report = run_script(
            script(
                """
                from boost_ext import amp
                cell = amp.build_train_network(net, optimizer, loss_fn, level="O2", boost_level=sys.argv[1])
                cell(x, y)
                """
            ),
            ["O1"],
        )
        assert report.cells[0].plan.level == "O1"
        assert report.cells[0].facts["loss scale"] == f"{2**24:g}"
        assert sys.argv[0] != report.script

    def test_nothing_was_trained_and_nothing_stays_behind(self, script: Callable[[str], Path]) -> None:
        def attributes() -> list[Any]:
            api = ms.graph.api
            owners = [ms.Model, api._JitExecutor, api._PyNativeExecutor, api.PIJitCaptureContext, ms.graph._parse, ops]
            return [{k: v for k, v in vars(o).items() if callable(v)} for o in (*owners, *classes)]

        classes, path = list(first_step.family(nn.Cell)), list(sys.path)
        before = attributes()
        run_script(script("nn.TrainOneStepCell(nn.WithLossCell(net, loss_fn), optimizer)(x, y)"))
        assert attributes() == before
        assert "__init_subclass__" not in vars(nn.Cell)
        assert sys.path == path

    @pytest.mark.parametrize(
        ("code", "outcome"),
        [
            (
                "nn.TrainOneStepCell(nn.WithLossCell(net, loss_fn), optimizer)(x, y)",
                "the first call of TrainOneStepCell",
            ),
            ("ms.Model(net, loss_fn, optimizer).train(1, data)", "stopped before Model.train"),
            ("optimizer(tuple(p.value() for p in optimizer.parameters))", "the first call of Momentum"),
            ("pass", "ran to its end without a training step"),
            ("sys.exit(0)", "exited with 0 before a training step"),
        ],
    )
    def test_never_builds_a_cell(
        self, run: Callable[..., Result], script: Callable[[str], Path], code: str, outcome: str
    ) -> None:
        result = run(script(code))
        assert result.exit_code == 1
        assert outcome in " ".join(result.output.split())
        assert "No training cell of boost_ext was built" in result.output

    @pytest.mark.parametrize("code", ["cell(x, y)", "ms.Model(cell).train(1, data)"], ids=["cell", "model"])
    def test_a_derived_cell_keeps_its_construct(self, script: Callable[[str], Path], code: str) -> None:
        """A Model at a level refuses a network that trains itself, and another cell has not what the class adds."""
        report = run_script(
            script(
                f"""
                class Averaging(nn.TrainOneStepWithLossScaleCell):
                    def construct(self, *inputs):
                        return self.network(*inputs)
                cell = Averaging(nn.WithLossCell(net, loss_fn), optimizer, Tensor(1.0, ms.float32))
                {code}
                """
            )
        )
        name = "nn.TrainOneStepWithLossScaleCell"
        ours = f"boost_ext.{name} instead of mindspore.{name} as the base of Averaging, whose construct stays"
        optional = "boost_ext.optim.Momentum(...) instead of mindspore.nn.Momentum(...): optional"
        assert report.changes == [("train_it.py:27", ours), ("train_it.py:20", optional)]
        assert report.would is not None
        assert report.would["grad_freeze"].details["groups"] == 2

    def test_a_refused_configuration(self, run: Callable[..., Result], script: Callable[[str], Path]) -> None:
        result = run(
            script(
                """
                from boost_ext import Model
                Model(net, loss_fn, optimizer, boost_config_dict={"boost": {"mode": "manual", "lessbn": True}})
                """
            )
        )
        assert result.exit_code == 1
        assert "failed before a training step" in result.output
        assert "did you mean 'less_bn'" in result.output
        assert "train_it.py" in result.output

    @pytest.mark.parametrize(
        ("code", "line"),
        [
            (
                "from mindspore import boost\nboost.BoostTrainOneStepCell(nn.WithLossCell(net, loss_fn), optimizer)",
                "from mindspore import boost",
            ),
            ("import mindspore.boost as b", "import mindspore.boost as b"),
            ("ms.boost", "ms.boost"),
            (
                "ms.Model(net, loss_fn, optimizer, {'loss'}, boost_level='O1').train(1, data)",
                "Model with boost_level 'O1'",
            ),
        ],
    )
    def test_mindspores_boost_is_reported(
        self, run: Callable[..., Result], script: Callable[[str], Path], code: str, line: str
    ) -> None:
        result = run(script(code))
        assert result.exit_code == 1
        assert "It uses mindspore.boost" in result.output
        assert line in result.output

    def test_modules_beside_the_script_are_read_too(self, script: Callable[[str], Path], tmp_path: Path) -> None:
        (tmp_path / "my_network.py").write_text("from mindspore.boost import LessBN\n")
        report = run_script(script("import my_network"))
        assert report.others == ["my_network.py:1: from mindspore.boost import LessBN"]

    def test_options_are_for_configurations(self, run: Callable[..., Result], script: Callable[[str], Path]) -> None:
        result = run(script("pass"), "--level", "O1")
        assert result.exit_code == 1
        assert "are for a configuration" in result.output


def test_a_script_without_mindspore_says_what_to_install(script: Callable[[str], Path]) -> None:
    code = "import sys; sys.modules['mindspore'] = None\nfrom boost_ext.cli.commands import main\nmain()"
    command = [sys.executable, "-c", code, "doctor", str(script("pass"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "pip install 'boost_ext[mindspore]'" in done.stderr


def test_boost_ext_is_no_use_of_mindspores(tmp_path: Path) -> None:
    path = tmp_path / "good.py"
    path.write_text("import mindspore as ms\nfrom boost_ext import boost\nboost.LessBN\nms.amp\n")
    assert not list(mindspore_boost_uses(path))


def test_a_form_feed_ends_no_line(tmp_path: Path) -> None:
    path = tmp_path / "old.py"
    path.write_text("x = 1\n\x0c\nimport mindspore.boost\n")
    assert list(mindspore_boost_uses(path)) == ["old.py:3: import mindspore.boost"]
