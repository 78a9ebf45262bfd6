"""The configuration of the algorithms: frozen, validated data, passed in and never shared. Imports nothing of ours.

Sections, keys and defaults are those of ``boost_config_dict`` of mindspore.boost. The algorithms of
a level, its defaults, and the exclusions between algorithms are data too: :data:`LEVELS`, :data:`LEVEL_DEFAULTS`,
:data:`EXCLUDES`.
"""

from __future__ import annotations

import itertools
import json
import os
import types
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from boost_ext.arguments import nearest

__all__ = [
    "EXCLUDES",
    "FEATURES",
    "LEVELS",
    "LEVEL_DEFAULTS",
    "MODES",
    "BoostConfig",
    "CommonConfig",
    "DimReduceConfig",
    "GradAccumulationConfig",
    "GradFreezeConfig",
    "LessBNConfig",
    "Switches",
    "allowed",
]

Mode = Literal["auto", "manual", "enable_all", "disable_all"]
MODES: tuple[str, ...] = get_args(Mode)
"""The values of ``boost.mode``."""
MatrixDtype = Literal["float32", "float16", "bfloat16", "int8"]

FEATURES = ("less_bn", "grad_freeze", "adasum", "grad_accumulation", "dim_reduce", "loss_scale_group")
"""The switches of section ``boost``."""

LEVELS: Mapping[str, frozenset[str]] = types.MappingProxyType(
    {
        "O0": frozenset(),
        "O1": frozenset({"less_bn", "grad_freeze"}),
        "O2": frozenset({"less_bn", "grad_freeze", "adasum"}),
    }
)
"""The algorithms of each level."""


def _level_defaults(less_bn: dict[str, bool], freezing: dict[str, float]) -> Mapping[str, Mapping[str, Any]]:
    sections: dict[str, dict[str, Any]] = {
        "less_bn": {"fn_flag": False, **less_bn},
        "grad_freeze": {"param_groups": 2, "freeze_type": 2, **freezing},
    }
    return types.MappingProxyType({name: types.MappingProxyType(keys) for name, keys in sections.items()})


# The documented defaults freeze too little for the speed that the levels are documented with, compile ten graphs for
# it, and cost accuracy; so does the FN head, which saves no time. Removing batch norms saves some, but not at unchanged
# accuracy, which is what O1 is for: docs/benchmarks.md has the measurements.
LEVEL_DEFAULTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = types.MappingProxyType(
    {
        "O0": types.MappingProxyType({}),
        "O1": _level_defaults({"bn_flag": False}, {}),
        "O2": _level_defaults({}, {"freeze_p": 0.6}),
    }
)
"""The values of absent keys at each level, by section, if they differ from the documented default."""

