# %% [markdown]
"""
Train a small network in NumPy alone, with the fused ops of boost_ext on its arrays.

Each half of a batch gives gradients of its own, as on two workers, times a loss scale. One pass divides by the loss
scale and looks for inf and nan. AdaSum adds the halves up, their sum is clipped by its global norm, and a fused Adam
updates the weights. Each op is one native call on all arrays. One gradient holds an inf, and its step is skipped.
"""

# %%
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from boost_ext import ops

EPOCHS, BATCH, LOSS_SCALE, CLIP_NORM, BROKEN = 15, 64, 1024.0, 1.0, 100
Array = npt.NDArray[np.float32]


# %%
def gradients(weights: list[Array], x: Array, y: npt.NDArray[np.int64]) -> list[Array]:
    """Of the mean cross-entropy of two dense layers, times the loss scale."""
    w1, b1, w2, b2 = weights
    hidden = np.maximum(x @ w1 + b1, 0)
    logits = hidden @ w2 + b2
    error = np.exp(logits - logits.max(axis=1, keepdims=True))
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(len(y)), y] -= 1
    error *= LOSS_SCALE / len(y)
    inner = (error @ w2.T) * (hidden > 0)
    return [x.T @ inner, inner.sum(axis=0), hidden.T @ error, error.sum(axis=0)]


# %%
images, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split((images / 16).astype(np.float32), labels, test_size=0.2, random_state=0)
rng = np.random.default_rng(0)
weights = [rng.normal(0, 0.1, s).astype(np.float32) for s in [(64, 64), (64,), (64, 10), (10,)]]
moments1, moments2 = ([np.zeros_like(w) for w in weights] for _ in range(2))

# %%
step, tried, clipped, skipped = 0, 0, 0, "no step was skipped"
for _ in track(range(EPOCHS), "training", transient=True, console=Console(stderr=True)):
    order = rng.permutation(len(x))
    for start in range(0, len(x) - BATCH + 1, BATCH):
        batch = order[start : start + BATCH]
        first, second = (gradients(weights, x[half], y[half]) for half in np.split(batch, 2))
        tried += 1
        if tried == BROKEN:
            first[0][3, 5] = np.inf
        report = ops.unscale_and_check([*first, *second], 1 / LOSS_SCALE, report=True)
        if report:
            skipped = f"step {tried} was skipped: {report}"
            continue
        total = ops.adasum_pair(first, second)
        clipped += ops.clip_by_global_norm(total, CLIP_NORM) > CLIP_NORM
        step += 1
        ops.adam_step(weights, total, moments1, moments2, lr=2e-3, step=step)

# %%
w1, b1, w2, b2 = weights
print(skipped)
right = (np.maximum(x_test @ w1 + b1, 0) @ w2 + b2).argmax(axis=1) == y_test
print(f"{step} of {tried} steps made, {clipped} of them clipped, test accuracy {right.mean():.3f}")
