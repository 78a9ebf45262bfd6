"""The training of a recipe: what each action of its script does, beside ``torch.optim`` where that has the rule."""

from __future__ import annotations

import copy
import inspect
import io
import math
import pickle
from typing import Any

import torch

from boost_ext import torch as boost
from boost_ext.torch.storage import wide_weight

__all__ = ["NEUTRAL", "REFERENCES", "Training", "boost", "torch"]

NEUTRAL = ("save", "overflow", "sparse", "touch", "zero")
"""Actions that leave weights and state as they are."""
REFERENCES = {"AdamW": "AdamW", "Adam": "Adam", "SGD": "SGD", "NAdamW": "NAdam", "Adafactor": "Adafactor"}
REFUSED = (ValueError, TypeError, RuntimeError)
OF_TENSORS = (
    "must be float32, float16 or bfloat16",
    "must be C-contiguous",
    "single memory location",
    "for float16 parameters",
    "beside a float16 parameter",
)
"""What a step says of a tensor when it comes to it. As in PyTorch, others may have made their step."""
STORAGE = ("state_dtype", "master", "rank", "use_muon", "use_apollo", "use_galore", "amsgrad")
TURNS = {2: (1, 0), 3: (2, 1, 0), 4: (0, 3, 1, 2)}
PRECISION = {torch.float64: 1e-5, torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def values(shape: Any, seed: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def laid(value: Any, layout: str) -> Any:
    """The same values, in another order of memory or with gaps."""
    if layout == "turned" and value.ndim in TURNS:
        order = TURNS[value.ndim]
        back = [order.index(i) for i in range(value.ndim)]
        return value.permute(order).clone(memory_format=torch.contiguous_format).permute(back)
    if layout == "strided" and value.ndim:
        return torch.stack([value, value], -1)[..., 0]
    if layout == "expanded" and value.ndim and value.numel():
        return value.flatten()[:1].clone().expand(value.shape)
    if layout == "part":
        return torch.cat([value.new_zeros(3), value.flatten()])[3:].view(value.shape)
    return value.clone(memory_format=torch.contiguous_format)


def bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        dense = value.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
        return str(value.dtype), tuple(value.shape), dense.view(torch.uint8).numpy().tobytes()
    return tuple(map(bits, value)) if isinstance(value, (tuple, list)) else value


class Training:
    def __init__(self, recipe: Any, tensors: Any, groups: Any, script: Any) -> None:
        self.options = recipe.settings
        self.recipe, self.tensors, self.groups, self.script = recipe, tensors, groups, script
        self.params = [torch.nn.Parameter(laid(values(t[0], i).to(t[1]), t[2]), t[3]) for i, t in enumerate(tensors)]
        self.accepted = self.refused = 0
        self.was_rounded = False
        self.is_whole = True
        """Whether the script went on to its end."""
        adds = any(action[0] == "add" for _, action in script)
        members = [numbers for numbers, _ in groups[: len(groups) - adds]]
        self.optimizer = self.made([[self.params[i] for i in numbers] for numbers in members])
        self.scheduler = self.scheduled()
        self.twins: dict[Any, Any] = {}
        self.reference = self.beside()

    def made(self, members: Any) -> Any:
        own = [settings for _, settings in self.groups[: len(members)]]
        groups = [{"params": ps, **copy.deepcopy(more)} for ps, more in zip(members, own, strict=True)]
        return getattr(boost, self.recipe.name)(groups, **copy.deepcopy(self.options))

    def scheduled(self) -> Any:
        if self.recipe.schedule == "OneCycleLR":
            cycles = bool({"betas", "momentum"} & set(self.optimizer.defaults)) and self.recipe.name[:5] != "NAdam"
            kind = torch.optim.lr_scheduler.OneCycleLR
            return kind(self.optimizer, 0.1, total_steps=20, cycle_momentum=cycles)
        return torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5) if self.recipe.schedule else None

    # Beside torch.optim.

    def beside(self) -> Any:
        """Each parameter has a twin of float32."""
        kind = getattr(torch.optim, REFERENCES.get(self.recipe.name, ""), None)
        if kind is None or not self.has_rule_of_torch():
            return None
        self.twins = {p: torch.nn.Parameter(p.detach().float().clone(), p.requires_grad) for p in self.params}
        groups = [{"params": [self.twins[p] for p in g["params"]]} for g in self.optimizer.param_groups]
        return kind(groups, foreach=False)

    def has_rule_of_torch(self) -> bool:
        if self.recipe.name == "Adafactor":
            if any(p.numel() == 0 or p.dtype != torch.float32 for p in self.params):
                return False
            if any(
                g["eps"][0] is not None for g in self.optimizer.param_groups
            ):  # added to the squares, as in the paper
                return False
        return not any(g.get("cautious") or g["state_dtype"] != "float32" for g in self.optimizer.param_groups)

    def follow(self, scale: float) -> None:
        for ours, theirs in zip(self.optimizer.param_groups, self.reference.param_groups, strict=True):
            for key in set(inspect.signature(type(self.reference)).parameters) & set(ours) - {"params"}:
                value = ours[key]
                numbers = tuple(map(float, value)) if key == "betas" else value
                theirs[key] = float(value) if isinstance(value, torch.Tensor) else numbers
        for p, q in self.twins.items():
            q.data.copy_(self.wide(p))
            q.grad = None if p.grad is None else p.grad.detach().float() / scale

    def wide(self, p: Any) -> Any:
        group = self.group_of(p)
        return wide_weight(p.detach(), self.optimizer.state.get(p, {}).get("master") if group["master"] else None)

    def is_member(self, p: Any) -> bool:
        return "params" in self.group_of(p)

    def group_of(self, p: Any) -> Any:
        return next((g for g in self.optimizer.param_groups if any(p is q for q in g["params"])), {"master": False})

    def compare(self) -> None:
        for p, q in self.twins.items():
            wide = self.wide(p)
            narrow = p.dtype != wide.dtype and self.group_of(p)["master"] == "split8"
            precision = 2**-14 if narrow else PRECISION[wide.dtype]
            torch.testing.assert_close(wide, q.detach().to(wide.dtype), rtol=precision, atol=1e-5, equal_nan=True)

    # What is compared.

    def taken(self) -> Any:
        """Weights and state, but what a refused or skipped step has begun: it has no step, or is 0."""
        weights, state = [bits(p) for p in self.params], {}
        for i, p in enumerate(self.params):
            entry = self.optimizer.state.get(p, {})
            if float(entry.get("step", 0)):
                state[i] = {k: bits(v) for k, v in entry.items() if v.any()}
        return weights, state

    def settings(self) -> Any:
        known = {*self.optimizer.defaults, "initial_lr"} - {"differentiable"}  # which PyTorch adds
        return [{k: bits(v) for k, v in g.items() if k in known} for g in self.optimizer.param_groups]

    def is_exact(self) -> bool:
        """Whether nothing is rounded at random, and nothing was."""
        return not self.was_rounded and all(g["state_dtype"] == "float32" for g in self.optimizer.param_groups)

    def require_same(self, other: Training, what: str) -> None:
        if self.groups is other.groups:
            assert self.settings() == other.settings(), what
        (weights, state), (others, theirs) = self.taken(), other.taken()
        for i in range(len(self.params)):
            assert weights[i] == others[i], f"{what}: weight {i}: {self.params[i]} {other.params[i]}"
            mine, its = state.get(i, {}), theirs.get(i, {})
            assert sorted(mine) == sorted(its), f"{what}: state of {i}"
            for key in mine:
                assert mine[key] == its[key], f"{what}: {key} of {i}"

    def require_close(self, other: Training, what: str) -> None:
        for i, (p, q) in enumerate(zip(self.params, other.params, strict=True)):
            tolerance = 10 * PRECISION[p.dtype]
            close = torch.allclose(p.float(), q.float(), rtol=tolerance, atol=tolerance, equal_nan=True)
            assert close, f"{what}: weight {i}: {p} {q}"

    # The script.

    def trained(self) -> Training:
        for number, (kind, *arguments) in self.script:
            before = self.taken(), self.settings()
            try:
                getattr(self, f"_{kind}")(number, *arguments)
                self.accepted += 1
            except REFUSED as error:
                self.refused += 1
                if ": " not in str(error):
                    raise AssertionError("not clear") from error
                if any(part in str(error) for part in OF_TENSORS):
                    self.is_whole = False
                    break
                if before != (self.taken(), self.settings()):
                    raise AssertionError("refused, and yet changed") from error
            for name in ("grad_scale", "found_inf"):
                self.optimizer.__dict__.pop(name, None)
            if kind in NEUTRAL:
                assert before == (self.taken(), self.settings()), f"{kind} has changed something"
        return self

    def gradients(self, number: int, absent: Any, kind: str, scale: float) -> None:
        for i, (p, tensor) in enumerate(zip(self.params, self.tensors, strict=True)):
            if i in absent or not tensor[3] or not self.is_member(p):
                p.grad = None
                continue
            g = values(p.shape, 1000 * (number + 1) + i) * (kind != "zeros")
            p.grad_dtype = None
            dtype = torch.bfloat16 if kind == "narrow" else p.dtype
            g = g.to(dtype) * scale
            if kind in ("strided", "expanded"):
                p.grad = laid(g, kind)
            else:
                turned = kind == "other" and p.is_contiguous()
                like = laid(p.detach(), "turned" if turned else "plain") if kind == "other" else p
                p.grad = torch.empty_like(like, dtype=dtype).copy_(g)

    def _step(self, number: int, absent: Any, kind: str, clip: str | None, how: str, power: int) -> None:
        if clip and any(p.dtype == torch.float16 for p in self.params):
            how = "plain"  # clipped, float16 may be subnormal
        if how in ("scaler", "unscaled") and (
            kind in ("strided", "expanded", "narrow") or not self.can_scale(how, absent)
        ):
            how = "plain"
        if how == "inference" and not all(float(self.optimizer.state.get(p, {}).get("step", 0)) for p in self.params):
            how = "plain"
        scale = 2.0**power if how in ("scaled", "scaler", "unscaled") else 1.0
        self.gradients(number, absent, kind, scale)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        scaler.scale(torch.ones(()))
        if how == "unscaled":
            scaler.unscale_(self.optimizer)
        within = scale if how != "unscaled" else 1.0
        if clip:
            getattr(self, f"clipped_by_{clip}")(within, number)
        empty = any(p.grad is not None and not p.grad.any() for p in self.params)
        if self.reference and (not self.has_rule_of_torch() or (empty and self.recipe.name != "SGD")):
            self.reference = None  # a mean over the root of almost 0 says nothing
        if self.recipe.name == "Adafactor" and any(
            ((p.grad.abs() > 0) & (p.grad.abs() < 1e-5 * within)).any() for p in self.params if p.grad is not None
        ):
            self.reference = None  # the squares are near eps[0]², which ours adds to them, and PyTorch's limits them by
        if self.reference:
            self.follow(within)
        self.make_step(how, scaler, scale)
        if self.reference:
            self.reference.step()
            self.compare()

    def can_scale(self, how: str, absent: Any) -> bool:
        members = [p for g in self.optimizer.param_groups for p in g["params"]]
        halves = how == "unscaled" or self.recipe.name.startswith("ScheduleFree")
        if halves and any(p.dtype == torch.float16 for p in members):
            return False
        return any(
            p is q and i not in absent and self.tensors[i][3] for i, p in enumerate(self.params) for q in members
        )

    def make_step(self, how: str, scaler: Any, scale: float) -> None:
        calls: list[str] = []
        handles = [self.optimizer.register_step_pre_hook(lambda *_: calls.append("before"))]
        handles += [self.optimizer.register_step_post_hook(lambda *_: calls.append("after"))]
        try:
            if how == "closure":
                loss = torch.ones(())
                assert self.optimizer.step(lambda: loss) is loss
            elif how == "no_grad":
                with torch.no_grad():
                    self.optimizer.step()
            elif how == "inference":
                with torch.inference_mode():
                    self.optimizer.step()
            elif how in ("scaler", "unscaled"):
                scaler.step(self.optimizer)
                scaler.update()
            elif how == "compiled":
                torch.compile(lambda: self.optimizer.step(), backend="eager")()
            else:
                if how == "scaled":
                    self.optimizer.grad_scale, self.optimizer.found_inf = torch.tensor(scale), torch.tensor(0.0)
                self.optimizer.step()
            assert calls == ["before", "after"]
        finally:
            for handle in handles:
                handle.remove()

    # Clipping, beside float64.

    def clipped_by_clip(self, scale: float, number: int) -> None:
        before = [None if p.grad is None else p.grad.double() / scale for p in self.params]
        norm = math.sqrt(sum(float(g.square().sum()) for g in before if g is not None))
        limit = (1.0, 0.0, math.inf, torch.tensor(0.5))[number % 4]
        found = boost.clip_grad_norm_(self.params, limit, scale=scale)
        torch.testing.assert_close(float(found), norm, rtol=1e-6, atol=0.0)
        factor = min(1.0, float(limit) / norm) if norm else 1.0
        self.require_gradients([None if g is None else g * factor for g in before], scale)

    def clipped_by_agc(self, scale: float, number: int) -> None:
        expected = []
        for p in self.params:
            g, w = (None, None) if p.grad is None else (p.grad.double() / scale, p.detach().double())
            if g is not None:
                axes = [*range(1, g.ndim)] or [*range(g.ndim)]
                norm, limit = (x.square().sum(axes, keepdim=True).sqrt() if axes else x.abs() for x in (g, w))
                limit = 0.1 * limit.clamp(min=1e-3)
                g = g * torch.where(norm > limit, limit / norm, 1)
            expected.append(g)
        boost.adaptive_clip_grad_(self.params, 0.1, scale=scale)
        self.require_gradients(expected, scale)

    def clipped_by_unscale(self, scale: float, number: int) -> None:
        expected = [None if p.grad is None else p.grad.double() / scale / 4 for p in self.params]
        assert boost.unscale_(self.params, torch.tensor(4.0)).item() == 0
        self.require_gradients(expected, scale)

    def require_gradients(self, expected: list[Any], scale: float) -> None:
        for p, e in zip(self.params, expected, strict=True):
            if e is not None:
                precision = {torch.float32: 1e-6}.get(p.grad.dtype, PRECISION.get(p.grad.dtype, 0))
                torch.testing.assert_close(p.grad.double() / scale, e, rtol=precision, atol=1e-7)

    # Other actions.

    def is_settled(self) -> bool:
        """Whether state is stored as its weights are. If not, a step or a checkpoint makes or drops masters, and gives
        codes of 8 bits other blocks."""
        for p in self.params:
            entry = self.optimizer.state.get(p, {})
            if "step" in entry and self.group_of(p)["master"] and ("master" in entry) != (p.dtype != torch.float32):
                return False
            codes = [v for v in entry.values() if v.dtype == torch.uint8]
            if any(v.shape == p.shape and v.stride() != p.stride() for v in codes):
                return False
        return True

    def _save(self, number: int, how: str) -> None:
        if not self.is_settled():
            return
        members = [g["params"] for g in self.optimizer.param_groups]
        if how in ("deepcopy", "pickle") and not {t[2] for t in self.tensors} & {"strided", "expanded"}:
            both = self.params, self.optimizer
            self.params, self.optimizer = copy.deepcopy(both) if how == "deepcopy" else pickle.loads(pickle.dumps(both))
            self.twins = dict(zip(self.params, self.twins.values(), strict=True)) if self.reference else {}
        else:
            file = io.BytesIO()
            torch.save(self.optimizer.state_dict(), file)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
            wide = all(p.dtype == torch.float32 for p in self.params)
            if how == "torch" and self.reference and self.has_rule_of_torch() and wide:
                theirs = type(self.reference)([{"params": ps} for ps in members])
                theirs.load_state_dict(saved)
                saved = theirs.state_dict()
            fresh = self.made(members)
            try:
                fresh.load_state_dict(saved)
            except REFUSED as error:
                for group in self.optimizer.param_groups:
                    self.optimizer._require(group)  # refuses settings that the script has made
                raise AssertionError(f"a checkpoint of its own is refused: {error}") from error
            self.optimizer = fresh
        self.rebind()

    def rebind(self) -> None:
        if self.scheduler:
            self.scheduler.optimizer = self.optimizer

    def _convert(self, number: int, state_dtype: Any, master: Any) -> None:
        """The same training with another storage of state and masters."""
        was, self.options = self.options, {**self.options, "state_dtype": state_dtype, "master": master}
        try:
            fresh = self.made([g["params"] for g in self.optimizer.param_groups])
            fresh.load_state_dict(self.optimizer.state_dict())
        except REFUSED:
            self.options = was
            raise
        self.was_rounded = not self.is_exact()
        self.optimizer = fresh
        self.rebind()

    def _adopt(self, number: int) -> None:
        """What PyTorch has saved of the same training."""
        if self.reference and self.has_rule_of_torch():
            fresh = self.made([g["params"] for g in self.optimizer.param_groups])
            self.follow(1.0)
            fresh.load_state_dict(copy.deepcopy(self.reference.state_dict()))
            for group, before in zip(fresh.param_groups, self.optimizer.param_groups, strict=True):
                group |= {key: before[key] for key in before.keys() - group.keys()}  # of the scheduler
            self.optimizer = fresh
            self.rebind()

    def _turn(self, number: int) -> None:
        """The last parameter of a group becomes the first."""
        for optimizer in filter(None, (self.optimizer, self.reference)):
            members = optimizer.param_groups[0]["params"]
            members.insert(0, members.pop())

    def _overflow(self, number: int, bad: int, how: str) -> None:
        p = self.params[bad]
        if not self.is_member(p) or not p.numel() or not self.tensors[bad][3] or not self.can_scale("", ()):
            return
        if not self.is_settled():
            return
        self.gradients(number, (), "like", 1.0)
        with torch.no_grad():
            p.grad.view(-1)[-1:].fill_(math.inf) if p.grad.is_contiguous() else p.grad.fill_(math.nan)
        if how == "scaler":
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
            scaler.scale(torch.ones(()))
            scaler.step(self.optimizer)
        else:
            self.optimizer.found_inf = boost.unscale_(self.params, 8.0) if how == "unscale_" else torch.ones(1)
            self.optimizer.step()

    def _sparse(self, number: int, which: int) -> None:
        p = self.params[which]
        self.gradients(number, [i for i in range(len(self.params)) if i != which], "like", 1.0)
        if p.grad is None or not p.ndim or not self.is_member(p):
            return
        p.grad = p.grad.to_sparse()
        try:
            self.optimizer.step()
        except RuntimeError:
            p.grad = None
            raise
        raise AssertionError("a sparse gradient was taken")

    def _touch(self, number: int, which: int) -> None:
        """What a reader of the state does."""
        if self.is_member(self.params[which]):
            self.optimizer.state[self.params[which]].get("step")
        self.optimizer.state_dict()
        repr(self.optimizer)

    def _zero(self, number: int, which: int) -> None:
        self.optimizer.zero_grad(set_to_none=bool(which % 2))

    def _set(self, number: int, key: str, value: Any, which: int) -> None:
        groups = self.optimizer.param_groups
        groups[which % len(groups)][key] = copy.deepcopy(value)

    def _data(self, number: int, which: int, change: str) -> None:
        p = self.params[which]
        if change == "turned":
            p.data = laid(p.detach(), "turned" if p.is_contiguous() else "plain")
        elif change == "values":
            p.data = laid(values(p.shape, 99).to(p.dtype), self.tensors[which][2])
        else:
            with torch.no_grad():
                p.copy_(values(p.shape, 98))

    def _cast(self, number: int, dtype: Any) -> None:
        for p in self.params:
            p.grad, p.data = None, p.data.to(dtype)

    def _schedule(self, number: int, which: int) -> None:
        if self.scheduler:
            self.scheduler.step()

    def _add(self, number: int) -> None:
        numbers, own = self.groups[-1]
        self.optimizer.add_param_group({"params": [self.params[i] for i in numbers], **copy.deepcopy(own)})
        if self.reference:
            self.reference.add_param_group({"params": [self.twins[self.params[i]] for i in numbers]})

    def _move(self, number: int, which: int) -> None:
        if self.recipe.name == "NAdamW":  # the other betas count for all steps so far
            self.reference = None
        groups = [optimizer.param_groups for optimizer in (self.optimizer, self.reference) if optimizer]
        if any(groups[0][0].get(key) != groups[0][-1].get(key) for key in STORAGE):
            return  # a checkpoint stores the state anew
        for first, last in ((each[0]["params"], each[-1]["params"]) for each in groups):
            if len(first) > 1:
                last.append(first.pop(which % len(first)))

    def _eval(self, number: int, which: int) -> None:
        self.optimizer.eval()

    def _train(self, number: int, which: int) -> None:
        self.optimizer.train()
