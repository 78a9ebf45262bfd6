"""Random trainings: networks, dtypes, optimizers and the options of the training cells, in any combination.

A recipe is plain data. Its text makes it again. :mod:`tests.fuzz.cell_checks` says what must hold for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from hypothesis import strategies as st
from mindspore import Parameter, Tensor, nn
from tests.fuzz.cell_networks import BATCH, FIRST, MIDDLE, Decay, Loss, Net

from boost_ext import amp, boost, optim
from boost_ext.config import DimReduceConfig
from boost_ext.distributed import LocalSteps

RATE, SCALE = 0.02, 256.0
HALVES = {"float16": ms.float16, "bfloat16": ms.bfloat16}

FLAG = [False, True]
DECAY = {"weight_decay": [0.0, 0.1, "cell"]}
MASTER = {"master": ["float32", "split16", "split8"]}
STORED = {"state_dtype": ["float32", "bfloat16", "float8"], **MASTER, **DECAY}
CAUTIOUS = {"cautious": FLAG}
PROJECTED = {"rank": [None, 2], "update_proj_gap": [2, 200], **DECAY}
NESTEROV = {"momentum": [0.9], "use_nesterov": FLAG}

OPTIMIZERS: dict[str, dict[str, list[Any]]] = {
    "optim.Momentum": {**NESTEROV, **CAUTIOUS, **STORED},
    "optim.SGD": {"momentum": [0.0, 0.9], "dampening": [0.0, 0.3], "nesterov": FLAG, "weight_decay": [0.1], **MASTER},
    "optim.Adam": {"use_nesterov": FLAG, "use_amsgrad": FLAG, **CAUTIOUS, **STORED},
    "optim.LazyAdam": {"use_nesterov": FLAG, **MASTER, **DECAY},
    "optim.AdamOffload": {"use_nesterov": FLAG, **MASTER, **DECAY},
    "optim.AdamW": {**CAUTIOUS, **STORED},
    "optim.AdamWeightDecay": {**CAUTIOUS, **STORED},
    "optim.NAdamW": {**CAUTIOUS, **STORED},
    "optim.Lamb": STORED,
    "optim.Lion": {**CAUTIOUS, **STORED},
    "optim.Adagrad": {"update_slots": FLAG, **MASTER, **DECAY},
    "optim.ProximalAdagrad": {"l1": [0.0, 0.01], "l2": [0.0, 0.01], **MASTER, **DECAY},
    "optim.RMSProp": {"momentum": [0.0, 0.5], "centered": FLAG, **MASTER, **DECAY},
    "optim.FTRL": {"l1": [0.0, 0.01], "l2": [0.0, 0.01], **MASTER, **DECAY},
    "optim.AdEMAMix": {"alpha_steps": [0.0, 5.0], "beta3_steps": [0.0, 5.0], **CAUTIOUS, **MASTER, **DECAY},
    "optim.Adan": {**CAUTIOUS, **MASTER, **DECAY},
    "optim.ScheduleFreeSGD": {"warmup_steps": [0, 3], "r": [0.0, 1.0], **MASTER, **DECAY},
    "optim.ScheduleFreeAdamW": {"warmup_steps": [0, 3], "weight_lr_power": [2.0, 0.0], **MASTER, **DECAY},
    "optim.AdaFactor": {"relative_step": FLAG, "beta1": [None, 0.9], "compression": FLAG, **DECAY},
    "optim.Muon": {"nesterov": FLAG, "adjust_lr_fn": ["original", "match_rms_adamw"], **DECAY},
    "optim.Apollo": {"scale_type": ["channel", "tensor"], "norm_growth": [1.01, None], **PROJECTED},
    "optim.GaLore": PROJECTED,
    "optim.thor": {"use_nesterov": FLAG, "enable_clip_grad": FLAG, "frequency": [2, 3], "weight_decay": [0.0, 0.1]},
    "nn.Momentum": {**NESTEROV, **DECAY},
    "nn.SGD": {"momentum": [0.0, 0.9], "dampening": [0.0, 0.3], "nesterov": FLAG, "weight_decay": [0.0, 0.1]},
    "nn.Adam": {"use_nesterov": FLAG, "use_amsgrad": FLAG, "use_lazy": FLAG, **DECAY},
    "nn.AdamOffload": DECAY,
    "nn.LazyAdam": DECAY,
    "nn.AdamWeightDecay": DECAY,
    "nn.Adagrad": {"update_slots": FLAG, **DECAY},
    "nn.RMSProp": {"momentum": [0.0, 0.5], "centered": FLAG, **DECAY},
    "nn.FTRL": {"weight_decay": [0.0, 0.1]},
    "nn.ProximalAdagrad": DECAY,
    "nn.AdaFactor": {"relative_step": FLAG, "weight_decay": [0.0, 0.1]},
    "nn.AdaMax": DECAY,
    "nn.ASGD": {"weight_decay": [0.0, 0.1]},
    "nn.Rprop": {"weight_decay": [0.0, 0.1]},
}
ALIKE = ("Momentum", "SGD", "Adam", "LazyAdam", "AdamOffload", "Adagrad", "ProximalAdagrad", "RMSProp", "FTRL")
SCALED = {*(f"nn.{name}" for name in ALIKE), *(f"optim.{name}" for name in (*ALIKE, "AdaFactor", "Muon", "Apollo"))}
SCALED |= {"optim.GaLore", "optim.thor"}
"""Those that take a loss_scale."""
COUPLED = {f"{module}.{name}" for module in ("optim", "nn") for name in ALIKE}
"""Those that LARS goes around."""
FREEZE = ("param_groups", "freeze_type", "freeze_p", "total_steps")
OPTIONS: dict[str, list[Any]] = {
    "clip_norm": [0.1, 100.0],
    "adaptive_clip": [0.01, "without the head"],
    "accumulation_steps": [2, 3],
    "weight_average": ["warm", "cold"],
    "local_steps": ["nesterov", "mean", "adasum int8", "adacons topk"],
    "dim_reduce": [None, "int8"],
    "check_overflow": [False],
    "fused_optimizer": [False],
}


@dataclass(frozen=True)
class Recipe:
    """How a training is made.

    `untrained`: so many parameters at the front have no gradient. `freeze`: arguments of GradientFreeze, or groups of
    one for a FreezeOpt of all. `boost`: the level and the configuration of AutoBoost. `built`: by amp, or as a cell.
    `own`: whose construct is a user's own, that of the optimizer or of the cell.
    """

    parts: tuple[str, ...] = ()
    weights: str = "float32"
    level: str = "O0"
    untrained: int = 0
    optimizer: str = "optim.SGD"
    settings: dict[str, Any] = field(default_factory=dict)
    rate: str = "float"
    groups: str = ""
    lars: bool = False
    centralized: bool = False
    freeze: tuple[Any, ...] = ()
    boost: tuple[Any, ...] = ()
    scale: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    built: str = "cell"
    compile: str = "off"
    own: str = ""
    seed: int = 0


@st.composite
def recipes(draw: st.DrawFn, compile: Sequence[str] = ("off",)) -> Recipe:
    def one(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    def of(table: dict[str, list[Any]]) -> dict[str, Any]:
        return {name: one(*values) for name, values in table.items()}

    rarely = partial(one, *FLAG, *[False] * 4)
    built, optimizer = one("cell", "amp"), one(*OPTIMIZERS)
    weights = one("float32", "float32", *HALVES) if optimizer.startswith("optim") else "float32"
    names = draw(st.lists(st.sampled_from(sorted(OPTIONS)), max_size=3, unique=True))
    middle = draw(st.lists(st.sampled_from(MIDDLE), max_size=4))
    freezing = (one(2, 3), one(0, 1, 2), one(0.0, 0.5, 1.0), one(4, 7))
    config: dict[str, Any] = {"grad_freeze": dict(zip(FREEZE, freezing, strict=True))}
    if one(*FLAG):
        config["boost"] = {"mode": "manual", **of(dict.fromkeys(("grad_freeze", "less_bn", "grad_accumulation"), FLAG))}
        config["grad_accumulation"] = {"grad_accumulation_step": 2}
        config["less_bn"] = of({"fn_flag": FLAG, "gc_flag": FLAG})
        config["common"] = of({"fused_optimizer": FLAG, "check_overflow": FLAG})
    settings = of(OPTIMIZERS[optimizer])
    freezes, boosts = one((False, False), (False, False), (True, False), (False, True), (True, True))
    likely = one(*[True] * 5, False)  # most of what is always refused says nothing new
    if likely and "dim_reduce" in names:
        names, freezes, boosts = ["dim_reduce"], False, False
    if likely and "local_steps" in names:
        names = [name for name in names if name not in ("weight_average", "dim_reduce")]
        weights = "float32"
    if likely and {"clip_norm", "adaptive_clip"} <= set(names):
        names.remove("clip_norm")
    if likely and settings.get("nesterov") and "dampening" in settings:
        settings |= {"momentum": 0.9, "dampening": 0.0}
    rate = one("float", "float", "tensor", "list", "schedule") if "FTRL" not in optimizer else "float"
    lars = rarely() and (not likely or optimizer in COUPLED)
    if weights == "float16" and "master" in settings:
        settings["master"] = "float32"
    return Recipe(
        parts=(*one((), (), *[(part,) for part in FIRST]), *middle),
        weights=weights,
        level=one("O0", "O2", "O3") if built == "amp" and weights == "float32" else "O0",
        untrained=one(0, 0, 0, 1, 2),
        optimizer=optimizer,
        settings=settings,
        rate=rate,
        groups=one("", "", "plain", "rates", "centralized"),
        lars=lars,
        centralized=rarely() and not lars,
        freeze=one((1,), freezing, freezing) if freezes else (),
        boost=(one("O0", "O1", "O2"), config) if boosts else (),
        scale=one("", "", "sens", "tensor", "fixed", "dynamic", "groups"),
        options=of({name: OPTIONS[name] for name in names}),
        built=built,
        compile=one(*compile),
        seed=draw(st.integers(0, 99)),
    )


def rate_of(kind: str, rate: float = RATE) -> Any:
    if kind == "tensor":
        return Tensor(rate, ms.float32)
    if kind == "list":
        return [rate * (1 + k % 3) for k in range(20)]
    return nn.ExponentialDecayLR(rate, 0.5, 3) if kind == "schedule" else rate


def grouped(recipe: Recipe, parameters: list[Parameter]) -> list[Any]:
    """Two groups that are interleaved."""
    if not recipe.groups or len(parameters) < 2:
        return parameters
    first: dict[str, Any] = {"params": parameters[1::2], "weight_decay": 0.05}
    second: dict[str, Any] = {"params": parameters[::2]}
    if recipe.groups == "rates" and recipe.optimizer != "nn.AdaFactor":  # which raises an error of MindSpore's
        first["lr"] = rate_of(recipe.rate, RATE / 2)
    if recipe.groups == "centralized" and recipe.optimizer.startswith("optim"):
        second["grad_centralization"] = True
    return [first, second, {"order_params": parameters}]


def own(cls: type[nn.Cell]) -> Any:
    """A class whose construct is a user's own."""
    return type(cls.__name__, (cls,), {"construct": lambda self, *inputs: cls.construct(self, *inputs)})


