"""Which tensor went wrong, and when: the health of gradients, weights and updates, step by step, in any loop.

Works on NumPy arrays, tensors of PyTorch and MindSpore, and what the ops take besides; needs no MindSpore.
"""

from __future__ import annotations

import contextlib
import datetime
import fnmatch
import functools
import itertools
import math
import platform
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

import boost_ext
from boost_ext import ops
from boost_ext.arguments import checked_keywords
from boost_ext.report.log import End, Fault, Header, Health, Record, RunLogWriter, TensorHealth, keep
from boost_ext.report.writers import Writer

__all__ = ["Fault", "Health", "HealthMonitor", "Statistics", "TensorHealth", "table"]

_EARLIER = 5
"""Looks before a gradient may be called exploding."""
_NAMED = 3
"""Of several tensors."""


class Statistics(NamedTuple):
    """Rows of :func:`boost_ext.ops.tensor_statistics` that a graph has made.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> from boost_ext.health import HealthMonitor, Statistics
        >>> gradient = np.float32([3, 4])
        >>> rows = Statistics(["w"], [gradient.size], ops.tensor_statistics([gradient]))
        >>> HealthMonitor().check(1, gradients=rows).tensors[0].norm
        5.0
    """

    names: Sequence[str]
    elements: Sequence[int]
    rows: Any
    """float64 (tensors, 6)."""


Tensors = Mapping[str, Any] | Statistics
"""Arrays by name; None for a parameter without."""


