"""Convolutions of few input channels a group or by tiles, and their gradients, with all instruction sets."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

import oracle
from boost_ext import _core
from dtypes import FLOATS, UNIT, assert_close, assert_same_bits, normal

pytestmark = pytest.mark.usefixtures("isa", "used_memory")

PERTURB = -6  # M_PERTURB of malloc.h


@pytest.fixture(scope="module")
def used_memory() -> Iterator[None]:
    """malloc() gives memory that holds huge numbers, where glibc can: fresh pages would be zeros, as sums begin."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", lambda *_: None)
    set_option(PERTURB, 0x80)  # fills with 0x7f
    yield
    set_option(PERTURB, 0)


@dataclass(frozen=True)
class Case:
    images: int
    channels: int
    size: tuple[int, int]
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    groups: int = 1

    def __str__(self) -> str:
        return "-".join(str(v).replace(" ", "") for v in self.__dict__.values())

    @property
    def positions(self) -> tuple[int, int]:
        reach = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]
        padded = [self.size[i] + sum(self.padding[2 * i : 2 * i + 2]) for i in (0, 1)]
        return tuple((p - r) // s + 1 for p, r, s in zip(padded, reach, self.stride, strict=True))

    @property
    def patches(self) -> np.ndarray:
        numbers = (self.images, self.channels, *self.size, *self.kernel, *self.stride, *self.dilation)
        return np.array([*numbers, self.padding[0], self.padding[2], *self.positions], np.int32)

    def arrays(self, rng) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = normal(rng, (self.images, self.channels, *self.size))
        w = normal(rng, (self.outputs, self.channels // self.groups, *self.kernel))
        return x, w, normal(rng, (self.images, self.outputs, *self.positions))

    def exact(self, x, w) -> np.ndarray:
        return oracle.conv2d(x, w, self.stride, self.dilation, self.padding, self.groups)

    def gradients(self, dy, x, w) -> tuple[np.ndarray, np.ndarray]:
        return oracle.conv2d_gradients(dy, x, w, self.stride, self.dilation, self.padding, self.groups)

    def _call(self, function, first, second, out) -> np.ndarray:
        _core.call(function, first, second, self.patches, np.array([self.groups], np.int32), out)
        return out

    def conv2d(self, x, w) -> np.ndarray:
        return self._call("conv2d", x, w, np.full((self.images, self.outputs, *self.positions), np.nan, np.float32))

    def input_gradient(self, dy, w) -> np.ndarray:
        dx = np.full((self.images, self.channels, *self.size), np.nan, np.float32)
        return self._call("conv2d_input_gradient", dy, w, dx)

    def weight_gradient(self, dy, x) -> np.ndarray:
        dw = np.full((self.outputs, self.channels // self.groups, *self.kernel), np.nan, np.float32)
        return self._call("conv2d_weight_gradient", dy, x, dw)

    def results(self, x, w, dy) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.conv2d(x, w), self.input_gradient(dy, w), self.weight_gradient(dy, x)


CASES = [
    Case(1, 1, (1, 1), 1, (1, 1)),
    Case(2, 4, (5, 7), 4, (3, 3), padding=(1, 1, 1, 1), groups=4),
    Case(2, 33, (4, 4), 33, (3, 3), padding=(1, 1, 1, 1), groups=33),
    Case(70, 3, (4, 4), 3, (3, 3), padding=(1, 1, 1, 1), groups=3),  # images that are multiplied together, and the rest
    Case(3, 2, (32, 32), 2, (3, 3), padding=(1, 1, 1, 1), groups=2),
    Case(1, 2, (65, 70), 2, (5, 5), padding=(2, 2, 2, 2), groups=2),
    Case(2, 3, (13, 10), 6, (3, 3), (2, 2), padding=(1, 1, 1, 1), groups=3),  # two outputs of each channel
    Case(2, 4, (9, 7), 8, (3, 2), (2, 1), padding=(1, 0, 0, 1), groups=4),
    Case(2, 8, (6, 6), 12, (3, 3), padding=(1, 1, 1, 1), groups=2),
    Case(3, 3, (8, 9), 5, (5, 5)),
    Case(65, 6, (14, 14), 16, (5, 5)),
    Case(2, 6, (11, 12), 4, (1, 1), (2, 2), groups=2),  # planes that no weight meets
    Case(1, 2, (17, 19), 6, (3, 3), (2, 2), (2, 2), (3, 2, 1, 4)),
    Case(1, 2, (17, 19), 2, (3, 3), (1, 1), (2, 3), (2, 2, 3, 3), 2),
    Case(2, 3, (6, 6), 2, (2, 2), (3, 3)),  # columns that no output sees
    Case(2, 3, (4, 4), 2, (2, 2), (2, 2), padding=(0, 0, 1, 0)),  # and one that is not copied
    Case(1, 1, (7, 7), 1, (2, 2), (4, 4), padding=(5, 5, 5, 5)),  # positions that see zeros alone
    Case(1, 3, (16, 33), 9, (7, 7), (2, 2), padding=(3, 3, 3, 3)),
    Case(0, 2, (5, 5), 2, (3, 3), groups=2),
    Case(2, 2, (2, 2), 2, (3, 3), groups=2),  # no positions
]


IN_PRODUCTS = [
    Case(2, 40, (9, 7), 34, (1, 1)),
    Case(3, 33, (4, 4), 65, (1, 1), (2, 2)),  # every other pixel; columns of several images
    Case(2, 66, (5, 6), 68, (1, 1), groups=2),
    Case(1, 35, (3, 3), 40, (1, 1), padding=(1, 0, 2, 1)),  # positions that see zeros
    Case(2, 36, (8, 8), 40, (3, 3), (2, 2), padding=(1, 1, 1, 1)),
    Case(2, 34, (9, 7), 33, (3, 2), (2, 1), padding=(1, 0, 0, 1)),
    Case(1, 40, (7, 9), 30, (3, 3), (1, 1), (2, 2), (2, 2, 1, 3)),
    Case(2, 3, (20, 21), 9, (7, 7), (2, 2), padding=(3, 3, 3, 3)),  # the first of a ResNet
    Case(2, 3, (16, 16), 70, (8, 8), (8, 8)),  # and of a vision transformer
    Case(1, 40, (6, 6), 40, (2, 2), (3, 3)),  # pixels that no position sees
    Case(1, 129, (4, 5), 40, (5, 5), padding=(2, 2, 2, 2)),  # several slabs
    Case(2, 80, (6, 6), 80, (3, 3), (1, 1), padding=(1, 1, 1, 1), groups=2),
    Case(9, 70, (90, 90), 30, (3, 3), (2, 2), padding=(0, 1, 0, 1)),  # planes of some images after the other
    Case(0, 40, (6, 6), 40, (1, 1)),
    Case(2, 40, (2, 2), 40, (3, 3), (2, 2)),  # no positions
]
"""What csrc/cpu/convolution_products.h computes."""
CASES += IN_PRODUCTS


IN_TILES = [
    Case(2, 16, (8, 8), 18, (3, 3), padding=(1, 1, 1, 1)),
    Case(1, 64, (1, 1), 33, (3, 3), padding=(1, 1, 1, 1)),  # a tile with one output
    Case(35, 65, (4, 4), 34, (3, 3), padding=(1, 1, 1, 1)),  # blocks of tiles that begin within an image
    Case(3, 32, (14, 7), 32, (3, 3), padding=(2, 2, 2, 2)),
    Case(2, 33, (9, 14), 70, (3, 3)),
    Case(1, 130, (5, 6), 32, (3, 3), padding=(0, 2, 2, 0)),  # two slabs of channels
    Case(2, 32, (5, 5), 130, (3, 3), padding=(2, 0, 0, 1)),
    Case(2, 200, (4, 5), 210, (3, 3), padding=(1, 1, 1, 1)),  # many blocks of outputs for few tiles
    Case(9, 33, (32, 32), 32, (3, 3), padding=(1, 1, 1, 1)),  # sums of float64, of ranges of tiles
    Case(1, 32, (6, 6), 32, (3, 3), padding=(1, 9, 1, 8)),  # positions that see zeros alone
    Case(1, 342, (23, 24), 16, (3, 3), padding=(1, 1, 1, 1)),  # more tiles than are transformed at once
    Case(0, 32, (6, 6), 32, (3, 3)),
]
"""What csrc/cpu/winograd.h computes."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conv2d(rng, case):
    x, w, _ = case.arrays(rng)
    if min(case.positions) < 1:
        assert case.conv2d(x, w).size == 0
        return
    roundings = 1 + w[0].size
    assert_close(case.conv2d(x, w), case.exact(x, w), case.exact(abs(x), abs(w)), roundings)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients(rng, case):
    x, w, dy = case.arrays(rng)
    dx, dw = case.input_gradient(dy, w), case.weight_gradient(dy, x)
    if min(case.images, *case.positions) < 1:
        assert not dx.any()
        assert not dw.any()
        return
    (exact_dx, exact_dw), (large_dx, large_dw) = case.gradients(dy, x, w), case.gradients(abs(dy), abs(x), abs(w))
    assert_close(dx, exact_dx, large_dx, roundings=1 + w[:, 0].size // case.groups)
    assert_close(dw, exact_dw, large_dw, roundings=66)


def rounded(*arrays) -> list[np.ndarray]:
    """To bfloat16, where products of medium precision are of such factors."""
    narrow = FLOATS["bfloat16"] if _core.has_narrow_products() else np.float32
    return [a.astype(narrow).astype(np.float32) for a in arrays]


@pytest.mark.usefixtures("medium_precision")
@pytest.mark.parametrize("case", [c for c in IN_PRODUCTS if c.images and min(c.positions) > 0], ids=str)
def test_products_of_medium_precision(rng, case):
    """Those of factors that are rounded to bfloat16."""
    x, w, dy = case.arrays(rng)
    found = case.results(x, w, dy)
    x, w, dy = rounded(x, w, dy)
    for one, same in zip(found, case.results(x, w, dy), strict=True):
        assert_same_bits(one, same)
    y, dx, dw = found
    (exact_dx, exact_dw), (large_dx, large_dw) = case.gradients(dy, x, w), case.gradients(abs(dy), abs(x), abs(w))
    assert_close(y, case.exact(x, w), case.exact(abs(x), abs(w)), roundings=1 + w[0].size)
    assert_close(dx, exact_dx, large_dx, roundings=1 + w[:, 0].size // case.groups)
    assert_close(dw, exact_dw, large_dw, roundings=130)


@pytest.mark.parametrize("case", CASES[1:13], ids=str)
def test_direct_sums_stay_float32(rng, case, request):
    x, w, dy = case.arrays(rng)
    expected = case.results(x, w, dy)
    request.getfixturevalue("medium_precision")
    found = case.results(x, w, dy)
    for one, same in zip(found, expected, strict=True):
        assert_same_bits(one, same)


INPUTS = np.float64([[1, 0, 1, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 1, 0, 1]])
WEIGHTS = np.float64([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, 0.5, 0.5], [0, 0, 1]])
OUTPUTS = np.float64([[1, 0], [1, 1], [1, 1], [0, 1]])
"""The transforms of F(2 x 2, 3 x 3), of absolute values."""


def windows(x, size, tiles, before=(0, 0)) -> np.ndarray:
    """Absolute values that tiles of 2 x 2 outputs see or hold: (n, channels, down, across, size, size)."""
    seen = np.zeros((*x.shape[:2], *(2 * t + size - 2 for t in tiles)))
    part = abs(x[:, :, : seen.shape[2] - before[0], : seen.shape[3] - before[1]])
    seen[:, :, before[0] :, before[1] :][:, :, : part.shape[2], : part.shape[3]] = part
    return np.lib.stride_tricks.sliding_window_view(seen, (size, size), (2, 3))[:, :, ::2, ::2]


def largest_sums(x, w, positions, before) -> np.ndarray:
    """What rounding errors of a convolution by tiles are relative to: its sums of absolute values."""
    tiles = [-(-p // 2) for p in positions]
    seen = INPUTS @ windows(x, 4, tiles, before) @ INPUTS.T
    products = np.einsum("ncijab,ocab->noijab", seen, WEIGHTS @ abs(w.astype(np.float64)) @ WEIGHTS.T, optimize=True)
    y = (OUTPUTS.T @ products @ OUTPUTS).transpose(0, 1, 2, 4, 3, 5)
    return y.reshape(len(x), len(w), 2 * tiles[0], 2 * tiles[1])[:, :, : positions[0], : positions[1]]


def largest_weight_sums(dy, x, before) -> np.ndarray:
    tiles = [-(-p // 2) for p in dy.shape[2:]]
    seen, held = INPUTS @ windows(x, 4, tiles, before) @ INPUTS.T, OUTPUTS @ windows(dy, 2, tiles) @ OUTPUTS.T
    return WEIGHTS.T @ np.einsum("noijab,ncijab->ocab", held, seen, optimize=True) @ WEIGHTS


@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize("case", IN_TILES, ids=str)
def test_tiles(rng, case):
    x, w, dy = case.arrays(rng)
    y, dx, dw = case.results(x, w, dy)
    if case.images == 0:
        assert y.size == dx.size == 0
        assert not dw.any()
        return
    before = case.padding[::2]
    turned = w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
    exact_dx, exact_dw = case.gradients(dy, x, w)
    transforms = 10  # 4 roundings of weights, 2 of inputs, 4 of outputs
    if _core.has_narrow_products():  # and one of each factor to bfloat16
        transforms += 2 * (UNIT["bfloat16"] + UNIT["bfloat16"] ** 2) / UNIT["float32"]
    slabs = 3
    assert_close(y, case.exact(x, w), largest_sums(x, w, case.positions, before), case.channels + slabs + transforms)
    large_dx = largest_sums(dy, turned, case.size, [2 - b for b in before])
    assert_close(dx, exact_dx, large_dx, case.outputs + slabs + transforms)
    assert_close(dw, exact_dw, largest_weight_sums(dy, x, before), 128 + transforms)


def test_tiles_are_as_exact_as_direct_sums(rng, request):
    """Of float32, up to a small factor: nine images of 32 x 32. So are those of bfloat16 factors."""
    case = IN_TILES[8]
    x, w, dy = case.arrays(rng)
    exact = case.exact(x, w), *case.gradients(dy, x, w)
    found = case.results(x, w, dy)
    for one, other in zip(found, exact, strict=True):
        assert abs(one - other).max() <= 16 * UNIT["float32"] * abs(other).max()
    request.getfixturevalue("medium_precision")
    found = case.results(x, w, dy)
    x, w, dy = (a.astype(FLOATS["bfloat16"]) for a in (x, w, dy))
    for one, direct, other in zip(found, (case.exact(x, w), *case.gradients(dy, x, w)), exact, strict=True):
        assert np.square(one - other).mean() <= 2**2 * np.square(direct - other).mean()


@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize("case", [*CASES[1:13], *IN_PRODUCTS[:12], *IN_TILES[2:9]], ids=str)
def test_the_bits_do_not_depend_on_the_threads(rng, case, threads):
    x, w, dy = case.arrays(rng)
    found = []
    for count in (1, 2, 3):
        threads(count)
        found.append(case.results(x, w, dy))
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            assert_same_bits(one, same)


@pytest.mark.parametrize("case", [CASES[1], CASES[10], *IN_TILES[2:8]], ids=str)
def test_all_instruction_sets_have_the_same_bits(rng, isa, case):
    x, w, dy = case.arrays(rng)
    got = case.results(x, w, dy)
    _core.set_isa("baseline")
    try:
        expected = case.results(x, w, dy)
    finally:
        _core.set_isa(isa)
    for one, same in zip(got, expected, strict=True):
        assert_same_bits(one, same)


def test_nan_goes_where_it_is_seen(rng):
    case = CASES[1]
    x, w, _ = case.arrays(rng)
    x[1, 2, 3, 4] = np.nan
    found = np.isnan(case.conv2d(x, w))
    expected = np.zeros_like(found)
    expected[1, 2, 2:5, 3:6] = True
    np.testing.assert_array_equal(found, expected)


def test_nan_spreads_in_tiles(rng):
    """To the outputs of the tiles that see it, and no further."""
    case = Case(2, 32, (9, 9), 32, (3, 3), padding=(1, 1, 1, 1))
    x, w, _ = case.arrays(rng)
    x[1, 2, 4, 1] = np.nan
    found = np.isnan(case.conv2d(x, w))
    assert found[1, :, 3:6, :3].all()
    found[1, :, 2:6, :4] = False
    assert not found.any()


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, -1, "images"),
        (1, 3, "groups must divide 3 channels"),
        (2, 6, "x must have"),
        (4, 0, "kernel"),
        (5, 2, "w must have"),
        (10, -1, "padding"),
        (12, 4, "y must have"),
    ],
)
def test_what_does_not_fit_is_refused(rng, place, value, message):
    case = CASES[1]
    x, w, y = case.arrays(rng)
    patches = case.patches
    patches[place] = value
    with pytest.raises(ValueError, match=message):
        _core.call("conv2d", x, w, patches, np.array([case.groups], np.int32), y)
    for groups, patches in ((0, case.patches), (3, case.patches), (4, case.patches[1:])):
        with pytest.raises(ValueError, match=r"groups must divide|14 numbers"):
            _core.call("conv2d", x, w, patches, np.array([groups], np.int32), y)


def test_small_numbers_are_not_lost(rng):
    """A gradient of many terms: float32 sums of 64 terms a lane, and float64 beyond."""
    case = Case(300, 1, (16, 16), 1, (3, 3), padding=(1, 1, 1, 1))
    x, w, dy = case.arrays(rng)
    x, dy = abs(x) + 1, abs(dy) + 1
    exact = case.gradients(dy, x, w)[1]
    assert (abs(case.weight_gradient(dy, x) - exact) <= 12 * UNIT["float32"] * exact).all()


def test_all_orders_of_extents(rng):
    for size, kernel, stride in itertools.product((5, 16, 17), (1, 2, 3), (1, 2, 3)):
        case = Case(1, 2, (size, size), 2, (kernel, kernel), (stride, stride), groups=2)
        x, w, _ = case.arrays(rng)
        assert_close(case.conv2d(x, w), case.exact(x, w), case.exact(abs(x), abs(w)), 1 + kernel**2)
