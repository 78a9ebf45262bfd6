"""What must hold for each recipe of :mod:`tests.fuzz.cell_recipes`, whatever it combines.

It trains, or a TypeError, ValueError or NotImplementedError that names what it refuses says why, and nothing has
changed. A training resumes to the same bits; an overflow leaves no trace; and two ways to the same training agree.
"""

from __future__ import annotations

import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from tests.fuzz.cell_networks import batch
from tests.fuzz.cell_recipes import Recipe, made

from boost_ext import boost
from boost_ext.checkpoint import load_training_state, save_training_state
from boost_ext.ms.core.resume import moving_of
from boost_ext.ms.optim.adoption import native_step, whole_of
from boost_ext.ms.optim.learning_rates import learning_rates
from boost_ext.ms.step.settings import settings_of

REFUSALS = (TypeError, ValueError, NotImplementedError)
NAMED = re.compile(r"[\w.]+( [\w.]+)*(\[\d+\])?: |For ")
"""How an error begins: with what raises it, here and in MindSpore."""
State = dict[str, np.ndarray]

AFTER_OVERFLOW = re.compile(
    r"loss_scale\.|.*(moving_mean|moving_variance|dropout_state|boost\.steps)$|local_steps\.count|clip\."
)
"""What an overflow may change."""
SIGNS = ("Lion", "Rprop", "Muon", "GaLore", "cautious", "compression", "ASGD")
"""Rules that make a large step of a gradient that is rounding alone."""


class Refused(Exception):
    """The recipe is refused, as it should be."""


def arrays(parameters: dict[str, Any]) -> State:
    def array(p: Any) -> np.ndarray:
        return np.array(p.astype(ms.float32).asnumpy() if p.dtype == ms.bfloat16 else p.asnumpy())

    return {name: array(p) for name, p in parameters.items()}


def state_of(cell: Any) -> State:
    """All that moves in a training."""
    return arrays(moving_of(cell))


def differing(one: State, two: State, skip: re.Pattern[str] | None = None, other: bool = False) -> str:
    """The first names of what has not the same bits; "" if all has. `other`: whether `two` may have more."""
    assert other or set(one) == set(two), set(one) ^ set(two)
    names = [name for name in one if not (skip and skip.match(name)) and one[name].tobytes() != two[name].tobytes()]
    return ", ".join(f"{n} {one[n].reshape(-1)[:3]} {two[n].reshape(-1)[:3]}" for n in names[:4])


def made_or_refused(recipe: Recipe, folder: Path) -> Any:
    """The training cell. A refusal must say what it refuses, and leave the weights."""
    net, cell = made(recipe, folder)
    before, kinds = arrays(by_name(net)), kinds_in(net)
    made_it, refusal = attempt(cell)
    if refusal:
        gone = before.keys() - by_name(net).keys()
        assert not gone or recipe.boost, f"{refusal}, but {gone} are gone"
        kept = {name: value for name, value in before.items() if name not in gone}
        assert not (changed := differing(kept, arrays(by_name(net)), other=True)), f"{refusal}, but {changed} changed"
        late = recipe.boost or recipe.options.keys() & {"weight_average", "local_steps"}  # docs/amp.md
        late = late or recipe.optimizer == "optim.thor"  # which converts layers itself
        assert late or recipe.built == "cell" or kinds == kinds_in(net), f"{refusal}, but the network changed"
        raise Refused(refusal)
    return made_it


def attempt(call: Callable[..., Any], *inputs: Any) -> tuple[Any, str]:
    """What a call returns, and why it was refused."""
    try:
        return call(*inputs), ""
    except REFUSALS as error:
        refusal = f"{type(error).__name__}: {error}"
        named = NAMED.match(str(error))
    assert named, refusal
    return None, refusal


def by_name(net: nn.Cell) -> dict[str, Any]:
    return {p.name: p for p in net.get_parameters() if not p.name.startswith("loss_scale")}


def kinds_in(net: nn.Cell) -> list[Any]:
    return [(name, type(cell), dict(cell.get_flags())) for name, cell in net.cells_and_names()]


def first_step(cell: Any, inputs: Any) -> float:
    before = state_of(cell)
    loss, refusal = attempt(step, cell, inputs)
    if refusal:
        assert not (changed := differing(before, state_of(cell))), f"{refusal}, but {changed} changed"
        raise Refused(refusal)
    return float(loss)


def step(cell: Any, inputs: Any) -> float:
    return float(cell(*inputs)[0].astype(ms.float32).asnumpy())