def optimizer_of(recipe: Recipe, net: nn.Cell) -> nn.Cell:
    module, name = recipe.optimizer.split(".")
    settings = dict(recipe.settings)
    if settings.get("weight_decay") == "cell":
        settings["weight_decay"] = Decay()
    if recipe.scale == "sens" and recipe.optimizer in SCALED and "dim_reduce" not in recipe.options:
        settings["loss_scale"] = SCALE
    if name == "thor":
        rate = rate_of(recipe.rate)
        rate = Tensor(rate, ms.float32) if isinstance(rate, (float, list)) else rate
        return optim.thor(net, rate, 0.03, 0.9, batch_size=BATCH, **settings)
    if not settings.get("relative_step"):
        settings["learning_rate"] = rate_of(recipe.rate)
    cls = getattr({"optim": optim, "nn": nn}[module], name)
    cls = own(cls) if recipe.own == "optimizer" else cls
    made = cls(grouped(recipe, net.trainable_params()), **settings)
    if recipe.centralized:
        process = boost.OptimizerProcess(made)
        process.add_grad_centralization(net)
        made = process.generate_new_optimizer()
    return optim.LARS(made) if recipe.lars else made


def scale_of(recipe: Recipe) -> Any:
    """The manager of the loss scale, or None."""
    if recipe.scale == "groups":
        return boost.GroupLossScaleManager(SCALE, [])
    if recipe.scale == "dynamic":
        return amp.DynamicLossScaleManager(SCALE, 2, 3)
    return amp.FixedLossScaleManager(SCALE, recipe.scale == "fixed") if recipe.scale in ("fixed", "sens") else None


