"""The fused kernels as optimizers of PyTorch.

Each is a ``torch.optim.Optimizer`` of the names and defaults of ``torch.optim``: for a faster step change the import.
Groups, schedulers, hooks, closures, ``add_param_group`` and ``torch.amp.GradScaler`` work as with PyTorch's own, on the
CPU and on CUDA (``GaLore`` on the CPU alone). Parameters may be float32, float16 and bfloat16, of any dense layout, and
DTensors but for the rules of whole tensors (``Lamb``, ``Lars``, ``Adafactor``, ``Muon``, ``Apollo``, ``GaLore``). See
:class:`Storage` for state in 8 and 16 bits and for float32 masters of half weights. ``torch.ops.boost_ext`` has the ops
of :mod:`boost_ext.ops` for ``torch.compile``.

It needs PyTorch (``pip install boost_ext[torch]``), and never MindSpore.
"""

from boost_ext.torch import library as library  # registers torch.ops.boost_ext
from boost_ext.torch.apollo import Apollo
from boost_ext.torch.galore import GaLore
from boost_ext.torch.gradients import adaptive_clip_grad_, clip_grad_norm_, unscale_
from boost_ext.torch.muon import Muon
from boost_ext.torch.newer_rules import *  # noqa: F403
from boost_ext.torch.newer_rules import __all__ as _NEWER_RULES
from boost_ext.torch.optimizer import FusedOptimizer, Storage
from boost_ext.torch.rules import *  # noqa: F403
from boost_ext.torch.rules import __all__ as _RULES
from boost_ext.torch.schedule_free import ScheduleFreeAdamW, ScheduleFreeSGD

__all__ = [
    "Apollo",
    "FusedOptimizer",
    "GaLore",
    "Muon",
    "ScheduleFreeAdamW",
    "ScheduleFreeSGD",
    "Storage",
    "adaptive_clip_grad_",
    "clip_grad_norm_",
    "unscale_",
    *_NEWER_RULES,
    *_RULES,
]
