"""Training cells with the arguments and outputs of ``mindspore.nn``'s, for code that reads those outputs."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, nn

from boost_ext.ms.step.cells import BoostTrainOneStepCell, BoostTrainOneStepWithLossScaleCell
from boost_ext.ms.training.auto import AutoBoost

__all__ = ["TrainOneStepCell", "TrainOneStepWithLossScaleCell"]


class TrainOneStepCell(BoostTrainOneStepCell):
    r"""``mindspore.nn.TrainOneStepCell`` on the step of :class:`BoostTrainOneStepCell`.

    Args:
        network (Cell): the network with its loss; a single output.
        optimizer (Cell): updates the weights.
        sens (numbers.Number, optional): what the gradient of the loss is multiplied with. Default: None, 1.
        return_grad (bool): must be False. Default: False.
        boost_level (str): "O0", "O1" or "O2", see :class:`AutoBoost`. Default: "O0".
        **options: keywords of :class:`BoostTrainOneStepCell`.

    Inputs:
        - **\*inputs** (tuple[Tensor]) - the network's inputs.

    Outputs:
        Tensor, the loss as the network returns it.

    Raises:
        TypeError: for an argument of another type.
        ValueError: if `return_grad` is True, and what :class:`BoostTrainOneStepCell` and :class:`AutoBoost` raise.

    Examples:
        >>> from mindspore import Tensor, nn
        >>> from boost_ext.nn import TrainOneStepCell
        >>> net = nn.Dense(4, 1, weight_init="ones", has_bias=False)
        >>> step = TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1))
        >>> print(step(Tensor([[1.0, 1.0, 1.0, 1.0]]), Tensor([[3.0]])))
        1.0
    """

    def __init__(
        self,
        network: nn.Cell,
        optimizer: nn.Cell,
        sens: float | None = None,
        return_grad: bool = False,
        *,
        boost_level: str = "O0",
        **options: Any,
    ) -> None:
        if return_grad:
            raise ValueError("TrainOneStepCell: return_grad must be False, got True: the step keeps no gradients")
        network, optimizer = _boosted(network, optimizer, boost_level, options)
        super().__init__(network, optimizer, 1.0 if sens is None else sens, **options)

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        outputs = super().__call__(*inputs, **kwargs)
        return outputs if self.own_construct else outputs[0]

    def construct(self, *inputs: Tensor) -> Tensor:
        """Inside another graph."""
        return BoostTrainOneStepCell.construct(self, *inputs)[0]


class TrainOneStepWithLossScaleCell(BoostTrainOneStepWithLossScaleCell, nn.TrainOneStepWithLossScaleCell):
    """``mindspore.nn.TrainOneStepWithLossScaleCell`` on the step of :class:`BoostTrainOneStepWithLossScaleCell`.

    Args:
        network, optimizer, scale_sense: as there; `scale_sense` is a Cell that updates the loss scale, or a Tensor.
        boost_level (str): "O0", "O1" or "O2", see :class:`AutoBoost`. Default: "O0".
        **options: keywords of :class:`BoostTrainOneStepWithLossScaleCell`.

    Inputs and Outputs: as there: (loss, overflow, loss scale).

    Raises:
        TypeError, ValueError: what :class:`BoostTrainOneStepWithLossScaleCell` and :class:`AutoBoost` raise.

    Examples:
        >>> from mindspore import Tensor, nn
        >>> from boost_ext.nn import TrainOneStepWithLossScaleCell
        >>> net = nn.Dense(4, 1, weight_init="ones", has_bias=False)
        >>> optimizer, scale = nn.SGD(net.trainable_params(), 0.1), nn.DynamicLossScaleUpdateCell(1024, 2, 1000)
        >>> step = TrainOneStepWithLossScaleCell(nn.WithLossCell(net, nn.MSELoss()), optimizer, scale)
        >>> loss, overflow, loss_scale = step(Tensor([[1.0, 1.0, 1.0, 1.0]]), Tensor([[3.0]]))
        >>> print(loss, overflow, loss_scale)
        1.0 False 1024.0
    """

    def __init__(
        self,
        network: nn.Cell,
        optimizer: nn.Cell,
        scale_sense: Tensor | nn.Cell,
        *,
        boost_level: str = "O0",
        **options: Any,
    ) -> None:
        network, optimizer = _boosted(network, optimizer, boost_level, options)
        super().__init__(network, optimizer, scale_sense, **options)


def _boosted(network: nn.Cell, optimizer: nn.Cell, level: str, options: dict[str, Any]) -> tuple[nn.Cell, nn.Cell]:
    """Network and optimizer of a level; the plan goes into ``options``, unless the caller has brought its own."""
    if options.get("plan") is not None:
        return network, optimizer
    boost = AutoBoost(level)
    network, optimizer = boost.network_auto_process_train(network, optimizer)
    options["plan"] = boost.plan
    return network, optimizer
