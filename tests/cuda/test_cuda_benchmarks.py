"""benchmarks.cuda: every case runs and gives the right answer, on the emulated kernels."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from benchmarks.cuda.layouts import Layout

import boost_ext
from on_cuda import EMULATED

ROOT = Path(__file__).resolve().parents[2]


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(boost_ext.__file__).parents[1])}
    command = [sys.executable, "-m", "benchmarks.cuda", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, cwd=ROOT)


@pytest.mark.skipif(not EMULATED, reason="a dry run is on the emulator")
def test_every_case_gives_the_right_answer():
    result = benchmark("--dry-run")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "unscale_and_check fp32, 6 tensors, 6.0e+03: boost_ext: the same answer" in result.stdout
    assert " ms" not in result.stdout


@pytest.mark.skipif(EMULATED, reason="this is the build that a dry run needs")
def test_a_dry_run_needs_the_emulator():
    result = benchmark("--dry-run")
    assert result.returncode == 2
    assert "needs a build with BOOST_EXT_CUDA_EMULATOR" in result.stderr


def test_names_are_checked():
    result = benchmark("--only", "nothing")
    assert result.returncode == 2
    assert "--only must be one of unscale_and_check, global_norm, " in result.stderr


def test_tables_of_another_machine(tmp_path):
    row = {"case": "a case", "ours": 0.5, "peer": "PyTorch", "peer_time": 1.0, "ratio": 2.0, "goal": 1.0, "rounds": 5}
    row |= {"ours_spread": 0.0, "peer_spread": 0.0, "error": None, "bandwidth": False, "missed": False}
    wrong = row | {"peer": "another", "peer_time": None, "ratio": None, "error": "out of memory"}
    about = {"date": "2026-01-02T03:04", "card": "a card", "copy_gb_per_second": 4000.4, "versions": {}, "others": 0.1}
    results, page = tmp_path / "bench.json", tmp_path / "page.md"
    results.write_text(json.dumps({"centralize": about | {"rows": [row, wrong]}, "bfgs_update": about | {"rows": []}}))
    names = ("accumulate", "centralize", "bfgs_update")
    page.write_text("".join(f"<!-- benchmark: cuda {name} -->\nold\n<!-- end -->\n" for name in names))
    result = benchmark("--results", str(results), "--page", str(page))
    assert result.returncode == 0, result.stderr
    tables = page.read_text().split("<!-- end -->\n")
    assert [table.splitlines()[1] for table in (tables[0], tables[2])] == ["old", "old"]
    lines = tables[1].splitlines()
    assert lines[1].startswith("2026-01-02, a card, 4000 GB/s copied; ")
    assert lines[-2:] == ["| a case | 0.500 | PyTorch | 1.00 | 2 | 1 |", "|  | 0.500 | another | no answer | | |"]


def test_the_page_has_a_place_for_each_table():
    help = benchmark("--help")
    names = re.findall(r"\w+", re.search(r"--only NAME\s+of: ([\w,\s]+?)\s+--", help.stdout)[1])
    assert len(names) > 8
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert re.findall(r"<!-- benchmark: cuda (\w+) -->", page) == names


def test_lists_are_aligned_as_frameworks_allocate_and_the_cut_ones_are_named():
    aligned, cut = Layout(20_000_000, 500), Layout(20_000_000, 500, cut=True)
    sizes = [end - begin for begin, end in aligned.places]
    assert sizes == [end - begin for begin, end in cut.places]
    assert sum(sizes) == aligned.n == cut.room
    assert all(begin % 128 == 0 for begin, _ in aligned.places)  # 512 bytes of float32, 256 of halves
    assert all(end <= begin for (_, end), (begin, _) in pairwise(aligned.places))
    off = sum(end - begin for begin, end in cut.places if begin * 4 % 16) / cut.n
    assert off > 0.6
    assert (str(aligned), str(cut)) == ("500 tensors, 2.0e+07", "500 tensors cut from a buffer, 2.0e+07")
