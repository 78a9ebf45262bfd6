"""boost_config_dict as frozen, validated data: defaults, ranges, and errors that say where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from boost_ext.config import (
    EXCLUDES,
    FEATURES,
    LEVEL_DEFAULTS,
    LEVELS,
    BoostConfig,
    DimReduceConfig,
    GradFreezeConfig,
    Switches,
    allowed,
)

# As mindspore.boost documents them; loss_scale_group and its default are those of 2.10, max_search is ours.
DOCUMENTED = {
    "boost": {
        "mode": "auto",
        "less_bn": False,
        "grad_freeze": False,
        "adasum": False,
        "grad_accumulation": False,
        "dim_reduce": False,
        "loss_scale_group": False,
    },
    "common": {
        "gradient_split_groups": [50, 100],
        "device_number": 8,
        "fused_optimizer": True,
        "check_overflow": True,
    },
    "less_bn": {"bn_flag": True, "fn_flag": True, "gc_flag": True},
    "grad_freeze": {"param_groups": 10, "freeze_type": 1, "freeze_p": 0.7, "total_steps": 65536},
    "grad_accumulation": {"grad_accumulation_step": 1},
    "dim_reduce": {
        "rho": 0.55,
        "gamma": 0.9,
        "alpha": 0.001,
        "sigma": 0.4,
        "max_search": 8,
        "n_components": 32,
        "pca_mat_path": None,
        "weight_load_dir": None,
        "timeout": 1800,
        "pca_mat_dtype": None,
    },
}
ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("empty", ["", {}, None, {"boost": {}}, BoostConfig()])
def test_defaults_are_the_documented_ones(empty: Any) -> None:
    assert json.loads(BoostConfig.load(empty).model_dump_json()) == DOCUMENTED


def test_the_documented_dict_loads_and_is_the_default() -> None:
    assert BoostConfig.load(DOCUMENTED) == BoostConfig()


def test_tables_speak_of_the_same_features() -> None:
    assert set(FEATURES) == set(Switches.model_fields) - {"mode"}
    assert set().union(*LEVELS.values()) | set(EXCLUDES) | set().union(*EXCLUDES.values()) == set(FEATURES)
    assert LEVELS["O0"] < LEVELS["O1"] < LEVELS["O2"]


def test_frozen() -> None:
    config = BoostConfig.load({"dim_reduce": {"rho": 0.5}})
    with pytest.raises(ValidationError, match="frozen"):
        config.dim_reduce.rho = 0.1
    with pytest.raises(TypeError):
        LEVELS["O0"] = frozenset({"less_bn"})
    for target in (LEVEL_DEFAULTS, LEVEL_DEFAULTS["O1"], LEVEL_DEFAULTS["O1"]["grad_freeze"]):
        with pytest.raises(TypeError):
            target["freeze_p"] = 0


def test_the_dict_is_copied() -> None:
    given = {"common": {"gradient_split_groups": [1, 2]}}
    config = BoostConfig.load(given)
    given["common"]["gradient_split_groups"].append(3)
    assert config.common.gradient_split_groups == (1, 2)


def test_which_keys_were_given_is_known() -> None:
    switches = BoostConfig.load({"boost": {"mode": "manual", "less_bn": False}}).boost
    assert switches.model_fields_set == {"mode", "less_bn"}


OWN = {
    "O0": ({}, {}),
    "O1": ({"param_groups": 2, "freeze_type": 2}, {"fn_flag": False, "bn_flag": False}),
    "O2": ({"param_groups": 2, "freeze_type": 2, "freeze_p": 0.6}, {"fn_flag": False}),
}
"""What is other than documented in sections grad_freeze and less_bn, of a configuration that says nothing."""


class TestLevels:
    @pytest.mark.parametrize("level", LEVELS)
    @pytest.mark.parametrize("mode", ["auto", "manual"])
    def test_own_defaults(self, level: str, mode: str) -> None:
        config = BoostConfig.load({"boost": {"mode": mode}, "grad_freeze": {"total_steps": 50}}).at_level(level)
        freeze, less_bn = OWN[level]
        changed = {"grad_freeze": {**freeze, "total_steps": 50}, "less_bn": less_bn}
        expected = {name: section | changed.get(name, {}) for name, section in DOCUMENTED.items()}
        expected["boost"]["mode"] = mode
        assert json.loads(config.model_dump_json()) == expected

    @pytest.mark.parametrize("level", LEVELS)
    @pytest.mark.parametrize("mode", ["enable_all", "disable_all"])
    def test_none_where_no_level_decides(self, level: str, mode: str) -> None:
        config = BoostConfig.load({"boost": {"mode": mode}})
        assert config.at_level(level) == config
        assert config.level_defaults(level) == {}

    @pytest.mark.parametrize("level", ["O1", "O2"])
    @pytest.mark.parametrize("mode", ["auto", "manual"])
    def test_what_is_given_wins_though_it_is_the_documented_default(self, level: str, mode: str) -> None:
        given = {
            "less_bn": {"bn_flag": True, "fn_flag": True},
            "grad_freeze": {"param_groups": 10, "freeze_type": 1, "freeze_p": 0.7},
        }
        config = BoostConfig.load({"boost": {"mode": mode}, **given})
        assert config.at_level(level) == config
        assert config.level_defaults(level) == {"less_bn": {}, "grad_freeze": {}}

    def test_less_bn_by_name_is_more_than_the_level_of_it(self) -> None:
        asked = BoostConfig.load({"boost": {"mode": "manual", "less_bn": True}}).at_level("O1").less_bn
        assert (asked.bn_flag, asked.fn_flag) == (True, False)
        for boost in ({}, {"mode": "auto", "less_bn": True}, {"mode": "manual"}):
            assert not BoostConfig.load({"boost": boost}).at_level("O1").less_bn.bn_flag

    def test_one_key_of_two(self) -> None:
        config = BoostConfig.load({"less_bn": {"fn_flag": True}}).at_level("O1")
        assert (config.grad_freeze.freeze_p, config.less_bn.fn_flag) == (0.7, True)

    def test_nothing_is_marked_as_given(self) -> None:
        given = {"less_bn": {"gc_flag": False}, "grad_freeze": {"param_groups": 3}}
        config = BoostConfig.load(given)
        there = config.at_level("O2")
        assert there.model_fields_set == {"less_bn", "grad_freeze"}
        assert there.less_bn.model_fields_set == {"gc_flag"}
        assert there.model_dump(exclude_unset=True) == given
        assert there.at_level("O1") == config.at_level("O1") != there
        assert there.at_level("O0") == config

    def test_the_table_names_keys_and_changes_them(self) -> None:
        assert set(LEVEL_DEFAULTS) == set(LEVELS)
        for sections in LEVEL_DEFAULTS.values():
            values = {section: dict(keys) for section, keys in sections.items()}
            BoostConfig.load(values)
            assert all(DOCUMENTED[s][key] != value for s, keys in values.items() for key, value in keys.items())

    def test_the_class_keeps_the_documented_default(self) -> None:
        assert GradFreezeConfig().freeze_p == 0.7


def test_an_int_is_a_split_point_and_a_number() -> None:
    config = BoostConfig.load({"common": {"gradient_split_groups": 7}, "grad_freeze": {"freeze_p": 1}})
    assert config.common.gradient_split_groups == 7
    assert config.grad_freeze.freeze_p == 1.0


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ({"grad_freeze": {"freeze_p": 1.5}}, ValueError, "grad_freeze.freeze_p: must be from 0 to 1, got 1.5"),
        ({"grad_freeze": {"freeze_type": 3}}, ValueError, "grad_freeze.freeze_type: must be from 0 to 2, got 3"),
        ({"grad_freeze": {"param_groups": 0}}, ValueError, "grad_freeze.param_groups: must be >= 1, got 0"),
        ({"grad_freeze": {"total_steps": 10**30}}, ValueError, "total_steps: must be from 1 to 10000000, got 10"),
        ({"grad_freeze": {"total_steps": "9"}}, TypeError, "grad_freeze.total_steps: must be an int, got str '9'"),
        ({"grad_freeze": {"freeze_p": "x"}}, TypeError, "grad_freeze.freeze_p: must be a number, got str 'x'"),
        ({"grad_freeze": {"freeze_p": True}}, TypeError, "grad_freeze.freeze_p: must be a number, got bool True"),
        (
            {"grad_accumulation": {"grad_accumulation_step": 2.0}},
            TypeError,
            "grad_accumulation_step: must be an int, got float 2.0",
        ),
        ({"dim_reduce": {"rho": float("nan")}}, ValueError, "dim_reduce.rho: must be > 0 and < 1, got nan"),
        ({"dim_reduce": {"alpha": float("inf")}}, ValueError, "dim_reduce.alpha: must be finite and >= 0, got inf"),
        ({"dim_reduce": {"pca_mat_path": 3}}, TypeError, "dim_reduce.pca_mat_path: must be a str or None, got int 3"),
        ({"dim_reduce": 3}, TypeError, "dim_reduce: must be a dict, got int 3"),
        ({"less_bn": {"gc_flag": 1}}, TypeError, "less_bn.gc_flag: must be a bool, got int 1"),
        (
            {"common": {"gradient_split_groups": "a"}},
            TypeError,
            "gradient_split_groups: must be an int or a list of ints, got 'a'",
        ),
        (
            {"common": {"gradient_split_groups": [5, True]}},
            TypeError,
            "gradient_split_groups: must be an int or a list of ints, got .*True",
        ),
        (
            {"common": {"gradient_split_groups": [9, 5]}},
            ValueError,
            r"gradient_split_groups: must be .*rising.*\[9, 5\]",
        ),
        ({"common": {"gradient_split_groups": []}}, ValueError, "gradient_split_groups: must be .*not empty"),
        ({"common": {"gradient_split_groups": 0}}, ValueError, "gradient_split_groups: must be >= 1.*got 0"),
        (
            {"boost": {"mode": "manuel"}},
            ValueError,
            r"boost.mode: must be one of \['auto', 'manual', 'enable_all', 'disable_all'\], got 'manuel'",
        ),
        ({"boost": {"mode": 1}}, TypeError, "boost.mode: must be a str, got int 1"),
        (
            {"boost": {"lessbn": True}},
            ValueError,
            r"boost: unknown key 'lessbn', did you mean 'less_bn'\? Known: \['mode', 'less_bn', .*'loss_scale_group'\]",
        ),
        ({"dim_reduce": {"roh": 1}}, ValueError, "dim_reduce: unknown key 'roh', did you mean 'rho'"),
        ({"dimreduce": {}}, ValueError, "unknown section 'dimreduce', did you mean 'dim_reduce'.*'grad_accumulation'"),
        ({"boost": {1: True}}, TypeError, "boost: keys must be str, got int 1"),
        ({1: {}}, TypeError, "sections must be str, got int 1"),
        ([1], TypeError, "must be a dict or the path of a JSON file, got list"),
        (3, TypeError, "must be a dict or the path of a JSON file, got int"),
    ],
)
def test_refused(source: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^boost_config_dict: .*{message}") as caught:
        BoostConfig.load(source)
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, ValidationError)


def test_all_problems_at_once() -> None:
    source = {"grad_freeze": {"freeze_p": 2}, "boost": {"mode": "x", "adasum": 1}, "les_bn": {}}
    with pytest.raises(ValueError, match="4 problems") as caught:
        BoostConfig.load(source)
    for text in ("freeze_p: must be from 0 to 1, got 2", "boost.mode: must", "boost.adasum: must", "'less_bn'"):
        assert text in str(caught.value)


def test_only_wrong_types_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="2 problems"):
        BoostConfig.load({"boost": {"adasum": 1, "less_bn": "yes"}})


names = st.sampled_from(sorted({*BoostConfig.model_fields, *Switches.model_fields, *DimReduceConfig.model_fields}))
values = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=3), st.lists(st.integers())
)


@given(st.dictionaries(names, st.one_of(values, st.dictionaries(names, values, max_size=4)), max_size=4))
def test_any_dict_loads_or_is_refused_in_words(source: dict[str, Any]) -> None:
    message = "boost_config_dict: "
    try:
        BoostConfig.load(source)
    except (ValueError, TypeError) as error:
        message = "" if isinstance(error, ValidationError) else str(error)
    assert message.startswith("boost_config_dict: ")


TUTORIAL = {  # of mindspore.boost's dimension reduction, with what its script says when it gets no argument
    "boost": {"mode": "manual", "dim_reduce": True},
    "common": {"device_num": 4},
    "dim_reduce": {"rho": 0.5, "n_component": 16, "pca_mat_path": "", "weight_load_dir": "ckpt", "timeout": 1200},
}


def test_the_keys_of_the_tutorial_of_mindspore() -> None:
    with pytest.warns(UserWarning, match="is called") as caught:
        config = BoostConfig.load(TUTORIAL)
    assert [str(w.message) for w in caught] == [
        "boost_config_dict: common.device_num is called device_number, and read as that",
        "boost_config_dict: dim_reduce.n_component is called n_components, and read as that",
    ]
    assert (config.common.device_number, config.dim_reduce.n_components) == (4, 16)
    assert (config.dim_reduce.pca_mat_path, config.dim_reduce.weight_load_dir) == (None, "ckpt")
    assert config.dim_reduce.model_fields_set >= {"n_components", "rho"}
    assert "device_num" in TUTORIAL["common"], "the dict itself is left as it is"


@pytest.mark.filterwarnings("ignore:boost_config_dict")
def test_a_key_of_the_tutorial_is_checked_as_the_key_it_stands_for() -> None:
    with pytest.raises(ValueError, match=r"^boost_config_dict: dim_reduce.n_components: must be >= 1, got 0$"):
        BoostConfig.load({"dim_reduce": {"n_component": 0}})
    both = {"dim_reduce": {"n_component": 2, "n_components": 3}}
    with pytest.raises(ValueError, match="dim_reduce: n_component must not be given beside n_components, which is the"):
        BoostConfig.load(both)


class TestFile:
    def test_read(self, tmp_path: Path) -> None:
        path = tmp_path / "boost.json"
        path.write_text(json.dumps(DOCUMENTED | {"grad_freeze": {"freeze_p": 0}}))
        assert BoostConfig.load(str(path)).grad_freeze.freeze_p == 0
        assert BoostConfig.load(path) == BoostConfig.load(str(path))

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"boost_config_dict .*no\.json: must be a readable JSON file"):
            BoostConfig.load(str(tmp_path / "no.json"))

    def test_another_encoding(self, tmp_path: Path) -> None:
        path = tmp_path / "boost.json"
        path.write_text("{}", encoding="utf-16")
        with pytest.raises(ValueError, match=r"boost_config_dict .*boost\.json: must be UTF-8, got: .*0xff"):
            BoostConfig.load(path)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "must hold JSON, got: Expecting"),
            ("[]", "must hold a JSON object, got list"),
            ('{"boost": {"mode": "auto", "mode": "manual"}}', "key 'mode' must be given once"),
            ('{"grad_freeze": {"freeze_p": NaN}}', "grad_freeze.freeze_p: must be from 0 to 1, got nan"),
            ('{"bost": {}}', "unknown section 'bost', did you mean 'boost'"),
        ],
    )
    def test_refused(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "boost.json"
        path.write_text(text)
        with pytest.raises(ValueError, match=rf"^boost_config_dict .*boost\.json: .*{message}"):
            BoostConfig.load(str(path))


@pytest.mark.parametrize("level", LEVELS)
def test_the_page_says_what_each_level_changes(level: str) -> None:
    page = (ROOT / "docs" / "autoboost.md").read_text()
    rows = {line.split("|")[1].strip(" `"): line for line in page.splitlines() if line.startswith("| `")}
    changed = {
        f"{section}.{key}": json.dumps(value)
        for section, keys in LEVEL_DEFAULTS[level].items()
        for key, value in keys.items()
    }
    assert rows[level].split("|")[3].strip() == ", ".join(f"`{key}` {value}" for key, value in changed.items())
    for key, value in changed.items():
        assert f"`{value}` at " in rows[key]
        assert level in rows[key]


def test_the_page_lists_every_key_with_default_and_range() -> None:
    page = (ROOT / "docs" / "autoboost.md").read_text()
    for section, field in BoostConfig.model_fields.items():
        for key, entry in type(field.default).model_fields.items():
            default = json.dumps(DOCUMENTED[section][key])
            row = f"| `{section}.{key}` | `{default}` |"
            assert row in page, row
            if (section, key) not in {("boost", "mode"), ("common", "gradient_split_groups")}:
                assert f"{row} {allowed(entry)} |" in page, row
