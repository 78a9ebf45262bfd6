"""The command boost-ext, as far as it goes without MindSpore."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

import boost_ext
from boost_ext import convolutions
from boost_ext.bench.harness import Row
from boost_ext.cli import bench
from boost_ext.cli import commands as cli
from boost_ext.cli.commands import app
from boost_ext.pca import load_matrix
from boost_ext.subspace.reference import reference_parameters

# Whoever imports one of these gets the error of a machine that does not have it.
_WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(["mindspore", "sklearn", "jinja2", "matplotlib", "safetensors"]))
from boost_ext.cli.commands import main
sys.argv[0] = "boost-ext"
main()
"""


def _without_extras(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def run() -> Callable[..., Result]:
    runner = CliRunner()
    return lambda *arguments, columns=200: runner.invoke(
        app, [str(a) for a in arguments], env={"COLUMNS": str(columns)}
    )


def test_importing_the_command_imports_no_framework() -> None:
    code = "import boost_ext.cli.commands, sys; "
    code += "print([m for m in ('mindspore', 'sklearn', 'jinja2', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_version_and_help(run: Callable[..., Result]) -> None:
    assert run("--version").output == f"boost-ext {boost_ext.__version__}\n"
    assert run("-h").output == run("--help").output
    assert "Usage: " in run("info", "-h").output


def test_info_works_without_the_extras() -> None:
    done = _without_extras("info")
    assert done.returncode == 0, done.stderr
    assert boost_ext.__version__ in done.stdout
    assert boost_ext.build_info()["isa"] in done.stdout


def test_info_as_json_is_the_build_info_and_the_versions() -> None:
    done = _without_extras("info", "--json")
    content = json.loads(done.stdout)
    assert content.items() >= {k: v for k, v in boost_ext.build_info().items() if k != "threads"}.items()
    assert content["packages"]["numpy"] == np.__version__
    assert content["convolutions"] == {"limit": convolutions.limit(), "advice": convolutions.advice()}
    assert {"cpu", "libc", "features", "cores_allowed", "cores_limit", "memory", "load"} <= set(content["machine"])
    assert "flags" in content


def test_nothing_is_cut_off_at_40_columns(run: Callable[..., Result]) -> None:
    result = run("info", columns=40)
    assert "…" not in result.output
    assert all(len(line) <= 40 for line in result.output.splitlines())
    words = result.output.split()
    assert all(word in words for word in boost_ext.build_info()["flags"].split())


def test_bench() -> None:
    """Of the host's peers alone."""
    done = _without_extras("bench", "--elements", "65536", "--seconds", "0.01", "--only", "global_norm", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    content = json.loads(done.stdout)
    assert [row["peer"] for row in content["rows"]] == ["read bandwidth", "NumPy dot"]
    assert all(row["ratio"] > 0 and row["error"] is None for row in content["rows"])


@pytest.mark.parametrize("width", [40, 80])
def test_the_table_of_bench(width: int) -> None:
    good = Row("a case, 60 tensors", 123.4, 0.1, "a peer", 98765.0, 0.1, 12345.67, None, 5)
    rows = [replace(good, peer="read bandwidth", bandwidth=True, ratio=0.87), good, replace(good, error="it is off")]
    screen = io.StringIO()
    Console(file=screen, width=width).print(bench.table(rows))
    text = " ".join(screen.getvalue().split())
    assert all(len(line) <= width for line in screen.getvalue().splitlines())
    assert all(word in text for word in ("123.4", "98765", "12345.67", "0.87", "no answer"))


def test_bench_refuses_an_unknown_case(run: Callable[..., Result]) -> None:
    result = run("bench", "--only", "norm")
    assert result.exit_code == 1
    assert "bench: --only must be one of guarded_step, unscale_and_check, global_norm" in result.output


@pytest.mark.parametrize(("limit", "row"), [("", "slow: set ONEDNN_MAX_CPU_ISA=AVX2"), ("AVX2", "limited to AVX2")])
def test_info_tells_how_mindspore_convolves(
    run: Callable[..., Result], pretend: Callable[..., None], limit: str, row: str
) -> None:
    pretend(avx512=True, onednn=limit)
    (line,) = [line for line in run("info").output.splitlines() if line.strip().startswith("convolutions")]
    assert row in line


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ([], []),
        (["info"], ["--json"]),
        (["bench"], ["--only", "--elements", "--seconds", "--json"]),
        (["run"], ["--level", "--eager", "--dry", "--compare"]),
        (["train"], ["--epochs", "--batch-size", "--output", "--mode", "--seed", "--quick", "--runs", "--target"]),
        (["pca"], ["--n-components", "--output", "--dtype", "--reference", "--exclude"]),
    ],
    ids=["all", "info", "bench", "run", "train", "pca"],
)
def test_help(run: Callable[..., Result], command: list[str], options: list[str]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", result.output)  # typer colours its help on CI machines, terminal or not
    assert "Usage" in text
    for option in options:
        assert option in text


def test_run_shows_what_one_would_write(
    run: Callable[..., Result], pretend: Callable[..., None], tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text("from mindspore import Model\nmodel = Model(net, loss)\nraise SystemExit(3)\n")
    pretend(avx512=True, cores=2)
    result = run("run", "--dry", "--level", "O1", path, "--dry")
    assert result.exit_code == 0
    assert convolutions.advice() in result.stderr.replace("\n", " ")
    assert result.stdout == (
        f"--- {path}\n+++ {path}\n@@ -1,3 +1,6 @@\n"
        "-from mindspore import Model\n-model = Model(net, loss)\n"
        '+import os\n+\n+os.environ.setdefault("MS_DEV_HOST_BLOCKING_RUN", "1")\n'
        '+from boost_ext import Model\n+model = Model(net, loss, boost_level="O1")\n raise SystemExit(3)\n'
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "run: script must be an existing Python file, got missing.py"),
        (["--dry", "--compare", __file__], "run: --dry and --compare must not be given together"),
        (["--dry", "--eager", __file__], "run: --dry and --eager must not be given together"),
    ],
)
def test_run_refuses(run: Callable[..., Result], arguments: list[str], message: str) -> None:
    result = run("run", *arguments)
    assert result.exit_code == 1
    assert message in result.output


