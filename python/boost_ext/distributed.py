"""Training on several ranks; needs the ``mindspore`` extra. docs/distributed.md is the manual."""

from boost_ext.ms.ranks.rank_states import load_rank_state, save_rank_state
from boost_ext.ms.ranks.ranks import init_ranks
from boost_ext.ms.step.local_steps import LocalSteps

__all__ = ["LocalSteps", "init_ranks", "load_rank_state", "save_rank_state"]
