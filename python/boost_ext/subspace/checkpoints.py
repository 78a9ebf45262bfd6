"""Checkpoints as the PCA reads them: which files, in which order, and their weights by name."""

from __future__ import annotations

import hashlib
import importlib
import math
import operator
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
CheckpointValues: TypeAlias = Mapping[str, Any]
Checkpoint: TypeAlias = str | os.PathLike[str] | CheckpointValues
Reader: TypeAlias = Callable[[Path], CheckpointValues]
Parameters: TypeAlias = Mapping[str, Sequence[int]] | Sequence[tuple[str, Sequence[int]]]

MATRIX_NAME = "boost_ext.pca_matrix"
"""The metadata of a safetensors file that is a PCA matrix, see :mod:`boost_ext.subspace.matrix_file`."""

_MATRIX_START = f'{{"__metadata__": {{"{MATRIX_NAME}": '.encode()
_SUFFIXES = (".ckpt", ".npz", ".safetensors")
_PIECE = 1 << 18  # elements converted and checked at a time: 1 MB of float32 stays in the cache
_NAMED = 3  # how many names an error spells out


class Parameter(NamedTuple):
    """One parameter of the layout: `name`, `shape` and the number of its elements, `size`."""

    name: str
    shape: tuple[int, ...]
    size: int


def find_checkpoints(directory: str | os.PathLike[str], suffixes: Sequence[str] = _SUFFIXES) -> list[Path]:
    """List the checkpoints in `directory` (not below it) with one of `suffixes`, oldest first.

    A PCA matrix of this project is no checkpoint. Digits compare as numbers, so `net-3_120.ckpt`
    (epoch 3, step 120) comes before `net-10_5.ckpt`, and a run's files stay together (`net-…`
    before `net_1-…`).

    Raises:
        ValueError: `directory` is no directory, or holds no such file.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import pca
        >>> for step in (5, 10):
        ...     np.savez(f"net-{step}.npz", weight=np.ones((2, 3), np.float32))
        >>> [path.name for path in pca.find_checkpoints(".")]
        ['net-5.npz', 'net-10.npz']
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise ValueError(f"find_checkpoints: directory must be an existing directory, got {str(folder)!r}")
    found = [path for path in folder.iterdir() if path.suffix in suffixes and path.is_file()]
    found = [path for path in found if path.suffix != ".safetensors" or not is_matrix(path)]
    if not found:
        raise ValueError(f"find_checkpoints: {folder} must hold files ending in {', '.join(suffixes)}, got none")
    return sorted(found, key=_natural_key)


def is_matrix(path: Path) -> bool:
    """Whether this project wrote the file as a PCA matrix; it may be damaged."""
    with open(path, "rb") as file:
        return file.read(8 + len(_MATRIX_START))[8:] == _MATRIX_START


def _natural_key(path: Path) -> tuple[list[str | int], str]:
    # re.split alternates text and digits, so equal positions always compare equal types.
    parts = re.split(r"(\d+)", path.stem)
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], path.name


def parameter_layout(op: str, parameters: Parameters) -> list[Parameter]:
    """Check `parameters` (name → shape, or (name, shape) pairs; the order is the column order)."""
    pairs = list(parameters.items() if isinstance(parameters, Mapping) else parameters)
    layout = []
    for name, shape in pairs:
        dims = tuple(operator.index(size) for size in shape)
        if not isinstance(name, str) or any(size < 0 for size in dims):
            raise ValueError(
                f"{op}: parameters must be (name, shape) pairs of a str and sizes >= 0, got ({name!r}, {shape!r})"
            )
        layout.append(Parameter(name, dims, math.prod(dims)))
    counts = Counter(parameter.name for parameter in layout)
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise ValueError(f"{op}: parameters must have distinct names, got twice: {_few(repeated)}")
    if not sum(parameter.size for parameter in layout):
        raise ValueError(f"{op}: parameters must hold at least one element, got {layout!r}")
    return layout


def checkpoint_list(op: str, checkpoints: Sequence[Checkpoint]) -> list[Path | CheckpointValues]:
    """Check that `checkpoints` is a non-empty sequence of distinct paths or mappings."""
    if isinstance(checkpoints, (str, bytes, os.PathLike, Mapping)):
        raise TypeError(
            f"{op}: checkpoints must be a sequence of paths or mappings, got one "
            f"{type(checkpoints).__name__} (find_checkpoints lists a directory)"
        )
    sources: list[Path | CheckpointValues] = []
    seen: set[object] = set()
    for index, checkpoint in enumerate(checkpoints):
        if not isinstance(checkpoint, (str, os.PathLike, Mapping)):
            raise TypeError(
                f"{op}: checkpoints[{index}] must be a path or a mapping of name to array, "
                f"got {type(checkpoint).__name__}"
            )
        source = checkpoint if isinstance(checkpoint, Mapping) else Path(checkpoint)
        key = source.resolve() if isinstance(source, Path) else id(source)
        if key in seen:
            raise ValueError(f"{op}: checkpoints must be distinct, got {_label(source, index)} twice")
        seen.add(key)
        sources.append(source)
    if not sources:
        raise ValueError(f"{op}: checkpoints must hold at least one checkpoint, got none")
    return sources


def fingerprint(
    op: str, sources: Sequence[Path | CheckpointValues], layout: Sequence[Parameter]
) -> list[dict[str, str | int]]:
    """Identify `sources`, to tell whether a stored matrix still belongs to them.

    A file counts by name, size and modification time in nanoseconds, as in a build system: it
    costs no read, a copied directory merely rebuilds in seconds, and a changed file passes only
    if it kept both its size and its time. A mapping has no time, so its weights are hashed.
    """
    result: list[dict[str, str | int]] = []
    for index, source in enumerate(sources):
        if isinstance(source, Path):
            try:
                info = source.stat()
            except OSError as error:
                raise _unreadable(op, _label(source, index), error) from error
            result.append({"name": source.name, "size": info.st_size, "mtime_ns": info.st_mtime_ns})
        else:
            digest = hashlib.blake2b(digest_size=16)
            for piece in weight_pieces(op, source, index, layout, None):
                digest.update(np.ascontiguousarray(piece).data)
            result.append({"content": digest.hexdigest()})
    return result


def weight_pieces(
    op: str,
    source: Path | CheckpointValues,
    index: int,
    layout: Sequence[Parameter],
    reader: Reader | None,
) -> Iterator[Array]:
    """Yield the weights of one checkpoint in the layout's order: finite 1-D float32 pieces."""
    label = _label(source, index)
    with _open(op, source, label, reader) as values:
        missing = [parameter.name for parameter in layout if parameter.name not in values]
        if missing:
            raise ValueError(
                f"{op}: {label} must hold all {len(layout)} parameters, "
                f"got none of these {len(missing)}: {_few(missing)}"
            )
        for name, shape, size in layout:
            flat = _weights(op, values, name, shape, label)
            for start in range(0, size, _PIECE):
                # A float64 weight beyond float32 becomes inf here and is refused just below.
                with np.errstate(over="ignore"):
                    piece = flat[start : start + _PIECE].astype(np.float32, copy=False)
                if not np.isfinite(piece).all():
                    bad = start + int(np.argmin(np.isfinite(piece)))
                    raise ValueError(
                        f"{op}: {label}: parameter {name!r} must be finite in float32, "
                        f"got {flat[bad]} at flat position {bad}"
                    )
                yield piece


