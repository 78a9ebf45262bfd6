"""Which tensor went wrong, and when: the health of gradients, weights and updates, step by step, in any loop.

Works on NumPy arrays, tensors of PyTorch and MindSpore, and what the ops take besides; needs no MindSpore.
"""

from __future__ import annotations

import contextlib
import datetime
import fnmatch
import math
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
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

    Call :meth:`check` once a step. It names the tensor at fault in the step in which inf or nan came up. For cells of
    MindSpore pass the monitor to :class:`boost_ext.callbacks.BoostMonitor`, which calls it.

    Args:
        path (Union[str, Path], optional): a run log (JSON Lines), which ``boost-ext report`` draws; ``{rank}`` in it is
            replaced. A log that is there already is kept, as ``run.1.jsonl``. Default: None, no file.
        every (int, optional): look at each step that is a multiple of it. A step whose loss is inf or nan, and one that
            is said to have overflowed, is looked at always. Default: 1.
        names (Union[str, Sequence[str]], optional): patterns such as ``"layer1.*"``: only tensors with a name that
            matches one of them. Default: ``"*"``, all.
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
        self._matches = re.compile("|".join(map(fnmatch.translate, patterns))).match
        self._exploding, self._dead, self._sample = exploding, dead, sample
        self._writers = tuple(writers)
        self._log: RunLogWriter | None = None
        self._begun = False
        self._logarithms: dict[str, tuple[int, float]] = {}
        """Of the norms of a gradient: how many, and their sum."""
        self._kept: tuple[int, dict[str, Any]] | None = None
        """A step, and the samples of the weights after it."""

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
        """
        _check_int("step", step, 0)
        value = None if loss is None else float(loss)
        broken = value is not None and not math.isfinite(value)
        if not (self.due(step) or overflow or broken):
            self._keep(step, weights)
            return None
        found = [
            *self._rows("gradient", gradients, scale),
            *self._rows("weight", weights, 1.0),
            *self._rows("update", updates, 1.0),
        ]
        found = self._with_ratios(step, found, weights)
        elsewhere = tuple(fault.model_copy(update={"step": step}) for fault in elsewhere if fault.rank != self.rank)
        fault = self._fault(step, found, value) or (elsewhere[0] if elsewhere else None)
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
        self._keep(step, weights)
        self._write(health)
        return health

    def _rows(self, role: Any, tensors: Tensors | None, scale: Any) -> Iterator[TensorHealth]:
        if tensors is None:
            return
        if isinstance(tensors, Statistics):
            names, sizes, rows = tensors
        else:
            chosen = {n: _plain(t) for n, t in tensors.items() if t is not None and self._matches(n)}
            names, sizes = list(chosen), [math.prod(t.shape) for t in chosen.values()]
            rows = _statistics(role, chosen, scale) if chosen else ()
        for name, size, (inf, nan, first, largest, zeros, squares) in zip(names, sizes, rows, strict=True):
            if self._matches(name):
                yield TensorHealth(
                    of=role,
                    name=name,
                    elements=int(size),
                    inf=int(inf),
                    nan=int(nan),
                    first_index=int(first) if first >= 0 else None,
                    zeros=int(zeros),
                    largest=float(largest),
                    norm=math.sqrt(squares),
                )

    def _with_ratios(self, step: int, found: list[TensorHealth], weights: Tensors | None) -> list[TensorHealth]:
        norms = {t.name: t.norm for t in found if t.of == "update" and t.finite}
        kept = self._kept[1] if self._kept is not None and self._kept[0] < step else {}
        result = []
        for t in found:
            ratio = None
            if t.of == "weight" and t.name in norms:
                ratio = norms[t.name] / t.norm if t.norm else None
            elif t.of == "weight" and t.name in kept and isinstance(weights, Mapping):
                before = kept[t.name]
                change = self._sampled(weights[t.name])
                if change.shape == before.shape:
                    change -= before
                    size = float(np.linalg.norm(before))
                    ratio = float(np.linalg.norm(change)) / size if size else None
            result.append(t if ratio is None else t.model_copy(update={"update_ratio": ratio}))
        return result

    def _keep(self, step: int, weights: Tensors | None) -> None:
        """A sample of the weights, where the next step is due."""
        self._kept = None
        if self._sample and isinstance(weights, Mapping) and self.due(step + 1):
            chosen = {n: self._sampled(t) for n, t in weights.items() if t is not None and self._matches(n)}
            self._kept = step, chosen

    def _sampled(self, tensor: Any) -> Any:
        """float64, a copy. The distance is a prime, so that the elements are not those of one row or one kernel."""
        tensor = _plain(tensor)
        if hasattr(tensor, "asnumpy"):
            tensor = tensor.asnumpy()
        size = math.prod(tensor.shape)
        some = tensor.reshape(-1)[:: _prime(-(-size // self._sample)) if size > self._sample else 1]
        if hasattr(some, "cpu"):
            some = some.cpu().float().numpy()
        return np.array(some, np.float64)

    def _fault(self, step: int, found: Sequence[TensorHealth], loss: float | None) -> Fault | None:
        """The first cause: a weight, in the order of the layers; the loss; the gradient that the backward pass reached
        first, which is that of the last layer; an update. A weight that its own gradient spoiled is no cause."""

        def named(of: Any, **facts: Any) -> Fault:
            return Fault(step=step, of=of, rank=self.rank, **facts)

        bad = [t for t in found if not t.finite]
        weights, gradients, updates = ([t for t in bad if t.of == role] for role in ("weight", "gradient", "update"))
        spoiled = {t.name for t in gradients}
        broken = loss is not None and not math.isfinite(loss)
        if not broken and (loss is not None or spoiled == {t.name for t in weights}):
            weights = [t for t in weights if t.name not in spoiled]
        if broken and not weights:
            return named("loss", name="loss", inf=int(math.isinf(loss or 0)), nan=int(math.isnan(loss or 0)))
        order = [*weights, *reversed(gradients), *updates]
        if not order:
            return None
        first = order[0]
        return named(first.of, name=first.name, inf=first.inf, nan=first.nan, first_index=first.first_index)

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


def _plain(tensor: Any) -> Any:
    """Without PyTorch's gradient, which it would record for what reads the tensor."""
    torch: Any = sys.modules.get("torch")
    return tensor.detach() if torch is not None and isinstance(tensor, torch.Tensor) else tensor


def _statistics(role: str, tensors: Mapping[str, Any], scale: Any) -> Any:
    try:
        rows = ops.tensor_statistics(list(tensors.values()), scale)
    except (TypeError, ValueError) as error:
        named = re.sub(r"tensors\[(\d+)\]", lambda m: f"{role}s[{list(tensors)[int(m[1])]!r}]", str(error))
        raise type(error)(named.replace("tensor_statistics", "HealthMonitor", 1)) from None
    with contextlib.suppress(AttributeError):
        rows = rows.cpu()
    return rows if isinstance(rows, np.ndarray) else rows.numpy()


def _prime(low: int) -> int:
    while any(low % d == 0 for d in range(2, math.isqrt(low) + 1)):
        low += 1
    return low


def _check_int(name: str, value: Any, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"HealthMonitor: {name} must be an int, got {type(value).__name__}")
    if value < low:
        raise ValueError(f"HealthMonitor: {name} must be at least {low}, got {value}")
