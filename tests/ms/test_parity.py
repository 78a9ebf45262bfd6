"""Every public name of mindspore.boost, with its signature; each difference is listed with its reason."""

import inspect
from pathlib import Path

import mindspore.boost as reference
import pytest

from boost_ext import boost

DIFFERENCES = (Path(__file__).parents[2] / "docs" / "differences.md").read_text()

# name of a missing attribute, or of a function whose parameters differ: (theirs, ours)
MISSING: set[str] = set()
SIGNATURES = {
    "BoostTrainOneStepCell": ("sens=None", "sens=1.0"),
}


def functions(cls: object) -> dict[str, object]:
    """The constructor and the public methods that a class defines itself."""
    found = {
        name: getattr(cls, name) for name in vars(cls) if not name.startswith("_") and callable(getattr(cls, name))
    }
    return {"__init__": cls.__init__} | found


def positional(function: object) -> list[str]:
    """Parameters as ``name`` or ``name=default``; extras of ours are keyword-only, or optional after theirs."""
    parameters = [
        p for p in inspect.signature(function).parameters.values() if p.name not in ("self", "args", "kwargs")
    ]
    named = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    return [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in named]


def pairs() -> list[tuple[str, object, object]]:
    found = []
    for name in reference.__all__:
        theirs, ours = getattr(reference, name), getattr(boost, name, None)
        if not inspect.isclass(theirs):
            found.append((name, theirs, ours))
            continue
        for method, function in functions(theirs).items():
            full = name if method == "__init__" else f"{name}.{method}"
            found.append((full, function, None if ours is None else getattr(ours, method, None)))
    return found


PAIRS = pairs()


def test_the_names() -> None:
    missing = {name for name, _, ours in PAIRS if ours is None}
    assert missing == MISSING
    assert set(reference.__all__) <= set(boost.__all__)


@pytest.mark.parametrize(("name", "theirs", "ours"), PAIRS, ids=[p[0] for p in PAIRS])
def test_the_signatures(name: str, theirs: object, ours: object) -> None:
    if ours is None:
        assert name.removesuffix(".construct") in MISSING
        return
    expected, got = positional(theirs), positional(ours)
    if name in SIGNATURES:
        before, after = SIGNATURES[name]
        assert before in expected
        expected[expected.index(before)] = after
    if name.endswith(".construct"):  # a cell is called by position: more inputs may follow, if they are optional
        assert all("=" in extra for extra in got[len(expected) :])
        got = got[: len(expected)]
    assert got == expected


@pytest.mark.parametrize("name", sorted(MISSING | set(SIGNATURES)))
def test_each_difference_is_documented(name: str) -> None:
    assert f"`{name}`" in DIFFERENCES
