"""Every file that is read, as targets of a fuzzer: bytes are accepted, or refused by an error that names the file."""

from __future__ import annotations

import ast
import importlib.util
import io
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save
from tests.matrix_file import begin, forge

from boost_ext import pca
from boost_ext import report as run_report
from boost_ext.cli.script_edits import edited
from boost_ext.config import BoostConfig
from boost_ext.ops.projection_codes import QuantizedMatrix, quantize_projection
from boost_ext.report.log import End, Evaluation, Header, LineSearch, RunLogWriter, Step, TensorOverflow
from boost_ext.report.tables import tables
from boost_ext.scripts import mindspore_boost_uses
from boost_ext.subspace.reference import reference_parameters
from boost_ext.subspace.span import load_span, weight_span

CORPUS = Path(__file__).parent / "corpus"
K, COLUMNS = 2, 300  # more than one block of int8 codes
WEIGHTS = np.random.default_rng(0).normal(size=(K, COLUMNS)).astype(np.float32)
MATRIX = np.linalg.qr(WEIGHTS.T)[0].T.astype(np.float32)


@dataclass(frozen=True)
class Target:
    """What reads a file, how its refusals begin, and files that are whole."""

    suffix: str
    read: Callable[[Path], object]
    refusals: tuple[str, ...]
    seeds: Callable[[Path], list[bytes]]
    types: tuple[type[Exception], ...] = (ValueError,)
    forged: bool = False
    """The bytes are the header of a matrix, whose checksum is made right."""


