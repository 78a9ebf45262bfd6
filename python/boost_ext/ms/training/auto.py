"""AutoBoost: a level and a configuration become a plan, and the plan becomes a rewritten network and optimizer."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mindspore import Parameter, nn

from boost_ext.config import FEATURES, MAX_STEPS, BoostConfig
from boost_ext.ms.core.for_cells import for_cells
from boost_ext.ms.freeze.freeze_optimizer import FreezeOpt
from boost_ext.ms.freeze.grad_freeze import FRONT_TO_BACK, GradientFreeze
from boost_ext.ms.loss_scale.group_loss_scale import GroupLossScaleManager
from boost_ext.ms.optim.learning_rates import scheduled_steps
from boost_ext.ms.optim.rebuild import require_rebuildable
from boost_ext.ms.ranks.ranks import rank_count
from boost_ext.ms.step.options import StepOptions, attached_options, what_trains
from boost_ext.ms.surgery.less_bn import LessBNReport, remove_batch_norms, replace_head
from boost_ext.ms.surgery.process import OptimizerProcess, ParameterProcess
from boost_ext.plan import LESS_BN_PARTS, plan

__all__ = ["AutoBoost"]

_logger = logging.getLogger("boost_ext")
_OPEN = "total_steps is the default until Model.train tells its own; a loop of yours must set grad_freeze.total_steps"


class AutoBoost:
    """Apply the algorithms that a level and a configuration ask for.

    An ordinary object without global state. docs/autoboost.md has the levels, the modes and all keys.

    Args:
        level (str): "O0": nothing. "O1": less_bn, which keeps the batch norms, and grad_freeze. "O2": the same with
            fewer batch norms and more frozen steps, and adasum, which grad_freeze excludes. Default: "O0".
        boost_config_dict (Union[dict, str]): the configuration, or the path of a JSON file with it. Absent keys
            take their defaults; O1 and O2 have some of their own. Default: "".

    Raises:
        TypeError: if `level` is no str, or values of the configuration have a wrong type.
        ValueError: for an unknown level, mode or key, a value out of range, and dim_reduce without a subspace.

    Attributes:
        level (str): as given.
        config (BoostConfig): frozen; the values at the level.
        boost_config (dict): the name of each algorithm of section ``boost`` to whether it is on.
        plan (Plan): the status and reason of each algorithm; has more details after a network was rewritten.

    Examples:
        >>> from mindspore import nn
        >>> from boost_ext.boost import AutoBoost
        >>> net = nn.SequentialCell(nn.Dense(8, 4), nn.ReLU(), nn.Dense(4, 3))
        >>> boost = AutoBoost("O1", {"boost": {"mode": "manual", "grad_freeze": False}})
        >>> network, optimizer = boost.network_auto_process_train(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
        >>> boost.plan["grad_centralization"].status, boost.plan["grad_freeze"].reason
        ('applied', 'boost.grad_freeze is False')
    """

    def __init__(
        self, level: str = "O0", boost_config_dict: BoostConfig | Mapping[str, Any] | str | os.PathLike[str] = ""
    ) -> None:
        config = BoostConfig.load(boost_config_dict)
        self.plan = plan(level, config, rank_size=rank_count())
        self.config = config.at_level(level)
        self.level = level
        self._decided = self.plan  # before a network is seen
        self._of_unknown_length: tuple[GradientFreeze, FreezeOpt, str] | None = None
        self.boost_config = {name: self.plan.applies(name) for name in FEATURES}
        self.boost_config["less_bn"] = any(self.plan.applies(part) for part in LESS_BN_PARTS)

    def network_auto_process_train(self, network: nn.Cell, optimizer: nn.Cell) -> tuple[nn.Cell, nn.Cell]:
        """Rewrite a network and its optimizer for training; logs the plan at INFO.

        Args:
            network (Cell): without or with its loss. Changed in place by less_bn: batch norms of residual branches
                are replaced, and with the FN head the last Dense.
            optimizer (Optimizer): of the network's parameters; it does not change. The algorithms of another
                AutoBoost stay on, unless this one decides otherwise; the plan reports them.

        Returns:
            tuple(Cell, Cell): the network, and an optimizer for the training cells of this package, whose
            ``boost_options`` tells them the rest; anyone else who steps it then gets a TypeError. The given optimizer
            where there is nothing to do.

        Raises:
            TypeError: for a FreezeOpt, if something is on that works on an Optimizer.
            ValueError: if a requested algorithm is impossible here; the plan has the reason.
        """
        for name in self.plan.refused:
            raise ValueError(f"AutoBoost: {name} was asked for, but {self.plan[name].reason}")
        self.plan, attached, self._of_unknown_length = self._decided, attached_options(optimizer), None
        self._require_optimizer(optimizer)
        before = network.trainable_params()
        centralize = self.plan.applies("grad_centralization")
        if self._rewrite(network) or centralize:
            optimizer = self._rebuild(network, optimizer, before, centralize)
        if self.plan.applies("grad_freeze"):
            network, optimizer = self._freeze(network, optimizer)
        optimizer = self._with_options(optimizer, attached)
        self.plan = what_trains(self.plan, optimizer, attached_options(optimizer))
        _logger.info("%s", self.plan)
        return network, optimizer

    def network_auto_process_eval(self, network: nn.Cell) -> nn.Cell:
        """Rewrite a network for evaluation as the training network was, so that a checkpoint fits both.

        Args:
            network (Cell): with the same structure as the training network, or that network itself.

        Returns:
            Cell.
        """
        self._rewrite(network)
        return network

    def take_loss_scale(self, manager: Any) -> None:
        """Let the plan know the loss scale manager of the training, before the network is rewritten.

        Args:
            manager (Union[LossScaleManager, GroupLossScaleManager, None]): a GroupLossScaleManager switches
                loss_scale_group on.

        Raises:
            ValueError: if the configuration asks for loss_scale_group and this is no GroupLossScaleManager, or if it
                is one and loss_scale_group is switched off.
        """
        name = "loss_scale_group"
        given, switches = isinstance(manager, GroupLossScaleManager), self.config.boost
        if self.plan.applies(name) and not given:
            raise ValueError(
                "AutoBoost: loss_scale_group takes a GroupLossScaleManager as loss_scale_manager, got "
                f"{type(manager).__name__}"
            )
        if not given or self.plan.applies(name):
            return
        off = switches.mode == "disable_all" or (switches.mode == "manual" and name in switches.model_fields_set)
        if off or self.plan.applies("dim_reduce"):
            raise ValueError(
                "AutoBoost: loss_scale_manager must be no GroupLossScaleManager, since loss_scale_group is off: "
                f"{self.plan[name].reason}"
            )
        reason = "loss_scale_manager is a GroupLossScaleManager"
        self.plan = self._decided = self._decided.with_result(name, "applied", reason)
        self.boost_config[name] = True

    def skip(self, feature: str, reason: str) -> None:
        """Let the plan say that a feature which was to be applied is not, and why."""
        if self.plan.applies(feature):
            self.plan = self.plan.with_result(feature, status="skipped", reason=reason)

    def _require_optimizer(self, optimizer: nn.Cell) -> None:
        on = [name for name in (*LESS_BN_PARTS, "grad_freeze", "adasum", "dim_reduce") if self.plan.applies(name)]
        if on and isinstance(optimizer, FreezeOpt):
            raise TypeError(
                f"AutoBoost: optimizer must be an Optimizer for {', '.join(on)}, got a FreezeOpt: AutoBoost or "
                "GradientFreeze has made it, so it freezes already. Give the Optimizer that it was made of, or the "
                "FreezeOpt at level O0"
            )
        if self.plan.applies("grad_centralization"):
            require_rebuildable(optimizer)

    def _rewrite(self, network: nn.Cell) -> bool:
        """LessBN and the FN head, in place, where they are on; whether the parameters are others now."""
        before = [id(p) for p in network.get_parameters()]
        if self._decided.applies("less_bn"):
            report = remove_batch_norms(network)
            what = f"removed {len(report.removed)} of {len(report.removed) + len(report.kept)} batch norms"
            self._note("less_bn", report, bool(report.removed), what, {"removed": list(report.removed)})
        if self._decided.applies("fn_head"):
            report = replace_head(network)
            what = f"{report.head} is a CommonHeadLastFN"
            self._note("fn_head", report, report.head is not None, what, {"head": report.head})
        return before != [id(p) for p in network.get_parameters()]

    def _note(self, feature: str, report: LessBNReport, done: bool, what: str, details: dict[str, Any]) -> None:
        if self.plan[feature].details:  # said already, of the training network
            return
        reason = "; ".join([what, *report.notes] if done else report.notes)
        self.plan = self.plan.with_result(feature, "applied" if done else "skipped", reason, details)

    def _rebuild(self, network: nn.Cell, optimizer: nn.Cell, before: list[Parameter], centralize: bool) -> nn.Cell:
        """An optimizer over the parameters that remain and those that the rewriting added."""
        trained = {id(p) for p in optimizer.parameters}
        known = {id(p) for p in before}
        kept = [p for p in network.trainable_params() if id(p) in trained or id(p) not in known]
        inside = {id(p) for p in network.get_parameters()} | known
        outside = [p for p in optimizer.parameters if id(p) not in inside]  # of a loss, for example
        points = self.config.common.gradient_split_groups
        parameters = ParameterProcess()
        grouped = parameters.assign_parameter_group(kept + outside, points if isinstance(points, int) else list(points))
        process = OptimizerProcess(optimizer)
        process.origin_params = parameters.generate_group_params(grouped, process.grouped())
        if centralize:
            process.add_grad_centralization(network)
            groups = [g for g in process.origin_params if isinstance(g, dict) and g.get("grad_centralization")]
            count = sum(len(g["params"]) for g in groups)
            reason = f"{self.plan['grad_centralization'].reason}: {count} of {len(kept + outside)} parameters"
            reason += "; for accuracy, it costs time"
            self.plan = self.plan.with_result("grad_centralization", "applied" if count else "skipped", reason)
        return process.generate_new_optimizer()

    def _freeze(self, network: nn.Cell, optimizer: nn.Cell) -> tuple[nn.Cell, nn.Cell]:
        settings = self.config.grad_freeze
        known = settings.freeze_type != FRONT_TO_BACK or "total_steps" in settings.model_fields_set
        rates = 0 if known else min(scheduled_steps(optimizer), MAX_STEPS)
        total = rates or settings.total_steps
        freeze = GradientFreeze(settings.param_groups, settings.freeze_type, settings.freeze_p, total)
        network, frozen = freeze.freeze_generate(network, optimizer)
        if not frozen.freezes:
            self._nothing_to_freeze(frozen)
            return network, optimizer
        details = {
            "groups": frozen.groups_num,
            "frozen_shares": [round(s, 4) for s in frozen.frozen_shares],
            "total_steps": total,
        }
        reason = "; ".join([self.plan["grad_freeze"].reason, *freeze.notes])
        if rates:
            reason = f"{reason}; total_steps {rates} is the number of learning rates"
        elif not known:
            self._of_unknown_length = freeze, frozen, reason
            reason = f"{reason}; {_OPEN}"
        self.plan = self.plan.with_result("grad_freeze", reason=reason, details=details)
        return network, frozen

    def take_steps(self, steps: int) -> bool:
        """Let freezing know how many updates the training makes, where nothing else has told.

        Args:
            steps (int): updates of the weights.

        Returns:
            bool, whether :attr:`plan` has changed: no step may have been made then.
        """
        if self._of_unknown_length is None:
            return False
        (freeze, frozen, reason), self._of_unknown_length = self._of_unknown_length, None
        settings = self.config.grad_freeze
        args = (frozen.groups_num, settings.freeze_type, settings.freeze_p, min(steps, MAX_STEPS))
        frozen.reschedule(freeze.generate_freeze_index_sequence(*args)[:steps])
        reason = f"{reason}; total_steps {steps} is what the training makes"
        self.plan = self.plan.with_result("grad_freeze", reason=reason, details={"total_steps": steps})
        return True

    def _nothing_to_freeze(self, frozen: FreezeOpt) -> None:
        settings = self.config.grad_freeze
        reason = "no step leaves out a parameter of the optimizer"
        if settings.param_groups == 1:
            reason = "grad_freeze.param_groups is 1: every step trains everything"
        elif frozen.groups_num == 1:
            reason = "the network is one block: there are no layers to leave out"
        elif settings.freeze_p == 1:
            reason = "grad_freeze.freeze_p is 1: every step trains everything"
        self.plan = self.plan.with_result("grad_freeze", "skipped", reason)
        if self.plan["adasum"].reason.startswith("grad_freeze is on"):
            reason = "grad_freeze was asked for, and adasum cannot be combined with it; without it adasum is possible"
            self.plan = self.plan.with_result("adasum", reason=reason)

    def step_settings(self) -> dict[str, Any]:
        """What the plan brings into the step, by the names of its options; without the rest."""
        config, on = self.config, self.plan.applies
        brought = {
            "grad_accumulation": ("accumulation_steps", config.grad_accumulation.grad_accumulation_step),
            "dim_reduce": ("dim_reduce", config.dim_reduce),
            "adasum": ("adasum_devices", config.common.device_number),
        }
        return dict(setting for feature, setting in brought.items() if on(feature))

    def _with_options(self, optimizer: nn.Cell, attached: StepOptions) -> nn.Cell:
        options = replace(
            attached,
            **self.step_settings(),
            fused_optimizer=self.config.common.fused_optimizer and attached.fused_optimizer,
            check_overflow=self.config.common.check_overflow and attached.check_overflow,
        )
        if options == attached_options(optimizer):
            return optimizer
        if isinstance(optimizer, nn.Optimizer):  # the user's, or one of ours: never set anything on the user's
            return for_cells(optimizer, options)
        optimizer.boost_options = options
        return optimizer
