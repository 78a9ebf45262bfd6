"""Model: mindspore.Model on the training cells of this package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mindspore import Tensor, nn
from mindspore.train import model as _reference

from boost_ext.arguments import names_of, unknown_argument
from boost_ext.ms.core import typed
from boost_ext.ms.core.compiled import Forward
from boost_ext.ms.loss_scale.group_loss_scale import GroupLossScaleManager
from boost_ext.ms.native import in_pynative_mode
from boost_ext.ms.optim.learning_rates import innermost
from boost_ext.ms.step.cells import BoostTrainOneStepCell, BoostTrainOneStepWithLossScaleCell
from boost_ext.ms.training.amp import Cells, TrainingOptions, assemble
from boost_ext.ms.training.auto import AutoBoost
from boost_ext.plan import Plan

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Model"]

_KWARGS = tuple(TrainingOptions.__annotations__)
_TRAINING_ONLY = ("grad_centralization", "grad_freeze", "grad_accumulation", "dim_reduce", "loss_scale_group")


class Model(typed.Model):
    """``mindspore.Model``, with boost really applied, and on the CPU too.

    Trains through :class:`BoostTrainOneStepCell` or, with a loss scale that has an update cell,
    :class:`BoostTrainOneStepWithLossScaleCell`, at boost level O0 too; ``train``, ``fit``, ``eval``, ``predict`` and
    all callbacks are MindSpore's.

    Args:
        network (Cell): the network; without `loss_fn` its output is the loss. Boost rewrites it in place.
        loss_fn (Cell, optional): called with the output and the label. Default: None.
        optimizer (Optimizer, optional): Default: None: `network` trains itself, or nothing is trained.
        metrics (Union[dict, set], optional): for ``eval`` and ``fit``. Default: None.
        eval_network (Cell, optional): for evaluation; rewritten as `network` is, so that a checkpoint fits both.
            Default: None, `network` with `loss_fn`.
        eval_indexes (list, optional): where loss, prediction and label are in the outputs of `eval_network`.
            Default: None.
        amp_level (str): "O0", "O1", "O2", "O3" or "auto", the `level` of :func:`boost_ext.amp.build_train_network`.
            Default: "O0".
        boost_level (str): "O0", "O1" or "O2", see :class:`boost_ext.boost.AutoBoost`. Without an optimizer `network`
            is rewritten for evaluation, so that it takes the checkpoints of a boosted training. Default: "O0".
        loss_scale_manager, keep_batchnorm_fp32, boost_config_dict, clip_norm, adaptive_clip, weight_average,
            local_steps, compile: as in :func:`boost_ext.amp.build_train_network`.

    Raises:
        TypeError: for an argument of another type.
        ValueError: for an unknown keyword, level or configuration key; for a boost algorithm that is not possible here;
            if boost is requested and `network` trains itself; and as ``mindspore.Model``.

    Attributes:
        plan (Plan): the status and reason of each algorithm.

    Examples:
        >>> import mindspore as ms
        >>> import numpy as np
        >>> from mindspore import nn
        >>> from boost_ext import Model
        >>> data = {"x": np.ones((8, 4), np.float32), "y": np.zeros(8, np.int32)}
        >>> dataset = ms.dataset.NumpySlicesDataset(data).batch(4)
        >>> net, loss_fn = nn.Dense(4, 3), nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        >>> optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
        >>> model = Model(net, loss_fn, optimizer, metrics={"accuracy"}, boost_level="O1")
        >>> model.plan["grad_centralization"].status
        'applied'
        >>> model.train(10, dataset)
        >>> model.eval(dataset)
        {'accuracy': 1.0}
    """

    _cells: Cells = (BoostTrainOneStepCell, BoostTrainOneStepWithLossScaleCell)
    _network: nn.Cell
    _optimizer: nn.Cell | None
    _eval_network: nn.Cell | None
    _loss_scale_manager: Any

    def __init__(
        self,
        network: nn.Cell,
        loss_fn: nn.Cell | None = None,
        optimizer: nn.Cell | None = None,
        metrics: Any = None,
        eval_network: nn.Cell | None = None,
        eval_indexes: list[int] | None = None,
        amp_level: str = "O0",
        boost_level: str = "O0",
        **kwargs: Unpack[TrainingOptions],
    ) -> None:
        if not isinstance(network, nn.Cell):
            raise TypeError(f"Model: network must be a Cell, got {type(network).__name__}")
        # A copy with the defaults in: the base class calls the hooks below with nothing but its attributes.
        self._options = dict(kwargs)
        self._forwards: dict[str, Forward] = {}
        super().__init__(
            network, loss_fn, optimizer, metrics, eval_network, eval_indexes, amp_level, boost_level, **kwargs
        )

    @property
    def plan(self) -> Plan:
        """The status and reason of each algorithm."""
        return self._boost.plan

    def _check_kwargs(self, kwargs: dict[str, Any]) -> None:
        for key in kwargs:
            if key == "acc_level":
                raise ValueError("Model: acc_level must not be given, it is called boost_level")
            if key not in _KWARGS:
                raise ValueError(unknown_argument("Model", key, (*names_of(Model.__init__), *_KWARGS)))

    def _build_boost_network(self, kwargs: dict[str, Any]) -> None:
        self._boost = AutoBoost(self._boost_level, kwargs.get("boost_config_dict", ""))
        if self._optimizer is None:
            self._boost_without_optimizer()

    def _boost_without_optimizer(self) -> None:
        boost = self._boost
        if not any(boost.boost_config.values()):
            return
        for _, cell in self._network.cells_and_names():
            if isinstance(cell, (nn.Optimizer, nn.TrainOneStepCell)):
                raise ValueError(
                    f"Model: optimizer must be given for boost_level {boost.level!r}, got None and a network that "
                    f"trains itself with {type(cell).__name__}"
                )
        self._network = boost.network_auto_process_eval(self._network)
        for name in _TRAINING_ONLY:
            boost.skip(name, "this Model has no optimizer: it only evaluates")
        self._boost_evaluation()

    def _boost_evaluation(self) -> None:
        if self._eval_network is not None:
            self._eval_network = self._boost.network_auto_process_eval(self._eval_network)

    def _build_train_network(self) -> nn.Cell:
        if self._optimizer is None:
            return super()._build_train_network()
        inputs = self._inputs()
        cell, self._network, optimizer = assemble(
            self._network, self._optimizer, self._loss_fn, self._amp_level, self._boost, self._options, self._cells
        )
        # Callbacks ask it for its learning rate, and set it; the two share their state.
        self._optimizer = innermost(optimizer)
        self._boost_evaluation()
        if isinstance(self._loss_scale_manager, GroupLossScaleManager):
            self._loss_scale_manager = None  # the base class would report each step to it; it is in the cell already
        if inputs is not None:
            _reference._set_with_processed_inputs(cell, inputs)
        return cell

    def _train(self, epoch: int, train_dataset: Any, *args: Any, **kwargs: Any) -> Any:
        accumulation = getattr(self._train_network, "accumulation", None)
        window = 1 if accumulation is None else accumulation.max_accumulation_step
        if self._boost.take_steps(max(1, epoch * train_dataset.get_dataset_size() // window)):
            self._train_network.plan = self.plan
        return super()._train(epoch, train_dataset, *args, **kwargs)

    def _eval_process(self, *args: Any, **kwargs: Any) -> Any:
        with self._compiled_fast("_eval_network"):
            return super()._eval_process(*args, **kwargs)

    def predict(self, *predict_data: Any, backend: str | None = None, config: Any = None) -> Any:
        if not all(isinstance(x, Tensor) for x in predict_data):
            return super().predict(*predict_data, backend=backend, config=config)
        with self._compiled_fast("_predict_network"):
            return super().predict(*predict_data, backend=backend, config=config)

    @contextmanager
    def _compiled_fast(self, name: str) -> Iterator[None]:
        """In GRAPH_MODE the named network is compiled as training steps are."""
        network = getattr(self, name)
        if network is None or in_pynative_mode() or isinstance(network, nn.GraphCell):
            yield
            return
        forward = self._forwards.get(name)
        if forward is None or forward.network is not network:
            forward = self._forwards[name] = Forward(network, compile=False)
            if network.get_inputs() is not None:
                _reference._set_with_processed_inputs(forward, network.get_inputs())
        setattr(self, name, forward)
        try:
            yield
        finally:
            setattr(self, name, network)

    def _inputs(self) -> Any:
        """The inputs of network and loss together, by their ``set_inputs``."""
        inputs = self._network.get_inputs()
        if self._loss_fn is not None and self._loss_fn.get_inputs() and inputs:
            label = _reference._process_loss_inputs(self._loss_fn.get_inputs())
            inputs = _reference._merge_inputs(inputs, label)
        return inputs
