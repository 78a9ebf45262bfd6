"""The advice on MindSpore's convolutions: for which CPUs and which environment, and what is set."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from boost_ext import convolutions


@pytest.mark.parametrize("value", ["AVX2", "avx2", "SSE41", "AVX", "AVX2_VNNI", "avx2_vnni_2"])
@pytest.mark.parametrize("variable", ["onednn", "dnnl"])
def test_a_limit_without_avx512(pretend: Callable[..., None], variable: str, value: str) -> None:
    pretend(avx512=True, **{variable: value})
    assert convolutions.limit() == value
    assert not convolutions.are_slow()
    assert convolutions.advice() is None
    assert convolutions.state() == f"fast: oneDNN is limited to {value}"


# oneDNN takes a value that it does not know for none.
@pytest.mark.parametrize("value", ["", "AVX512_CORE", "avx512_core_amx", "DEFAULT", "AVX-2", "0"])
@pytest.mark.parametrize("variable", ["onednn", "dnnl"])
def test_no_limit_or_one_with_avx512(pretend: Callable[..., None], variable: str, value: str) -> None:
    pretend(avx512=True, **{variable: value})
    assert convolutions.limit() == (value or None)
    assert convolutions.are_slow()
    assert "set ONEDNN_MAX_CPU_ISA=AVX2 before MindSpore starts" in (convolutions.advice() or "")
    assert convolutions.state() == "slow: set ONEDNN_MAX_CPU_ISA=AVX2"


@pytest.mark.parametrize("value", ["", "AVX2", "AVX512_CORE"])
def test_a_cpu_without_avx512_needs_nothing(pretend: Callable[..., None], value: str) -> None:
    pretend(avx512=False, onednn=value)
    assert not convolutions.are_slow()
    assert convolutions.advice() is None
    assert convolutions.state() == "fast: no AVX-512"
    assert not convolutions.make_fast()
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == value


def test_the_new_name_comes_first(pretend: Callable[..., None]) -> None:
    pretend(avx512=True, onednn="AVX512_CORE", dnnl="AVX2")
    assert convolutions.are_slow()
    pretend(avx512=True, onednn="AVX2", dnnl="AVX512_CORE")
    assert not convolutions.are_slow()


def test_make_fast(pretend: Callable[..., None]) -> None:
    pretend(avx512=True)
    assert convolutions.make_fast()
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX2"
    assert not convolutions.are_slow()
    assert not convolutions.make_fast(), "it is set already"


@pytest.mark.parametrize("given", [{"onednn": "AVX512_CORE"}, {"onednn": "SSE41"}, {"dnnl": "AVX512_CORE"}])
def test_make_fast_leaves_the_users_choice(pretend: Callable[..., None], given: dict[str, str]) -> None:
    pretend(avx512=True, **given)
    assert not convolutions.make_fast()
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == given.get("onednn", "")


def test_the_cpu_is_the_one_of_the_library() -> None:
    """Without a pretended CPU, and without the variables."""
    code = (
        "from boost_ext import build_info, convolutions as c; print(c.are_slow(), 'avx512' in build_info()['cpu_isas'])"
    )
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_MAX_CPU_ISA")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    slow, has_avx512 = done.stdout.split()
    assert slow == has_avx512


class TestNotice:
    @pytest.fixture
    def said(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
    ) -> Callable[..., list[str]]:
        (tmp_path / "mindspore.py").touch()
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        monkeypatch.delitem(sys.modules, "mindspore", raising=False)
        caplog.set_level(logging.WARNING, "boost_ext")

        def said(command: str = "train.py") -> list[str]:
            monkeypatch.setattr(sys, "argv", [command])
            convolutions.notice()
            return [record.getMessage() for record in caplog.records if record.name == "boost_ext"]

        return said

    def test_the_variable_is_missing(self, pretend: Callable[..., None], said: Callable[..., list[str]]) -> None:
        pretend(avx512=True)
        (message,) = said()
        assert message.startswith("ONEDNN_MAX_CPU_ISA is not set: this CPU has AVX-512")
        assert message.endswith(
            "set ONEDNN_MAX_CPU_ISA=AVX2 before MindSpore starts (not otherwise: matrix products are slower with it). "
            "`boost-ext run script.py` does it for you."
        )

    @pytest.mark.parametrize(
        "machine", [{"avx512": False}, {"avx512": True, "onednn": "AVX2"}, {"avx512": True, "dnnl": "AVX512_CORE"}]
    )
    def test_nothing_is_missing(
        self, pretend: Callable[..., None], said: Callable[..., list[str]], machine: dict[str, Any]
    ) -> None:
        pretend(**machine)
        assert said() == []

    def test_who_need_not_know(
        self, pretend: Callable[..., None], said: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pretend(avx512=True)
        assert said("/usr/bin/boost-ext") == []
        monkeypatch.setitem(sys.modules, "mindspore", None)
        assert said() == []


def test_import_says_once_that_the_variable_is_missing(tmp_path: Path) -> None:
    (tmp_path / "mindspore.py").touch()
    code = (
        "import boost_ext, boost_ext.ops; from boost_ext import build_info; print('avx512' in build_info()['cpu_isas'])"
    )
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_MAX_CPU_ISA")}
    environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{environment.get('PYTHONPATH', '')}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.count("ONEDNN_MAX_CPU_ISA is not set") == (done.stdout.strip() == "True")
