"""Recipes for the optimizers of boost_ext.torch: settings, groups, tensors, and a script of what a training does.

A recipe is refused by an error that says what is wrong, and nothing has changed then, or it works. It has the weights
of ``torch.optim`` where that has the rule. What should not matter does not: a checkpoint or a copy between two steps, a
step that overflows, a loss scale, a closure, modes of autograd, how the tensors are grouped and laid out.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from tests.fuzz.torch_training import NEUTRAL, REFERENCES, Training, boost, torch

F32, HALVES = torch.float32, (torch.bfloat16, torch.float16)
SHAPES = [(), (0,), (1,), (3,), (1, 1), (5, 7), (7, 5), (2, 0, 3), (4, 3, 2, 2), (6, 4, 3, 3), (64, 80), (5000,)]
DTYPES = [F32] * 6 + [torch.bfloat16] * 3 + [torch.float16] * 2 + [torch.float64]
LAYOUTS = ["plain"] * 6 + ["turned"] * 3 + ["part"] + ["strided"] + ["expanded"]
NAMES = [n for n in boost.__all__ if n not in ("FusedOptimizer", "Storage") and isinstance(getattr(boost, n), type)]

OPTIONS: dict[str, list[Any]] = {
    "lr": [0.0, 1e-3, 0.03, 0.5, torch.tensor(0.03), torch.tensor([0.5], dtype=torch.float64)],
    "betas": [(0.9, 0.999), (0.0, 0.9), (0.5, 0.0), (0.99, 0.95), (torch.tensor(0.9), torch.tensor(0.5))],
    "AdEMAMix.betas": [(0.9, 0.999, 0.9999), (0.0, 0.9, 0.99), (0.5, 0.0, 0.9)],
    "Adan.betas": [(0.98, 0.92, 0.99), (0.0, 0.9, 0.5), (0.9, 0.0, 0.0)],
    "eps": [1e-8, 1e-3],
    "Adafactor.eps": [(None, 1e-3), (1e-6, 1e-2)],
    "weight_decay": [0.0, 0.1],
    "momentum": [0.0, 0.5, 0.9],
    "dampening": [0.0, 0.5],
    "trust_coefficient": [1e-3, 0.1],
    "beta2_decay": [-0.8, -0.5],
    "d": [1.0, 2.0],
    "ns_steps": [5, 2, 0],
    "ns_coefficients": [(3.4445, -4.775, 2.0315), [3.4445, -4.775, 2.0315]],
    "adjust_lr_fn": [None, "original", "match_rms_adamw"],
    "adamw_eps": [1e-8, 1e-3],
    "rank": [None, 1, 2, 8],
    "scale_type": ["channel", "tensor"],
    "scale": [0.25, 1.0],
    "norm_growth": [None, 1.01],
    "update_proj_gap": [1, 2, 200],
    "momentum_decay": [0.0, 4e-3],
    "alpha": [0.0, 5.0],
    "alpha_steps": [0, 5],
    "beta3_steps": [0, 5],
    "warmup_steps": [0, 3],
    "r": [0.0, 0.5],
    "weight_lr_power": [2.0, 0.0],
    "state_dtype": ["float32", "bfloat16", "float8", torch.bfloat16, None],
    "master": [False, True, "split16", "split8"],
    "seed": [0, 7],
    "foreach": [None, True],
    "fused": [True],
    "capturable": [True],
    "differentiable": [False],
}
FLAGS = ["amsgrad", "decoupled_weight_decay", "nesterov", "cautious", "maximize", "adapt", "use_muon", "use_apollo"]
OPTIONS |= {flag: [False, True] for flag in [*FLAGS, "use_galore", "allow_tf32"]}
CHANGED = ["lr", "weight_decay", "betas", "momentum", "dampening", "maximize", "eps", "nesterov", "cautious"]
"""What a script may change in a group."""


@dataclass
class Recipe:
    name: str
    settings: dict[str, Any]
    tensors: list[tuple[Any, ...]]
    """Shape, dtype, layout, and whether it gets gradients."""
    groups: list[tuple[list[int], dict[str, Any]]]
    """Numbers of the tensors, and settings of their own. The last one comes with an action `add`, if there is one."""
    schedule: str
    script: list[tuple[Any, ...]]
    other: list[tuple[list[int], dict[str, Any]]] | None
    """Other groups of the same tensors, which have no settings of their own."""

    def run(self, script: Any, groups: Any = None, turned: bool = False) -> Training:
        tensors = [(*t[:2], {"plain": "turned", "turned": "plain"}[t[2]], t[3]) if turned else t for t in self.tensors]
        return Training(self, tensors, groups or self.groups, script).trained()

    def check(self) -> bool:
        """Whether it was not refused; AssertionError if something is wrong."""
        numbered = [*enumerate(self.script)]
        try:
            whole = self.run(numbered)
        except (TypeError, ValueError) as error:
            if not str(error).split(":")[0].isidentifier():
                raise AssertionError("not clear") from error
            return False
        if not whole.is_whole:
            return False
        plain = [(n, ("step", *a[1:-2], "plain", 0) if a[0] == "step" else a) for n, a in numbered]
        plain = [(n, a) for n, a in plain if a[0] not in NEUTRAL]
        without = self.run(plain)
        whole.require_same(without, "with and without what should not matter")
        if whole.is_exact() and self.other:
            whole.require_same(self.run(plain, self.other), "in other groups")
        if whole.is_exact() and {t[2] for t in self.tensors} <= {"plain", "turned"}:
            whole.require_close(self.run(plain, turned=True), "in other layouts")
        return whole.accepted > whole.refused


def chosen(draw: st.DrawFn, name: str, keys: Any, often: int) -> dict[str, Any]:
    """Some of these options, one in `often`."""
    found = {}
    for key in keys:
        if draw(st.integers(1, often)) == 1:
            found[key] = copy.deepcopy(draw(st.sampled_from(OPTIONS.get(f"{name}.{key}", OPTIONS.get(key)))))
    return found


def options_of(name: str) -> list[str]:
    made = inspect.signature(getattr(boost, name)).parameters
    return [*(k for k in made if k not in ("params", "storage")), *boost.Storage.__optional_keys__]


@st.composite
def steps(draw: st.DrawFn, tensors: int) -> tuple[Any, ...]:
    """`step`, those without a gradient, what gradients are like, what clips them, how it is made, by which scale."""
    absent = draw(st.lists(st.integers(0, tensors - 1), max_size=2, unique=True)) if draw(st.booleans()) else []
    kind = draw(st.sampled_from(["like", "like", "like", "other", "strided", "expanded", "narrow", "zeros"]))
    clip = draw(st.sampled_from([None, None, None, "clip", "agc", "unscale"]))
    how = draw(st.sampled_from(["plain", "closure", "no_grad", "inference", "scaled", "scaler", "unscaled"]))
    if draw(st.integers(0, 2000)) == 777:
        how = "compiled"
    return ("step", tuple(absent), kind, clip, how, draw(st.sampled_from([0, 4, 11])))


@st.composite
def actions(draw: st.DrawFn, name: str, tensors: int, groups: int) -> tuple[Any, ...]:
    kinds = [
        "save",
        "save",
        "overflow",
        "overflow",
        "sparse",
        "touch",
        "zero",
        "set",
        "set",
        "data",
        "cast",
        "schedule",
    ]
    kinds += ["move", "turn", "adopt", "convert", *(["eval", "train"] if name.startswith("ScheduleFree") else [])]
    kind = draw(st.sampled_from(kinds))
    if kind == "save":
        return (kind, draw(st.sampled_from(["load", "load", "deepcopy", "pickle", "torch"])))
    if kind == "overflow":
        return (kind, draw(st.integers(0, tensors - 1)), draw(st.sampled_from(["attribute", "unscale_", "scaler"])))
    if kind == "set":
        known = [k for k in CHANGED if k in options_of(name) and (k != "betas" or not name.startswith("NAdam"))]
        key = draw(st.sampled_from(known))
        value = draw(st.sampled_from(OPTIONS.get(f"{name}.{key}", OPTIONS.get(key))))
        return (kind, key, value, draw(st.integers(0, groups - 1)))
    if kind == "data":
        change = draw(st.sampled_from(["values", "in place", "turned"]))
        return (kind, draw(st.integers(0, tensors - 1)), change)
    if kind == "convert":
        return (kind, *(draw(st.sampled_from(OPTIONS[key])) for key in ("state_dtype", "master")))
    if kind in ("turn", "adopt"):
        return (kind,)
    if kind == "cast":
        return (kind, draw(st.sampled_from([F32, *HALVES])))
    return (kind, draw(st.integers(0, tensors - 1)))


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    name = draw(st.sampled_from(NAMES))
    dtypes = st.just(F32) if draw(st.booleans()) else st.sampled_from(DTYPES)
    layouts = st.just("plain") if draw(st.booleans()) else st.sampled_from(LAYOUTS)
    trained = st.sampled_from([True] * 6 + [False])
    tensors = draw(st.lists(st.tuples(st.sampled_from(SHAPES), dtypes, layouts, trained), min_size=1, max_size=5))
    settings = chosen(draw, name, options_of(name), 4)
    if name in REFERENCES and draw(st.booleans()):
        settings |= {"cautious": False, "state_dtype": "float32"}
        settings = {k: v for k, v in settings.items() if k in options_of(name)}
    alike, numbers = draw(st.booleans()), [*range(len(tensors))]
    groups = parted(draw, numbers)
    own = [k for k in options_of(name) if k not in ("foreach", "fused", "capturable")]
    made = [(g, {} if alike else chosen(draw, name, own, 6)) for g in groups]
    adds = not alike and len(made) > 1 and draw(st.booleans())
    each = st.one_of(steps(len(tensors)), actions(name, len(tensors), len(made)))
    script = draw(st.lists(each, min_size=2, max_size=12))
    script += draw(st.lists(steps(len(tensors)), max_size=2))
    if adds:
        script.insert(draw(st.integers(0, len(script))), ("add",))
    schedule = draw(st.sampled_from(["", "StepLR", "StepLR", *([] if adds else ["OneCycleLR"])]))
    other = None
    if alike and not {"set", "move", "turn"} & {a[0] for a in script} and not name.startswith("ScheduleFree"):
        placed = name in ("Apollo", "GaLore")  # where a parameter stands is a part of their rule
        other = [(g, {}) for g in parted(draw, numbers if placed else draw(st.permutations(numbers)))]
    return Recipe(name, settings, tensors, made, schedule, script, other)


def parted(draw: st.DrawFn, numbers: list[int]) -> list[list[int]]:
    ends = sorted(draw(st.sets(st.integers(1, len(numbers)), max_size=2)) | {len(numbers)})
    return [[*numbers[a:b]] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
