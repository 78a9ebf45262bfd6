"""The edits of boost-ext run --dry: a script before and after, in the forms that people write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from textwrap import dedent

import pytest

from boost_ext.cli.script_edits import diff, edited

VARIABLES = {"ONEDNN_MAX_CPU_ISA": "AVX2", "MS_DEV_HOST_BLOCKING_RUN": "1"}


def edit(source: str, level: str = "O0", variables: Mapping[str, str] | None = None) -> tuple[str, list[str]]:
    return edited(dedent(source), level, variables or {})


def patched(before: str, patch: str) -> str:
    """What ``patch`` does, for hunks that fit exactly."""
    lines, result, at = re.findall(r"[^\n]*\n|[^\n]+", before), [], 0
    for line in re.findall(r"[^\n]*\n", patch)[2:]:
        if found := re.match(r"@@ -(\d+)(?:,(\d+))? ", line):
            start = int(found[1]) - (found[2] != "0")
            result += lines[at:start]
            at = start
        elif line[0] in " -":
            assert lines[at].rstrip("\n") == line[1:].rstrip("\n")
            result += [lines[at]] * (line[0] == " ")
            at += 1
        elif line[0] == "+":
            result.append(line[1:])
    return "".join(result + lines[at:])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from mindspore import Model\nm = Model(n)\n", "from boost_ext import Model\nm = Model(n)\n"),
        (
            "from mindspore.train.model import Model as M\nm = M(n)\n",
            "from boost_ext import Model as M\nm = M(n)\n",
        ),
        (
            "from mindspore import nn, Model, Tensor\nm = Model(n)\n",
            "from mindspore import nn, Tensor\nfrom boost_ext import Model\nm = Model(n)\n",
        ),
        (
            "from mindspore.train import (\n    LossMonitor,  # prints\n    Model,\n)\nModel(n)\n",
            "from mindspore.train import (\n    LossMonitor,\n)\nfrom boost_ext import Model\nModel(n)\n",
        ),
        (
            "import mindspore as ms\n\nm = ms.train.Model(n)\n",
            "import mindspore as ms\nimport boost_ext\n\nm = boost_ext.Model(n)\n",
        ),
        (
            "import mindspore.nn as nn\nc = nn.TrainOneStepCell(n, o, 2.0)  # step\n",
            "import mindspore.nn as nn\nimport boost_ext.nn\nc = boost_ext.nn.TrainOneStepCell(n, o, 2.0)  # step\n",
        ),
        (
            "def f():\n    from mindspore.nn import TrainOneStepCell, TrainOneStepWithLossScaleCell\n"
            "    return TrainOneStepCell(n, o), TrainOneStepWithLossScaleCell(n, o, s)\n",
            "def f():\n    from boost_ext.nn import TrainOneStepCell\n"
            "    from boost_ext.nn import TrainOneStepWithLossScaleCell\n"
            "    return TrainOneStepCell(n, o), TrainOneStepWithLossScaleCell(n, o, s)\n",
        ),
        (
            "from mindspore import Tensor, Model, nn\nfrom mindspore.nn import Dense, TrainOneStepCell\n"
            "m = 'é', Model(n), TrainOneStepCell(n, o)",
            "from mindspore import Tensor, nn\nfrom boost_ext import Model\nfrom mindspore.nn import Dense\n"
            "from boost_ext.nn import TrainOneStepCell\nm = 'é', Model(n), TrainOneStepCell(n, o)",
        ),
    ],
    ids=["name", "alias", "among names", "parentheses", "attribute", "cell", "in a function", "unicode"],
)
def test_edited(before: str, after: str) -> None:
    changed, notes = edit(before)
    assert (changed, notes) == (after, [])
    text = diff(before, changed, "train.py")
    assert patched(before, text) == (changed if text else before)
    assert bool(text) == (before != after)


def test_a_base_class_and_isinstance_stay() -> None:
    before = """\
        from mindspore.nn import TrainOneStepCell
        class Mine(TrainOneStepCell):
            pass
        cell = TrainOneStepCell(n, o)
        assert isinstance(cell, TrainOneStepCell)
        """
    changed, notes = edit(before)
    assert changed == dedent(before).replace("cell = Train", "cell = boost_ext.nn.Train").replace(
        "Cell\nclass", "Cell\nimport boost_ext.nn\nclass"
    )
    assert notes == ["line 2: a class derived from mindspore.nn.TrainOneStepCell stays as it is"]


def test_a_level_is_an_argument() -> None:
    calls = "ms.Model(n, l,\n  o,\n)\nms.Model(n, boost_level='O0')\nms.Model(*a, **k)\nms.nn.TrainOneStepCell(n, o)\n"
    changed, notes = edit(f"import mindspore as ms\n{calls}", "O1")
    assert changed.splitlines()[3:] == [
        "boost_ext.Model(n, l,",
        '  o,boost_level="O1"',
        ")",
        "boost_ext.Model(n, boost_level='O0')",
        "boost_ext.Model(*a, **k)",
        'boost_ext.nn.TrainOneStepCell(n, o, boost_level="O1")',
    ]
    assert notes == [f"line {line}: boost_level O1 is yours to write here" for line in (5, 6)]


def test_the_variables_come_before_all_imports() -> None:
    source = '"""Convolves."""\n\nfrom __future__ import annotations\n\nimport numpy\n'
    changed, _ = edit(source, variables=VARIABLES)
    assert changed == (
        '"""Convolves."""\n\nfrom __future__ import annotations\n\nimport os\n\n'
        'os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")\n'
        'os.environ.setdefault("MS_DEV_HOST_BLOCKING_RUN", "1")\nimport numpy\n'
    )


def test_a_precision_is_a_line_after_the_imports_of_mindspore() -> None:
    source = "import mindspore as ms\nfrom mindspore import nn\nimport numpy\nms.Model(n)\n"
    changed, _ = edited(source, "O0", {}, "medium")
    assert changed == (
        "import mindspore as ms\nfrom mindspore import nn\nimport boost_ext\n\n"
        'boost_ext.set_float32_matmul_precision("medium")\nimport numpy\nboost_ext.Model(n)\n'
    )


def test_what_a_person_has_to_look_at() -> None:
    _, notes = edit("""\
        import mindspore as ms
        from mindspore.nn import *
        step = ms.amp.build_train_network(n, o)
        make = ms.Model
        def end(context):
            return context.net_outputs
        """)
    assert [note[:20] for note in notes] == [
        "line 4: mindspore.Mo",
        "line 2: names that *",
        "line 3: build_train_",
        "line 6: with boost_e",
    ]


def test_a_training_that_another_file_makes() -> None:
    """With nothing printed, it seemed that there is nothing to gain; and the outputs stay as they are."""
    changed, notes = edit("""\
        from mindcv import create_trainer
        def end(context):
            return context.net_outputs
        create_trainer(network, loss, optimizer).train(1, data)
        """)
    assert "boost_ext" not in changed
    assert edit("from torch import Model\nm = Model(n)\n") == ("from torch import Model\nm = Model(n)\n", notes)
    assert [note[:42] for note in notes] == ["no Model, training cell or build_train_net"]


@pytest.mark.parametrize("source", ["1" + "+1" * 50_000, "-" * 50_000 + "1"])
def test_nested_too_deeply_for_the_parser(source: str) -> None:
    with pytest.raises(ValueError, match=r"^run: script must be Python, got code that is nested too deeply$"):
        edited(source, "O1", VARIABLES)


def test_no_python() -> None:
    with pytest.raises(ValueError, match="run: script must be Python, got line 1: "):
        edit("a b\n")


@pytest.mark.parametrize("odd", ["\f", "\v", "\x1c", "\x85", "\u2028", "\r"])
def test_a_line_ends_where_patch_ends_it(odd: str) -> None:
    """A form feed is usual in older files; str.splitlines ends a line at each of these."""
    before = f"import mindspore as ms\n# a {odd} b\nm = ms.Model(n)\n"
    if odd == "\r":  # a file of Windows
        before = before.replace("\r", "").replace("\n", "\r\n")
    after, _ = edited(before, "O0", {})
    patch = diff(before, after, "train.py")
    assert "No newline" not in patch
    assert patched(before, patch) == after
