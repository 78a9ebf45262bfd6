"""Apollo and GaLore beside AdamW, all tuned alike, on a transformer of a million weights over characters.

``python -m benchmarks.apollo_characters [--quick] [--seeds N] [--out DIR] [--page docs/apollo.md]``: a table of the
loss, the state and the time of a step. It needs PyTorch.

The text is that of ``pydoc_data.topics``, which every Python has. Its first eight tenths train, the next tenth is for
the choice of learning rates, the last tenth for the table. A causal transformer of 5 blocks, 128 wide, sees 64
characters and names the next one. A training makes 250 steps of 8 places of the text, drawn at random; all rules begin
at the same weights and see the same places. Each learning rate rises for a tenth of the steps and falls to 0 by a
cosine. Its largest value is the best of a grid of factor 2 around 2**-8, by the loss on the second part, with a seed
that is not in the table. The grid grows until the best is not at its edge. Weight decay is 0.01; all else stays at the
defaults. Apollo and GaLore project the matrices of the blocks, and their scales make steps as long as AdamW's. GaLore
makes a new projection every 50 steps. Embedding, positions, norms and the last layer make AdamW's steps, with the same
rate.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from torch import nn

import boost_ext
from boost_ext.files import write_text
from boost_ext.torch import AdamW, Apollo, GaLore

from .muon_digits import medians
from .rules_mnist1d import DECAY, FIRST_SEED, TUNING_SEED, best_rate

WIDTH, HEADS, BLOCKS, CONTEXT = 128, 4, 5, 64
BATCH, STEPS = 8, 250
USUAL, FACTOR = 2.0**-8, 2.0
TRAIN, TUNE, REPORT = range(3)  # parts of the text
BESIDE = "AdamW"
RULES: dict[str, dict[str, Any]] = {
    BESIDE: {},
    "Apollo": {"scale": 8.0},
    "APOLLO-Mini": {"rank": 1, "scale_type": "tensor", "scale": 128.0},
    "GaLore": {"scale": 1.0, "update_proj_gap": 50},
}
TEXT = "\n".join(topics.values())
CHARACTERS = sorted(set(TEXT))


class Network(nn.Module):
    """Of each character and those before it the logits of the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(CHARACTERS), WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        nn.init.normal_(self.embedding.weight, std=0.02)
        block = partial(nn.TransformerEncoderLayer, WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu")
        self.blocks = nn.ModuleList(block(batch_first=True, norm_first=True, bias=False) for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, len(CHARACTERS), bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, x: Any) -> Any:
        x = self.embedding(x) + self.positions
        for block in self.blocks:
            x = block(x, src_mask=self.mask, is_causal=True)
        return self.head(self.norm(x))


def on_one_thread() -> None:
    """This process."""
    torch.set_num_threads(1)
    boost_ext.set_num_threads(1)


def parts() -> tuple[Any, Any, Any]:
    """The text as numbers: to train, to tune, to report."""
    number = {character: i for i, character in enumerate(CHARACTERS)}
    numbers = torch.tensor([number[character] for character in TEXT])
    return numbers.tensor_split((len(TEXT) * 8 // 10, len(TEXT) * 9 // 10))  # type: ignore[return-value]


def matrices(network: Network) -> list[Any]:
    """What is projected."""
    return [p for p in network.blocks.parameters() if p.ndim == 2]


def optimizer_of(rule: str, network: Network, rate: float) -> Any:
    if rule == BESIDE:
        return AdamW(network.parameters(), rate, weight_decay=DECAY)
    projected = matrices(network)
    others = [p for p in network.parameters() if p not in set(projected)]
    chosen, flag = (GaLore, "use_galore") if rule == "GaLore" else (Apollo, "use_apollo")
    groups = [{"params": projected}, {"params": others, flag: False}]
    return chosen(groups, rate, weight_decay=DECAY, **RULES[rule])


def loss_of(network: Network, windows: Any) -> Any:
    """Mean cross entropy of windows of one character more than the network sees."""
    return nn.functional.cross_entropy(network(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def evaluated(network: Network, part: Any) -> float:
    windows = part.unfold(0, CONTEXT + 1, CONTEXT)
    with torch.no_grad():
        return sum(float(loss_of(network, some)) * len(some) for some in windows.split(64)) / len(windows)


def run(rule: str, steps: int, rate: float, seed: int, part: int) -> float:
    """The loss on a part of the text after a training."""
    torch.manual_seed(seed)
    text, network = parts()[TRAIN], Network()
    draw, every = np.random.default_rng(seed), torch.arange(CONTEXT + 1)
    optimizer = optimizer_of(rule, network, rate)
    for step in range(steps):
        share = min(10 * (step + 1) / steps, 0.5 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate * share
        places = torch.from_numpy(draw.integers(0, len(text) - CONTEXT, BATCH))
        optimizer.zero_grad()
        loss_of(network, text[places[:, None] + every]).backward()
        optimizer.step()
    return evaluated(network, parts()[part])


def tuned(rule: str, quick: bool) -> tuple[float, dict[float, float]]:
    """The best learning rate, and the losses of all that were tried."""
    tried: dict[float, float] = {}
    if quick:
        return USUAL, tried

    def score(rate: float) -> float:
        tried[rate] = run(rule, STEPS, rate, TUNING_SEED, TUNE)
        return -tried[rate]

    return best_rate(score, USUAL, FACTOR), tried


def cost(rounds: int) -> Iterator[tuple[str, float, int, int]]:
    """Of each rule the time of a step in ms of CPU, the bytes of state, and those of the projected matrices."""
    network, windows = Network(), parts()[TRAIN].unfold(0, CONTEXT + 1, CONTEXT)[:BATCH]
    optimizers = {rule: optimizer_of(rule, network, 1e-9) for rule in RULES}

    def gradients() -> None:
        network.zero_grad()
        loss_of(network, windows).backward()

    gradients()
    calls: dict[str, Callable[[], Any]] = {rule: optimizer.step for rule, optimizer in optimizers.items()}
    times = medians(calls | {"": gradients}, rounds, time.process_time)
    for rule, time_of in times.items():
        state = optimizers[rule].state if rule else {}
        sizes = {p: sum(s.nbytes for k, s in of.items() if k != "step" and s is not None) for p, of in state.items()}
        yield rule, 1e3 * time_of, sum(sizes.values()), sum(sizes.get(p, 0) for p in matrices(network))


def spread(values: Sequence[float], digits: int) -> str:
    """The mean and the standard deviation."""
    return f"{np.mean(values):.{digits}f}" + (f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else "")


def table(found: dict[str, dict[str, Any]], costs: dict[str, tuple[float, int, int]]) -> Iterator[str]:
    base, (step, state, own) = np.array(found[BESIDE]["losses"]), costs[BESIDE]
    yield "| rule | learning rate | loss | difference, % | state, bytes | share | of matrices | step, ms | ratio |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for rule, of in found.items():
        change, (ms, bytes_of, own_bytes) = 100 * (np.array(of["losses"]) / base - 1), costs[rule]
        shares = f"{bytes_of / state:.3f}", f"{own_bytes / own:.3f}", f"{ms / step:.2f}"
        cells = [rule, f"{of['rate']:.2g}", spread(of["losses"], 4), spread(change, 2), f"{bytes_of:,}", *shares[:2]]
        yield f"| {' | '.join([*cells, f'{ms:.2f}', shares[2]])} |"
    yield ""
    yield f"Gradients take {costs[''][0]:.0f} ms a step."


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.apollo_characters", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed and rate, few steps: only whether it runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--page", type=Path, metavar="FILE", help="docs/apollo.md")
    options = parser.parse_args()

    from rich.progress import track

    steps, seeds = (4, 1) if options.quick else (STEPS, options.seeds)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn"), on_one_thread) as pool:
        searches = track(pool.map(partial(tuned, quick=options.quick), RULES), "rates", len(RULES))
        found: dict[str, dict[str, Any]] = {}
        for rule, (rate, tried) in zip(RULES, searches, strict=True):
            found[rule] = {"rate": rate, "tried": tried}
            print(f"{rule}: rate {rate:.2g} of {tried}", flush=True)
        own = range(FIRST_SEED, FIRST_SEED + seeds)
        jobs = [(rule, steps, of["rate"], seed, REPORT) for seed in own for rule, of in found.items()]
        losses = track(pool.map(run, *zip(*jobs, strict=True)), "seeds", len(jobs))
        for (rule, _, _, seed, _), loss in zip(jobs, losses, strict=True):
            found[rule].setdefault("losses", []).append(loss)
            print(f"{rule}, seed {seed}: {loss:.4f}", flush=True)
    on_one_thread()
    costs = {rule: tuple(numbers) for rule, *numbers in cost(3 if options.quick else 100)}
    lines = list(table(found, costs))
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / "apollo_characters.json", json.dumps({"runs": found, "cost": costs}, indent=1) + "\n")
    if options.page is not None:
        from . import report

        report.update_section(options.page, "apollo_characters", lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
