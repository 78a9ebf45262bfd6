"""boost-ext run beside python, for scripts that need no MindSpore: what a script sees, and how it ends."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from rich.console import Console

from boost_ext._core import has_narrow_products
from boost_ext.cli import script_run
from boost_ext.scripts import Swap

SEES = """
import multiprocessing, os, pickle, sys
class Mine:
    def __init__(self, value):
        self.value = value
def double(mine):
    return Mine(2 * mine.value)
if __name__ == "__main__":
    main = sys.modules["__main__"]
    print(sys.argv, sys.path[0], __file__, __name__, __spec__, main.Mine is Mine)
    print(pickle.loads(pickle.dumps(Mine(3))).value)
    for way in ("spawn", "fork"):
        with multiprocessing.get_context(way).Pool(1) as pool:
            print(way, pool.map(double, [Mine(4)])[0].value, flush=True)
    import beside
"""
RAISES = """
def inner():
    try:
        return {}["key"]
    except KeyError as error:
        raise ValueError("of the script") from error
inner()
"""


def ended(command: list[str], folder: Path) -> tuple[int, str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_MAX_CPU_ISA")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    lines = done.stderr.splitlines(keepends=True)
    return done.returncode, done.stdout, "".join(x for x in lines if not x.startswith("boost-ext run:"))


@pytest.fixture
def both(tmp_path: Path) -> Callable[..., tuple[tuple[int, str, str], tuple[int, str, str]]]:
    def both(text: str, *arguments: str, name: str = "scripts/train.py") -> tuple[tuple[int, str, str], ...]:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        (path.parent / "beside.py").write_text("print(__name__)\n")
        path.write_text(text)
        ours = [sys.executable, "-m", "boost_ext", "run", name, *arguments]
        return ended([sys.executable, name, *arguments], tmp_path), ended(ours, tmp_path)

    return both  # type: ignore[return-value]


def test_a_script_sees_what_it_sees_under_python(both: Callable[..., tuple[tuple[int, str, str], ...]]) -> None:
    plain, ours = both(SEES, "--level", "O7", "--help", "x", "-v")
    assert plain == ours
    assert plain[0] == 0
    assert plain[1].startswith("['scripts/train.py', '--level', 'O7', '--help', 'x', '-v'] ")
    assert plain[1].endswith("spawn 8\nfork 8\nbeside\n")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (RAISES, 1),
        ("x = 1\nif x\n", 1),
        ("import sys\nsys.exit(7)\n", 7),
        ("import sys\nsys.excepthook = lambda *error: print(error[1])\nraise OSError(32, 'pipe')\n", 1),
    ],
    ids=["exception", "syntax", "exit", "hook"],
)
def test_how_a_script_ends(both: Callable[..., tuple[tuple[int, str, str], ...]], text: str, code: int) -> None:
    plain, ours = both(text)
    assert plain == ours
    assert plain[0] == code


def test_a_module(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "other.py").write_text("print(__name__)\n")
    text = (
        "import sys\nfrom . import other\nprint(sys.argv, sys.path[0], __file__, __package__, __spec__.name)\n1 / 0\n"
    )
    for name in ("train.py", "__main__.py"):
        (tmp_path / "package" / name).write_text(text)
    for name in ("package.train", "package"):
        plain = ended([sys.executable, "-m", name, "-m", "x"], tmp_path)
        ours = ended([sys.executable, "-m", "boost_ext", "run", "-m", name, "-m", "x"], tmp_path)
        assert plain[:2] == ours[:2]
        assert plain[1].startswith("package.other\n")
        assert ours[2].splitlines()[1:] == [x for x in plain[2].splitlines()[1:] if "frozen runpy" not in x]
    code, _, error = ended([sys.executable, "-m", "boost_ext", "run", "-m", "package.none"], tmp_path)
    assert (code, error) == (1, "error: run: script must be the name of a module with -m, got package.none\n")


def test_the_report(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import sys\nsys.exit(3)\n")
    command = [sys.executable, "-m", "boost_ext", "run", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == ""
    assert f"boost-ext run: {path} exited with 3 after " in done.stderr
    assert "nothing swapped: no mindspore.Model with an optimizer, no training cell of mindspore.nn" in done.stderr
    other = {**os.environ, "MS_NODE_ID": "1"}  # another worker of msrun
    done = subprocess.run(command, env=other, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.usefixtures("medium_precision")
@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_the_precision_of_products(precision: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import boost_ext\nprint(boost_ext.float32_matmul_precision())\n")
    command = [sys.executable, "-m", "boost_ext", "run", "--precision", precision, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, f"{precision}\n")
    says = [line for line in done.stderr.splitlines() if "bfloat16" in line]
    assert len(says) == (precision == "medium")
    assert all(line.startswith("boost-ext run: no effect") != has_narrow_products() for line in says)


def test_what_is_set_before_the_script_and_with_a_convolution(tmp_path: Path) -> None:
    """Products of matrices lose by oneDNN's limit, so it waits for a convolution larger than 1 × 1."""
    pytest.importorskip("mindspore")
    path = tmp_path / "train.py"
    path.write_text(
        dedent("""\
        import os
        names = "MS_DEV_HOST_BLOCKING_RUN", "ONEDNN_MAX_CPU_ISA"
        said = [[os.environ.get(name) for name in names]]
        from mindspore import nn, ops
        for make in (lambda: nn.Dense(2, 2), lambda: nn.Conv2d(1, 1, 1), lambda: nn.Conv1d(1, 1, 3)):
            make()
            said.append(os.environ.get(names[1]))
        print(said)
        """)
    )
    code = dedent("""\
        import sys
        from boost_ext import convolutions, machine
        from boost_ext.cli import commands as cli
        convolutions.build_info = lambda: {"cpu_isas": ["avx512"]}
        machine.usable_cores = lambda: 2
        cli.main()
        """)
    clean = {name: "" for name in ("MS_DEV_HOST_BLOCKING_RUN", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")}
    done = subprocess.run(
        [sys.executable, "-c", code, "run", str(path)],
        env={**os.environ, **clean},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "[['1', ''], '', '', 'AVX2']\n"
    assert "ONEDNN_MAX_CPU_ISA=AVX2 was set" in done.stderr
    assert "MS_DEV_HOST_BLOCKING_RUN=1 was set" in done.stderr


def test_compare(tmp_path: Path, pretend: Callable[..., None], capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import os, sys\nprint('boost_ext' in sys.modules, sys.argv[1:], os.environ['MS_DEV_HOST_BLOCKING_RUN'])\n"
    )
    pretend(avx512=True)
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})  # the processes have one core
        children = script_run.compare([str(path)], ["--flag"], ["--level", "O0"])
    finally:
        os.sched_setaffinity(0, allowed)
    first, *plain = capfd.readouterr().out.splitlines()
    assert first == "True ['--flag'] 1"
    assert plain == ["False ['--flag'] 1", "False ['--flag'] "]
    assert list(children) == ["boost_ext", "plain, MS_DEV_HOST_BLOCKING_RUN=1", "plain"]
    assert all(child.code == 0 and child.seconds > 0 and child.megabytes > 5 for child in children.values())


def test_the_comparison() -> None:
    console = Console(file=io.StringIO(), width=200)
    child = script_run.Child
    script_run.print_comparison({"boost_ext": child(0, 2.0, 3.0, 300), "plain": child(0, 5.0, 6.0, 400)}, console)
    script_run.print_comparison({"boost_ext": child(3, 2.0, 3.0, 300), "plain": child(0, 5.0, 6.0, 400)}, console)
    ratios = "boost_ext 2.50 times as fast, in 0.75 of the memory"
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "boost-ext run: boost_ext: 2.0 s, 3.0 CPU s, peak memory 300 MB",
        f"boost-ext run: plain: 5.0 s, 6.0 CPU s, peak memory 400 MB; {ratios}",
        "boost-ext run: boost_ext: 2.0 s, 3.0 CPU s, peak memory 300 MB, exit code 3",
        "boost-ext run: plain: 5.0 s, 6.0 CPU s, peak memory 400 MB",
    ]


def test_after_mindspore(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Once, when it is there, and not before: scripts set variables first."""
    (tmp_path / "mindspore.py").write_text("seen.append('imported')\n")
    code = dedent("""\
        import builtins, sys
        builtins.seen = []
        from boost_ext.cli.script_run import after_mindspore
        after_mindspore(lambda: seen.append("then"))
        seen.append("script")
        import mindspore, mindspore
        after_mindspore(lambda: seen.append("at once"))
        print(seen)
        """)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(["script", "imported", "then", "at once"])


def test_steps_are_counted_by_python_or_by_the_cell() -> None:
    swap = Swap("train.py:1", "mindspore.Model", None, lambda: 9)  # type: ignore[arg-type]
    for began, end in ((0.0, 2.0), (2.5, 3.0), (3.0, 3.5), (3.5, 4.0)):
        swap.stepped(began, end)
    assert (swap.first, list(swap.between), swap.calls) == (2.0, [1.0, 0.5, 0.5], 4)