def test_train_without_the_extra_says_what_to_install(tmp_path: Path) -> None:
    done = _without_extras("train", "--output", str(tmp_path / "run"))
    assert done.returncode == 1
    assert "pip install 'boost_ext[train]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_train_refuses_a_directory_with_files(run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    result = run("train", "--output", tmp_path)
    assert result.exit_code == 1
    assert "must be a new or empty directory" in result.output


@pytest.mark.parametrize("option", [["--runs", "amp"], ["--target", 0.9]])
def test_ranks_train_a_pair_of_their_own(run: Callable[..., Result], tmp_path: Path, option: list[Any]) -> None:
    result = run("train", "--output", tmp_path / "run", "--ranks", 2, "--quick", *option)
    assert result.exit_code == 1
    assert "train: --runs and --target must be left out with --ranks" in result.output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("source", "encoding"), [("# größer\n", "latin-1"), ("", "utf-8-sig")], ids=["declared", "byte order mark"]
)
def test_dry_reads_what_python_reads(run: Callable[..., Result], tmp_path: Path, source: str, encoding: str) -> None:
    path = tmp_path / "train.py"
    head = "# -*- coding: latin-1 -*-\n" if encoding == "latin-1" else ""
    path.write_text(f"{head}{source}import mindspore as ms\nm = ms.Model(n)\n", encoding=encoding)
    result = run("run", "--dry", path)
    assert result.exit_code == 0, result.output
    assert "+m = boost_ext.Model(n)" in result.output


def test_ranks_must_share_a_batch(run: Callable[..., Result], tmp_path: Path) -> None:
    result = run("train", "--output", tmp_path / "run", "--ranks", 3, "--quick")
    assert result.exit_code == 1
    assert "train: --batch-size must be a multiple of --ranks = 3, got 32" in result.output


