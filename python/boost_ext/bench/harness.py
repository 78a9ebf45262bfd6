"""A case, its peers, and how they are timed.

Every call's answer is compared with a float64 reference, element by element, before it is timed.
Ours and the peer are then called in turns, in one process, so that whatever else the machine does
hits both. Times are medians over the rounds, the ratio is the median of the rounds' ratios. The
bandwidth is a peer like the others: the probe moves a known number of bytes in turns with the case.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from boost_ext.bench.bandwidth import Access, Bandwidth, rest

_SAMPLE = 5e-3  # seconds; shorter calls are repeated within a sample
_ROUNDS = 25
_FEWEST_ROUNDS = 5
_SLOW = 0.5  # seconds; such calls get three rounds
_ONCE = 1.5  # seconds; such a call is timed once


@dataclass(frozen=True)
class Peer:
    """Somebody else's way to the same answer."""

    name: str
    run: Callable[[], Any]
    goal: float | None = None
    """At least so many times our time."""
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Entered around each sample, outside the clock: MindSpore's mode, for one."""
    tolerance: float | None = None
    """Instead of the case's, for a peer that computes more coarsely."""


@dataclass(frozen=True)
class Case:
    """One op at one size."""

    name: str
    ours: Callable[[], Any]
    reference: Callable[[], Any]
    """The answer in float64: an array or a (nested) list of them, in the form all return it."""
    peers: tuple[Peer, ...] = ()
    traffic: int | None = None
    """Least bytes to move; None for what is not bound by memory."""
    access: Access = "read"
    bandwidth_goal: float | None = None
    tolerance: float = 1e-5
    """Of an element, relative to the largest of its array."""
    reset: Callable[[], None] | None = None
    """Restores the arguments before an answer is checked, if calls change them."""
    view: Callable[[Any], Any] = field(default=lambda answer: answer)
    """Applied to an array of an answer before it is compared: np.abs where the sign is free."""
    seconds: float = 1.0
    """To spend on each peer; 0: one round."""
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    """As a peer's: entered around each sample of ours."""


@dataclass(frozen=True)
class Row:
    """What came out for one case and one peer. Times in milliseconds."""

    case: str
    ours: float
    ours_spread: float
    peer: str
    peer_time: float
    peer_spread: float
    ratio: float
    goal: float | None
    rounds: int
    error: str | None = None
    bandwidth: bool = False
    """The peer is the bandwidth probe, the ratio the fraction of it."""

    @property
    def missed(self) -> bool:
        return self.goal is not None and not self.ratio >= self.goal

    def as_dict(self) -> dict[str, Any]:
        """As JSON knows it: None for nan."""
        plain = {key: None if isinstance(x, float) and math.isnan(x) else x for key, x in asdict(self).items()}
        return plain | {"missed": self.missed and self.error is None}


def milliseconds(time: float, spread: float = 0.0) -> str:
    """A time in so many digits as it has, and its spread."""
    if math.isnan(time):
        return ""
    digits = 4 if time < 0.1 else 3 if time < 1 else 2 if time < 10 else 1 if time < 1000 else 0
    return f"{time:.{digits}f}" + (f" ±{100 * spread:.0f}%" if spread >= 0.005 else "")


@dataclass(frozen=True)
class Means:
    """How a call is timed, and how an array of an answer becomes float64, copied: the next call may write to it."""

    seconds: Callable[[Callable[[], Any], int], float]
    """Of one call, when it is called so many times."""
    float64: Callable[[Any, Callable[[Any], Any]], Any]
    """Of an array, and what is to be applied to it before."""


def run(case: Case, bandwidth: Bandwidth, means: Means | None = None) -> Iterator[Row]:
    """Check and time one case, on the host unless other means are given.

    Raises:
        AssertionError: our answer is wrong.
    """
    means = means or ON_HOST
    ours, reference, ours_first = checked(case, means)
    if case.traffic is not None:
        probe = bandwidth.best(case.access)
        rounds = _in_turns(means, ours, ours_first, Peer(probe.name, probe.run), probe.seconds, case.seconds)
        yield _row(case, f"{case.access} bandwidth", rounds, case.bandwidth_goal, case.traffic / probe.bytes)
    for peer in case.peers:
        try:
            first = _checked(case, peer, reference, means)
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            yield Row(
                case.name,
                1e3 * ours_first,
                0,
                peer.name,
                math.nan,
                0,
                math.nan,
                peer.goal,
                0,
                reason,
            )
            continue
        rounds = _in_turns(means, ours, ours_first, peer, first, case.seconds)
        yield _row(case, peer.name, rounds, peer.goal)


