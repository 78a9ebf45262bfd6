"""The settings of a training cell as text by name. They must be the same on all ranks."""

from __future__ import annotations

import numbers
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

import boost_ext
from boost_ext.ms import native
from boost_ext.ms.core.optimizer_copy import attributes

__all__ = ["settings_of"]

# These may differ between ranks: the number of the rank, paths and time limits.
_OWN = {"pca_mat_path", "weight_load_dir", "timeout", "progress"}
_WITH_PARTS = (nn.Cell, Mapping, list, tuple)


def settings_of(cell: Any) -> dict[str, str]:
    """Options of the cell, and numbers, strings, constants and classes of its optimizer, guards, loss scale update and
    weight average. Without values of Parameters, which are state, and without the code of functions."""
    found = {
        "mindspore": ms.__version__,
        "boost_ext": boost_ext.__version__,
        "mode": "PYNATIVE_MODE" if native.in_pynative_mode() else "GRAPH_MODE",
        "compile": cell.compile_option,
        "gradients_mean": str(cell.ranks.mean),
    }
    found["adaptive_clip"] = repr(cell.options.adaptive_clip)
    named = {"adaptive_clip", "dim_reduce", "weight_average", "local_steps"}
    others = {key: value for key, value in vars(cell.options).items() if key not in named}
    found.update(_walk("", others, set()))
    if cell.options.dim_reduce is not None:
        found.update(_walk("dim_reduce", cell.options.dim_reduce.model_dump(), set()))
    network = {id(inner) for _, inner in cell.network.cells_and_names()}  # an optimizer may hold it, as thor does
    found.update(_walk("optimizer", cell.optimizer, network))
    found.update(_walk("loss scale", cell.loss_scale_update, set()))
    found.update(_walk("weight average", cell.average, network))
    for i, (_, guard, _, _) in enumerate(cell.slots):
        found.update(_walk(f"guard[{i}]", guard, set()))
    return found


def _walk(path: str, value: Any, seen: set[int]) -> Iterator[tuple[str, str]]:
    if (text := _plain(value)) is not None:
        yield path, text
    elif isinstance(value, _WITH_PARTS) and id(value) not in seen:
        seen.add(id(value))
        if isinstance(value, nn.Cell):
            yield path, f"a {type(value).__module__.split('.')[0]} {type(value).__name__}"
            if isinstance(value, native.NativeCell):
                return
            held = attributes(value)
            items = list(held.pop("init_args", {}).items()) if hasattr(value, "init_params") else []
            items += held.pop("init_params", {}).items() if items else []
            items += held.items()
        elif isinstance(value, Mapping):
            items = [(str(key), item) for key, item in value.items()]
        else:
            items = [(f"[{i}]", item) for i, item in enumerate(value)]
        for name, item in items:
            if name not in _OWN and "rank" not in name.lower():
                yield from _walk(_joined(path, name), item, seen)


def _joined(path: str, name: str) -> str:
    if not name or not path:
        return path or name
    return path + name if name.startswith("[") else f"{path}.{name}"


def _plain(value: Any) -> str | None:
    """The text of a value without named parts; None for a value with parts, or for one that is no setting."""
    if isinstance(value, Parameter):
        return f"{value.name} {value.dtype} {tuple(value.shape)}"
    if isinstance(value, (Tensor, np.ndarray)):
        array = np.ascontiguousarray(value.asnumpy() if isinstance(value, Tensor) else value)
        if array.size == 1 and array.dtype.kind in "biuf":
            return _plain(array.reshape(-1)[0])
        return f"{array.dtype} {array.shape} with checksum {zlib.crc32(array.tobytes()):08x}"
    if isinstance(value, (bool, np.bool_, str)) or value is None:
        return repr(value if isinstance(value, str) or value is None else bool(value))
    if isinstance(value, numbers.Real):  # 1 is 1.0, and 0.1 in float32 is 0.1
        return str(value if isinstance(value, np.floating) else float(value)).removesuffix(".0")
    if isinstance(value, ops.Primitive):
        return f"{value.name} {sorted(value.init_attrs.items())}" if isinstance(value.init_attrs, dict) else value.name
    if isinstance(value, (list, tuple)) and not any(
        isinstance(item, (nn.Cell, Mapping, list, tuple)) for item in value
    ):
        items = [_plain(item) or type(item).__name__ for item in value]
        return f"({', '.join(items)})"
    return None