def options_of(recipe: Recipe, net: Net, optimizer: Any, folder: Path) -> dict[str, Any]:
    """The options of a training cell."""
    made = dict(recipe.options)
    if made.get("adaptive_clip") == "without the head":
        made["adaptive_clip"] = boost.AdaptiveClip(0.01, exclude=[p.name for p in net.head.trainable_params()])
    if "weight_average" in made:
        made["weight_average"] = boost.ExponentialMovingAverage(0.5, warm_up=made["weight_average"] == "warm")
    if "local_steps" in made:
        made["local_steps"] = LocalSteps(2, *made["local_steps"].split())
    if "dim_reduce" in made:
        path = folder / "matrix.npy"
        size = sum(p.size for p in optimizer.parameters)
        np.save(path, np.linalg.qr(np.random.default_rng(0).standard_normal((size, 4)))[0].T.astype(np.float32))
        made["dim_reduce"] = {"n_components": 4, "pca_mat_path": str(path), "pca_mat_dtype": made["dim_reduce"]}
    return made


def by_configuration(options: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """A configuration of AutoBoost with those options that build_train_network has no keyword for. They are taken."""
    config = {name: dict(section) for name, section in config.items()}
    algorithms: dict[str, Any] = {}
    if (steps := options.pop("accumulation_steps", None)) is not None:
        algorithms["grad_accumulation"] = True
        config["grad_accumulation"] = {"grad_accumulation_step": steps}
    if (reduction := options.pop("dim_reduce", None)) is not None:
        algorithms["dim_reduce"] = True
        config["dim_reduce"] = reduction
    if algorithms:
        config["boost"] = {"mode": "manual", **config.get("boost", {}), **algorithms}
    common = {name: options.pop(name) for name in ("fused_optimizer", "check_overflow") if name in options}
    return {**config, "common": {**config.get("common", {}), **common}}


def made(recipe: Recipe, folder: Path) -> tuple[Net, Callable[[], Any]]:
    """The network, and what makes its training cell."""
    manager = scale_of(recipe)
    grouped = recipe.scale == "groups"
    ms.set_seed(recipe.seed)
    dtype = HALVES.get(recipe.weights, ms.float32)
    net = Net(recipe.parts, dtype, manager if grouped else None, recipe.seed)
    for p in net.trainable_params()[: recipe.untrained]:
        p.requires_grad = False

    def cell() -> Any:
        if grouped:
            manager.loss_scale_groups = [net.body.trainable_params(), net.head.trainable_params()]
        optimizer: Any = optimizer_of(recipe, net)
        options = options_of(recipe, net, optimizer, folder)
        level, config = recipe.boost or ("O0", {})
        if recipe.built == "amp":
            config = by_configuration(options, config)
            options["loss_scale_manager"] = manager
            optimizer = frozen(recipe, net, optimizer)
            options |= {"boost_config_dict": config, "compile": recipe.compile}
            return amp.build_train_network(net, optimizer, Loss(), recipe.level, level, **options)
        if "dim_reduce" in options:
            options["dim_reduce"] = DimReduceConfig(**options["dim_reduce"])
        if recipe.boost:
            _, optimizer = boost.AutoBoost(level, config).network_auto_process_train(net, optimizer)
        optimizer = frozen(recipe, net, optimizer)
        network = nn.WithLossCell(net, Loss())
        if recipe.scale in ("", "sens"):
            scales = recipe.scale and (recipe.optimizer in SCALED or "dim_reduce" in options)
            sens = SCALE if scales else 1.0
            cls = own(boost.BoostTrainOneStepCell) if recipe.own == "cell" else boost.BoostTrainOneStepCell
            return cls(network, optimizer, sens, compile=recipe.compile, **options)
        options.pop("check_overflow", None)  # which such a cell does not have
        sense = manager or Tensor(SCALE, ms.float32)
        sense = sense if grouped or manager is None else manager.get_update_cell()
        return boost.BoostTrainOneStepWithLossScaleCell(network, optimizer, sense, compile=recipe.compile, **options)

    return net, lambda: cell().set_train()


def frozen(recipe: Recipe, net: nn.Cell, optimizer: Any) -> Any:
    if recipe.freeze == (1,):
        return boost.FreezeOpt(optimizer)
    return boost.GradientFreeze(*recipe.freeze).freeze_generate(net, optimizer)[1] if recipe.freeze else optimizer
