"""The numbers of the demonstration, in one frozen object."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Mode", "Settings"]

Mode = Literal["pynative", "graph"]


@dataclass(frozen=True)
class Settings:
    """What all runs share, and what one of them needs.

    The defaults were chosen on the full run: a learning rate at which nn.Momentum converges steadily, and for DimReduce
    the algorithm's own defaults with a learning rate of 1, since its step is a quasi-Newton step already.
    """

    epochs: int = 12
    batch_size: int = 32
    seed: int = 0
    """Of the initial weights and of the order of the batches. The train/test split is fixed."""
    mode: Mode = "pynative"
    target: float = 0.97
    """Test accuracy whose first time is measured."""
    learning_rate: float = 0.05
    momentum: float = 0.9

    init_loss_scale: float = 2.0**24
    """Overflows float16 in the first steps, so that the scale has to find its level."""
    scale_factor: float = 2.0
    scale_window: int = 50
    """Steps without overflow before the scale grows again; short, for a short run."""

    n_components: int = 16
    short_epochs: int = 3
    """Length of the plain run whose checkpoints span DimReduce's subspace."""
    short_batch_size: int = 32
    """Not ``batch_size``: the number of checkpoints must not depend on the user's choice."""
    checkpoint_every: int = 4
    """Steps between two of them."""
    dim_reduce_batch_size: int = 479
    """A third of the training images: the line search compares losses, and small batches make them noisy."""
    dim_reduce_learning_rate: float = 1.0

    @classmethod
    def quick(cls, **changes: Any) -> Settings:
        """A run for continuous integration: enough to see every part work, not to converge."""
        small = {
            "epochs": 3,
            "target": 0.9,
            "short_epochs": 1,
            "checkpoint_every": 2,
            "dim_reduce_batch_size": 256,
        }
        return cls(**{**small, **changes})

    @property
    def length(self) -> str:
        """For titles."""
        return "1 epoch" if self.epochs == 1 else f"{self.epochs} epochs"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
