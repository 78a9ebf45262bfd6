"""Local steps: each rank trains on its own, and the ranks exchange their progress once in `every` steps.

The definition. All ranks start from the same weights, the anchor :math:`a`. After `every` steps rank r has the weights
:math:`w_r`, and its difference is :math:`d_r = a - w_r`. With `compress` it sends codes:

.. math:: e_r \\leftarrow error\\_decay \\cdot e_r + d_r, \\qquad c_r = C(e_r), \\qquad e_r \\leftarrow e_r - c_r

without it :math:`c_r = d_r`. Then every rank makes the same outer step and trains on from the new anchor:

=========== ========================================================================================================
`outer`     the outer step, over R ranks
=========== ========================================================================================================
"nesterov"  ``g = mean(c); m = momentum * m + g; a -= learning_rate * (g + momentum * m)``: DiLoCo
"mean"      ``a -= learning_rate * mean(c)``: local SGD; with "topk" SparseLoCo
"adasum"    ``a -= learning_rate * adasum(c)``, tensor by tensor, see :func:`boost_ext.adasum_simulate`
"adacons"   ``a -= learning_rate * sum(k_r * c_r)``, ``k_r = <c_r, mean(c)> / |c_r|^2``, shifted by their minimum if it
            is negative, and divided by their sum: ranks that agree with the mean count more
=========== ========================================================================================================

`compress="int8"` sends a byte an element, in blocks of 256 with a scale each
(:func:`boost_ext.ops.quantize_projection`).
`compress="topk"` sends the largest of each 65536 elements, a share `density` of them, as such codes with two bytes for
the place.

Sources: Douillard et al., "DiLoCo: distributed low-communication training of language models", arXiv 2311.08105; Sarfi
et al., "Communication efficient LLM pre-training with SparseLoCo", arXiv 2508.15706; Maleki et al., "Scaling
distributed training with adaptive summation", MLSys 2021; Choukroun, Azoulay & Kisilev, "Adaptive consensus gradients
aggregation for scaled distributed training", arXiv 2411.03742. Its momentum of the coefficients is left out, and they
sum to 1 on the differences themselves, not on their directions: their lengths matter here.

Imports without MindSpore.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from boost_ext import ops
from boost_ext.adasum import adasum_simulate
from boost_ext.ops.arguments import integer, number
from boost_ext.ops.projection_codes import PROJECTION_BLOCK

__all__ = ["Compress", "LocalStepsSimulator", "Outer", "OuterRule", "outer_rule"]

Outer: TypeAlias = Literal["nesterov", "mean", "adasum", "adacons"]
Compress: TypeAlias = Literal["int8", "topk"]
Array: TypeAlias = npt.NDArray[Any]

_BLOCK = PROJECTION_BLOCK
_CHUNK = 1 << 16  # elements of which the largest are sent; their places take two bytes
_PIECE = 1 << 17  # elements at a time, whole blocks: what is computed on the way stays in the cache
_LARGEST = 1e37
_ALIGNED = 4  # elements sent of each chunk are a multiple: whole words of four bytes


@dataclass(frozen=True)
class OuterRule:
    """What happens at an exchange, on flat float32 vectors; made and checked by :func:`outer_rule`.

    Attributes:
        every (int): local steps between two exchanges.
        outer, compress, learning_rate, momentum, density, error_decay: see the docstring of this module.

    Examples:
        >>> from boost_ext.local_steps import outer_rule
        >>> rule = outer_rule("example", every=20, compress="int8")
        >>> rule.learning_rate, rule.momentum, rule.sent_bytes(25_000_000)
        (0.7, 0.9, 25390820)
    """

    every: int
    outer: str
    compress: str | None
    learning_rate: float
    momentum: float
    density: float
    error_decay: float

    @property
    def slots(self) -> tuple[str, ...]:
        """The vectors of a rank: always the anchor, then its momentum and its error where the rule has them."""
        momentum = ("momentum",) if self.outer == "nesterov" else ()
        return ("anchor", *momentum, *(("error",) if self.compress else ()))

    def length(self, elements: int) -> int:
        """The length of the vectors of so many elements: whole blocks."""
        return max(1, -(-elements // _BLOCK)) * _BLOCK

    def sent_bytes(self, elements: int) -> int:
        """The bytes that a rank contributes to an exchange of so many elements."""
        size = self.length(elements)
        if self.compress is None:
            return 4 * size
        kept = size if self.compress == "int8" else sum(c * k for c, _, k in self._chunks(size))
        return kept + 4 * -(-kept // _BLOCK) + (0 if self.compress == "int8" else 2 * kept)

    def _chunks(self, size: int) -> list[tuple[int, int, int]]:
        """Runs of chunks of one length: how many, how long, how many elements of each are kept."""
        whole, rest = divmod(size, _CHUNK)
        runs = [(whole, _CHUNK), (1 if rest else 0, rest)]
        return [(c, n, _ALIGNED * max(1, -(-int(self.density * n) // _ALIGNED))) for c, n in runs if c]

    def encode(self, anchor: Array, arrays: Sequence[Array], error: Array | None) -> tuple[Array, ...]:
        """What a rank sends of its difference, anchor minus weights: arrays of whole words of four bytes.

        Args:
            anchor: float32 of :meth:`length` elements.
            arrays: the weights, of which :func:`are_finite` is true.
            error: the error so far, with `compress`; written.
        """
        total = np.zeros_like(anchor) if error is None else error
        if self.error_decay != 1 and error is not None:
            error *= np.float32(self.error_decay)
        begin = 0
        for flat in (array.reshape(-1) for array in arrays):
            for start in range(0, flat.size, _PIECE):
                mine = flat[start : start + _PIECE]
                place = slice(begin + start, begin + start + mine.size)
                total[place] += anchor[place] - mine
            begin += flat.size
        if error is None:
            return (total,)
        if self.compress == "int8":
            return _coded(error)
        places = self._largest(error)
        index = self._index(places)
        values = error[index]
        codes, scale = _coded(values)
        error[index] = values
        return codes, scale, places

    def _largest(self, vector: Array) -> Array:
        """The places of the largest magnitudes within each chunk, rising, uint16."""
        found, begin = [], 0
        for count, length, kept in self._chunks(vector.size):
            for _ in range(count):
                part = np.abs(vector[begin : begin + length])
                top = np.argpartition(part, length - kept)[length - kept :]
                found.append(np.sort(top).astype(np.uint16))
                begin += length
        return np.concatenate(found)

    def _index(self, places: Array) -> Array:
        """The places within the whole vector; the chunks but for the last keep equally many."""
        kept = _ALIGNED * max(1, -(-int(self.density * _CHUNK) // _ALIGNED))
        return places.astype(np.int64) + np.arange(places.size) // kept * _CHUNK

    def combine(self, state: Mapping[str, Array], received: Sequence[Array], sizes: Sequence[int]) -> None:
        """The outer step by what all ranks have sent, the same on each of them: writes the anchor, and its momentum.

        Args:
            state: the anchor and the momentum.
            received: for each array of :meth:`encode` those of all ranks, stacked.
            sizes: of the tensors, for "adasum".
        """
        rows = self._rows(received, self.length(sum(sizes)))
        if self.outer == "adasum":
            return self.move(state, _adasum(rows, sizes))
        factors = np.full(rows.count, 1 / rows.count, np.float32)
        if self.outer == "adacons" and rows.count > 1:
            factors = _consensus(rows.dots(rows.combined(factors, slice(0, rows.size))), rows.squares())
        for start in range(0, rows.size, rows.piece):
            place = slice(start, min(start + rows.piece, rows.size))
            part = {name: vector[place] for name, vector in state.items()}
            self.move(part, rows.combined(factors, place))

    def _rows(self, received: Sequence[Array], size: int) -> _Dense | _Sparse:
        if self.compress is None:
            return _Dense(received[0], None)
        codes, scale = received[:2]
        if self.compress == "int8":
            return _Dense(codes, scale)
        return _Sparse(np.stack([self._index(p) for p in received[2]]), ops.dequantize_projection(codes, scale), size)

    def move(self, state: Mapping[str, Array], total: Array) -> None:
        """The outer step by the vector that the anchor moves against: writes the anchor, and its momentum."""
        anchor = state["anchor"]
        if self.outer == "nesterov":
            rate, hyper = self.learning_rate, self.momentum
            ops.momentum_step([anchor], [total], [state["momentum"]], lr=rate, momentum=hyper, use_nesterov=True)
        else:
            ops.sgd_step([anchor], [total], lr=self.learning_rate)


@dataclass(frozen=True)
class _Dense:
    """The ranks' vectors as rows of a matrix of float32, or of codes with scales."""

    matrix: Array
    scale: Array | None
    piece = _PIECE

    @property
    def count(self) -> int:
        return len(self.matrix)

    @property
    def size(self) -> int:
        return int(self.matrix.shape[1])

    def combined(self, factors: Array, place: slice) -> Array:
        out = np.empty(place.stop - place.start, np.float32)
        scale = self.scale
        if scale is not None:
            scale = np.ascontiguousarray(scale[:, place.start // _BLOCK : -(-place.stop // _BLOCK)])
        ops.pca_back_project(np.ascontiguousarray(self.matrix[:, place]), [factors], [[out]], scale=scale)
        return out

    def dots(self, vector: Array) -> Array:
        return np.asarray(ops.pca_project(self.matrix, [vector], scale=self.scale), np.float64)

    def row(self, rank: int) -> Array:
        if self.scale is None:
            return np.asarray(self.matrix[rank])
        return np.asarray(ops.dequantize_projection(self.matrix[rank : rank + 1], self.scale[rank : rank + 1])[0])

    def squares(self) -> Array:
        return np.array([ops.global_norm([self.row(r)]) ** 2 for r in range(self.count)])


@dataclass(frozen=True)
class _Sparse:
    """The ranks' vectors as places and values of what is not 0."""

    index: Array
    values: Array
    size: int

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def piece(self) -> int:
        return self.size

    def combined(self, factors: Array, place: slice) -> Array:
        out = np.zeros(place.stop, np.float32)
        for index, values, factor in zip(self.index, self.values, factors, strict=True):
            out[index] += np.float32(factor) * values
        return out

    def dots(self, vector: Array) -> Array:
        wide = self.values.astype(np.float64)
        return np.array([v @ vector[i] for i, v in zip(self.index, wide, strict=True)])

    def row(self, rank: int) -> Array:
        out = np.zeros(self.size, np.float32)
        out[self.index[rank]] = self.values[rank]
        return out

    def squares(self) -> Array:
        return np.asarray((self.values.astype(np.float64) ** 2).sum(axis=1))


def _coded(vector: Array) -> tuple[Array, Array]:
    """Codes and scales of the vector, which are subtracted from it."""
    codes, scale = np.empty(vector.size, np.int8), np.empty(-(-vector.size // _BLOCK), np.float32)
    for start in range(0, vector.size, _PIECE):
        part = vector[start : start + _PIECE]
        place, blocks = slice(start, start + part.size), slice(start // _BLOCK, -(-(start + part.size) // _BLOCK))
        codes[place], scale[blocks] = (found[0] for found in ops.quantize_projection(part[None]))
        part -= ops.dequantize_projection(codes[None, place], scale[None, blocks])[0]
    return codes, scale


def are_finite(arrays: Sequence[Array]) -> bool:
    """Whether differences of such weights have codes: no inf, no nan, no overflow."""
    return bool(ops.global_norm(list(arrays)) < _LARGEST)


def _consensus(dots: Array, squares: Array) -> Array:
    """The coefficients of "adacons": their sum is 1. Zero vectors count nothing; plain means where all is 0."""
    found = np.divide(dots, squares, out=np.zeros(len(dots)), where=squares > 0)
    found -= min(found.min(), 0.0)
    total = found.sum()
    even = np.full(len(dots), 1 / len(dots))
    return (found / total if total > 0 else even).astype(np.float32)


def _adasum(rows: _Dense | _Sparse, sizes: Sequence[int]) -> Array:
    ends = np.cumsum(sizes)
    nodes = [np.split(rows.row(r), ends)[:-1] for r in range(rows.count)]
    out = np.zeros(rows.row(0).size, np.float32)
    np.concatenate(adasum_simulate(nodes), out=out[: ends[-1]])
    return out


def outer_rule(
    owner: str,
    every: int,
    outer: str = "nesterov",
    compress: str | None = None,
    learning_rate: float | None = None,
    momentum: float | None = None,
    density: float | None = None,
    error_decay: float | None = None,
) -> OuterRule:
    """The arguments of :class:`LocalStepsSimulator` as a rule; `owner` is named in errors.

    Raises:
        TypeError: if `every` is no int, or another one no number.
        ValueError: if one is out of range, or belongs to another `outer` or `compress`.

    Examples:
        >>> from boost_ext.local_steps import outer_rule
        >>> outer_rule("example", every=8, outer="mean", momentum=0.9)
        Traceback (most recent call last):
        ValueError: example: momentum must be None without outer='nesterov', got 0.9
    """
    every = integer(owner, "every", every)
    if every < 1:
        raise ValueError(f"{owner}: every must be >= 1, got {every}")
    if outer not in get_args(Outer):
        raise ValueError(f"{owner}: outer must be one of {list(get_args(Outer))}, got {outer!r}")
    if compress is not None and compress not in get_args(Compress):
        raise ValueError(f"{owner}: compress must be None or one of {list(get_args(Compress))}, got {compress!r}")
    for name, value, other, allowed in (
        ("momentum", momentum, "outer='nesterov'", outer == "nesterov"),
        ("density", density, "compress='topk'", compress == "topk"),
        ("error_decay", error_decay, "compress", compress is not None),
    ):
        if value is not None and not allowed:
            raise ValueError(f"{owner}: {name} must be None without {other}, got {value}")
    rate = number(
        owner, "learning_rate", (0.7 if outer == "nesterov" else 1.0) if learning_rate is None else learning_rate
    )
    if not 0 < rate <= 10:
        raise ValueError(f"{owner}: learning_rate must be > 0 and <= 10, got {rate}")
    numbers = {}
    for name, given, default in (
        ("momentum", momentum, 0.9),
        ("density", density, 1 / 32),
        ("error_decay", error_decay, 1.0),
    ):
        value = number(owner, name, default if given is None else given)
        least = "> 0" if name == "density" else ">= 0"
        if not 0 <= value <= 1 or (name == "density" and value == 0):
            raise ValueError(f"{owner}: {name} must be {least} and <= 1, got {value}")
        numbers[name] = value
    return OuterRule(every, outer, compress, rate, **numbers)


class LocalStepsSimulator:
    """Local steps of several ranks in one process, to choose the arguments of a run over ranks.

    Train each rank's weights as you like, on its own part of the data, and call :meth:`step` after each step of all
    ranks. Once in `every` calls the ranks exchange, and all hold the same weights. See this module's docstring for the
    definition. A run over ranks computes the same with the same arguments, but for the rounding of sums of three and
    more ranks without `compress`.

    Args:
        weights (Sequence): for each rank its list of arrays: float32, of the same shapes and values on all ranks.
            Written at an exchange.
        every (int): local steps between two exchanges, >= 1.
        outer (str): "nesterov", "mean", "adasum" or "adacons". Default: "nesterov".
        compress (str, optional): "int8" or "topk". Default: None.
        learning_rate (float, optional): of the outer step. Default: None, 0.7 for "nesterov" and 1.0 for the others.
        momentum (float, optional): of "nesterov". Default: None, 0.9.
        density (float, optional): the share of elements that "topk" sends. Default: None, 1/32.
        error_decay (float, optional): what is kept of the last error, with `compress`. Default: None, 1.0.

    Attributes:
        steps (int): calls so far.
        rule (OuterRule): the arguments, checked.
        sent_bytes (int): the bytes that a rank contributes to an exchange.

    Raises:
        TypeError: if `weights` are no lists of float32 arrays, or a number has another type.
        ValueError: if ranks differ in shapes or values, or a number is out of range.

    Examples:
        >>> import numpy as np
        >>> from boost_ext.local_steps import LocalStepsSimulator
        >>> ranks = [[np.float32([1, 1])], [np.float32([1, 1])]]  # a tensor of each rank
        >>> local = LocalStepsSimulator(ranks, every=2, outer="mean")
        >>> for step in range(2):
        ...     ranks[0][0] -= np.float32([0.5, 0])  # what its optimizer did
        ...     print(local.step())
        False
        True
        >>> print(ranks[0][0], ranks[1][0])
        [0.5 1. ] [0.5 1. ]
    """

    def __init__(
        self,
        weights: Sequence[Sequence[Array]],
        every: int,
        outer: Outer = "nesterov",
        compress: Compress | None = None,
        *,
        learning_rate: float | None = None,
        momentum: float | None = None,
        density: float | None = None,
        error_decay: float | None = None,
    ) -> None:
        owner = type(self).__name__
        self.rule = outer_rule(owner, every, outer, compress, learning_rate, momentum, density, error_decay)
        self.weights = _checked(owner, weights)
        self.steps = 0
        self._sizes = [int(array.size) for array in self.weights[0]]
        length = self.rule.length(sum(self._sizes))
        self._common = {name: np.zeros(length, np.float32) for name in self.rule.slots if name != "error"}
        self._errors = [np.zeros(length, np.float32) if compress else None for _ in self.weights]
        flatten(self.weights[0], self._common["anchor"])

    @property
    def sent_bytes(self) -> int:
        """The bytes that a rank contributes to an exchange."""
        return self.rule.sent_bytes(sum(self._sizes))

    def step(self) -> bool:
        """Count a step of all ranks, and exchange after the last of `every`; returns whether it did.

        Raises:
            FloatingPointError: if the weights of a rank are not finite. Nothing has changed then.
        """
        if (self.steps + 1) % self.rule.every == 0:
            self._exchange()
        self.steps += 1
        return self.steps % self.rule.every == 0

    def _exchange(self) -> None:
        anchor = self._common["anchor"]
        for rank, arrays in enumerate(self.weights):
            if not are_finite(arrays):
                raise FloatingPointError(f"{type(self).__name__}: weights[{rank}] must be finite at an exchange")
        sent = [self.rule.encode(anchor, own, e) for own, e in zip(self.weights, self._errors, strict=True)]
        self.rule.combine(self._common, [np.stack(arrays) for arrays in zip(*sent, strict=True)], self._sizes)
        parts = np.split(anchor, np.cumsum(self._sizes))
        for arrays in self.weights:
            for array, part in zip(arrays, parts, strict=False):
                array[...] = part.reshape(array.shape)

    def state_dict(self) -> dict[str, Array]:
        """Copies of all that an exchange reads, but for the weights; for :meth:`load_state_dict`."""
        errors = {f"error.{r}": e for r, e in enumerate(self._errors) if e is not None}
        return {"steps": np.array(self.steps), **{k: v.copy() for k, v in (self._common | errors).items()}}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Continue from :meth:`state_dict`, with weights of the same time: the same steps give the same bits.

        Raises:
            ValueError: if it is of a simulator made with other arguments. Nothing has changed then.
        """
        own = self._common | {f"error.{r}": e for r, e in enumerate(self._errors) if e is not None}
        if set(state) != {"steps", *own} or any(np.shape(state[k]) != v.shape for k, v in own.items()):
            raise ValueError(f"{type(self).__name__}: state must be of a simulator made with the same arguments")
        self.steps = int(state["steps"])
        for name, array in own.items():
            array[...] = state[name]


def _checked(owner: str, weights: Any) -> list[list[Array]]:
    if not isinstance(weights, (list, tuple)) or not all(isinstance(own, (list, tuple)) for own in weights):
        raise TypeError(f"{owner}: weights must be a list with a list of arrays for each rank")
    if not weights or not weights[0]:
        raise ValueError(f"{owner}: weights must hold at least one rank, with at least one array each, got none")
    for r, own in enumerate(weights):
        for i, array in enumerate(own):
            if not isinstance(array, np.ndarray) or array.dtype != np.float32:
                got = getattr(array, "dtype", type(array).__name__)
                raise TypeError(f"{owner}: weights[{r}][{i}] must be a float32 array, got {got}")
            if not array.flags.writeable:
                raise ValueError(f"{owner}: weights[{r}][{i}] must be writable")
        same = len(own) == len(weights[0]) and all(
            a.shape == b.shape and np.array_equal(a, b) for a, b in zip(own, weights[0], strict=True)
        )
        if not same:
            raise ValueError(f"{owner}: weights[{r}] must have the shapes and values of weights[0]")
    return [list(own) for own in weights]


def flatten(arrays: Sequence[Array], out: Array) -> None:
    """Write the arrays to the beginning of a vector, one behind the other."""
    np.concatenate([array.reshape(-1) for array in arrays], out=out[: sum(array.size for array in arrays)])
