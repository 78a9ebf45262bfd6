"""What AdaSum over ranks sends, and the least that an all-reduce can send."""

from __future__ import annotations

from boost_ext.adasum import Schedule, padded

__all__ = ["bytes_sent", "least_bytes"]

_DOTS = 3 * 16  # bytes of one tensor's dot products on their way, see csrc/ops/adasum_part.h


def bytes_sent(plan: Schedule, elements: int, itemsize: int, tensors: int, *, gathers_in_groups: bool = True) -> int:
    """The bytes that one rank sends for one adaptive sum, if collectives run in rings.

    A gather of x bytes from each of g ranks sends x (g - 1), a sum of x bytes 2 x (g - 1) / g.

    Args:
        plan (Schedule): of this rank.
        elements (int): of all tensors together.
        itemsize (int): bytes of an element.
        tensors (int): how many; each has its dot products.
        gathers_in_groups (bool): False on MindSpore's CPU backend, which gathers among all ranks only: others add up
            vectors with zeros in them, which sends twice the bytes. Default: True.
    """
    ranks = len(plan.parts)
    size = padded(elements, plan.part_count) * itemsize

    def gather(part: int, group: int) -> int:
        return part * (group - 1) * (1 if gathers_in_groups or group == ranks else 2)

    part = size // plan.device_number
    total = 0
    if plan.fold is not None:
        total += part  # a sum of two ranks
        if not plan.gives_away:
            total += gather(_DOTS * tensors, len(plan.fold.holders))
    for level in plan.levels:
        part //= 2
        total += gather(part, 2) + gather(_DOTS * tensors, len(level.holders))
    return total + gather(size // plan.part_count, ranks)


def least_bytes(elements: int, itemsize: int, ranks: int) -> int:
    """The minimum for any all-reduce of distinct vectors: each rank sends 2 (1 - 1 / ranks) of a vector."""
    return -(-2 * elements * itemsize * (ranks - 1) // ranks)