def checked(case: Case, means: Means) -> tuple[Peer, list[Any], float]:
    """Ours as a peer, its reference, and how long a call takes, if the answer is right.

    Raises:
        AssertionError: it is not.
    """
    reference = _arrays(case.reference(), case.view, means)
    ours = Peer("ours", case.ours, around=case.around)
    return ours, reference, _checked(case, ours, reference, means)


def _row(
    case: Case,
    name: str,
    rounds: list[tuple[float, float]],
    goal: float | None,
    work: float | None = None,
) -> Row:
    ours, peer = zip(*rounds, strict=True)
    return Row(
        case.name,
        1e3 * statistics.median(ours),
        _spread(ours),
        name,
        1e3 * statistics.median(peer),
        _spread(peer),
        statistics.median(theirs / mine for mine, theirs in rounds) * (1 if work is None else work),
        goal,
        len(rounds),
        bandwidth=work is not None,
    )


def _checked(case: Case, peer: Peer, reference: list[Any], means: Means) -> float:
    """Compare an answer with the reference; return how long a call takes."""
    if case.reset is not None:
        case.reset()
    tolerance = case.tolerance if peer.tolerance is None else peer.tolerance
    with peer.around():
        wrong = _difference(_arrays(peer.run(), case.view, means), reference, tolerance)
        if wrong:
            raise AssertionError(f"{case.name}: {peer.name} {wrong}")
        return means.seconds(peer.run, 1)  # of the second call: the first one compiled


def _difference(answer: list[Any], reference: list[Any], tolerance: float) -> str:
    if len(answer) != len(reference):
        return f"gave {len(answer)} arrays, expected {len(reference)}"
    for index, (got, expected) in enumerate(zip(answer, reference, strict=True)):
        if tuple(got.shape) != tuple(expected.shape):
            return f"gave array {index} of shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
        allowed, wrong = tolerance * _largest(expected), _largest(got - expected)
        if not wrong <= allowed:  # nan is wrong, too
            return f"is off by {wrong:.3g} in array {index}, allowed {allowed:.3g}"
    return ""


def _largest(array: Any) -> float:
    """The largest magnitude, nan if there is one."""
    return float(abs(array).max()) if math.prod(array.shape) else 0.0


def _in_turns(
    means: Means, ours: Peer, ours_first: float, peer: Peer, peer_first: float, budget: float
) -> list[tuple[float, float]]:
    """Times of ours and the peer, round by round."""
    if peer_first > _ONCE:
        return [(_sample(means, ours, 1), peer_first)]
    fewest = 1 if budget == 0 else 3 if peer_first > _SLOW else _FEWEST_ROUNDS
    mine, theirs = (math.ceil(_SAMPLE / max(first, 1e-7)) for first in (ours_first, peer_first))
    rounds: list[tuple[float, float]] = []
    end = time.perf_counter() + budget
    while len(rounds) < fewest or (len(rounds) < _ROUNDS and time.perf_counter() < end):
        rounds.append((_sample(means, ours, mine), _sample(means, peer, theirs)))
    return rounds


def _sample(means: Means, who: Peer, repeat: int) -> float:
    with who.around():
        return means.seconds(who.run, repeat)


def _seconds(call: Callable[[], Any], repeat: int) -> float:
    rest()
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) / repeat


def _spread(times: Sequence[float]) -> float:
    """Half the distance of the quartiles, relative to the median."""
    if len(times) < 3:
        return 0.0
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / 2 / middle


def _arrays(answer: Any, view: Callable[[Any], Any], means: Means) -> list[Any]:
    if isinstance(answer, (list, tuple)):
        return [array for part in answer for array in _arrays(part, view, means)]
    return [means.float64(answer, view)]


def _float64(answer: Any, view: Callable[[Any], Any]) -> Any:
    if hasattr(answer, "asnumpy"):
        answer = answer.asnumpy()
    elif hasattr(answer, "detach"):
        answer = answer.detach().float().numpy()
    return np.array(view(np.asarray(answer)), np.float64)


ON_HOST = Means(_seconds, _float64)