@pytest.mark.parametrize(
    ("machine", "seen"),
    [
        ({"avx512": True}, "AVX2"),
        ({"avx512": False}, ""),
        ({"avx512": True, "onednn": "AVX512_CORE"}, "AVX512_CORE"),
    ],
    ids=["set", "not needed", "the user's"],
)
def test_train_makes_convolutions_fast_before_mindspore_is_imported(
    run: Callable[..., Result],
    pretend: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    machine: dict[str, Any],
    seen: str,
) -> None:
    pretend(**machine)
    at_import: list[str] = []
    monkeypatch.setattr(cli, "_need", lambda *_: at_import.append(os.environ["ONEDNN_MAX_CPU_ISA"]))
    monkeypatch.setattr(cli, "_train", lambda *_: None)
    result = run("train", "--output", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert at_import == [seen]
    assert ("Set ONEDNN_MAX_CPU_ISA=AVX2 for all runs, the plain one too" in result.output) == (seen == "AVX2")


@pytest.fixture
def checkpoints(tmp_path: Path, rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
    """Six checkpoints of two weights, with the state that a training leaves beside them."""
    saved = []
    for step in range(6):
        values = {
            "conv.weight": rng.standard_normal((4, 3)).astype(np.float32),
            "bn.moving_mean": rng.standard_normal(4).astype(np.float32),
            "moments.conv.weight": rng.standard_normal((4, 3)).astype(np.float32),
            "dense.bias": rng.standard_normal(5).astype(np.float32),
            "global_step": np.array([step], np.int32),
        }
        np.savez(tmp_path / f"net-{step}.npz", **values)
        saved.append(values)
    return saved


def test_pca_builds_the_matrix_of_the_weights(
    run: Callable[..., Result], tmp_path: Path, checkpoints: list[dict[str, np.ndarray]]
) -> None:
    output = tmp_path / "pca.safetensors"
    result = run("pca", tmp_path, "--output", output, "--n-components", 3)
    assert result.exit_code == 0, result.output
    assert "3 components of 17 elements" in result.output
    assert "Left out as no weights: bn.moving_mean, moments.conv.weight, global_step" in result.output
    matrix = load_matrix(output, n_components=3, n_elements=17)
    joined = np.array([np.r_[c["conv.weight"].ravel(), c["dense.bias"]] for c in checkpoints], np.float64)
    _, _, components = np.linalg.svd(joined - joined.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(np.abs(np.sum(matrix * components[:3], axis=1)), 1, atol=1e-5)


def test_pca_takes_its_own_patterns_and_dtype(
    run: Callable[..., Result], tmp_path: Path, checkpoints: list[dict[str, np.ndarray]]
) -> None:
    output = tmp_path / "pca.safetensors"
    arguments = [
        "--n-components",
        2,
        "--dtype",
        "float16",
        "--exclude",
        "conv.*",
        "--exclude",
        "m*",
        "--exclude",
        "bn.*",
    ]
    result = run("pca", tmp_path, "--output", output, *arguments)
    assert result.exit_code == 0, result.output
    assert load_matrix(output, n_components=2, n_elements=5).dtype == np.float16


def test_pca_reads_safetensors(run: Callable[..., Result], tmp_path: Path, rng: np.random.Generator) -> None:
    save = pytest.importorskip("safetensors.numpy").save_file
    for step in range(3):
        save({"w": rng.standard_normal((2, 3)).astype(np.float16)}, str(tmp_path / f"net-{step}.safetensors"))
    result = run("pca", tmp_path, "--output", tmp_path / "pca.safetensors", "--n-components", 2)
    assert result.exit_code == 0, result.output
    assert reference_parameters(tmp_path / "net-0.safetensors").shapes == {"w": (2, 3)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n-components", "9"], "at least n_components = 9"),
        (["--n-components", "2", "--exclude", "*"], "must hold weights"),
        (["--n-components", "2", "--reference", "missing.npz"], "must be a readable checkpoint"),
    ],
)
def test_pca_errors_are_one_line(
    run: Callable[..., Result],
    tmp_path: Path,
    checkpoints: list[dict[str, np.ndarray]],
    arguments: list[str],
    message: str,
) -> None:
    result = run("pca", tmp_path, "--output", tmp_path / "pca.safetensors", *arguments)
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output


def test_pca_of_ckpt_files_without_mindspore_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "net-1.ckpt").write_bytes(b"")
    done = _without_extras("pca", str(tmp_path), "--output", str(tmp_path / "pca.safetensors"))
    assert done.returncode == 1
    assert "pip install 'boost_ext[mindspore]'" in done.stderr
