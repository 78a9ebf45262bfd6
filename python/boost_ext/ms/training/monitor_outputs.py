"""What a monitor writes to, which may be full: a training outlives its log."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from boost_ext.report.log import Header, Record, RunLogWriter

__all__ = ["MonitorLog", "Surviving"]

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Surviving:
    """``with surviving(what):`` passes over an error of an output, and warns of the first one of each."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    @contextmanager
    def __call__(self, what: str, kind: type[Exception] = OSError) -> Iterator[None]:
        try:
            yield
        except kind as error:
            self.warn(what, error)

    def warn(self, what: str, error: Exception) -> None:
        """Once for each output."""
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(
                f"BoostMonitor: {what} could not be written: {error}; the training continues, and steps are missing "
                "there until it can be written again",
                stacklevel=4,
            )


class MonitorLog:
    """A run log that is begun when there is room for its header, and misses the steps that there was no room for.

    Raises:
        FileExistsError, ValueError: as :class:`RunLogWriter`. OSError: a path that cannot be written, unless the disk
            is full.
    """

    def __init__(self, path: Path, header: Header, *, resume: bool, surviving: Surviving) -> None:
        self._path, self._header, self._resume, self._surviving = path, header, resume, surviving
        self._log: RunLogWriter | None = None
        try:
            self._log = self._begun()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            surviving.warn(str(path), error)

    def _begun(self) -> RunLogWriter:
        return RunLogWriter(self._path, self._header, resume=self._resume)

    def write(self, record: Record) -> None:
        """Append a line, if that is possible."""
        with self._surviving(str(self._path)):
            self._log = self._log or self._begun()
            self._log.write(record)

    def close(self) -> None:
        """Close the file."""
        with self._surviving(str(self._path)):
            if self._log is not None:
                self._log.close()