EXCLUDES: Mapping[str, tuple[str, ...]] = types.MappingProxyType(
    {
        "dim_reduce": tuple(f for f in FEATURES if f != "dim_reduce"),
        "grad_freeze": ("adasum",),
    }
)
"""The algorithms that are off when the key is on; an earlier row wins."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Switches(_Section):
    """Section ``boost``: which algorithms to use. Only ``mode="manual"`` reads the booleans.

    Examples:
        >>> from boost_ext.config import Switches
        >>> Switches(mode="manual", grad_freeze=True).grad_freeze
        True
    """

    mode: Mode = "auto"
    """The level decides; the given booleans override the level; everything on; everything off."""
    less_bn: bool = False
    """Fewer batch norms; section ``less_bn`` selects its parts."""
    grad_freeze: bool = False
    """Gradient freezing."""
    adasum: bool = False
    """Adaptive summation between ranks."""
    grad_accumulation: bool = False
    """Gradient accumulation."""
    dim_reduce: bool = False
    """Dimension-reduced training."""
    loss_scale_group: bool = False
    """A loss scale for each group of layers, by a ``GroupLossScaleManager``."""


class CommonConfig(_Section):
    """Section ``common``.

    Examples:
        >>> from boost_ext.config import CommonConfig
        >>> CommonConfig(device_number=4)
        CommonConfig(gradient_split_groups=(50, 100), device_number=4, fused_optimizer=True, check_overflow=True)
    """

    gradient_split_groups: int | tuple[int, ...] = (50, 100)
    """Split points of the parameters: one index, or a rising list of them, each >= 1."""
    device_number: int = Field(default=8, ge=1)
    """Devices of one node: AdaSum averages their gradients and adds up over nodes."""
    fused_optimizer: bool = True
    """An optimizer of mindspore.nn steps by one native call on its own state."""
    check_overflow: bool = True
    """A step with inf or nan in its gradients changes nothing; optional without a loss scale."""

    @field_validator("gradient_split_groups", mode="before")
    @classmethod
    def _rising(cls, value: Any) -> int | tuple[int, ...]:
        points = value if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(point, int) and not isinstance(point, bool) for point in points):
            raise PydanticCustomError("wrong_type", "must be an int or a list of ints")
        if not points or points[0] < 1 or any(a >= b for a, b in itertools.pairwise(points)):
            raise PydanticCustomError("out_of_range", "must be >= 1, and a list of them rising and not empty")
        return tuple(points) if isinstance(value, (list, tuple)) else int(value)


class LessBNConfig(_Section):
    """Section ``less_bn``: the parts of less_bn.

    Examples:
        >>> from boost_ext.config import LessBNConfig
        >>> LessBNConfig(fn_flag=False)
        LessBNConfig(bn_flag=True, fn_flag=False, gc_flag=True)
    """

    bn_flag: bool = True
    """Remove the inner batch norms of residual branches."""
    fn_flag: bool = True
    """Replace the last Dense by a normalized one (the FN head)."""
    gc_flag: bool = True
    """Centralize the gradients of convolutions and Dense."""


MAX_STEPS = 10_000_000
"""The longest sequence of gradient freezing, which a list holds. A longer training starts it again."""


class GradFreezeConfig(_Section):
    """Section ``grad_freeze``.

    Examples:
        >>> from boost_ext.config import GradFreezeConfig
        >>> GradFreezeConfig(param_groups=2, freeze_type=2, total_steps=5000)
        GradFreezeConfig(param_groups=2, freeze_type=2, freeze_p=0.7, total_steps=5000)
    """

    param_groups: int = Field(default=10, ge=1)
    """Groups of layers; a step trains one of them and all after it."""
    freeze_type: int = Field(default=1, ge=0, le=2)
    """0: the groups in turns, each freezing more layers; 1: drawn at random; 2: front to back, each layer for good."""
    freeze_p: float = Field(default=0.7, ge=0, le=1)
    """Share of steps that freeze *nothing*, despite the name."""
    total_steps: int = Field(default=65536, ge=1, le=MAX_STEPS)
    """Length of the sequence in steps. Type 2 without it: the number of learning rates of the optimizer, else the steps
    of the first ``Model.train``."""


class GradAccumulationConfig(_Section):
    """Section ``grad_accumulation``.

    Examples:
        >>> from boost_ext.config import GradAccumulationConfig
        >>> GradAccumulationConfig(grad_accumulation_step=4)
        GradAccumulationConfig(grad_accumulation_step=4)
    """

    grad_accumulation_step: int = Field(default=1, ge=1)
    """Steps whose mean gradient makes one update; 1 accumulates nothing."""


class DimReduceConfig(_Section):
    """Dimension-reduced training. Names and defaults are those of mindspore.boost's ``dim_reduce`` section.

    An unknown key, a wrong type or a value out of range raises ``pydantic.ValidationError`` (a ``ValueError``) that
    names the key.

    Examples:
        >>> from boost_ext.config import DimReduceConfig
        >>> config = DimReduceConfig(n_components=8, weight_load_dir="checkpoints")
        >>> config.rho, config.max_search
        (0.55, 8)
    """

    rho: float = Field(default=0.55, gt=0, lt=1)
    """Factor between the step lengths that the line search tries."""
    gamma: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the momentum of the residual gradient."""
    alpha: float = Field(default=0.001, ge=0, allow_inf_nan=False)
    """Weight of the residual."""
    sigma: float = Field(default=0.4, gt=0, lt=1)
    """Share of the predicted decrease that a step must bring (Armijo's condition)."""
    max_search: int = Field(default=8, ge=1, le=100)
    """Step lengths that the line search tries, 1, rho, rho^2 and so on; mindspore.boost tries 2."""
    n_components: int = Field(default=32, ge=1)
    """k, the dimension of the subspace."""
    pca_mat_path: str | None = None
    """File of the matrix: a .npy, or one of boost_ext. A matrix built from ``weight_load_dir`` is kept there."""
    weight_load_dir: str | None = None
    """Directory of checkpoints to build the matrix from."""
    timeout: int = Field(default=1800, ge=0)
    """Seconds that a rank waits for the matrix of another one."""
    pca_mat_dtype: MatrixDtype | None = None
    """How the matrix is stored, in memory and where it is built; None: as its file is, and built in float32."""

    @field_validator("pca_mat_path", "weight_load_dir", mode="before")
    @classmethod
    def _path(cls, value: Any) -> Any:
        if value == "":  # what scripts have for no path
            return None
        return os.fspath(value) if isinstance(value, Path) else value


