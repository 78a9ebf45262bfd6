"""The plan: levels, modes, precedence, and what the reasons say. No MindSpore."""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from boost_ext.config import FEATURES, LEVELS, MODES, BoostConfig
from boost_ext.plan import Plan, plan

PCA = {"dim_reduce": {"pca_mat_path": "pca.npy"}}


def make(level: str = "O0", rank_size: int = 1, **sections: Any) -> Plan:
    return plan(level, BoostConfig.load(sections), rank_size=rank_size)


def on(decided: Plan) -> set[str]:
    """The algorithms that are on. How a step is made is no algorithm, and on at every level."""
    return {name for name in decided.features if decided.applies(name)} - STEP


def manual(**switches: bool) -> dict[str, Any]:
    return {"mode": "manual", **switches}


STEP = {"fused_optimizer", "check_overflow"}
PARTS = {"less_bn", "fn_head", "grad_centralization"}
ALL = {"fn_flag": True, "bn_flag": True}
O1 = {"grad_centralization", "grad_freeze"}


class TestLevels:
    @pytest.mark.parametrize(("level", "expected"), [("O0", set()), ("O1", O1), ("O2", O1 | {"less_bn"})])
    def test_auto(self, level: str, expected: set[str]) -> None:
        assert on(make(level)) == expected

    def test_o2_says_that_freezing_excludes_adasum(self) -> None:
        assert make("O2")["adasum"].reason == "grad_freeze is on, and adasum cannot be combined with it"
        assert make("O2", 8)["adasum"].status == "skipped"
        assert make("O1")["adasum"].reason == "level O1 does not have it"

    @pytest.mark.parametrize("mode", ["auto", "manual"])
    @pytest.mark.parametrize(("level", "freeze_p"), [("O1", 0.7), ("O2", 0.6)])
    def test_own_defaults(self, level: str, freeze_p: float, mode: str) -> None:
        decided = make(level, boost={"mode": mode})
        assert decided["grad_freeze"].details["freeze_p"] == freeze_p
        keys = ["param_groups 2", "freeze_type 2", *[f"freeze_p {freeze_p}"] * (level == "O2")]
        own = f"{', '.join(keys)} are the defaults of level {level}"
        assert decided["grad_freeze"].reason == f"level {level} has it; {own}"
        assert decided["fn_head"].status == "skipped"
        assert decided["fn_head"].reason == f"level {level} leaves it out (less_bn.fn_flag switches it on)"
        kept = "level O1 leaves it out (less_bn.bn_flag switches it on)"
        assert decided["less_bn"].reason == (kept if level == "O1" else "level O2 has it")
        assert not [name for name, decision in decided.features.items() if decision.ignored]

    @pytest.mark.parametrize("mode", ["auto", "manual"])
    @pytest.mark.parametrize("level", ["O1", "O2"])
    def test_what_is_given_is_not_the_levels(self, level: str, mode: str) -> None:
        decided = make(level, boost={"mode": mode}, grad_freeze={"freeze_p": 0.6}, less_bn=ALL)
        assert on(decided) == PARTS | {"grad_freeze"}
        assert decided["grad_freeze"].details["freeze_p"] == 0.6
        assert "freeze_p" not in decided["grad_freeze"].reason
        assert decided["fn_head"].reason == "less_bn.fn_flag is True"

    def test_o0_has_the_documented_defaults(self) -> None:
        decided = make("O0", boost=manual(less_bn=True, grad_freeze=True))
        assert on(decided) == PARTS | {"grad_freeze"}
        assert decided["grad_freeze"].details["freeze_p"] == 0.7
        assert decided["grad_freeze"].reason == "boost.grad_freeze is True"

    @pytest.mark.parametrize(
        ("level", "error"), [("O3", ValueError), ("o1", ValueError), ("", ValueError), (1, TypeError)]
    )
    def test_unknown(self, level: Any, error: type[Exception]) -> None:
        with pytest.raises(error, match="AutoBoost: level must be"):
            make(level)

    def test_choices_are_named(self) -> None:
        with pytest.raises(ValueError, match=r"one of \['O0', 'O1', 'O2'\], got 'O9'"):
            make("O9")