class HealthMonitor:
    """Looks at tensors in one read: inf, nan, zeros, largest magnitude, norm; which layers are dead or explode.

    Call :meth:`check` once a step. It names the tensor at fault in the step in which inf or nan came up; where steps
    that were not looked at lay between, it says so, and names no tensor as the first that it cannot know to be. For
    cells of MindSpore pass the monitor to :class:`boost_ext.callbacks.BoostMonitor`, which calls it.

    Args:
        path (Union[str, Path], optional): a run log (JSON Lines), which ``boost-ext report`` draws; ``{rank}`` in it is
            replaced. A log that is there already is kept, as ``run.1.jsonl``. Default: None, no file.
        every (int, optional): look at each step that is a multiple of it. A step whose loss is inf or nan, and one that
            is said to have overflowed, is looked at always. Default: 1.
        watch (bool, optional): in the steps between, read the gradients once to see whether they are finite, and look
            at a step in which they are not. False: no tensor is read there. Default: True.
        names (Union[str, Sequence[str]], optional): patterns such as ``"layer1.*"``: only tensors with a name that
            matches one of them; the first look refuses patterns that match none. Default: ``"*"``, all.
        exploding (float, optional): a gradient explodes whose norm is more than so many times the geometric mean of its
            norms so far, from the sixth look on. Default: 100.
        dead (float, optional): a layer is dead whose gradient has at least this share of zeros. Default: 1.0, all.
        sample (int, optional): elements of each weight that are kept to find its update; 0 for no update ratios.
            Default: 1024.
        writers (Sequence[Writer], optional): of :mod:`boost_ext.writers`, such as ``TensorBoard("runs/tensorboard")``:
            they take the same records. Default: (), none.
        rank (int, optional): of this process, for the log and the messages. Default: None, a single process.

    Raises:
        TypeError: for an argument of another type.
        ValueError: for an argument out of range.

    Examples:
        >>> import numpy as np
        >>> from boost_ext.health import HealthMonitor
        >>> monitor = HealthMonitor()
        >>> weights = {"w": np.float32([3, 4]), "b": np.float32([0])}
        >>> for step, values in enumerate([[1, 1], [1, np.nan]], 1):
        ...     gradients = {"w": np.float32(values), "b": np.float32([2])}
        ...     health = monitor.check(step, gradients=gradients, weights=weights)
        >>> print(monitor.first_fault)
        step 2: the gradient of w holds 0 inf, 1 nan, first at 1
    """

    @checked_keywords
    def __init__(
        self,
        path: str | Path | None = None,
        *,
        every: int = 1,
        watch: bool = True,
        names: str | Sequence[str] = "*",
        exploding: float = 100.0,
        dead: float = 1.0,
        sample: int = 1024,
        writers: Sequence[Writer] = (),
        rank: int | None = None,
    ) -> None:
        if path is not None and not isinstance(path, (str, Path)):
            raise TypeError(f"HealthMonitor: path must be a str or a Path, got {type(path).__name__}")
        _check_int("every", every, 1)
        _check_int("sample", sample, 0)
        if rank is not None:
            _check_int("rank", rank, 0)
        patterns = (names,) if isinstance(names, str) else tuple(names)
        for pattern in patterns:
            if not isinstance(pattern, str):
                raise TypeError(f"HealthMonitor: names must hold strings, got {type(pattern).__name__}")
        if not exploding > 1:
            raise ValueError(f"HealthMonitor: exploding must be > 1, got {exploding}")
        if not 0 < dead <= 1:
            raise ValueError(f"HealthMonitor: dead must be > 0 and at most 1, got {dead}")
        self.every, self.rank = every, rank
        self.first_fault: Fault | None = None
        """The first one of the run."""
        self.last: Health | None = None
        """The last look."""
        self._path = None if path is None else Path(str(path).replace("{rank}", str(rank or 0)))
        self._patterns = patterns
        self._matches = functools.lru_cache(4096)(re.compile("|".join(map(fnmatch.translate, patterns))).match)
        self._watch = watch
        self._exploding, self._dead, self._sample = exploding, dead, sample
        self._writers = tuple(writers)
        self._log: RunLogWriter | None = None
        self._begun = False
        self._logarithms: dict[str, tuple[int, float]] = {}
        """Of the norms of a gradient: how many, and their sum."""
        self._kept: tuple[int, _Samples] | None = None
        """A step, and the samples of the weights after it."""
        self._finite = self._finite_weights = 0
        """The last step in which all that was looked at was finite, and in which all weights were."""

    def due(self, step: int) -> bool:
        """Whether :meth:`check` looks at this step of itself."""
        return step % self.every == 0

    def check(
        self,
        step: int,
        *,
        gradients: Tensors | None = None,
        weights: Tensors | None = None,
        updates: Tensors | None = None,
        loss: Any = None,
        scale: Any = 1.0,
        overflow: bool = False,
        elsewhere: Sequence[Fault] = (),
    ) -> Health | None:
        """Look at the tensors of a step, if it is due. Call it in each step, since update ratios need the step before.

        The update ratio of a weight is ``|update| / |weight|``. With `updates`, of all elements. Without, the update is
        the change of the weight since the last call, and both norms are those of every n-th element, `sample` in all;
        so a call after the optimizer's step has the update of that step, and a call before it that of the step before.
        About 0.001 is usual.

        Args:
            step (int): from 1.
            gradients, weights, updates (dict, optional): arrays by name of the parameter, float32, float16 or bfloat16;
                None values are left out. With several ranks, give gradients from before their exchange: after it, all
                ranks have the fault. Default: None.
            loss (float, optional): Default: None.
            scale (float, optional): what the gradients hold beyond their value, such as the loss scale. Default: 1.0.
            overflow (bool, optional): look in any case. Default: False.
            elsewhere (Sequence[Fault], optional): faults of this step on other ranks. Default: (), none known.

        Returns:
            Health, or None if the step was not due.

        Raises:
            TypeError: for a tensor of another dtype, by its name; for `step`.
            ValueError: in the first look, if there are tensors and `names` matches none.
        """
        _check_int("step", step, 0)
        value = None if loss is None else float(loss)
        broken = value is not None and not math.isfinite(value)
        self._finite, self._finite_weights = min(self._finite, step), min(self._finite_weights, step)
        looks = self.due(step) or overflow or broken
        if not looks and self._watch and gradients is not None:
            finite = self._all_finite(gradients)
            looks = finite is False
            if finite:
                self._finite = step
        now = self._samples(weights, step, looks)
        if looks:
            return self._look(step, gradients, weights, updates, value, scale, elsewhere, now)
        self._keep(step, now, value)
        return None

    def _look(
        self,
        step: int,
        gradients: Tensors | None,
        weights: Tensors | None,
        updates: Tensors | None,
        loss: float | None,
        scale: Any,
        elsewhere: Sequence[Fault],
        now: _Samples | None,
    ) -> Health:
        given = [names for names in map(_names, (gradients, weights, updates)) if names]
        if self.last is None and given and not any(self._matches(name) for names in given for name in names):
            raise ValueError(
                f"HealthMonitor: names must match a tensor, got {', '.join(map(repr, self._patterns))}, "
                f"and tensors such as {given[0][0]!r}"
            )
        ratios = {} if self._kept is None or now is None or self._kept[0] >= step else now.changes(self._kept[1])
        changed = list(self._rows("update", updates, 1.0))
        ratios |= {t.name: t.norm for t in changed if t.finite}
        known = {t.name for t in changed if t.finite}
        found = [
            *self._rows("gradient", gradients, scale),
            *self._rows("weight", weights, 1.0, ratios, known),
            *changed,
        ]
        elsewhere = tuple(fault.model_copy(update={"step": step}) for fault in elsewhere if fault.rank != self.rank)
        all_weights = bool(weights is not None and all(map(self._matches, _names(weights))))
        fault = self._fault(step, found, loss, all_weights) or (elsewhere[0] if elsewhere else None)
        health = Health(
            step=step,
            tensors=tuple(found),
            fault=fault,
            elsewhere=elsewhere,
            dead=tuple(t.name for t in found if t.of == "gradient" and t.elements and t.zero_share >= self._dead),
            exploding=self._exploded(found),
        )
        self.first_fault = self.first_fault or fault
        self.last = health
        if found and fault is None:
            self._finite = step
        if all_weights and all(t.finite for t in found if t.of == "weight"):
            self._finite_weights = step
        self._keep(step, now, loss)
        self._write(health)
        return health

    def _chosen(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Without PyTorch's gradient, which it would record for what reads the tensor."""
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return {n: t for n, t in tensors.items() if t is not None and self._matches(n)}
        theirs: Any = torch.Tensor
        return {
            n: t.detach() if isinstance(t, theirs) and t.requires_grad else t
            for n, t in tensors.items()
            if t is not None and self._matches(n)
        }

    def _all_finite(self, gradients: Tensors) -> bool | None:
        """In one read; None if there are none."""
        if isinstance(gradients, Statistics):
            rows = np.asarray(gradients.rows)[[bool(self._matches(name)) for name in gradients.names]]
            return not rows[:, :2].any() if len(rows) else None
        chosen = self._chosen(gradients)
        if not chosen:
            return None
        with _naming("unscale_and_check", "grads", "gradient", chosen):
            return not ops.unscale_and_check(list(chosen.values()), 1.0)

    def _rows(
        self,
        role: Any,
        tensors: Tensors | None,
        scale: Any,
        ratios: Mapping[str, float] | None = None,
        updated: Collection[str] = (),
    ) -> Iterator[TensorHealth]:
        """With `ratios` by name; those in `updated` are norms of an update."""
        if tensors is None:
            return
        if isinstance(tensors, Statistics):
            all_rows = zip(tensors.names, tensors.elements, np.asarray(tensors.rows).tolist(), strict=True)
            rows = [row for row in all_rows if self._matches(row[0])]
        else:
            chosen = self._chosen(tensors)
            sizes = [math.prod(t.shape) for t in chosen.values()]
            rows = list(zip(chosen, sizes, _statistics(role, chosen, scale) if chosen else (), strict=True))
        for name, size, (inf, nan, first, largest, zeros, squares) in rows:
            norm, ratio = math.sqrt(squares), None if ratios is None else ratios.get(name)
            if name in updated and ratio is not None:
                ratio = ratio / norm if norm else None
            yield TensorHealth(
                of=role,
                name=name,
                elements=int(size),
                inf=int(inf),
                nan=int(nan),
                first_index=int(first) if first >= 0 else None,
                zeros=int(zeros),
                largest=largest,
                norm=norm,
                update_ratio=ratio,
            )

    def _samples(self, weights: Tensors | None, step: int, looks: bool) -> _Samples | None:
        """Where this step is looked at, and a sample of the one before is there; and where the next one is due."""
        if not self._sample or not isinstance(weights, Mapping):
            return None
        if not (self.due(step + 1) or (looks and self._kept is not None and self._kept[0] < step)):
            return None
        return _Samples.of(self._chosen(weights), self._sample)

    def _keep(self, step: int, now: _Samples | None, loss: float | None) -> None:
        """What the next call needs to know of this one."""
        self._kept = (step, now) if now is not None and self.due(step + 1) else None
        if loss is not None and math.isfinite(loss):  # nothing had gone wrong before the backward pass
            self._finite = max(self._finite, step - 1)

    def _fault(self, step: int, found: Sequence[TensorHealth], loss: float | None, all_weights: bool) -> Fault | None:
        """The first cause: a weight, in the order of the layers; the loss; the gradient that the backward pass reached
        first, which is that of the last layer; an update. A weight that its own gradient spoiled is no cause."""

        def named(of: Any, **facts: Any) -> Fault:
            return Fault(step=step, of=of, rank=self.rank, **facts)

        def one_of(bad: Sequence[TensorHealth], *others: str, **facts: Any) -> Fault:
            among = tuple(dict.fromkeys([*others, *(t.name for t in bad)]))
            name = ", ".join([*(f"the {n}" for n in others), *among[len(others) :]][:_NAMED])
            name += f" and {len(among) - _NAMED} more" if len(among) > _NAMED else ""
            inf, nan = sum(t.inf for t in bad), sum(t.nan for t in bad)
            return named(name=name, among=among, inf=inf, nan=nan, **facts)

        def single(t: TensorHealth, after: int | None = None) -> Fault:
            return named(t.of, name=t.name, inf=t.inf, nan=t.nan, first_index=t.first_index, after=after)

        bad = [t for t in found if not t.finite]
        weights, gradients, updates = ([t for t in bad if t.of == role] for role in ("weight", "gradient", "update"))
        spoiled, heavy = {t.name for t in gradients}, {t.name for t in weights}
        broken = loss is not None and not math.isfinite(loss)
        # It came up in this step if all was finite in the one before, or the loss of this one, or the weights are. A
        # weight may be inf for long before it is seen in a loss or a gradient: it has to have been looked at.
        # What spoiled several weights at once can be told where their gradients are known to have been finite.
        here = self._finite >= step - 1 or (loss is not None and not broken) or (all_weights and not weights)
        watched = self._finite_weights >= step - 1
        if not here and len(weights) == 1:
            return single(weights[0], self._finite_weights)
        if not here and len(bad) > 1:
            first, after = (weights, self._finite_weights) if weights else (gradients or updates, self._finite)
            return one_of(first, of=first[0].of, after=after)
        if not broken and (loss is not None or (spoiled == heavy and (watched or len(weights) == 1))):
            weights = [t for t in weights if t.name not in spoiled]
        if broken and weights and spoiled == heavy:  # after the optimizer's step, and before it with all weights bad
            return one_of(weights, "loss", of="loss")
        if broken and not weights:
            return named("loss", name="loss", inf=int(math.isinf(loss or 0)), nan=int(math.isnan(loss or 0)))
        order = [*weights, *reversed(gradients), *updates]
        if not order:
            return None
        since = None if watched or not weights else self._finite_weights
        if len(weights) > 1 and (since is not None or all(t.of != "gradient" for t in found)):
            return one_of(weights, of="weight", after=since)
        return single(order[0], since)

    def _exploded(self, found: Sequence[TensorHealth]) -> tuple[str, ...]:
        names = []
        for t in found:
            if t.of != "gradient" or not t.finite or t.norm <= 0:
                continue
            looks, total = self._logarithms.get(t.name, (0, 0.0))
            logarithm = math.log(t.norm)
            if looks >= _EARLIER and logarithm - total / looks > math.log(self._exploding):
                names.append(t.name)
            self._logarithms[t.name] = looks + 1, total + logarithm
        return tuple(names)

    def _write(self, record: Record) -> None:
        if not self._begun and (self._path is not None or self._writers):
            self._begin()
        if self._log is not None:
            self._log.write(record)
        for writer in self._writers:
            writer.write(record)

    def _begin(self) -> None:
        header = Header(
            started=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            versions={
                "boost_ext": boost_ext.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            rank=self.rank or 0,
            ranks=1 if self.rank is None else self.rank + 1,
            every=self.every,
        )
        if self._path is not None:
            if self._path.exists():
                keep(self._path)
            self._log = RunLogWriter(self._path, header)
        for writer in self._writers:
            writer.write(header)
        self._begun = True

    def close(self) -> None:
        """The run is over: note it in the log and close it. ``with`` does that itself."""
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        if self._begun:
            self._write(End(error=None if error is None else f"{type(error).__name__}: {error}"[:500]))
            self._begun = False
        if self._log is not None:
            self._log.close()
            self._log = None
        for writer in self._writers:
            writer.close()

    def __enter__(self) -> HealthMonitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)


def table(health: Health, rows: int = 40) -> Table:
    """The look as a table of rich, a row a parameter; those with a finding first, then the largest gradients.

    Args:
        health (Health): of :meth:`HealthMonitor.check`.
        rows (int, optional): at most so many. Default: 40.

    Examples:
        >>> import numpy as np
        >>> from rich.console import Console
        >>> from boost_ext.health import HealthMonitor, table
        >>> health = HealthMonitor().check(1, gradients={"w": np.float32([3, 0, 0, 4])})
        >>> Console(width=80).print(table(health))  # doctest: +SKIP
    """
    by_name: dict[str, dict[str, TensorHealth]] = {}
    for t in health.tensors:
        by_name.setdefault(t.name, {})[t.of] = t

    def key(name: str) -> tuple[bool, float]:
        seen = by_name[name]
        found = name in health.dead or name in health.exploding or not all(t.finite for t in seen.values())
        return not found, -seen["gradient"].norm if "gradient" in seen else 0.0

    shown = Table(title=health.line(), title_justify="left")
    for heading in ("tensor", "gradient", "largest", "zeros", "inf", "nan", "weight", "update/weight", ""):
        shown.add_column(heading, justify="left" if heading in ("tensor", "") else "right", overflow="fold")
    ordered = sorted(by_name, key=key)
    for name in ordered[:rows]:
        shown.add_row(*_cells(name, by_name[name], health))
    if len(ordered) > rows:
        shown.add_row(f"and {len(ordered) - rows} more")
    return shown


def _cells(name: str, seen: Mapping[str, TensorHealth], health: Health) -> list[str]:
    gradient, weight = seen.get("gradient"), seen.get("weight")
    first = gradient or weight or next(iter(seen.values()))
    verdict = [] if all(t.finite for t in seen.values()) else ["faulty"]
    verdict += [word for word, names in (("dead", health.dead), ("exploding", health.exploding)) if name in names]
    return [
        name,
        "" if gradient is None else f"{gradient.norm:.3g}",
        f"{first.largest:.3g}",
        f"{first.zero_share:.1%}",
        str(sum(t.inf for t in seen.values()) or ""),
        str(sum(t.nan for t in seen.values()) or ""),
        "" if weight is None else f"{weight.norm:.3g}",
        "" if weight is None or weight.update_ratio is None else f"{weight.update_ratio:.2g}",
        ", ".join(verdict),
    ]


class _Samples(NamedTuple):
    """Of each weight, every n-th element, one behind the other."""

    names: tuple[str, ...]
    counts: tuple[int, ...]
    values: Any
    """float32."""

    @classmethod
    def of(cls, tensors: Mapping[str, Any], most: int) -> _Samples:
        names, parts = [], []
        for name, tensor in tensors.items():
            if size := math.prod(tensor.shape):
                names.append(name)
                # The distance is a prime, so that the elements are not those of one row or one kernel.
                parts.append(_each(tensor, size, _prime(-(-size // most)) if size > most else 1))
        return cls(tuple(names), tuple(part.shape[0] for part in parts), _joined(parts))

    def changes(self, before: _Samples) -> dict[str, float]:
        """The norm of the change of each tensor that both have, over the norm it had."""
        if (self.names, self.counts) != (before.names, before.counts):
            both = set(zip(self.names, self.counts, strict=True)) & set(zip(before.names, before.counts, strict=True))
            return self._only(both).changes(before._only(both)) if both else {}
        with np.errstate(invalid="ignore", over="ignore"):
            change = self.values - before.values
        squares = [_squares(self._parts(values)) for values in (change, before.values)]
        return {n: math.sqrt(new / old) for n, new, old in zip(self.names, *squares, strict=True) if old}

    def _parts(self, values: Any) -> list[Any]:
        ends = list(itertools.accumulate(self.counts))
        return [values[end - count : end] for end, count in zip(ends, self.counts, strict=True)]

    def _only(self, wanted: Collection[tuple[str, int]]) -> _Samples:
        parts = dict(zip(zip(self.names, self.counts, strict=True), self._parts(self.values), strict=True))
        kept = sorted(wanted)
        return _Samples(tuple(n for n, _ in kept), tuple(c for _, c in kept), _joined([parts[key] for key in kept]))


def _squares(parts: Sequence[Any]) -> list[float]:
    """Of the finite elements."""
    return ops.tensor_statistics(parts)[:, 5].tolist() if parts else []


def _each(tensor: Any, size: int, distance: int) -> Any:
    """Every so many elements of a tensor; of PyTorch's in one call, and there."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        if tensor.is_contiguous():
            return tensor.as_strided((-(-size // distance),), (distance,))
        return tensor.take(torch.arange(0, size, distance, device=tensor.device))
    if hasattr(tensor, "asnumpy"):
        tensor = tensor.asnumpy()
    return tensor.reshape(-1)[::distance]


def _joined(parts: Sequence[Any]) -> Any:
    """A copy on the host, read there at once if PyTorch has all of them on one device."""
    torch: Any = sys.modules.get("torch")
    theirs = torch is not None and parts and all(isinstance(part, torch.Tensor) for part in parts)
    if theirs and len({part.device for part in parts}) == 1:
        return torch.cat(parts).float().cpu().numpy()
    on_host = (part.cpu().float().numpy() if hasattr(part, "cpu") else part for part in parts)
    return np.concatenate([np.asarray(part, np.float32) for part in on_host]) if parts else np.empty(0, np.float32)


def _names(tensors: Tensors | None) -> Sequence[str]:
    if tensors is None:
        return ()
    return tensors.names if isinstance(tensors, Statistics) else list(tensors)


@contextlib.contextmanager
def _naming(op: str, argument: str, role: str, tensors: Mapping[str, Any]) -> Iterator[None]:
    """The errors of an op, with the names of the tensors."""
    try:
        yield
    except (TypeError, ValueError) as error:
        names = list(tensors)
        named = re.sub(rf"{argument}\[(\d+)\]", lambda m: f"{role}s[{names[int(m[1])]!r}]", str(error))
        raise type(error)(named.replace(op, "HealthMonitor", 1)) from None


def _statistics(role: str, tensors: Mapping[str, Any], scale: Any) -> Any:
    with _naming("tensor_statistics", "tensors", role, tensors):
        rows = ops.tensor_statistics(list(tensors.values()), scale)
    with contextlib.suppress(AttributeError):
        rows = rows.cpu()
    return (rows if isinstance(rows, np.ndarray) else rows.numpy()).tolist()


@functools.lru_cache(4096)
def _prime(low: int) -> int:
    while any(low % d == 0 for d in range(2, math.isqrt(low) + 1)):
        low += 1
    return low


def _check_int(name: str, value: Any, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"HealthMonitor: {name} must be an int, got {type(value).__name__}")
    if value < low:
        raise ValueError(f"HealthMonitor: {name} must be at least {low}, got {value}")
