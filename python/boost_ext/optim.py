"""The optimizers: native steps behind the interface of ``mindspore.nn``'s."""

from boost_ext.ms.optim.adafactor import AdaFactor
from boost_ext.ms.optim.adagrad import Adagrad, ProximalAdagrad
from boost_ext.ms.optim.adam import Adam, AdamOffload, AdamW, AdamWeightDecay, LazyAdam, NAdamW
from boost_ext.ms.optim.adan import Adan
from boost_ext.ms.optim.ademamix import AdEMAMix
from boost_ext.ms.optim.apollo import Apollo
from boost_ext.ms.optim.ftrl import FTRL
from boost_ext.ms.optim.fused import FusedOptimizer
from boost_ext.ms.optim.galore import GaLore
from boost_ext.ms.optim.lamb import Lamb
from boost_ext.ms.optim.lars import LARS
from boost_ext.ms.optim.lion import Lion
from boost_ext.ms.optim.momentum import Momentum
from boost_ext.ms.optim.muon import Muon
from boost_ext.ms.optim.rmsprop import RMSProp
from boost_ext.ms.optim.schedule_free import ScheduleFreeAdamW, ScheduleFreeSGD
from boost_ext.ms.optim.sgd import SGD
from boost_ext.ms.optim.storage import convert_state
from boost_ext.ms.optim.thor import ConvertModelUtils, ConvertNetUtils, Thor, thor
from boost_ext.ms.optim.thor_layers import convert_to_thor_net

__all__ = [
    "FTRL",
    "LARS",
    "SGD",
    "AdEMAMix",
    "AdaFactor",
    "Adagrad",
    "Adam",
    "AdamOffload",
    "AdamW",
    "AdamWeightDecay",
    "Adan",
    "Apollo",
    "ConvertModelUtils",
    "ConvertNetUtils",
    "FusedOptimizer",
    "GaLore",
    "Lamb",
    "LazyAdam",
    "Lion",
    "Momentum",
    "Muon",
    "NAdamW",
    "ProximalAdagrad",
    "RMSProp",
    "ScheduleFreeAdamW",
    "ScheduleFreeSGD",
    "Thor",
    "convert_state",
    "convert_to_thor_net",
    "thor",
]