class TestModes:
    def test_auto_says_which_booleans_it_ignores(self) -> None:
        decided = make("O1", boost={"less_bn": False, "grad_accumulation": True})
        assert on(decided) == on(make("O1"))
        assert decided["less_bn"].ignored == ("boost.less_bn is False, which mode auto ignores (mode manual reads it)",)
        assert "boost.grad_accumulation is True, which mode auto ignores" in decided["grad_accumulation"].ignored[0]
        assert "mode manual reads it" in str(decided)
        assert not decided["grad_freeze"].ignored

    def test_manual_overrides_what_is_given(self) -> None:
        decided = make("O2", boost=manual(grad_freeze=False))
        assert on(decided) == {"less_bn", "grad_centralization"}
        assert decided["grad_freeze"].reason == "boost.grad_freeze is False"
        assert decided["less_bn"].reason == "level O2 has it"
        assert on(make("O0", boost=manual(grad_freeze=True))) == {"grad_freeze"}

    def test_enable_all_needs_a_subspace(self) -> None:
        with pytest.raises(ValueError, match=r"enable_all.*dim_reduce\.weight_load_dir.*dim_reduce\.pca_mat_path"):
            make(boost={"mode": "enable_all"})
        with pytest.raises(ValueError, match=r"boost\.dim_reduce needs.*weight_load_dir"):
            make(boost=manual(dim_reduce=True))

    @pytest.mark.parametrize("source", [{"pca_mat_path": "a.npy"}, {"weight_load_dir": "checkpoints"}])
    def test_enable_all_is_dim_reduce(self, source: dict[str, str]) -> None:
        decided = make("O2", boost={"mode": "enable_all"}, dim_reduce=source)
        assert on(decided) == {"dim_reduce"}
        assert decided["dim_reduce"].reason == "mode enable_all"
        assert decided["adasum"].reason == "dim_reduce is on, and adasum cannot be combined with it"

    @pytest.mark.parametrize("level", LEVELS)
    def test_disable_all(self, level: str) -> None:
        decided = make(level, boost={"mode": "disable_all", "less_bn": True})
        assert not on(decided)
        assert "mode disable_all ignores" in decided["less_bn"].ignored[0]


class TestPrecedence:
    def test_dim_reduce_turns_the_others_off(self) -> None:
        decided = make("O2", boost=manual(dim_reduce=True, grad_accumulation=True), **PCA)
        assert on(decided) == {"dim_reduce"}
        for name in ("less_bn", "grad_freeze", "adasum", "grad_accumulation"):
            assert decided[name].reason.startswith("dim_reduce is on")
        assert decided["dim_reduce"].details["rho"] == 0.55

    def test_freezing_turns_adasum_off_and_leaves_the_rest(self) -> None:
        decided = make(
            boost=manual(grad_freeze=True, adasum=True, less_bn=True, grad_accumulation=True),
            grad_accumulation={"grad_accumulation_step": 4},
        )
        assert on(decided) == PARTS | {"grad_freeze", "grad_accumulation"}
        assert decided["grad_accumulation"].details == {"grad_accumulation_step": 4}

    def test_adasum_and_ranks(self) -> None:
        assert make(boost=manual(adasum=True))["adasum"].reason == "it needs more than one rank"
        decided = make(rank_size=4, boost=manual(adasum=True))  # device_number is 8
        assert decided["adasum"].status == "skipped"
        assert decided["adasum"].reason == "it adds up nodes, and 4 ranks with common.device_number 8 are one"
        decided = make(rank_size=8, boost=manual(adasum=True))
        assert decided["adasum"].reason == "it adds up nodes, and 8 ranks with common.device_number 8 are one"
        decided = make(rank_size=12, boost=manual(adasum=True))
        assert decided.refused == ("adasum",)
        assert decided["adasum"].reason == "common.device_number must divide the number of ranks, 12, got 8"
        decided = make(rank_size=24, boost=manual(adasum=True))
        assert on(decided) == {"adasum"}
        assert decided["adasum"].details == {"device_number": 8, "nodes": 3}
        decided = make(rank_size=2, boost=manual(adasum=True), common={"device_number": 1})
        assert decided["adasum"].details == {"device_number": 1, "nodes": 2}

    def test_dim_reduce_and_ranks(self) -> None:
        assert on(make(rank_size=2, boost=manual(dim_reduce=True), **PCA)) == {"dim_reduce"}

    def test_one_step_accumulates_nothing(self) -> None:
        decided = make(boost=manual(grad_accumulation=True))
        assert decided["grad_accumulation"].status == "skipped"
        assert "grad_accumulation_step is 1" in decided["grad_accumulation"].reason

    @pytest.mark.parametrize(
        ("flag", "part"), [("bn_flag", "less_bn"), ("fn_flag", "fn_head"), ("gc_flag", "grad_centralization")]
    )
    def test_parts_of_less_bn(self, flag: str, part: str) -> None:
        decided = make("O1", less_bn={**ALL, flag: False})
        assert on(decided) == (PARTS | {"grad_freeze"}) - {part}
        assert decided[part].reason == f"less_bn.{flag} is False"
        off = "level O0 does not have it" if part == "less_bn" else "it comes with less_bn, which is off"
        assert make("O0")[part].reason == off

    def test_settings_of_what_is_off_are_named(self) -> None:
        decided = make("O0", grad_freeze={"freeze_p": 0.5}, common={"device_number": 4, "gradient_split_groups": 3})
        assert decided["grad_freeze"].ignored == ("section grad_freeze has no effect",)
        assert decided["adasum"].ignored == ("common.device_number has no effect",)
        assert decided["less_bn"].ignored == ("common.gradient_split_groups has no effect",)
        assert not make("O0", grad_freeze={"freeze_p": 0.7})["grad_freeze"].ignored  # the default

    @pytest.mark.parametrize("boost", [manual(grad_freeze=False, less_bn=False), {"mode": "disable_all"}])
    @pytest.mark.parametrize("level", ["O1", "O2"])
    def test_a_levels_own_defaults_are_no_settings(self, level: str, boost: dict[str, Any]) -> None:
        def ignored(**sections: Any) -> list[str]:
            decided = make(level, boost=boost, **sections)
            return [line for decision in decided.features.values() for line in decision.ignored]

        assert not ignored()
        assert ignored(grad_freeze={"freeze_p": 0.5}) == ["section grad_freeze has no effect"]
        assert ignored(less_bn={"gc_flag": False}) == ["section less_bn has no effect"]

    def test_the_documented_default_is_a_setting_where_the_level_has_its_own(self) -> None:
        decided = make("O2", boost=manual(grad_freeze=False), grad_freeze={"freeze_p": 0.7})
        assert decided["grad_freeze"].ignored == ("section grad_freeze has no effect",)

    @pytest.mark.parametrize("rank_size", [1, 2])
    def test_every_combination_decides_about_every_feature(self, rank_size: int) -> None:
        combinations = itertools.product(LEVELS, MODES, itertools.product([False, True], repeat=len(FEATURES)))
        for level, mode, values in combinations:
            switches = dict(zip(FEATURES, values, strict=True))
            decided = make(level, rank_size, boost={"mode": mode, **switches}, **PCA)
            assert set(FEATURES) | PARTS | STEP == set(decided.features)
            assert decided.applies("fused_optimizer") != decided.applies("dim_reduce")
            assert all(decision.reason for decision in decided.features.values())
            if decided.applies("dim_reduce"):
                assert on(decided) == {"dim_reduce"}
            assert not {"grad_freeze", "adasum"} <= on(decided)
            if mode == "manual":
                assert {name for name in FEATURES if switches[name]} >= on(decided) & set(FEATURES)


