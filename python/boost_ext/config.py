"""The configuration of the algorithms: frozen, validated data, passed in and never shared. Imports nothing of ours."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["DimReduceConfig"]


class DimReduceConfig(BaseModel):
    """Dimension-reduced training. Names and defaults are those of mindspore.boost's ``dim_reduce`` section.

    An unknown key, a wrong type or a value out of range raises ``pydantic.ValidationError`` (a ``ValueError``) that
    names the key.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    rho: float = Field(default=0.55, gt=0, lt=1)
    """Factor between the step lengths that the line search tries."""
    gamma: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the momentum of the residual gradient."""
    alpha: float = Field(default=0.001, ge=0, allow_inf_nan=False)
    """Weight of the residual."""
    sigma: float = Field(default=0.4, gt=0, lt=1)
    """Share of the predicted decrease that a step must bring (Armijo's condition)."""
    n_components: int = Field(default=32, ge=1)
    """k, the dimension of the subspace."""
    pca_mat_path: str | None = None
    """The matrix itself, (k, n) in a .npy file; or where to keep the one that is built from ``weight_load_dir``."""
    weight_load_dir: str | None = None
    """Directory of checkpoints to build the matrix from."""
    timeout: int = Field(default=1800, ge=0)
    """Seconds that a rank waits for the matrix of another one."""
