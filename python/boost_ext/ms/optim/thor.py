"""THOR."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.nn.learning_rate_schedule import LearningRateSchedule

from boost_ext.ms import native
from boost_ext.ms.optim.arguments import non_negative, require_bool
from boost_ext.ms.optim.fused import FusedOptimizer, state_like
from boost_ext.ms.optim.thor_layers import EMBEDDING, ThorLayer, convert_to_thor_net, forget_graphs, thor_layers
from boost_ext.ms.optim.thor_ranks import averages_over_ranks, mean_over_ranks

__all__ = ["ConvertModelUtils", "ConvertNetUtils", "Thor", "thor"]

_NAME = "thor"


def _every(parameter: Parameter) -> bool:
    return True


def thor(
    net: nn.Cell,
    learning_rate: Any,
    damping: Any,
    momentum: float,
    weight_decay: float = 0.0,
    loss_scale: float = 1.0,
    batch_size: int = 32,
    use_nesterov: bool = False,
    decay_filter: Callable[[Parameter], bool] = _every,
    split_indices: Sequence[int] | None = None,
    enable_clip_grad: bool = False,
    frequency: int = 100,
    *,
    block_size: int = 128,
) -> Thor:
    r"""A second-order optimizer: the gradient of each layer times its Kronecker-factored inverse curvature.

    Every `frequency` steps, from the first on, and for each Dense, Conv2d and Embedding with weight w:

    .. math:: A = E[a a^T], \quad G = E[d d^T], \quad
        A^- = (A + \sqrt\lambda I)^{-1}, \quad G^- = (G + \sqrt\lambda I)^{-1}

    with the inputs a of the layer and the gradients d of its outputs, of single samples of the batch; and in each step

    .. math:: v_{t+1} = u \, v_t + G^- g A^- + \delta w, \qquad w_{t+1} = w_t - l \, v_{t+1}

    The matrices are those of one batch, without a running average. Only blocks of `block_size` along the diagonals of A
    and G are stored and inverted. For a convolution with T output positions, a are its patches, and A and G are
    :math:`\sqrt T` times the means over samples and positions. For an embedding, A is diagonal: the counts of the used
    rows, divided by `batch_size`. Other parameters, such as biases and norms, take the step of :class:`Momentum`.

    Sources: Chen et al., *THOR, trace-based hardware-driven layer-oriented natural gradient descent computation*, AAAI
    2021 (without its trace-based rule: the interval is fixed, as in ``mindspore.nn.thor``); Martens & Grosse,
    *Optimizing neural networks with Kronecker-factored approximate curvature*, ICML 2015; for convolutions Grosse &
    Martens, ICML 2016.

    Args:
        net (Cell): the training network, with or without its loss; :func:`convert_to_thor_net` converts its layers.
            Each layer must run once in a forward pass. The layers serve the last thor that was made for the network.
        learning_rate (Union[Tensor, LearningRateSchedule]): of no axis, or one value a step, >= 0; or a schedule.
        damping (Union[float, Tensor, LearningRateSchedule]): lambda > 0; a number, one for each step, the last of which
            holds for all later steps, or a schedule.
        momentum (float): u, >= 0.
        weight_decay (Union[float, int]): delta, >= 0. Default: 0.0.
        loss_scale (float): the gradients are divided by it, > 0. Not needed with a cell of boost_ext that scales the
            loss. Default: 1.0.
        batch_size (int): samples of a batch, >= 1: the loss is a mean, and d are gradients of single samples.
            Default: 32.
        use_nesterov (bool): Default: False.
        decay_filter (Callable): Parameter to bool: whether it decays. Default: all do.
        split_indices (list): with several ranks the inverses are averaged, by an all-reduce for each group of layers:
            the last layer of each group, ascending, up to the last of the network. Default: None, one group.
        enable_clip_grad (bool): bound the 2-norm of each parameter's :math:`G^- g A^- + \delta w` by 1. Default: False.
        frequency (int): steps from one computation of the matrices to the next, >= 2. Default: 100.
        block_size (int): >= 1. Default: 128.

    Returns:
        Thor, an optimizer.

    Raises:
        TypeError: if an argument has a type other than the ones given.
        ValueError: if a value is out of range, or `net` has no layer to convert.

    Examples:
        >>> import mindspore as ms
        >>> from mindspore import Tensor, nn
        >>> from boost_ext.boost import BoostTrainOneStepCell
        >>> from boost_ext.optim import thor
        >>> net = nn.SequentialCell(nn.Dense(8, 4), nn.ReLU(), nn.Dense(4, 3))
        >>> optimizer = thor(net, Tensor(0.05), damping=0.03, momentum=0.9, batch_size=32, frequency=20)
        >>> step = BoostTrainOneStepCell(nn.WithLossCell(net, nn.CrossEntropyLoss()), optimizer)
        >>> loss, overflow, loss_scale = step(ms.ops.ones((32, 8)), ms.ops.zeros((32,), ms.int32))
    """
    convert_to_thor_net(net)
    return Thor(
        net,
        learning_rate,
        damping,
        momentum,
        weight_decay,
        loss_scale,
        batch_size,
        use_nesterov,
        decay_filter,
        split_indices,
        enable_clip_grad,
        frequency,
        block_size=block_size,
    )


class Thor(FusedOptimizer):
    """See :func:`thor`, which makes one.

    Attributes:
        layers (tuple[str]): names of the preconditioned weights; other parameters take steps of Momentum.
        matrix_a_inv, matrix_g_inv (ParameterTuple): float32, the blocks of the inverses for each of ``layers``,
            ``matrix_a_inv.<name>``; for an embedding the diagonal of A.

    Examples:
        >>> from mindspore import Tensor, nn
        >>> from boost_ext.optim import thor
        >>> net = nn.SequentialCell(nn.Dense(8, 4), nn.LayerNorm((4,)))
        >>> thor(net, Tensor(0.05), damping=0.03, momentum=0.9).layers
        ('0.weight',)
    """

    rule = "momentum"
    lars_refusal = "optimizer must take gradients as they come, got Thor, which preconditions them"
    never_restricted = "thor: its matrices are gathered by whole backward passes"
    never_rebuilt = (
        "thor, which belongs to the layers of its network; make it with boost_ext.optim.thor for the rewritten "
        "network, at boost level O0"
    )

    def __init__(
        self,
        net: nn.Cell,
        learning_rate: Any,
        damping: Any,
        momentum: float,
        weight_decay: float,
        loss_scale: float,
        batch_size: int,
        use_nesterov: bool,
        decay_filter: Callable[[Parameter], bool],
        split_indices: Sequence[int] | None,
        enable_clip_grad: bool,
        frequency: int,
        *,
        block_size: int,
    ) -> None:
        _check_rate(learning_rate)
        non_negative(_NAME, momentum=momentum)
        require_bool(_NAME, "use_nesterov", use_nesterov)
        clips = require_bool(_NAME, "enable_clip_grad", enable_clip_grad)
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("frequency", frequency, 2),
            ("block_size", block_size, 1),
        ):
            _check_int(name, value, least)
        if isinstance(weight_decay, bool) or not isinstance(weight_decay, (int, float)):
            raise TypeError(f"{_NAME}: weight_decay must be a float or an int, got {type(weight_decay).__name__}")
        if not callable(decay_filter):
            raise TypeError(f"{_NAME}: decay_filter must be a function, got {type(decay_filter).__name__}")
        damping = _checked_damping(damping)
        parameters = [p for p in net.get_parameters() if p.requires_grad]
        super().__init__(learning_rate, parameters, float(weight_decay), loss_scale)
        self.decay_flags = tuple(bool(decay_filter(p)) for p in self.parameters)
        self.momentum = Parameter(Tensor(momentum, ms.float32), name="momentum", requires_grad=False)
        self.use_nesterov, self.enable_clip_grad = use_nesterov, clips
        self.damping, self.has_schedule = damping, isinstance(damping, nn.Cell)
        self.frequency, self.batch_size, self.block_size = frequency, batch_size, block_size

        position = {id(p): i for i, p in enumerate(self.parameters)}
        found = sorted(thor_layers(net), key=lambda layer: position[id(layer.weight)])
        self.layers = tuple(layer.weight.name for layer in found)
        self.split_indices = _checked_split(split_indices, len(found))
        kinds = np.zeros(len(self.parameters), np.int32)
        for layer in found:
            kinds[position[id(layer.weight)]] = 2 if layer.kind == EMBEDDING else 1
        self.kinds = Tensor(kinds.reshape(1, 1, 1, 1, 1, -1))
        self.every = Tensor([frequency], ms.int32)
        self.own_scale = Tensor(np.array([self.loss_scale], np.float64))
        self.matrix_a_inv = ParameterTuple(_inverse(layer, "a", block_size) for layer in found)
        self.matrix_g_inv = ParameterTuple(_inverse(layer, "g", block_size) for layer in found)
        self.ranks_mean = mean_over_ranks(self.matrix_a_inv, self.matrix_g_inv, self.split_indices)
        self.inverted, self.preconditioned = native.DampedInverse(), native.Preconditioned()
        self._connect(net, found)
        self.moments = state_like(self.parameters, "moments")
        self.fuse((momentum, use_nesterov, False), (self.moments,), powers=(self.momentum,))
        decays = [m.decay / self.loss_scale for m in self.members]
        self.__dict__["decay_values"] = tuple(decays)

    def _connect(self, net: nn.Cell, found: Sequence[ThorLayer]) -> None:
        batch = Tensor(np.array([self.batch_size], np.float64))
        gathered = []
        for layer, inverses in zip(found, zip(self.matrix_a_inv, self.matrix_g_inv, strict=True), strict=True):
            A, G = (_gathered(inverse) for inverse in inverses)
            layer.watch.connect(self.global_step, layer.numbers(self.frequency), batch, A, G)
            gathered.append((A, G))
        # Each step that reads them writes them first: they are no state, and in no checkpoint.
        self.__dict__["gathered"] = tuple(A for A, _ in gathered) + tuple(G for _, G in gathered)
        self.__dict__["net"] = net  # not as a child: its weights are not the optimizer's
        forget_graphs(net)

    def require_options(self, owner: str, options: Any) -> None:
        """Refuse other algorithms, and a network with loss scales by layer, which would scale G too."""
        if not options.alone:
            raise ValueError(
                f"{owner}: thor must be the only algorithm, got dim_reduce, accumulation, adasum, clip_norm or "
                "adaptive_clip with it"
            )
        if any(getattr(cell, "loss_scale_number", 0) for _, cell in self.net.cells_and_names()):
            raise ValueError(f"{owner}: thor must have one loss scale, got a GroupLossScaleManager in its network")
        if averages_over_ranks() != (self.ranks_mean is not None):
            mode = ms.get_auto_parallel_context("parallel_mode")
            raise ValueError(
                f"{owner}: parallel_mode must be set before thor is made, whose inverses are averaged over ranks "
                f"by it, got {mode} later"
            )

    def get_frequency(self) -> int:
        """Steps from one computation of the matrices to the next."""
        return self.frequency

    def construct(self, gradients: Any) -> Tensor:
        return self._natural_step(gradients, self.no_skip, self.unit)

    def step_unless(self, skip: Tensor, scale: Tensor, gradients: Any) -> Tensor:
        """See :meth:`FusedOptimizer.step_unless`; the loss was scaled by `scale` in the backward pass, too."""
        return self._natural_step(gradients, skip, scale)

    def _natural_step(self, gradients: Any, skip: Tensor, scale: Tensor) -> Tensor:
        gradients = self.values_of(gradients)
        step = self.global_step
        damping = ops.reshape(self.damping(step), (1,)) if self.has_schedule else self.damping
        inverses = tuple(self.matrix_a_inv) + tuple(self.matrix_g_inv)
        head = (step, ops.depend(skip, gradients), self.every, self.own_scale, scale, damping)
        done = self.inverted(*head, *self.gathered, *inverses)
        if self.ranks_mean is not None and step % self.frequency == 0:
            done = self.ranks_mean(done)
        directions = self.preconditioned(ops.depend(scale, done), *inverses, self.kinds, *gradients)
        if len(self.parameters) == 1:
            directions = (directions,)
        ratio = self._clipping(directions) if self.enable_clip_grad else self.unit
        return self._step(directions, skip, self.unit, ratio)

    def _clipping(self, directions: Any) -> Tensor:
        """The factors of clipping for the directions, then the same for the weight decays."""
        ratios: tuple[Tensor, ...] = ()
        for i in range(len(self.decay_values)):
            update = directions[i] / self.loss_scale
            if self.decay_values[i] > 0:
                update = update + self.decay_values[i] * ops.cast(self.parameters[i], ms.float32)
            norm = ops.sqrt(ops.reduce_sum(ops.square(update)))
            ratios = (*ratios, ops.reshape(1.0 / ops.maximum(norm, self.unit), (1,)))
        return ops.concat(ratios + ratios)

    def __call__(self, gradients: Sequence[Tensor]) -> Tensor:
        self.require_same()
        result: Tensor = nn.Cell.__call__(self, self.values_of.by_python(gradients))
        return result


def _inverse(layer: ThorLayer, which: str, block_size: int) -> Parameter:
    """The inverse, at first the identity: while a matrix cannot be inverted, the step is that of Momentum."""
    size = layer.a_size if which == "a" else layer.g_size
    if layer.kind == EMBEDDING and which == "a":
        value = np.ones(size, np.float32)
    else:
        block = min(block_size, size)
        value = np.tile(np.eye(block, dtype=np.float32), (-(-size // block), 1, 1))
    return Parameter(Tensor(value), name=f"matrix_{which}_inv.{layer.weight.name}", requires_grad=False)


def _gathered(inverse: Parameter) -> Parameter:
    """The storage of a gathered matrix, in float64: G holds the square of the loss scale."""
    name = inverse.name.replace("_inv.", ".", 1)
    return Parameter(Tensor(np.zeros(inverse.shape)), name=name, requires_grad=False)


def _check_rate(value: Any) -> None:
    if not isinstance(value, (Tensor, LearningRateSchedule)):
        raise TypeError(
            f"{_NAME}: learning_rate must be a Tensor or a LearningRateSchedule, got {type(value).__name__}"
        )


def _check_int(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{_NAME}: {name} must be an int, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{_NAME}: {name} must be >= {least}, got {value}")


def _checked_damping(value: Any) -> Any:
    """The damping as float32 of one axis, or the schedule."""
    if isinstance(value, LearningRateSchedule):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, Tensor)):
        raise TypeError(
            f"{_NAME}: damping must be a number, a Tensor or a LearningRateSchedule, got {type(value).__name__}"
        )
    array = value.asnumpy() if isinstance(value, Tensor) else np.array(value)
    if array.ndim > 1 or array.size == 0:
        raise ValueError(f"{_NAME}: damping must have at most one axis and one element at least, got {array.shape}")
    numbers = np.atleast_1d(array.astype(np.float32))
    bad = numbers[~((numbers > 0) & np.isfinite(numbers))]
    if bad.size:
        raise ValueError(f"{_NAME}: damping must be finite and > 0, got {bad[0]}")
    return Tensor(numbers)


def _checked_split(value: Any, layers: int) -> tuple[int, ...]:
    if value is None:
        return (layers - 1,)
    if not isinstance(value, (list, tuple)) or not all(type(i) is int for i in value):
        raise TypeError(f"{_NAME}: split_indices must be a list of ints, got {value!r}")
    ascending = all(a < b for a, b in itertools.pairwise(value))
    if not value or not ascending or value[0] < 0 or value[-1] != layers - 1:
        raise ValueError(
            f"{_NAME}: split_indices must ascend to {layers - 1}, the last of the network's layers, got {list(value)}"
        )
    return tuple(value)


class ConvertNetUtils:
    """Replaces the class of ``mindspore.train.train_thor``.

    Examples:
        >>> from mindspore import nn
        >>> from boost_ext.optim import ConvertNetUtils
        >>> ConvertNetUtils().convert_to_thor_net(nn.SequentialCell(nn.Dense(8, 4)))  # in place
    """

    def convert_to_thor_net(self, net: nn.Cell) -> None:
        """See :func:`convert_to_thor_net`."""
        convert_to_thor_net(net)


class ConvertModelUtils:
    """Replaces the class of ``mindspore.train.train_thor``.

    Examples:
        >>> from mindspore import Tensor, nn
        >>> from boost_ext import Model
        >>> from boost_ext.optim import ConvertModelUtils, thor
        >>> net = nn.SequentialCell(nn.Dense(8, 4))
        >>> optimizer = thor(net, Tensor(0.05), damping=0.03, momentum=0.9)
        >>> model = Model(net, nn.CrossEntropyLoss(), optimizer)
        >>> ConvertModelUtils.convert_to_thor_model(model, net) is model
        True
    """

    @staticmethod
    def convert_to_thor_model(model: Any, network: nn.Cell, **arguments: Any) -> Any:
        """The model itself: thor needs no other training loop, since its optimizer knows which steps are due."""
        return model
