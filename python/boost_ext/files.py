"""How this project writes a file: beside its target, synced, renamed. And how it reads JSON that may be anything.

A reader finds the old file or the new one, whole, whatever ends the writer: the old one stays until the rename, and is
never unlinked. A writer works in a folder of its own beside the target, in which it holds a lock. The lock of a killed
writer is free, by which the next writer in that place knows what to remove.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["parsed_json", "replacing", "save_figure", "write_bytes", "write_text"]

_HOST = socket.gethostname().replace("/", "_")
_LOCK = "lock"
_FOREIGN_AGE = 24 * 3600.0
"""Seconds after which leftovers of another machine are removed: on some network file systems a lock holds on one
machine only, so a free one does not say that the writer is dead."""
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS}


@contextmanager
def replacing(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Where to write what takes the place of ``target``: a path beside it, of the same name, that does not exist yet.

    Without an exception the file there is synced and renamed to ``target``, and the folder is synced. With one, nothing
    has changed but that leftovers of killed writers are gone.

    Raises:
        OSError: the disk. If it is the sync of the folder that fails, ``target`` is the new file already.
    """
    target = Path(target)
    with _workspace(target.absolute().parent) as place:
        part = place / target.name
        yield part
        _sync(part)
        os.replace(part, target)
    try:
        _sync(target.absolute().parent)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def write_bytes(target: str | os.PathLike[str], content: bytes) -> None:
    """``Path.write_bytes``, by :func:`replacing`."""
    with replacing(target) as part:
        part.write_bytes(content)


def write_text(target: str | os.PathLike[str], content: str) -> None:
    """``Path.write_text`` in UTF-8, by :func:`replacing`."""
    write_bytes(target, content.encode())


def save_figure(target: str | os.PathLike[str], figure: Any, **options: Any) -> None:
    """``figure.savefig`` of Matplotlib, by :func:`replacing`; the suffix says the format."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=Path(target).suffix[1:], **options)
    write_bytes(target, drawn.getvalue())


def parsed_json(owner: str, text: str | bytes) -> Any:
    """What JSON from a file says.

    Raises:
        ValueError: it is no JSON, or nested too deeply; begins with ``owner``.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{owner} must be JSON, got: {error}") from error


@contextmanager
def _workspace(folder: Path) -> Iterator[Path]:
    _clear(folder)
    while (made := _claimed(folder)) is None:
        pass
    place, lock = made
    try:
        yield place
    finally:
        with suppress(OSError):  # the next writer removes it
            _remove(place)
        os.close(lock)


def _claimed(folder: Path) -> tuple[Path, int] | None:
    """A new folder and its lock, held; None if another writer took it for a leftover before it was locked."""
    place = folder / f".boost_ext.{_HOST}.{secrets.token_hex(6)}.part"
    place.mkdir()
    try:
        lock = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    except FileNotFoundError:
        return None
    except OSError:
        place.rmdir()
        raise
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lost = not (place / _LOCK).exists()
    except BlockingIOError:
        lost = True
    except OSError:  # a file system without locks, where no leftover is removed either
        lost = False
    if lost:
        os.close(lock)
        return None
    return place, lock


def _clear(folder: Path) -> None:
    """Remove what killed writers left."""
    for place in folder.glob(".boost_ext.*.part"):
        with suppress(OSError):
            try:
                lock = os.open(place / _LOCK, os.O_RDWR)
            except FileNotFoundError:
                place.rmdir()
                continue
            try:
                ours = place.name.startswith(f".boost_ext.{_HOST}.")
                if ours or time.time() - place.stat().st_mtime > _FOREIGN_AGE:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(place)
            finally:
                os.close(lock)


def _remove(place: Path) -> None:
    """The lock goes last: a folder with files and without a lock would stay for ever."""
    for file in place.iterdir():
        if file.name != _LOCK:
            file.unlink()
    (place / _LOCK).unlink()
    place.rmdir()


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