def test_check_overflow_has_a_key() -> None:
    assert make("O0").applies("check_overflow")
    off = make("O1", common={"check_overflow": False})["check_overflow"]
    assert (off.status, off.reason) == ("skipped", "check_overflow is False: inf and nan reach the weights")


def test_fused_optimizer_has_a_key() -> None:
    assert make("O0")["fused_optimizer"].reason == "common.fused_optimizer is True"
    off = make("O1", common={"fused_optimizer": False})["fused_optimizer"]
    assert (off.status, off.reason) == ("skipped", "common.fused_optimizer is False")
    assert make("O0", boost=manual(dim_reduce=True), **PCA)["fused_optimizer"].status == "skipped"


class TestData:
    def test_with_result_is_a_new_plan(self) -> None:
        before = make("O2")
        after = before.with_result("less_bn", reason="removed 2 of 4 batch norms", details={"removed": ["a", "b"]})
        assert before == make("O2")
        assert (after["less_bn"].status, after["less_bn"].reason) == ("applied", "removed 2 of 4 batch norms")
        skipped = after.with_result("less_bn", status="skipped", details={"batch_norms": 4})
        assert skipped["less_bn"].details == {"removed": ["a", "b"], "batch_norms": 4}
        assert not skipped.applies("less_bn")

    def test_frozen(self) -> None:
        decided = make("O1")
        with pytest.raises(TypeError):
            decided.features["less_bn"] = decided["adasum"]
        with pytest.raises(TypeError):
            decided["grad_freeze"].details["freeze_p"] = 1
        with pytest.raises(AttributeError):
            decided.level = "O2"

    def test_unknown_feature(self) -> None:
        with pytest.raises(KeyError, match="'lessbn', did you mean 'less_bn'"):
            make()["lessbn"]

    def test_as_dict_is_json(self) -> None:
        data = make("O1", boost={"adasum": True}).as_dict()
        assert json.loads(json.dumps(data)) == data
        assert data["level"] == "O1"
        assert data["features"]["grad_freeze"]["details"]["freeze_p"] == 0.7
        assert data["features"]["adasum"]["ignored"]

    def test_text(self) -> None:
        lines = str(make("O1")).splitlines()
        assert lines[0] == "boost plan: level O1, mode auto"
        assert lines[1].split()[:5] == ["less_bn", "skipped", "level", "O1", "leaves"]
        assert len(lines) == 1 + len(FEATURES) + len({"fn_head", "grad_centralization"} | STEP)

    def test_rich(self) -> None:
        console = Console(file=io.StringIO(), width=200)
        console.print(make("O1"))
        text = console.file.getvalue()
        assert "boost plan: level O1, mode auto" in text
        assert "freeze_p=0.7" in text
        assert "level O1 leaves it out (less_bn.fn_flag switches it on)" in text

    def test_names_are_no_markup(self) -> None:
        console = Console(file=io.StringIO(), width=200)
        console.print(make("O1").with_result("less_bn", reason="in [bold] and [/dim]"))
        assert "in [bold] and [/dim]" in console.file.getvalue()


def test_no_mindspore() -> None:
    code = "import sys; sys.modules['mindspore'] = None\nimport boost_ext.plan, boost_ext.config"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
