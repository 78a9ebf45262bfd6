"""What disks and interrupted copies do to a file."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator


def damaged(whole: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Flipped bits, zeroed stretches, cuts, and stretches taken out or put in; each differs from the whole."""
    draw = random.Random(seed)
    for number in range(count):
        content = bytearray(whole)
        first, width = draw.randrange(len(whole)), draw.randrange(1, 200)
        kind = number % 5
        if kind == 0:
            content[first] ^= 1 << draw.randrange(8)
        elif kind == 1:
            content[first : first + width] = bytes(len(content[first : first + width]))
        elif kind == 2:
            del content[first:]
        elif kind == 3:
            del content[first : first + width]
        else:
            content[first:first] = draw.randbytes(width)
        if content != whole:
            yield bytes(content)


def is_refused(read: Callable[[], object], *starts: str) -> bool:
    """Whether what was read is refused by a ValueError that begins so; anything else that is raised is a failure."""
    try:
        read()
    except ValueError as error:
        if str(error).startswith(starts):
            return True
        raise
    return False
