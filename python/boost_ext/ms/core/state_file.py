"""The checksum at the end of a training state: verified before MindSpore's reader sees the file.

That reader takes a file with a flipped bit for another state, or ends the process. The checksum is a field of the
checkpoint's message that MindSpore does not know and skips, so ``mindspore.load_checkpoint`` reads the file as before.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import IO

__all__ = ["seal", "verify"]

_NAME = b"boost_ext.state.blake2b\n"
_DIGEST = 32
_FIELD = bytes([15 << 3 | 2, _DIGEST + len(_NAME)])  # protobuf: number 15, a string of so many bytes
_SIZE = len(_FIELD) + _DIGEST + len(_NAME)
_PIECE = 1 << 20


def seal(path: Path) -> None:
    """Append the checksum of what is in the file."""
    with open(path, "rb+") as file:
        digest = _digest(file, file.seek(0, os.SEEK_END))
        file.seek(0, os.SEEK_END)
        file.write(_FIELD + digest + _NAME)


def verify(owner: str, path: Path) -> None:
    """Raise ValueError if the file is not what :func:`seal` left."""
    with open(path, "rb") as file:
        begin = file.seek(0, os.SEEK_END) - _SIZE
        file.seek(max(begin, 0))
        tail = file.read(_SIZE)
        if begin <= 0 or not (tail.startswith(_FIELD) and tail.endswith(_NAME)):
            raise ValueError(
                f"{owner}: path must end in the checksum of save_training_state, got none in {str(path)!r}: it is cut "
                "short, damaged, or not of this version; cell.load_state_dict(mindspore.load_checkpoint(path)) loads a "
                "file of an earlier version, unchecked"
            )
        if _digest(file, begin) != tail[len(_FIELD) : -len(_NAME)]:
            raise ValueError(f"{owner}: path must match its checksum, got another one for {str(path)!r}: it is damaged")


def _digest(file: IO[bytes], size: int) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST)
    file.seek(0)
    while size > 0 and (piece := file.read(min(size, _PIECE))):
        digest.update(piece)
        size -= len(piece)
    return digest.digest()
