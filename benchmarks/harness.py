"""A case, its peers, and how they are timed.

Every call's answer is compared with a float64 reference, element by element, before it is timed.
Ours and the peer are then called in turns, in one process, so that whatever else the machine does
hits both; times are medians over the rounds. The bandwidth is a peer like the others: the probe
moves a known number of bytes in turns with the case.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .bandwidth import Access, Bandwidth

_SAMPLE = 5e-3  # seconds; shorter calls are repeated within a sample
_REST = 0.03  # OpenBLAS and OpenMP workers spin for some 25 ms after a call, on others' cores
_ROUNDS = 25
_SLOW = 4.0  # seconds; such a call is timed once


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
    """To spend on each peer."""


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


def run(case: Case, bandwidth: Bandwidth) -> Iterator[Row]:
    """Check and time one case.

    Raises:
        AssertionError: our answer is wrong.
    """
    reference = _arrays(case.reference(), case.view)
    ours = Peer("ours", case.ours)
    ours_first = _checked(case, ours, reference)
    if case.traffic is not None:
        probe = bandwidth.best(case.access)
        pair = _in_turns(ours, ours_first, Peer(probe.name, probe.run), probe.seconds, case.seconds)
        yield _row(case, f"{case.access} bandwidth", pair, case.bandwidth_goal, case.traffic / probe.bytes)
    for peer in case.peers:
        try:
            first = _checked(case, peer, reference)
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
        yield _row(case, peer.name, _in_turns(ours, ours_first, peer, first, case.seconds), peer.goal)


def _row(
    case: Case,
    name: str,
    pair: tuple[list[float], list[float]],
    goal: float | None,
    work: float | None = None,
) -> Row:
    ours, peer = (statistics.median(times) for times in pair)
    return Row(
        case.name,
        1e3 * ours,
        _spread(pair[0]),
        name,
        1e3 * peer,
        _spread(pair[1]),
        peer / ours * (1 if work is None else work),
        goal,
        len(pair[0]),
        bandwidth=work is not None,
    )


def _checked(case: Case, peer: Peer, reference: list[Any]) -> float:
    """Compare an answer with the reference; return how long a call takes."""
    if case.reset is not None:
        case.reset()
    tolerance = case.tolerance if peer.tolerance is None else peer.tolerance
    with peer.around():
        wrong = _difference(_arrays(peer.run(), case.view), reference, tolerance)
        if wrong:
            raise AssertionError(f"{case.name}: {peer.name} {wrong}")
        start = time.perf_counter()  # of the second call: the first one compiled
        peer.run()
        return time.perf_counter() - start


def _difference(answer: list[Any], reference: list[Any], tolerance: float) -> str:
    if len(answer) != len(reference):
        return f"gave {len(answer)} arrays, expected {len(reference)}"
    for index, (got, expected) in enumerate(zip(answer, reference, strict=True)):
        if got.shape != expected.shape:
            return f"gave array {index} of shape {got.shape}, expected {expected.shape}"
        allowed = tolerance * np.max(np.abs(expected), initial=0.0)
        wrong = np.max(np.abs(got - expected), initial=0.0)
        if not wrong <= allowed:  # nan is wrong, too
            return f"is off by {wrong:.3g} in array {index}, allowed {allowed:.3g}"
    return ""


def _in_turns(
    ours: Peer, ours_first: float, peer: Peer, peer_first: float, budget: float
) -> tuple[list[float], list[float]]:
    if peer_first > _SLOW:
        rest = [_sample(ours, 1) for _ in range(2 if ours_first < _SLOW else 0)]
        return [ours_first, *rest], [peer_first]
    inner = [max(1, math.ceil(_SAMPLE / max(first, 1e-7))) for first in (ours_first, peer_first)]
    a_round = ours_first * inner[0] + peer_first * inner[1] + 2 * _REST
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(min(_ROUNDS, max(3, int(budget / a_round)))):
        for who, repeat, into in zip((ours, peer), inner, times, strict=True):
            into.append(_sample(who, repeat))
    return times


def _sample(who: Peer, repeat: int) -> float:
    call = who.run
    with who.around():
        time.sleep(_REST)
        start = time.perf_counter()
        for _ in range(repeat):
            call()
        return (time.perf_counter() - start) / repeat


def _spread(times: list[float]) -> float:
    """Half the distance of the quartiles, relative to the median."""
    if len(times) < 3:
        return 0.0
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / 2 / middle


def _arrays(answer: Any, view: Callable[[Any], Any]) -> list[Any]:
    """The arrays of an answer in float64, copied: the next call may write into them."""
    if isinstance(answer, (list, tuple)):
        return [array for part in answer for array in _arrays(part, view)]
    if hasattr(answer, "asnumpy"):
        answer = answer.asnumpy()
    elif hasattr(answer, "detach"):
        answer = answer.detach().float().numpy()
    return [np.array(view(np.asarray(answer)), np.float64)]