class BoostConfig(_Section):
    """All sections of ``boost_config_dict``. ``model_fields_set`` of a section says which keys were given.

    Examples:
        >>> from boost_ext.config import BoostConfig
        >>> config = BoostConfig.load({"boost": {"mode": "manual", "grad_freeze": True}})
        >>> config.boost.grad_freeze, config.grad_freeze.param_groups
        (True, 10)
        >>> BoostConfig.load({"grad_freeze": {"freeze_q": 1}})
        Traceback (most recent call last):
            ...
        ValueError: boost_config_dict: grad_freeze: unknown key 'freeze_q', did you mean 'freeze_p'? ...
    """

    boost: Switches = Switches()
    common: CommonConfig = CommonConfig()
    less_bn: LessBNConfig = LessBNConfig()
    grad_freeze: GradFreezeConfig = GradFreezeConfig()
    grad_accumulation: GradAccumulationConfig = GradAccumulationConfig()
    dim_reduce: DimReduceConfig = DimReduceConfig()

    def level_defaults(self, level: str) -> dict[str, dict[str, Any]]:
        """The :data:`LEVEL_DEFAULTS` in force, by section: of keys that were not given, if the mode reads the level."""
        if self.boost.mode not in ("auto", "manual"):
            return {}
        own = {
            section: {key: value for key, value in keys.items() if key not in getattr(self, section).model_fields_set}
            for section, keys in LEVEL_DEFAULTS[level].items()
        }
        if self.boost.mode == "manual" and self.boost.less_bn:  # asked for by name, and not by the level
            own.get("less_bn", {}).pop("bn_flag", None)
        return own

    def at_level(self, level: str) -> BoostConfig:
        """The configuration in force at a level. ``model_fields_set`` still says which keys were given."""
        own = self.level_defaults(level)
        sections = {}
        for name, section in self:
            values = {key: getattr(section, key) for key in section.model_fields_set} | own.get(name, {})
            sections[name] = type(section).model_construct(section.model_fields_set, **values)
        return type(self).model_construct(self.model_fields_set, **sections)

    @classmethod
    def load(cls, source: BoostConfig | Mapping[str, Any] | str | os.PathLike[str] | None = "") -> BoostConfig:
        """The configuration that ``boost_config_dict`` describes.

        Args:
            source (Union[dict, str, None]): the sections; or the path of a JSON file with them; empty or None for the
                defaults. Keys that are left out take their defaults. Default: "".

        Raises:
            TypeError: if `source`, or values in it and nothing else, have a wrong type.
            ValueError: for unknown keys, values out of range, and files that hold no JSON object. One error lists all
                problems, each with the path of its key.
            OSError: if the file cannot be read.
        """
        if isinstance(source, BoostConfig):
            return source
        owner = "boost_config_dict"
        if source is None or source == "":
            source = {}
        elif isinstance(source, (str, os.PathLike)):
            owner = f"boost_config_dict {os.fspath(source)}"
            source = _read(owner, Path(source))
        if not isinstance(source, Mapping):
            raise TypeError(f"{owner}: must be a dict or the path of a JSON file, got {type(source).__name__}")
        sections = {k: dict(v) if isinstance(v, Mapping) else v for k, v in source.items()}
        _rename_tutorial_keys(owner, sections)
        try:
            return cls.model_validate(sections)
        except ValidationError as error:
            raise _readable(owner, list(_problems(error))) from None


_TUTORIAL_KEYS = {("common", "device_num"): "device_number", ("dim_reduce", "n_component"): "n_components"}
"""What mindspore.boost's tutorial of dimension reduction calls two keys. The code that it describes ignores them."""


def _rename_tutorial_keys(owner: str, sections: dict[Any, Any]) -> None:
    for (section, name), key in _TUTORIAL_KEYS.items():
        keys = sections.get(section)
        if not isinstance(keys, dict) or name not in keys:
            continue
        if key in keys:
            raise ValueError(f"{owner}: {section}: {name} must not be given beside {key}, which is the same")
        warnings.warn(f"{owner}: {section}.{name} is called {key}, and read as that", stacklevel=4)
        keys[key] = keys.pop(name)


