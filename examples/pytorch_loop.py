"""A PyTorch training loop with the fused ops of boost_ext on its tensors. It needs PyTorch: ``pip install torch``.

The check for inf and nan, the clipping and Adam are one native call each, on all tensors, in place. A second network is
trained beside it by PyTorch's own clipping and Adam. Both end with the same weights, up to rounding.
"""

import copy

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from boost_ext import ops

EPOCHS, BATCH, RATE, CLIP_NORM = 10, 64, 2e-3, 0.5
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = map(
    torch.from_numpy, train_test_split((images / 16).astype(np.float32), labels, test_size=0.2, random_state=0)
)
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
theirs = copy.deepcopy(net)
params, their_params = list(net.parameters()), list(theirs.parameters())
adam = torch.optim.Adam(their_params, RATE)
moments1, moments2 = ([torch.zeros_like(p) for p in params] for _ in range(2))
loss_fn = nn.CrossEntropyLoss()
step = clipped = 0
for _ in track(range(EPOCHS), "training", transient=True, console=Console(stderr=True)):
    for batch in torch.randperm(len(x))[: len(x) // BATCH * BATCH].split(BATCH):
        loss_fn(net(x[batch]), y[batch]).backward()
        with torch.no_grad():  # the ops write weights that require gradients
            grads = [p.grad for p in params]
            if not ops.unscale_and_check(grads, 1.0):
                clipped += ops.clip_by_global_norm(grads, CLIP_NORM) > CLIP_NORM
                step += 1
                eps = 1e-8 * (1 - 0.999**step) ** 0.5  # the op adds it before the bias correction, PyTorch after it
                ops.adam_step(params, grads, moments1, moments2, lr=RATE, step=step, eps=eps)
        net.zero_grad()

        loss_fn(theirs(x[batch]), y[batch]).backward()
        nn.utils.clip_grad_norm_(their_params, CLIP_NORM)
        adam.step()
        adam.zero_grad()

with torch.no_grad():
    accuracy = (net(x_test).argmax(dim=1) == y_test).float().mean()
    difference = max(float((a - b).abs().max()) for a, b in zip(params, their_params, strict=True))
print(f"{step} steps, {clipped} of them clipped, test accuracy {accuracy:.3f}")
print(f"largest difference of a weight to PyTorch's own Adam: {difference:.1e}")