def trained(cell: Any, numbers: Any) -> list[float]:
    return [step(cell, batch(n)) for n in numbers]


@contextmanager
def own_folder() -> Iterator[Path]:
    """MindSpore writes into the working directory."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def check(recipe: Recipe) -> bool:
    """Whether it trains; AssertionError if something does not hold."""
    with own_folder() as folder:
        try:
            cell = made_or_refused(recipe, folder)
            first = first_step(cell, batch(0))
        except Refused:
            return False
        losses = [first, *trained(cell, range(1, 3))]
        assert np.isfinite(losses).all(), losses
        check_resumed(recipe, cell, folder)
        if recipe.compile == "off":
            check_overflow(recipe, folder)
            check_ways(recipe, losses, folder)
            check_joined(recipe, folder)
        else:
            check_compiled(recipe, losses, folder)
    return True


def evaluated(cell: Any) -> None:
    """What an evaluation between two steps does to the weights."""
    optimizer = whole_of(cell.optimizer)
    if hasattr(optimizer, "train_mode"):
        optimizer.eval()
    if cell.weight_average is not None:
        with cell.weight_average.swapped_in():
            pass


def goes_on(cell: Any) -> None:
    optimizer = whole_of(cell.optimizer)
    if hasattr(optimizer, "train_mode"):
        optimizer.train()


def looked_at(cell: Any) -> None:
    """What reads a training, and must change nothing in it."""
    cell.watch()
    cell.instrument()
    assert settings_of(cell)
    assert repr(cell.optimizer)
    assert isinstance(learning_rates(cell.optimizer), tuple)


def check_resumed(recipe: Recipe, cell: Any, folder: Path) -> None:
    """Three steps are behind it. Saved and loaded, three more leave the same bits: in the same cell and in others."""
    fused = cell.options.fused_optimizer and not cell.options.moves
    theirs = native_step(whole_of(cell.optimizer), fused) is None  # MindSpore's operators round as their tensors lie
    evaluated(cell)
    save_training_state(cell, folder / "state.ckpt")
    ms.save_checkpoint(cell, str(folder / "plain.ckpt"))
    goes_on(cell)
    losses = trained(cell, range(3, 6))
    whole = state_of(cell)

    def check_same(other: Any, how: str) -> None:
        goes_on(other)
        again = trained(other, range(3, 6))
        assert theirs or not (wrong := differing(whole, state_of(other))), f"{how}: {wrong}"
        assert np.allclose(again, losses, 1e-4 if theirs else 0, 0), f"{how}: {again} for {losses}"

    load_training_state(cell, folder / "state.ckpt")
    looked_at(cell)
    check_same(cell, "the same cell")
    assert cell.observe()
    if recipe.compile != "off":
        return
    fresh = made_or_refused(recipe, folder)
    load_training_state(fresh, folder / "state.ckpt")
    check_same(fresh, "a state")
    fresh = made_or_refused(recipe, folder)
    missing, _ = ms.load_param_into_net(fresh, ms.load_checkpoint(str(folder / "plain.ckpt")))
    assert not missing, missing
    check_same(fresh, "a checkpoint")


def check_overflow(recipe: Recipe, folder: Path) -> None:
    """A step with inf or nan in its gradients changes nothing, and those after it are as if it had not been."""
    cell, plain = made_or_refused(recipe, folder), made_or_refused(recipe, folder)
    if not cell.options.checks or "local_steps" in recipe.options:
        return  # an exchange comes after so many steps, whatever they did
    trained(cell, range(3))
    before = state_of(cell)
    _, overflow, _ = cell(*batch(9, infinite=True))
    assert overflow
    assert not (changed := differing(before, state_of(cell), AFTER_OVERFLOW)), f"an overflow changed {changed}"
    rounds = recipe.level != "O0" or recipe.weights != "float32"
    if recipe.scale == "groups" or (recipe.scale == "dynamic" and rounds):
        return  # another scale gives other roundings
    if "dropout" in recipe.parts:
        return  # each step draws a mask
    trained(cell, range(3, 6))
    trained(plain, range(6))
    assert not (wrong := differing(state_of(plain), state_of(cell), AFTER_OVERFLOW)), f"after an overflow: {wrong}"


def rounds_badly(recipe: Recipe) -> bool:
    """Whether gradients that are 0 but for rounding move the weights as much as others."""
    told = f"{recipe.optimizer} {[name for name, value in recipe.settings.items() if value is True]}"
    return any(word in told for word in SIGNS)


def check_way(recipe: Recipe, losses: list[float], folder: Path, how: str, exact: bool, **changes: Any) -> None:
    """Another recipe whose first three losses are those of this one."""
    if not exact and rounds_badly(recipe):
        return
    try:
        other = made_or_refused(replace(recipe, **changes), folder)
    except Refused:
        return
    got = trained(other, range(3))
    if exact:
        assert got == losses, f"{how}: {got} for {losses}"
    else:
        wide = recipe.level == "O0" and recipe.weights == "float32"
        assert np.allclose(got, losses, 2e-3 if wide else 0.05, 1e-4), f"{how}: {got} for {losses}"


def check_ways(recipe: Recipe, losses: list[float], folder: Path) -> None:
    def check_other(how: str, exact: bool, **changes: Any) -> None:
        check_way(recipe, losses, folder, how, exact, **changes)

    exact, thor = recipe.weights == "float32", recipe.optimizer == "optim.thor"
    ours = recipe.optimizer.startswith("optim")
    if recipe.scale in ("sens", "tensor", "fixed", "dynamic") and recipe.level == "O0":
        check_other("without a loss scale", exact, scale="")
    if not ours:
        check_other("MindSpore's operators", False, options={**recipe.options, "fused_optimizer": False})
    if not recipe.freeze and not recipe.boost and not thor:
        check_other("a FreezeOpt of all", True, freeze=(1,))
    if recipe.level == "O0" and recipe.scale in ("", "fixed", "dynamic") and not (recipe.freeze and recipe.boost):
        check_other("built in the other way", exact, built="amp" if recipe.built == "cell" else "cell")
    if ours and not thor:
        clipped = "clip_norm" in recipe.options  # by a pass of its own, which rounds
        check_other("an optimizer with a construct", exact and not clipped, own="optimizer")
    if recipe.built == "cell" and recipe.scale in ("", "sens"):
        check_other("a cell with a construct", exact, own="cell")
    if recipe == replace(recipe, scale="", options={}, boost=(), freeze=(), level="O0"):
        check_loops(recipe, losses, ours, folder)


def check_loops(recipe: Recipe, losses: list[float], exact: bool, folder: Path) -> None:
    """A loop of one's own, MindSpore's cell, and a second cell that goes on."""
    cell = made_or_refused(recipe, folder)
    gradients = ms.value_and_grad(cell.network, None, cell.optimizer.parameters)
    looped = []
    for n in range(3):
        loss, grads = gradients(*batch(n))
        cell.optimizer(grads)
        looped.append(float(loss.asnumpy()))
    cell = made_or_refused(recipe, folder)
    plain = nn.TrainOneStepCell(cell.network, cell.optimizer).set_train()
    by_plain = [float(plain(*batch(n)).asnumpy()) for n in range(3)]
    for how, got in (("a loop", looped), ("MindSpore's cell", by_plain)):
        assert got == losses if exact else rounds_badly(recipe) or np.allclose(got, losses, 2e-3, 1e-4), (how, got)
    first = made_or_refused(recipe, folder)
    start = trained(first, range(2))
    again = boost.BoostTrainOneStepCell(first.network, first.optimizer, compile="off").set_train()
    assert [*start, *trained(again, range(2, 3))] == losses, "a second cell"


def check_compiled(recipe: Recipe, losses: list[float], folder: Path) -> None:
    check_way(recipe, losses, folder, "not compiled", False, compile="off")


def check_joined(recipe: Recipe, folder: Path) -> None:
    """Micro-batches, and one batch of all of them."""
    steps = recipe.options.get("accumulation_steps")
    mixing = {"batchnorm", "residual", "dropout"} & set(recipe.parts) or "local_steps" in recipe.options
    if not steps or mixing or recipe.level != "O0" or rounds_badly(recipe) or recipe.boost:
        return
    options = {name: value for name, value in recipe.options.items() if name != "accumulation_steps"}
    many, one = made_or_refused(recipe, folder), made_or_refused(replace(recipe, options=options), folder)
    trained(many, range(2 * steps))
    for window in range(2):
        micro = [batch(n) for n in range(window * steps, (window + 1) * steps)]
        one(*(ops.concat(parts) for parts in zip(*micro, strict=True)))
    got, expected = (step(cell, batch(99)) for cell in (many, one))
    assert np.allclose(got, expected, 2e-3, 1e-4), f"one batch in {steps} parts: {got} for {expected}"