def allowed(field: FieldInfo) -> str:
    """The values that a key may take, in words: ``from 0 to 1``, ``>= 1``, ``a bool``.

    Examples:
        >>> from boost_ext.config import GradFreezeConfig, allowed
        >>> allowed(GradFreezeConfig.model_fields["freeze_p"])
        'from 0 to 1'
    """
    if get_args(field.annotation) == MODES:
        return f"one of {list(MODES)}"
    bounds = {name: getattr(m, name) for m in field.metadata for name in ("gt", "ge", "lt", "le") if hasattr(m, name)}
    if field.annotation is int and {"ge", "le"} <= set(bounds) and bounds["le"] == bounds["ge"] + 1:
        return f"{bounds['ge']} or {bounds['le']}"
    if {"ge", "le"} <= set(bounds):
        return f"from {bounds['ge']} to {bounds['le']}"
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    finite = any(getattr(m, "allow_inf_nan", True) is False for m in field.metadata)
    words = ["finite"] * finite + [f"{signs[name]} {value}" for name, value in bounds.items()]
    return " and ".join(words) or _type_name(field)


def _type_name(field: FieldInfo) -> str:
    names: dict[Any, str] = {bool: "a bool", int: "an int", float: "a number", str | None: "a str or None"}
    names |= {Mode: "a str", MatrixDtype | None: f"one of {list(get_args(MatrixDtype))} or None"}
    return names.get(field.annotation, "a dict")


_OUT_OF_RANGE = {"greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"}


def _problems(error: ValidationError) -> Iterator[tuple[bool, str]]:
    """Each problem: whether it is a wrong type only, and a line that says what is wrong where."""
    for detail in error.errors(include_url=False):
        path = ".".join(map(str, detail["loc"]))
        kind, got = detail["type"], detail["input"]
        if kind == "extra_forbidden":
            yield False, _unknown(detail)
            continue
        if kind == "invalid_key":  # the location ends with a mark of pydantic's own
            where = f"{detail['loc'][0]}: keys" if len(detail["loc"]) > 1 else "sections"
            yield True, f"{where} must be str, got {type(got).__name__} {got!r}"
            continue
        if kind == "string_unicode":  # of a key too, whose location is that of its section
            yield False, f"{path or 'sections'}: must be Unicode text, got {got!r}"
            continue
        field = _field(detail["loc"])
        if kind in ("wrong_type", "out_of_range"):
            yield kind == "wrong_type", f"{path}: {detail['msg']}, got {got!r}"
        elif kind in _OUT_OF_RANGE or (kind == "literal_error" and isinstance(got, str)):
            yield False, f"{path}: must be {allowed(field)}, got {got!r}"
        else:
            yield True, f"{path}: must be {_type_name(field)}, got {type(got).__name__} {got!r}"


def _field(loc: tuple[int | str, ...]) -> FieldInfo:
    field = BoostConfig.model_fields[str(loc[0])]
    if len(loc) > 1:
        field = _keys(str(loc[0]))[str(loc[1])]
    return field


def _keys(section: str) -> dict[str, FieldInfo]:
    fields: dict[str, FieldInfo] = type(BoostConfig.model_fields[section].default).model_fields
    return fields


def _unknown(detail: ErrorDetails) -> str:
    *section, key = map(str, detail["loc"])
    known = _keys(section[0]) if section else BoostConfig.model_fields
    what = f"{section[0]}: unknown key" if section else "unknown section"
    return f"{what} {key!r}, did you mean {nearest(key, known)!r}? Known: {list(known)}"


def _readable(owner: str, problems: list[tuple[bool, str]]) -> ValueError | TypeError:
    lines = [line for _, line in problems]
    message = f"{owner}: {lines[0]}"
    if len(lines) > 1:
        message = f"{owner}: {len(lines)} problems\n" + "\n".join(f"  {line}" for line in lines)
    return TypeError(message) if all(is_type for is_type, _ in problems) else ValueError(message)


def _read(owner: str, path: Path) -> Any:
    """The JSON object in a file."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"{owner}: key {twice!r} must be given once, got it twice")
        return content

    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise type(error)(f"{owner}: must be a readable JSON file, got: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{owner}: must be UTF-8, got: {error}") from None
    try:
        content = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:  # ValueError for a number of thousands of digits, too
        if str(error).startswith(f"{owner}: key"):
            raise
        raise ValueError(f"{owner}: must hold JSON, got: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{owner}: must hold a JSON object, got {type(content).__name__}")
    return content
