"""What a training run is, for its log and its report."""

from __future__ import annotations

import datetime
import platform
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

import boost_ext
from boost_ext.ms import native
from boost_ext.ms.core.step_outputs import weights_of
from boost_ext.report.log import Header, Parameters

__all__ = ["header_of"]


def header_of(target: nn.Cell, params: Any, *, observed: bool) -> Header:
    """The header for a training cell.

    Args:
        target (Cell): the training cell.
        params (dict): what ``mindspore.Model`` tells its callbacks; empty for a loop of the user's own.
        observed (bool): whether it is a training cell of boost_ext.
    """
    weights = weights_of(target)
    network, optimizer = params.get("network"), params.get("optimizer")
    plan = getattr(target, "plan", None) if observed else None
    return Header(
        started=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        versions={
            "boost_ext": boost_ext.__version__,
            "mindspore": ms.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        mode="PYNATIVE_MODE" if native.in_pynative_mode() else "GRAPH_MODE",
        device=ms.get_context("device_target"),
        cell=type(target).__name__,
        observed=observed,
        network=_class_name(network if network is not None else getattr(target, "network", None)),
        optimizer=_class_name(optimizer if optimizer is not None else getattr(target, "optimizer", None)),
        parameters=Parameters(tensors=len(weights), elements=sum(weight.size for weight in weights)),
        steps_per_epoch=params.get("batch_num"),
        plan=None if plan is None else plan.as_dict(),
    )


def _class_name(value: Any) -> str | None:
    return None if value is None else type(value).__name__
