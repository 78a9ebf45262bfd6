"""Trainable weight averaging: the average of checkpoints, trained on in the subspace that they span.

Source: Li, Huang, Tao, Wu & Huang, "Trainable weight averaging: efficient training by optimizing historical solutions",
ICLR 2023. docs/weight_averaging.md says when it helps.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.communication import get_rank

from boost_ext import pca
from boost_ext.arguments import checked_keywords
from boost_ext.ms import native
from boost_ext.ms.core import typed
from boost_ext.ms.core.checkpoint import read_checkpoint
from boost_ext.ms.core.resume import checksum, write
from boost_ext.ms.core.sparse_gradients import Values
from boost_ext.ms.core.state import state
from boost_ext.ms.optim.native_step import require_gradients
from boost_ext.ms.optim.sgd import SGD
from boost_ext.ms.ranks.ranks import ALONE, Ranks, rank_count
from boost_ext.ms.subspace.projection import built_by_rank_0
from boost_ext.subspace.checkpoints import Checkpoint
from boost_ext.subspace.span import Span, load_span, weight_span

__all__ = ["TrainableWeightAveraging"]

_logger = logging.getLogger("boost_ext")
_NAME = "TrainableWeightAveraging"
_FLOATS = (ms.float32, ms.float16, ms.bfloat16)

Checkpoints: TypeAlias = str | os.PathLike[str] | Sequence[Checkpoint]


class TrainableWeightAveraging(typed.Optimizer):
    r"""Train the average of earlier weights, in the subspace that these span.

    With the checkpoints :math:`w_1 \dots w_c`, their average :math:`w_0`, which is the one of stochastic weight
    averaging (SWA), and an orthonormal basis P (k, n) of the span of all of them, a step is

    .. math:: \tilde g = P g, \qquad \beta \leftarrow optimizer(\beta, \tilde g), \qquad w = w_0 + P^T \beta

    with :math:`\beta = 0` at first. The optimizer sees k numbers for any size of the network. The average itself
    lies in the span, so that the weights may be scaled too.

    **The constructor sets the parameters to the average**. From then on the coordinates determine the weights.
    Moving statistics of batch norms are not averaged: call :func:`update_batch_norm`, right away to evaluate SWA, and
    at the end.

    Source: Li, Huang, Tao, Wu & Huang, *Trainable weight averaging: efficient training by optimizing historical
    solutions*, ICLR 2023.

    Args:
        params (Sequence[Parameter]): of the network. Frozen and non-floating ones do not change.
        learning_rate (Union[float, int, Tensor, Iterable, LearningRateSchedule]): of the coordinates; one value, one a
            step, or a schedule. Default: None, only with `optimizer`.
        momentum (float): of the :class:`boost_ext.optim.SGD` that steps the coordinates. Default: 0.0.
        weight_load_dir (Union[str, Path, list]): a folder of checkpoints, or the files themselves, two at least; all
            weights in them must be there by name. Default: None, read the file at `pca_mat_path`.
        pca_mat_path (Union[str, Path]): basis and average are kept there, in one file with checksums; a valid one of
            the same checkpoints is used again. Default: None, in memory alone.
        dtype (str): of the basis: "float32", "float16" or "bfloat16". The average is float32. Default: "float32".
        optimizer (Callable): makes another optimizer of the coordinates, which it gets as a list of one float32
            Parameter: ``lambda beta: optim.Adam(beta, 1e-3)``. Its weight decay pulls towards the average.
            Default: None.
        loss_scale (float): the gradients are that many times too large. Leave it with a cell that scales the loss
            dynamically. Default: 1.0.
        timeout (float): seconds that the other ranks wait for the file, which rank 0 makes. Default: 1800.
        progress (bool): show a bar while the basis is built. Default: None, on a terminal.

    Inputs:
        gradients (tuple[Tensor]), of the parameters' shapes.

    Outputs:
        Tensor[bool] of shape (1,), True.

    Raises:
        TypeError: if an argument has a type other than the ones given.
        ValueError: if a value is out of range, no parameter is trained, or checkpoints do not fit: fewer than two, a
            missing parameter, another shape.
        FileNotFoundError: without `weight_load_dir`, if there is no file at `pca_mat_path`.

    Attributes:
        coordinates (Parameter): beta, float32 (k,), ``weight_averaging.coordinates``.
        opt (Optimizer): steps them.

    Examples:
        >>> import mindspore as ms
        >>> import numpy as np
        >>> from mindspore import nn
        >>> from boost_ext import boost
        >>> net = nn.Dense(2, 1, weight_init="ones", has_bias=False)
        >>> for i in (1, 3):
        ...     np.savez(f"net-{i}.npz", weight=np.float32([[i, 1]]))
        >>> twa = boost.TrainableWeightAveraging(net.trainable_params(), 0.1, weight_load_dir=".")
        >>> print(net.weight.asnumpy(), twa.n_components)  # the average; the checkpoints span two directions
        [[2. 1.]] 2
        >>> step = boost.BoostTrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), twa)
    """

    never_restricted = "TrainableWeightAveraging, whose coordinates are those of all parameters"
    never_exchanged = "TrainableWeightAveraging, whose coordinates determine the weights"
    never_rebuilt = (
        "TrainableWeightAveraging, whose basis belongs to the parameters of its checkpoints; make it for the rewritten "
        "network, at boost level O0"
    )

    @checked_keywords
    def __init__(
        self,
        params: Sequence[Parameter],
        learning_rate: Any = None,
        momentum: float = 0.0,
        *,
        weight_load_dir: Checkpoints | None = None,
        pca_mat_path: str | os.PathLike[str] | None = None,
        dtype: str = "float32",
        optimizer: Callable[[list[Parameter]], nn.Optimizer] | None = None,
        loss_scale: float = 1.0,
        timeout: float = 1800.0,
        progress: bool | None = None,
    ) -> None:
        weights = _trained(params)
        if (learning_rate is None) == (optimizer is None):
            raise ValueError(f"{_NAME}: one of learning_rate and optimizer must be given, got {_which(optimizer)}")
        if optimizer is not None and (momentum, loss_scale) != (0.0, 1.0):
            raise ValueError(
                f"{_NAME}: momentum and loss_scale must be left out with optimizer, which has its own, got "
                f"{momentum} and {loss_scale}"
            )
        span = _span(weights, weight_load_dir, pca_mat_path, dtype, timeout, progress)
        k, n = span.basis.shape
        coordinates = state("weight_averaging.coordinates", np.zeros(k, np.float32))
        inner: nn.Optimizer
        if optimizer is None:
            inner = SGD([coordinates], learning_rate, momentum, loss_scale=loss_scale)
        else:
            inner = _of_coordinates(optimizer([coordinates]), coordinates)
        super().__init__(0.0, weights)
        self.opt = inner
        # Whoever asks for them, a callback for one, means those of the coordinates.
        self._params.pop("learning_rate")
        self.learning_rate, self.global_step = inner.learning_rate, inner.global_step
        self.dynamic_lr, self.is_group_lr = inner.dynamic_lr, inner.is_group_lr
        self.loss_scale = inner.loss_scale
        self.coordinates = coordinates
        basis, average = np.asarray(span.basis), np.asarray(span.average)
        self.constants = {
            "weight_averaging_basis": checksum([basis]),
            "weight_averaging_average": checksum([average]),
        }
        # Not in checkpoints: the basis and the average have their files, and the rest is written before it is read.
        own = self.__dict__
        own["basis"] = Parameter(Tensor(basis), name="weight_averaging.basis", requires_grad=False)
        origin = np.stack([average, np.zeros(n, np.float32)])
        own["origin"] = Parameter(Tensor(origin), name="weight_averaging.origin", requires_grad=False)
        own["projected"] = state("weight_averaging.projected", np.zeros(k, np.float32))
        own["values_of"] = Values([p.name for p in weights], f"{_NAME}: gradients must be Tensors")
        self.project, self.move, self.no_codes = native.PcaProject(), native.SubspacePoint(), native.absent
        self.unit = Tensor([1.0], ms.float32)
        _set_to(weights, average)

    def require_options(self, owner: str, options: Any) -> None:
        """A ValueError for another algorithm that moves the weights."""
        if options.moves:
            raise ValueError(f"{owner}: {_NAME} must be alone in moving the weights, got dim_reduce or adasum too")

    @property
    def n_components(self) -> int:
        """k, how many directions there are: the rank of the checkpoints."""
        return int(self.coordinates.size)

    def construct(self, gradients: Any) -> Tensor:
        return self._step(gradients, self.unit)

    def step_unless(self, skip: Tensor, scale: Tensor, gradients: Any) -> Tensor:
        """A step on gradients that are `scale` times too large; nothing moves if `skip`.

        Args:
            skip (Tensor): bool of shape (1,).
            scale (Tensor): float32 of shape (1,); the ``loss_scale`` of the optimizer comes on top.
            gradients (tuple[Tensor]): as for a call.
        """
        done = skip
        if not ops.reshape(skip, ()):
            done = self._step(gradients, scale)
        return done

    def _step(self, gradients: Any, scale: Tensor) -> Tensor:
        self.project(self.basis, self.values_of(gradients), self.projected, self.no_codes)
        moved = self.opt((self.projected / scale,))
        return self.move(self.basis, ops.depend(self.coordinates, moved), self.origin, self.parameters)

    def __call__(self, gradients: Any) -> Any:
        try:
            return super().__call__(gradients)
        except (ValueError, TypeError, RuntimeError):
            require_gradients(_NAME, gradients, self.parameters)
            raise

    def get_lr(self) -> Any:
        """The learning rate of the coordinates."""
        return self.opt.get_lr()

    def get_lr_parameter(self, param: Any) -> Any:
        """See :meth:`mindspore.nn.Optimizer.get_lr_parameter`; that of the coordinates."""
        return self.opt.get_lr_parameter(self.coordinates)

    def get_weight_decay(self) -> Any:
        """The weight decay of the coordinates, times their optimizer's loss scale."""
        return self.opt.get_weight_decay()