def attempt(target: Target, content: bytes, folder: Path) -> bool:
    """Whether the content is accepted. Any error but a refusal is raised."""
    path = folder / f"file{target.suffix}"
    if target.forged:
        forge(path, content, matrix_parts(folder)[1])
    else:
        path.write_bytes(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.read(path)
    except target.types as error:
        if not str(error).startswith(target.refusals) or len(str(error)) > 20_000:
            raise
        return False
    return True


def show_log(path: Path) -> None:
    """Every table of the report."""
    for table in tables([run_report.read(path)], ["x"]):
        str(table.rows).encode()


def load_matrix(path: Path) -> None:
    pca.load_matrix(path, n_components=K, n_elements=COLUMNS)


def read_checkpoint(path: Path) -> None:
    reference_parameters(path)
    pca.pca_matrix([path, {"w": WEIGHTS[1]}], {"w": (COLUMNS,)}, K)


def matrix_files(folder: Path) -> list[bytes]:
    path, files = folder / "whole.safetensors", []
    for matrix in (MATRIX, MATRIX.astype(np.float16), QuantizedMatrix(*quantize_projection(MATRIX))):
        pca.save_matrix(path, matrix, parameters={"w": (COLUMNS,)})
        files.append(path.read_bytes())
    return files


@cache
def matrix_parts(folder: Path) -> tuple[bytes, bytes]:
    """The header and the values of a matrix."""
    path = folder / "whole.safetensors"
    pca.save_matrix(path, MATRIX, parameters={"w": (COLUMNS,)})
    content = path.read_bytes()
    return content[8 : 8 + int.from_bytes(content[:8], "little")], content[begin(path, "matrix") :]


def average_files(folder: Path) -> list[bytes]:
    path = folder / "average.safetensors"
    weight_span([{"w": row} for row in WEIGHTS], {"w": (COLUMNS,)}, path=path)
    return [path.read_bytes()]


def in_memory(save: Callable[[Any], object]) -> bytes:
    buffer = io.BytesIO()
    save(buffer)
    return buffer.getvalue()


def logs(folder: Path) -> list[bytes]:
    path = folder / "whole.jsonl"
    plan = {"level": "O1", "features": [{"name": "less_bn", "applied": True, "reason": "x", "details": {}}]}
    overflow = TensorOverflow(name="w", inf=1, nan=0, first_index=0, largest=1.0)
    search = LineSearch(accepted=True, rho=0.5)
    with RunLogWriter(path, Header(started="2026-01-02", name="x", plan=plan)) as writer:
        writer.write(Step(step=1, epoch=1, loss=0.5, loss_scale=8.0, line_search=search, slots={"source": 0.1}))
        writer.write(Step(step=2, epoch=1, loss=float("nan"), overflow=True, overflowed=(overflow,)))
        writer.write(Evaluation(step=2, epoch=1, elapsed=0.5, metrics={"accuracy": 0.5}))
        writer.write(End())
    content = path.read_bytes()
    path.unlink()
    return [content]


SCRIPT = b"""
from __future__ import annotations
import mindspore as ms, mindspore.nn as nn
from mindspore import (Model as M, boost,
    Tensor)
from mindspore.train import Model; import os

class Mine(nn.TrainOneStepCell):
    pass

def main(net):
    if net: from mindspore.nn import TrainOneStepWithLossScaleCell as Step, Dense
    model = M(net, boost_level="O1",)
    return [Model(net), nn.TrainOneStepCell(net), Step(net, None, scale_sense=1), isinstance(model, M), "\xc3\xa4"]
"""


def edit_script(path: Path) -> None:
    """What ``boost-ext run --dry`` and ``doctor`` make of a script; the edited one is a script, too."""
    source = path.read_text(errors="replace")
    changed, _ = edited(source, "O1", {"ONEDNN_MAX_CPU_ISA": "AVX2"})
    ast.parse(changed)
    path.write_text(source)
    list(mindspore_boost_uses(path))


CONFIG = {
    "boost": {"mode": "manual", "less_bn": True},
    "common": {"gradient_split_groups": [50, 100], "device_num": 8},
    "dim_reduce": {"rho": 0.5, "pca_mat_path": "a.npy", "timeout": 3},
    "grad_freeze": {"freeze_p": 0.5},
}

TARGETS = {
    "config": Target(
        ".json",
        BoostConfig.load,
        ("boost_config_dict",),
        lambda _: [json.dumps(CONFIG).encode(), b"{}"],
        (ValueError, TypeError),
    ),
    "run_log": Target(".jsonl", show_log, ("run log ",), logs),
    "matrix": Target(".safetensors", load_matrix, ("load_matrix: ",), matrix_files),
    "matrix_header": Target(
        ".safetensors", load_matrix, ("load_matrix: ",), lambda f: [matrix_parts(f)[0]], forged=True
    ),
    "average": Target(".safetensors", lambda p: load_span(p, n_elements=COLUMNS), ("load_matrix: ",), average_files),
    "npy": Target(".npy", load_matrix, ("load_matrix: ",), lambda _: [in_memory(lambda f: np.save(f, MATRIX))]),
    "npz": Target(
        ".npz",
        read_checkpoint,
        ("reference_parameters: ", "pca_matrix: "),
        lambda _: [in_memory(lambda f, how=how: how(f, w=WEIGHTS[0])) for how in (np.savez, np.savez_compressed)],
    ),
    "script": Target(".py", edit_script, ("run: script must be Python",), lambda _: [SCRIPT]),
    "safetensors": Target(
        ".safetensors",
        read_checkpoint,
        ("reference_parameters: ", "pca_matrix: "),
        lambda _: [save({"w": WEIGHTS[0]}), save({"w": WEIGHTS[0].astype(np.float16), "b": np.zeros(3, np.int64)})],
    ),
}


@cache
def cell() -> Any:
    from mindspore import nn
    from tests.ms.networks import Mlp

    from boost_ext import boost

    net = Mlp()
    with_loss = nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
    return boost.BoostTrainOneStepCell(with_loss, nn.SGD(net.trainable_params(), 0.01), compile="off")


def load_state(path: Path) -> None:
    from boost_ext.checkpoint import load_training_state

    load_training_state(cell(), path)


def states(folder: Path) -> list[bytes]:
    from boost_ext.checkpoint import save_training_state

    save_training_state(cell(), folder / "whole.ckpt")
    return [(folder / "whole.ckpt").read_bytes()]


def read_mindspores(path: Path) -> None:
    from boost_ext.ms.core.checkpoint import read_checkpoint

    pca.pca_matrix([path, {"w": WEIGHTS[1]}], {"w": (COLUMNS,)}, K, reader=read_checkpoint)


def mindspores(folder: Path) -> list[bytes]:
    import mindspore as ms

    entries = [("w", WEIGHTS[0]), ("b", np.zeros((2, 0), np.float16)), ("n", np.int64(3))]
    ms.save_checkpoint([{"name": n, "data": ms.Tensor(v)} for n, v in entries], str(folder / "whole.ckpt"))
    return [(folder / "whole.ckpt").read_bytes()]


if importlib.util.find_spec("mindspore") is not None:
    TARGETS["checkpoint"] = Target(".ckpt", read_mindspores, ("read_checkpoint: ", "pca_matrix: "), mindspores)
    TARGETS["state"] = Target(".ckpt", load_state, ("load_training_state: ",), states)


def corpus(name: str, folder: Path) -> list[bytes]:
    """The whole files, and what fuzzing has found."""
    return [*TARGETS[name].seeds(folder), *(p.read_bytes() for p in sorted((CORPUS / name).glob("*")))]