def _weights(op: str, values: CheckpointValues, name: str, shape: tuple[int, ...], label: str) -> Array:
    try:
        array = np.asarray(values[name])
    except Exception as error:  # any exception of a lazy reader means the same: a damaged file
        raise _unreadable(op, f"{label}: parameter {name!r}", error) from error
    if not is_floating(array):
        raise ValueError(f"{op}: {label}: parameter {name!r} must be floating point, got {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"{op}: {label}: parameter {name!r} must have shape {shape}, got {array.shape}")
    return array.reshape(-1)


@contextmanager
def _open(op: str, source: Path | CheckpointValues, label: str, reader: Reader | None) -> Iterator[CheckpointValues]:
    if isinstance(source, Path) and reader is None and source.suffix not in (".npz", ".safetensors"):
        raise ValueError(
            f"{op}: reader must be given for {label}, since only .npz and .safetensors are read without one; got None"
        )
    with ExitStack() as stack:
        try:
            values = stack.enter_context(open_checkpoint(op, source, reader)) if isinstance(source, Path) else source
        except ImportError:
            raise
        except Exception as error:  # readers are foreign code; whatever they raise, name the file
            raise _unreadable(op, label, error) from error
        yield values


@contextmanager
def open_checkpoint(op: str, path: Path, reader: Reader | None) -> Iterator[CheckpointValues]:
    """The arrays of a file by name; of .npz and .safetensors each is read when it is asked for."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            yield arrays
    elif path.suffix == ".safetensors":
        try:
            safetensors = importlib.import_module("safetensors")
        except ImportError as error:
            raise ImportError(f"{op}: reading {path} needs the package safetensors: pip install safetensors") from error
        with safetensors.safe_open(str(path), framework="np") as file:
            yield _Lazy(file.keys(), file.get_tensor)
    elif reader is not None:
        yield reader(path)
    else:
        raise ValueError("only .npz and .safetensors are read without a reader")


def is_floating(array: Array) -> bool:
    """Whether its elements are floating point, bfloat16 included."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


class _Lazy(Mapping[str, Any]):
    """A mapping over a file that reads a tensor when it is asked for."""

    def __init__(self, names: Sequence[str], get: Callable[[str], Any]) -> None:
        self._names = dict.fromkeys(names)
        self._get = get

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _unreadable(op: str, label: str, error: Exception) -> ValueError:
    return ValueError(f"{op}: {label} must be a readable checkpoint, got {type(error).__name__}: {error}")


def _label(source: Path | CheckpointValues, index: int) -> str:
    return f"checkpoint {source}" if isinstance(source, Path) else f"checkpoints[{index}]"


def _few(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(map(repr, names[:_NAMED])) + (f" and {rest} more" if rest > 0 else "")
