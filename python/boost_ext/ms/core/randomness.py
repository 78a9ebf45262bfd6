"""What in a network draws random numbers: MindSpore's kernels keep that state where nothing can read or set it."""

from __future__ import annotations

import dis
import re
import types
from collections.abc import Iterator
from typing import Any

from mindspore import nn, ops

__all__ = ["dropped_share", "random_parts"]

# Not those of mint: they draw from the generator that mindspore.get_rng_state is of.
_LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.MultiheadAttention)
# Functions (ops.rand_like) and primitives (ops.StandardNormal).
_RANDOM = re.compile(
    r"\w*dropout\w*|rand\w*|bernoulli\w*|multinomial\w*|(random_?)?poisson|(standard_?)?laplace|\w*normal"
    r"|\w*uniform\w*|(standard_?)?gamma|shuffle|rrelu|gumbel_?softmax|choice_?with_?mask",
    re.IGNORECASE,
)
_OPERATORS = ("mindspore.ops", "mindspore.numpy")
_GENERATOR = ("mint.", "mindspore.mint.", "ms.mint.")
_OURS = ("mindspore.", "boost_ext.")


def random_parts(cell: nn.Cell) -> Iterator[str]:
    """Each cell inside ``cell`` that draws random numbers, and what it draws them with.

    Found are dropout layers by their class, and in cells of others the random functions and primitives of MindSpore
    that the cell holds, or that its methods call by name; not those in functions outside of the class.
    """
    for name, inner in cell.cells_and_names():
        if isinstance(inner, _LAYERS):
            if dropped_share(inner) > 0:
                yield name
        elif not type(inner).__module__.startswith(_OURS):
            held = {v.name for v in vars(inner).values() if isinstance(v, ops.Primitive) and _RANDOM.fullmatch(v.name)}
            for what in sorted(held | _called(type(inner))):
                yield f"{name} ({what})" if name else what


def dropped_share(layer: Any) -> float:
    """p of a dropout layer of MindSpore's; each class has it under a name of its own."""
    if isinstance(layer, (nn.Dropout2d, nn.Dropout3d)):
        return float(1 - layer.keep_prob)
    if isinstance(layer, nn.Dropout) and layer.p is None:
        return float(1 - layer.keep_prob)
    return float(layer.prob if isinstance(layer, nn.Dropout1d) else getattr(layer, "p", getattr(layer, "dropout", 0)))


def _called(cls: type) -> frozenset[str]:
    """The random functions that the methods of a class name, as the source writes them."""
    found: set[str] = set()
    for base in cls.__mro__:
        if base.__module__.startswith(_OURS):
            continue
        for method in vars(base).values():
            if isinstance(method, types.FunctionType) and method.__name__ != "__init__":
                found.update(_named(method))
    return frozenset(found)


def _named(method: types.FunctionType) -> Iterator[str]:
    value: Any = None
    path = ""
    for instruction in dis.get_instructions(method):
        if instruction.opname == "LOAD_GLOBAL":
            path = instruction.argval
            value = method.__globals__.get(path)
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(value, types.ModuleType):
            path = f"{path}.{instruction.argval}"
            value = getattr(value, instruction.argval, None)
        elif instruction.opname not in ("CACHE", "PUSH_NULL", "PRECALL"):
            value = None
        known = callable(value) and str(getattr(value, "__module__", "")).startswith(_OPERATORS)
        known = known and not path.startswith(_GENERATOR)
        if known and _RANDOM.fullmatch(path.rpartition(".")[2]):
            yield path
