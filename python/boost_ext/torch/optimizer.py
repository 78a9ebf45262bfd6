"""What the optimizers of :mod:`boost_ext.torch` share: state, groups, loss scale, checkpoints. A rule adds its call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from operator import is_, is_not
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

import torch

from boost_ext.torch.checkpoints import apart, hold, released, require_key, require_shape, require_state
from boost_ext.torch.storage import (
    MASTERS,
    STATE_DTYPES,
    converted,
    empty_state,
    has_no_data,
    is_distributed,
    loaded_master,
    local,
    new_master,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["FusedOptimizer", "Storage"]

_PLAIN = {torch.nn.Parameter}


class Storage(TypedDict, total=False):
    """What every optimizer takes beside the hyperparameters of its rule.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import AdamW
        >>> net = torch.nn.Linear(128, 64).bfloat16()
        >>> optimizer = AdamW(net.parameters(), lr=1e-3, state_dtype="float8", master=True)
    """

    maximize: bool
    """Step along the gradient instead of against it. Default: False."""
    state_dtype: str | torch.dtype | None
    """``"float32"``, ``"bfloat16"`` or ``"float8"`` (one byte and a scale for each 256 elements). State of tensors
    with fewer than 4096 elements is float32. Default: "float32"."""
    master: bool | str
    """Keep a float32 copy of each float16 and bfloat16 weight, and step that: 4 bytes a weight. ``"split16"`` is the
    same, bit for bit, in 2 bytes: of bfloat16 weights it keeps only what they lack of float32. ``"split8"`` keeps the
    first byte of that. Default: False."""
    seed: int
    """Of the random rounding of state that is not float32. Default: 0."""
    foreach: bool | None
    """For calls that were written for ``torch.optim``; ignored, as are `fused` and `capturable`."""
    fused: bool | None
    capturable: bool
    differentiable: bool
    """Refused if True: the step is not recorded by autograd."""


@dataclass
class _Bucket:
    """Members of a group that have made the same number of steps, on one device."""

    params: list[Any]
    grads: list[Any]
    states: list[dict[str, Any]]
    named: list[list[Any]]
    """For each name of a state that of all members."""
    step: torch.Tensor

    def chosen(self, keep: list[bool], step: torch.Tensor) -> _Bucket:
        """Some of the members, with a count of their own."""
        lists = [list(compress(xs, keep)) for xs in (self.params, self.grads, self.states, *self.named)]
        return _Bucket(lists[0], lists[1], lists[2], lists[3:], step)


class FusedOptimizer(torch.optim.Optimizer):
    """One native call steps all tensors of a group that have made the same number of steps.

    A rule is a subclass with a constructor, and with `op`, `states` and `hyper`, or with :meth:`state_names` and
    :meth:`update` where these depend on the group.

    ``state[p]["step"]`` is one tensor for all `p` that step together; :meth:`state_dict` gives each its own, as
    ``torch.optim`` has them.
    """

    op: Callable[..., None]
    states: tuple[str, ...] = ()
    """See :meth:`state_names`."""
    hyper: tuple[str, ...] = ()
    """What `op` takes from the group under the same names, beside betas."""
    changing: ClassVar[dict[str, Any]] = {"params": None, "lr": None}
    """Keys of a group that change from step to step, with any values."""
    fixed: ClassVar[dict[str, Any]] = {}
    """Settings that a checkpoint of another class does not change."""
    shaping: ClassVar[tuple[str, ...]] = ("state_dtype",)
    """Keys of a group that decide on the shape and dtype of its state."""
    default_state_dtype = "float32"
    narrow_state = True
    """Whether the rule has state in 8 and 16 bits."""
    split_masters = True
    """Whether its op takes them."""
    of_matrices = False
    """Whether the op takes tensors in C order alone, and None for a state whose :meth:`state_shape` is None."""
    of_whole_tensors = False
    """Whether the rule needs a sum over each tensor, so that it cannot step a part of one."""

    # torch.amp.GradScaler leaves `grad_scale` and `found_inf` here, and the native call heeds them.
    _step_supports_amp_scaling = True
    found_inf: torch.Tensor | None
    grad_scale: torch.Tensor | None

    def __init__(self, params: Any, defaults: dict[str, Any], **storage: Unpack[Storage]) -> None:
        unknown = set(storage) - Storage.__optional_keys__
        if unknown:
            raise TypeError(f"{type(self).__name__}: got an unknown argument {min(unknown)!r}")
        self._require_no_graph(storage)
        chosen = storage.get("state_dtype")
        own = {
            "maximize": storage.get("maximize", False),
            "state_dtype": self.default_state_dtype if chosen is None else chosen,
            "master": storage.get("master", False),
            "seed": storage.get("seed", 0),
        }
        super().__init__(params, {**defaults, **own})

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The keys of the rule's state, as in ``torch.optim``, in the order that its op takes them."""
        return self.states

    def update(
        self, tensors: Sequence[Any], group: dict[str, Any], *, step: Any, first: list[bool] | bool, **options: Any
    ) -> None:
        """The native call.

        Args:
            tensors: lists of parameters, of gradients, and one for each of :meth:`state_names`.
            group: the hyperparameters.
            step: the number of this step: an integer, or on a GPU int32 (1,) beside the tensors.
            first: for each parameter whether its state is new; False where none is.
            options: `lr`, and what the rule needs of ``boost_ext.ops.StepOptions``; for a rule :attr:`of_matrices`
                also `members`, the parameters that the first list may hold copies of.
        """
        options |= {f"beta{i}": beta for i, beta in enumerate(group["betas"], start=1)}
        self.op(*tensors, step=step, **{name: group[name] for name in self.hyper}, **options)

    def require(self, group: dict[str, Any]) -> None:
        """Refuse a group with settings that the rule does not take."""

    def state_shape(self, p: Any, name: str, group: dict[str, Any]) -> tuple[int, ...] | None:
        """Of one state of a parameter; None if it has no such state."""
        return tuple(p.shape)

    def needed(self, p: Any, group: dict[str, Any]) -> Iterable[str]:
        """The keys without which the state of a parameter in a checkpoint is refused."""
        return ("step", *self._names_of(p, group))

    def _names_of(self, p: Any, group: dict[str, Any]) -> list[str]:
        return [n for n in self.state_names(group) if self.state_shape(p, n, group) is not None]

    def new_state(self, p: Any, name: str, group: dict[str, Any]) -> dict[str, Any]:
        """The entries of one state of a parameter before its first step."""
        shape = self.state_shape(p, name, group)
        if shape is None or shape == p.shape:
            return empty_state(p, name, group["state_dtype"])
        return {name: torch.zeros(shape, dtype=torch.float32, device=p.device)}

    def converted_state(self, p: Any, name: str, saved: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
        """The entries of one state from a checkpoint, as this optimizer stores them."""
        non_negative = self.state_names(group).index(name) == 1  # v of m, v: its codes have no sign
        return converted(p, name, saved, group["state_dtype"], non_negative)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        who = type(self).__name__
        if not isinstance(param_group, dict):
            raise TypeError(f"{who}: param_group must be a dict, got {type(param_group).__name__}")
        group = dict(param_group)
        dtype = str(group.get("state_dtype", self.defaults["state_dtype"])).removeprefix("torch.")
        if dtype not in STATE_DTYPES:
            raise ValueError(f"{who}: state_dtype must be one of {', '.join(STATE_DTYPES)}, got {dtype!r}")
        if dtype != "float32" and not self.narrow_state:
            raise ValueError(f"{who}: state_dtype must be 'float32' for this rule, got {dtype!r}")
        group["state_dtype"] = dtype
        self._require_master({**self.defaults, **group}["master"])
        self._require({**self.defaults, **group})
        super().add_param_group(group)
        try:
            self._require_splittable(self.param_groups[-1]["params"], self.param_groups[-1]["master"])
        except TypeError:
            self.param_groups.pop()
            raise
        if self.of_whole_tensors and any(map(is_distributed, self.param_groups[-1]["params"])):
            self.param_groups.pop()
            raise TypeError(
                f"{who}: parameters must be tensors of this process alone, since norms go over the whole "
                "tensor, got DTensor"
            )

    def _require_splittable(self, params: list[Any], master: Any) -> None:
        if isinstance(master, str) and any(p.dtype == torch.float16 for p in params):
            who = type(self).__name__
            raise TypeError(f"{who}: master must be True or False for float16 parameters, got {master!r}")

    def _new_master(self, p: Any, group: dict[str, Any]) -> dict[str, Any]:
        self._require_splittable([p], group["master"])
        return new_master(p, group["master"])

    def _require(self, group: dict[str, Any]) -> None:
        """Of all settings of a group, also of those that a checkpoint or the user has changed."""
        self._require_no_graph(group)
        self.require(group)
        if not hasattr(group["lr"], "__float__"):
            raise TypeError(f"{type(self).__name__}: lr must be a number, got {type(group['lr']).__name__}")
        self._try(group)

    def _require_all(self) -> None:
        """So that no group is stepped if one is refused. What was accepted once is not tried again, but `lr`."""
        known = self.__dict__.setdefault("_accepted", {})
        for number, group in enumerate(self.param_groups):
            lr, now = group["lr"], {**group, **self.changing}
            if known.get(number) != now or type(lr) is not float or not 0 <= lr < float("inf"):
                self._require(group)
                known[number] = now

    def _require_begun(self, number: int, group: dict[str, Any]) -> None:
        """Refuse what decides on the shape and dtype of state, where it has changed since there is some."""
        begun, now = self.__dict__.setdefault("_begun", {}), [group[key] for key in self.shaping]
        known, before = begun.get(number, (group, now))
        if known is group and before != now and any(self.state.get(p) for p in group["params"]):
            key, was, got = next(x for x in zip(self.shaping, before, now, strict=True) if x[1] != x[2])
            raise ValueError(f"{type(self).__name__}: {key} must stay {was!r} once there is state, got {got!r}")
        begun[number] = group, now

    def _try(self, group: dict[str, Any]) -> None:
        """Have the native call check the hyperparameters, with the step of a number that nobody has."""
        p, lr = torch.zeros(1, dtype=torch.float32, device="cpu"), group["lr"]
        if has_no_data(p):  # nor has any tensor that is made here
            return
        state: dict[str, Any] = {"step": p.clone()}
        for n in self._names_of(p, group):
            state.update(self.new_state(p, n, group))
        named = [[state.get(n)] for n in self.state_names(group)]
        bucket = _Bucket([p], [p.clone()], [state], named, state["step"])
        if isinstance(lr, torch.Tensor):  # on a device nobody reads it
            lr = lr.float().reshape(1) if lr.is_cpu else 0.0
        options = {"lr": lr, "weight_decay": group["weight_decay"], "step": 1, "inv_scale": 1.0, "seed": 0}
        self._call(bucket, {**group, "master": False}, {**options, "skip": None, "first": False})

    def _require_no_graph(self, settings: Any) -> None:
        if settings.get("differentiable"):
            raise ValueError(f"{type(self).__name__}: differentiable must be False, got True")

    def _require_master(self, master: Any) -> None:
        allowed = [kind for kind in MASTERS if self.split_masters or isinstance(kind, bool)]
        if master not in allowed:
            raise ValueError(
                f"{type(self).__name__}: master must be one of {', '.join(map(repr, allowed))}, got {master!r}"
            )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step all parameters that have a gradient. The others keep their state.

        Args:
            closure: computes the loss and its gradients again. Default: none.

        Returns:
            The loss that `closure` returns, or None.
        """
        return _uncompiled(self, closure) if torch.compiler.is_compiling() else self._stepped(closure)

    def _stepped(self, closure: Callable[[], Any] | None) -> Any:
        if torch.is_inference_mode_enabled():  # nobody could write elsewhere what is made there
            with torch.inference_mode(False):
                return self._stepped(closure)
        # After a backward pass nothing of this is in a cache: what is called here, and how often, is what it costs.
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if len(self.param_groups) > 1:
            self._require_all()
        for number, group in enumerate(self.param_groups):  # of a single one the call itself checks the rest
            self._require_no_graph(group)
            self._require_begun(number, group)
            self.require(group)
        self._forget_others()
        with torch.no_grad():
            for number, group in enumerate(self.param_groups):
                for part, (bucket, fresh) in enumerate(self._buckets(group)):
                    # Every tensor of the optimizer has random bits of its own.
                    seed = group["seed"] + (number << 32) + (part << 48)
                    self._step_bucket(bucket, fresh, group, seed)
        return loss

    def _buckets(self, group: dict[str, Any]) -> Iterator[tuple[_Bucket, set[int]]]:
        """The members that have a gradient, by the tensor that counts their steps; and which state is new."""
        params, grads = group["params"], [p.grad for p in group["params"]]
        some_wait = not all(map(is_not, grads, repeat(None)))
        if some_wait:
            params, grads = ([x for x, g in zip(xs, grads, strict=True) if g is not None] for xs in (params, grads))
        if not params:
            return
        states = self._states_of(params, group)
        names, fresh = self.state_names(group), set()
        try:
            steps = [s["step"] for s in states]
            named = [[s.get(n) for s in states] if self.of_matrices else [s[n] for s in states] for n in names]
        except KeyError:
            fresh = self._begin(params, states, group)
            steps, named = [s["step"] for s in states], [[s.get(n) for s in states] for n in names]
        counts = {id(steps[0]): steps[0]}
        if not all(map(is_, steps, repeat(steps[0]))):
            steps = _counted_together(steps, states)
            counts = {id(step): step for step in steps}
        # Those without a gradient do not count this step.
        waiting = set()
        if some_wait:
            rest = (self.state[p] for p in group["params"] if p.grad is None and p in self.state)
            waiting = {id(s["step"]) for s in rest if "step" in s}
        for key, step in counts.items():
            bucket = _Bucket(params, grads, states, named, step)
            if len(counts) > 1:
                bucket = bucket.chosen([t is step for t in steps], step)
            if key in waiting:
                bucket.step = step.clone()
                for s in bucket.states:
                    s["step"] = bucket.step
            yield bucket, fresh

    def _states_of(self, params: list[Any], group: dict[str, Any]) -> list[dict[str, Any]]:
        """Those of the last step, where they still are in ``state``: to look one up takes a call of Python."""
        known: Any = self._known_states.get(id(group))
        if known is None or not _same(known[0], params):
            known = self._known_states[id(group)] = [*params], [self.state[p] for p in params]
            # Counts of this group alone: a parameter may have come from another one.
            begun = [s for s in known[1] if "step" in s]
            counts = {id(step): step.clone() for step in {id(s["step"]): s["step"] for s in begun}.values()}
            for s in begun:
                s["step"] = counts.get(id(s["step"]), s["step"])
        states: list[dict[str, Any]] = known[1]
        return states

    def _forget_others(self) -> None:
        """What is known of ``state`` is of what is in there now: a checkpoint or the user may have changed it."""
        seen: Any = self.__dict__.get("_seen")
        if seen is None or not (_same(seen[0], self.state) and _same(seen[1], self.state.values())):
            self._seen = [*self.state], [*self.state.values()]
            self._known_states: dict[int, Any] = {}

    def _begin(self, params: list[Any], states: list[dict[str, Any]], group: dict[str, Any]) -> set[int]:
        """Make what is missing; returns the ids of the states where something was."""
        fresh, steps = set(), {}
        for p, s in zip(params, states, strict=True):
            if "step" not in s:
                if p.device not in steps:
                    steps[p.device] = torch.zeros((), dtype=torch.float32, device=p.device)
                s["step"] = steps[p.device]
            missing = [n for n in self._names_of(p, group) if n not in s]
            for n in missing:
                s.update(self.new_state(p, n, group))
            if missing:
                fresh.add(id(s))
            if group["master"] and "master" not in s:
                s.update(self._new_master(p, group))
        return fresh

    def _step_bucket(self, bucket: _Bucket, fresh: set[int], group: dict[str, Any], seed: int) -> None:
        found = _on(bucket, getattr(self, "found_inf", None))
        scale = _on(bucket, getattr(self, "grad_scale", None))
        sign = -1.0 if group["maximize"] else 1.0
        lr = group["lr"]
        bucket.step += 1
        if has_no_data(bucket.params[0]):  # a tool only wants to know what memory a step takes
            return
        options = {
            "lr": _on(bucket, lr) if isinstance(lr, torch.Tensor) else lr,
            "weight_decay": group["weight_decay"],
            "step": int(bucket.step) if bucket.step.is_cpu else bucket.step.to(torch.int32).reshape(1),
            "inv_scale": sign if scale is None else sign / scale,
            "seed": seed,
            "skip": found,
            "first": [id(s) in fresh for s in bucket.states] if fresh else False,
        }
        try:
            try:
                self._call(bucket, group, options)
            except (TypeError, ValueError):  # a refused call has written nothing
                if not self._relay(bucket, group):
                    raise
                self._call(bucket, group, options)
        except BaseException:
            bucket.step -= 1
            raise
        if found is not None:
            bucket.step -= (found != 0).float().reshape(())

    def _call(self, bucket: _Bucket, group: dict[str, Any], options: dict[str, Any]) -> None:
        states, names = bucket.states, self.state_names(group)
        betas = group.get("betas", ())
        if any(isinstance(beta, torch.Tensor) for beta in betas):
            group = {**group, "betas": tuple(map(float, betas))}
        tensors = [bucket.params, bucket.grads, *bucket.named]
        if group["state_dtype"] == "float8" and names:
            options = {**options, "scales": [[s.get(f"{n}_scale") for s in states] for n in names]}
        if group["master"]:
            options = {**options, "masters": [s.get("master") for s in states]}
        if set(map(type, bucket.params)) != _PLAIN and any(map(is_distributed, bucket.params)):
            placed = [*map(_placed_as, bucket.params, bucket.grads)]
            tensors = [[*map(local, xs)] for xs in (bucket.params, placed, *bucket.named)]
            options = {**options, **({"masters": [*map(local, options["masters"])]} if group["master"] else {})}
        if self.of_matrices:
            options = {**options, "members": bucket.params}
            if not all(p.is_contiguous() for p in bucket.params):
                self._update_copies(tensors, group, options)
                return
        self.update(tensors, group, **options)

    def _update_copies(self, tensors: list[Any], group: dict[str, Any], options: dict[str, Any]) -> None:
        """Copies in C order of what lies in another one, such as channels_last."""
        lists = [*tensors, options.get("masters", [])]
        copies = [[x if x is None or x.layout != torch.strided else x.contiguous() for x in xs] for xs in lists]
        if group["master"]:
            options = {**options, "masters": copies[-1]}
        self.update(copies[:-1], group, **options)
        for number, (xs, made) in enumerate(zip(lists, copies, strict=True)):
            for x, c in zip(xs, made, strict=True):
                if c is not x and number != 1:  # the gradients
                    x.copy_(c)

    def _relay(self, bucket: _Bucket, group: dict[str, Any]) -> bool:
        """Gradients and state get the order of elements that their parameters have; whether one had another."""
        changed, names = False, self.state_names(group)
        for i, (p, g, s) in enumerate(zip(bucket.params, bucket.grads, bucket.states, strict=True)):
            if g.layout != torch.strided:
                raise RuntimeError(f"{type(self).__name__}: gradients must be dense, got a sparse one")
            if g.stride() != p.stride():
                bucket.grads[i] = torch.empty_like(p, dtype=g.dtype).copy_(g)
                changed = True
            for n in names:
                if n not in s or s[n].shape != p.shape:
                    continue
                coded = s[n].dtype == torch.uint8 and group["state_dtype"] != "float8"  # it was in another group
                if coded or s[n].stride() != p.stride():
                    made = self.converted_state(p, n, s, group)
                    s.pop(f"{n}_scale", None)
                    s.update(made)
                    changed = True
            if group["master"] and ("master" in s) != (p.dtype != torch.float32):  # it has become narrow, or wide
                s.pop("master", None)
                s.update(self._new_master(p, group))
                changed = True
            if "master" in s and s["master"].stride() != p.stride():
                s["master"] = torch.empty_like(p, dtype=s["master"].dtype).copy_(s["master"])
                changed = True
        bucket.named = [[s.get(n) for s in bucket.states] for n in names]
        return changed

    def state_dict(self) -> dict[str, Any]:
        """As of ``torch.optim``: with float32 state of a rule that is there, its optimizer loads it.

        Split masters are in it as float32, for every `master`.

        Returns:
            dict with ``"state"`` and ``"param_groups"``.
        """
        # The first hook: those of the user see what torch.optim would show them.
        handle = self.register_state_dict_post_hook(lambda _, result: self.saved(result), prepend=True)
        try:
            result: dict[str, Any] = super().state_dict()
        finally:
            handle.remove()
        return result

    def saved(self, result: dict[str, Any]) -> dict[str, Any]:
        """The state as ``torch.optim`` has it, of that as it is here."""
        params = dict(enumerate(p for group in self.param_groups for p in group["params"]))
        state = {
            key: apart(entry, params[key]) if key in params and isinstance(entry, dict) else entry
            for key, entry in result["state"].items()
        }
        return {**result, "state": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint of this class, of any `state_dtype`, or of ``torch.optim``'s class of the same rule.

        The storage stays that of this optimizer: `state_dtype`, `master` and `seed`. Codes of one byte are rounded to
        nearest where they are made. Load the parameters before: those that a master lies halfway between become what
        this optimizer rounds it to. Settings that the checkpoint lacks stay those of the groups.

        Raises:
            ValueError: of state that is missing, or of another shape, and of settings that the rule has not. Nothing
                has changed then.
            TypeError: of settings of another type. Nothing has changed then.
        """
        # The last hook: torch casts state to the dtype of the weights, but nothing that is held.
        handle = self.register_load_state_dict_pre_hook(hold)
        self._loads = True
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
            del self._loads

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Otherwise it is a copy, or from pickle.
        super().__setstate__(self._loaded(state) if getattr(self, "_loads", False) else state)

    def _loaded(self, state: dict[str, Any]) -> dict[str, Any]:
        """A checkpoint as this optimizer stores it. Nothing has changed yet if it is refused."""
        groups, masters = [], []
        result: dict[Any, dict[str, Any]] = {}
        for saved, own in zip(state["param_groups"], self.param_groups, strict=True):
            kept = {k: own[k] for k in ("state_dtype", "master", "seed")}
            groups.append({**{k: own[k] for k in self.defaults if k in own}, **saved, **kept, **self.fixed})
            self._require(groups[-1])
        names = enumerate(n for g in groups for n in g.get("param_names", [None] * len(g["params"])))
        for group in groups:
            steps: dict[Any, torch.Tensor] = {}
            for p in group["params"]:
                number, name = next(names)
                who = f"parameter {number}" + (f" ({name})" if name else "")
                result[p], entry = {}, state["state"].get(p)
                if isinstance(entry, dict) and entry:
                    saved = {k: v for k, v in released(entry).items() if v is not None}
                    result[p] = self._loaded_entry(p, saved, group, steps, who)
                    if group["master"]:
                        masters.append((p, group["master"], saved.get("master")))
        for p, kind, master in masters:  # last, since they may move a weight
            with torch.no_grad():
                result[p].update(loaded_master(p, kind, master))
        others = {k: released(v) for k, v in state["state"].items() if k not in result}
        entries = {p: entry for p, entry in result.items() if entry}
        return {"state": defaultdict(dict, {**entries, **others}), "param_groups": groups}

    def _loaded_entry(
        self, p: Any, saved: dict[str, Any], group: dict[str, Any], steps: dict[Any, Any], who: str
    ) -> dict[str, Any]:
        names = self._names_of(p, group)
        found = [n for n in names if n in saved]
        is_foreign = not found and saved.keys() - {"step", "master"}
        for n in (*self.needed(p, group), *(names if is_foreign else ())) if saved else ():
            require_key(n, saved, who)
        result: dict[str, Any] = {}
        for n in found:
            require_state(p, n, saved, self.state_shape(p, n, group), who)
            result.update(self.converted_state(p, n, saved, group))
        if group["master"] and "master" in saved:
            require_shape(p, saved["master"], tuple(p.shape), f"master of {who}")
        # Momentum of torch counts no steps: what has state has made one.
        count = float(saved.get("step", 1.0 if found else 0.0))
        if not 0 <= count < float("inf"):
            raise ValueError(f"load_state_dict: step of {who} must be finite and >= 0, got {count}")
        if (p.device, count) not in steps:
            steps[p.device, count] = torch.tensor(count, dtype=torch.float32, device=p.device)
        result["step"] = steps[p.device, count]
        return result


def _placed_as(p: Any, grad: Any) -> Any:
    """The gradient of a DTensor where its parameter is: of a replicated one it may still be to be summed."""
    if not (is_distributed(p) and is_distributed(grad)) or grad.placements == p.placements:
        return grad
    return grad.redistribute(placements=p.placements)


def _counted_together(steps: list[Any], states: list[dict[str, Any]]) -> list[Any]:
    """One tensor for all that count the same, as after a checkpoint; on a device nobody reads them."""
    distinct = {id(step): step for step in steps}
    of_count: dict[float, Any] = {}
    if not all(step.is_cpu for step in distinct.values()):
        return steps
    shared = {key: of_count.setdefault(float(step), step) for key, step in distinct.items()}
    if len(of_count) == len(distinct):
        return steps
    for s in states:
        s["step"] = shared[id(s["step"])]
    return [s["step"] for s in states]


def _same(some: Any, others: Any) -> bool:
    """Whether two collections hold the same objects."""
    return len(some) == len(others) and all(map(is_, some, others))


@torch.compiler.disable
def _uncompiled(optimizer: FusedOptimizer, closure: Any) -> Any:
    """The step, where torch.compile meets it. Not by step(): its hooks are called by what is compiled."""
    return optimizer._stepped(closure)


def _on(bucket: _Bucket, value: torch.Tensor | None) -> torch.Tensor | None:
    """A number beside the tensors, as the ops take it: the host does not read what is on a device."""
    return None if value is None else value.to(bucket.step.device, torch.float32).reshape(1)