def _which(optimizer: Any) -> str:
    return "neither" if optimizer is None else "both"


def _trained(params: Any) -> list[Parameter]:
    listed = list(params)
    for i, p in enumerate(listed):
        if not isinstance(p, Parameter):
            raise TypeError(f"{_NAME}: params[{i}] must be a Parameter, got {type(p).__name__}")
        if p.requires_grad and p.dtype == ms.float64:
            raise TypeError(f"{_NAME}: {p.name} must be float32, float16 or bfloat16, got float64")
    weights = [p for p in listed if p.requires_grad and p.dtype in _FLOATS]
    if not weights:
        raise ValueError(
            f"{_NAME}: params must hold a floating point Parameter that is trained, got {len(listed)} others"
        )
    return weights


def _of_coordinates(made: Any, coordinates: Parameter) -> nn.Optimizer:
    if not isinstance(made, nn.Optimizer):
        raise TypeError(f"{_NAME}: optimizer must return a mindspore.nn.Optimizer, got {type(made).__name__}")
    if len(made.parameters) != 1 or made.parameters[0] is not coordinates:
        names = [p.name for p in made.parameters]
        raise ValueError(f"{_NAME}: optimizer must step the parameter that it gets, and no other, got {names}")
    return made


def _span(
    weights: Sequence[Parameter],
    source: Checkpoints | None,
    path: str | os.PathLike[str] | None,
    dtype: str,
    timeout: float,
    progress: bool | None,
) -> Span:
    """The basis and the average of the weights, in their order: from checkpoints, from files, or from rank 0."""
    layout = [(p.name, tuple(p.shape)) for p in weights]
    n = int(sum(p.size for p in weights))
    ranks = Ranks(get_rank(), rank_count(), True) if rank_count() > 1 else ALONE
    if source is None:
        if path is None:
            raise ValueError(
                f"{_NAME}: weight_load_dir (checkpoints) or pca_mat_path (a basis of some) must be given, got neither"
            )
        return load_span(path, n_elements=n, parameters=layout, timeout=0.0 if ranks.size == 1 else timeout)
    files = pca.find_checkpoints(source) if isinstance(source, (str, os.PathLike)) else source

    def build() -> Span:
        span = weight_span(files, layout, path=path, dtype=dtype, reader=read_checkpoint, progress=progress)
        k, c = len(span.basis), len(files)
        level = logging.INFO if k == c else logging.WARNING
        why = "" if k == c else f": {c - k} of them depend linearly on the others"
        _logger.log(level, "%s: %d checkpoints span %d directions%s", _NAME, c, k, why)
        return span

    def load(timeout: float) -> Span:
        return load_span(str(path), n_elements=n, timeout=timeout, parameters=layout, checkpoints=files)

    if ranks.size == 1:
        return build()
    if path is None:
        raise ValueError(
            f"{_NAME}: pca_mat_path must say where rank 0 puts the basis for all {ranks.size} ranks, got None"
        )
    return built_by_rank_0(build, load, Path(path), timeout, ranks, _NAME)


def _set_to(weights: Sequence[Parameter], vector: np.ndarray[Any, Any]) -> None:
    start = 0
    for p in weights:
        part = Tensor(np.ascontiguousarray(vector[start : start + p.size]).reshape(p.shape))
        write(p, part if p.dtype == ms.float32 else part.astype(p.dtype))
        start += p.size
