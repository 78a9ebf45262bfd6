"""A training of GPT-2 (124 and 355 million weights) in PyTorch on a GPU: the time of a step, what the optimizer takes
of it, and memory, with PyTorch's fused AdamW and with ours.

    python -m benchmarks.cuda.training [--quick]

Random tokens, the same each step; so the loss falls to 0, and shows that the variants learn alike. Weights are float32
under autocast to bfloat16, or bfloat16 with what is below them kept by the optimizer.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

import boost_ext.torch as ours

WORDS, LENGTH = 50257, 1024


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, 64).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """Radford et al. 2019; the table of words is the output layer, too."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens[:, :-1]) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.words.weight)
        return functional.cross_entropy(logits.float().view(-1, WORDS), tokens[:, 1:].reshape(-1))


class Variant(NamedTuple):
    name: str
    optimizer: Callable[[Any], Any]
    clip: Callable[..., Any]
    is_half: bool = False


HYPER: dict[str, Any] = {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
VARIANTS = (
    Variant("torch AdamW, fused", lambda p: torch.optim.AdamW(p, fused=True, **HYPER), nn.utils.clip_grad_norm_),
    Variant("AdamW", lambda p: ours.AdamW(p, **HYPER), ours.clip_grad_norm_),
    Variant("AdamW8bit", lambda p: ours.AdamW8bit(p, **HYPER), ours.clip_grad_norm_),
    Variant("AdamW, split16", lambda p: ours.AdamW(p, master="split16", **HYPER), ours.clip_grad_norm_, True),
    Variant("AdamW8bit, split8", lambda p: ours.AdamW8bit(p, master="split8", **HYPER), ours.clip_grad_norm_, True),
)


class Result(NamedTuple):
    step_ms: float
    optimizer_ms: float
    peak_gb: float
    loss: float


def train(variant: Variant, layers: int, width: int, batch: int, steps: int) -> Result:
    torch.manual_seed(0)
    net = Gpt2(layers, width).cuda()
    if variant.is_half:
        net = net.bfloat16()
    tokens = torch.randint(WORDS, (batch, LENGTH + 1), device="cuda")
    optimizer = variant.optimizer(net.parameters())
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(steps):
        begin, between, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        begin.record()
        with torch.autocast("cuda", torch.bfloat16, enabled=not variant.is_half):
            loss = net(tokens)
        loss.backward()
        between.record()
        variant.clip(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        end.record()
        end.synchronize()
        times.append((begin.elapsed_time(end), between.elapsed_time(end)))
    whole, part = (statistics.median(t) for t in zip(*times[5:], strict=True))
    return Result(whole, part, torch.cuda.max_memory_allocated() / 1e9, loss.item())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small network, few steps")
    quick = parser.parse_args().quick
    shapes = ((2, 128, 1),) if quick else ((12, 768, 8), (24, 1024, 4))
    card = torch.cuda.get_device_name()
    for layers, width, batch in shapes:
        print(f"\nGPT-2, {layers} layers of {width}, {batch} x {LENGTH} tokens, {card}, torch {torch.__version__}\n")
        print("| optimizer | step ms | ratio | clip and optimizer ms | ratio | peak GB | loss |")
        print("|---|---|---|---|---|---|---|")
        first = None
        for variant in VARIANTS:
            result = train(variant, layers, width, batch, 8 if quick else 40)
            first = first or result
            print(
                f"| {variant.name} | {result.step_ms:.1f} | {first.step_ms / result.step_ms:.2f} | "
                f"{result.optimizer_ms:.2f} | {first.optimizer_ms / result.optimizer_ms:.2f} | {result.peak_gb:.2f} | "
                f"{result.loss:.3f} |",
                flush=True,
            )
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
