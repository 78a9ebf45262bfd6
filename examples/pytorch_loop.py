"""A PyTorch training loop with an optimizer of boost_ext. It needs PyTorch: ``pip install torch``.

The import is the only change: groups, schedulers and checkpoints are PyTorch's. Clipping and the step are one native
call each, on all tensors, in place. A second network is trained beside it by PyTorch's own clipping and Adam. Both end
with the same weights, up to rounding. A third one has Adam's state in 8 bits.
"""

import copy
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from boost_ext.torch import Adam, Adam8bit, clip_grad_norm_

EPOCHS, BATCH, RATE, CLIP_NORM = 10, 64, 2e-3, 0.5
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = map(
    torch.from_numpy, train_test_split((images / 16).astype(np.float32), labels, test_size=0.2, random_state=0)
)
ours = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
theirs, narrow = copy.deepcopy(ours), copy.deepcopy(ours)
trainings: list[tuple[Any, Any, Any]] = [
    (ours, Adam(ours.parameters(), RATE), clip_grad_norm_),
    (theirs, torch.optim.Adam(theirs.parameters(), RATE), nn.utils.clip_grad_norm_),
    (narrow, Adam8bit(narrow.parameters(), RATE), clip_grad_norm_),
]
loss_fn = nn.CrossEntropyLoss()
norms: list[Any] = []
for _ in track(range(EPOCHS), "training", transient=True, console=Console(stderr=True)):
    for batch in torch.randperm(len(x))[: len(x) // BATCH * BATCH].split(BATCH):
        for net, optimizer, clip in trainings:
            optimizer.zero_grad()
            loss_fn(net(x[batch]), y[batch]).backward()
            norm = clip(net.parameters(), CLIP_NORM)
            if net is ours:
                norms.append(norm)  # a tensor: nothing is read by the host here
            optimizer.step()


def accuracy(net: Any) -> float:
    with torch.no_grad():
        return float((net(x_test).argmax(dim=1) == y_test).float().mean())


clipped = int((torch.stack(norms) > CLIP_NORM).sum())
pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
difference = max(float((a - b).detach().abs().max()) for a, b in pairs)
print(f"{len(norms)} steps, {clipped} of them clipped, test accuracy {accuracy(ours):.3f}")
print(f"largest difference of a weight to PyTorch's own Adam: {difference:.1e}")
print(f"with the state of large tensors in 8 bits: test accuracy {accuracy(narrow):.3f}")
