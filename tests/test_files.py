"""Files are written whole or not at all: an OSError or a kill at every call of the system, and what it leaves."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from boost_ext import files, pca

CALLS = ("open", "os.mkdir", "os.rename", "os.rmdir", "os.fsync", "fcntl.flock")
OLD, NEW = (np.random.default_rng(seed).standard_normal((2, 700)).astype(np.float32) for seed in range(2))


def load(path: Path) -> np.ndarray:
    return pca.load_matrix(path, n_components=2, n_elements=700)


class Failure:
    """Counts what the process asks of the system below a folder, and lets the call of one number end in an OSError."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.calls, self.fails, self.on = str(folder), 0, -1, False
        fsync = os.fsync

        def audited(descriptor: int) -> None:
            sys.audit("os.fsync", os.readlink(f"/proc/self/fd/{descriptor}"))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", audited)
        sys.addaudithook(self)  # for good: off, it does nothing

    def __call__(self, event: str, arguments: tuple) -> None:
        if self.on and event in CALLS and (event == "fcntl.flock" or self.folder in str(arguments[0])):
            self.calls += 1
            if self.calls == self.fails:
                raise OSError(errno.EIO, f"Input/output error in {event}")

    def at(self, call: int) -> None:
        self.calls, self.fails, self.on = 0, call, True


@pytest.mark.parametrize("which", ["matrix", "text"])
def test_an_error_at_any_call_leaves_the_old_file_or_the_new_one(tmp_path: Path, monkeypatch, which: str) -> None:
    path = tmp_path / "p.npy"

    def write(values: np.ndarray) -> None:
        if which == "matrix":
            pca.save_matrix(path, values)
        else:
            files.write_bytes(path, values.tobytes())

    def read() -> bytes:
        return load(path).tobytes() if which == "matrix" else path.read_bytes()

    write(OLD)
    failure = Failure(tmp_path, monkeypatch)
    failed, seen, call = 0, list[bool](), 0
    while call == 0 or failure.calls >= call:
        call += 1
        failure.at(call)
        try:
            write(NEW)
        except OSError as error:
            failed += error.errno == errno.EIO
        finally:
            failure.on = False
        assert read() in (OLD.tobytes(), NEW.tobytes())
        seen.append(read() == OLD.tobytes())
        write(OLD)
        assert read() == OLD.tobytes()
        assert [entry.name for entry in tmp_path.iterdir()] == ["p.npy"], "the writer after it removes what is left"
    assert call > 8
    assert failed >= 5, "a failed lock or clean-up is none of the write"
    assert sum(seen) >= failed - 2, "only after the rename the new file is there: the sync of the folder"


def test_a_writer_killed_at_any_call_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """SIGKILL, in a child for each call; then the parent looks, and writes again."""
    script = """
        import os, signal, sys
        from pathlib import Path
        import numpy as np
        from boost_ext import pca

        path = Path(sys.argv[1]) / "p.npy"
        values = [np.random.default_rng(seed).standard_normal((2, 700)).astype(np.float32) for seed in range(2)]
        counted, fatal, fsync = 0, 0, os.fsync

        def killed(event, arguments):
            global counted
            if fatal and event in ("open", "os.mkdir", "os.rename", "os.rmdir", "os.fsync", "os.remove", "fcntl.flock"):
                counted += 1
                if counted == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)

        def audited(descriptor):
            sys.audit("os.fsync", descriptor)
            fsync(descriptor)

        os.fsync = audited
        sys.addaudithook(killed)
        for call in range(1, 100):
            pca.save_matrix(path, values[0])
            left = sorted(os.listdir(path.parent))
            assert left == ["p.npy"], left
            child = os.fork()
            if child == 0:
                fatal = call
                pca.save_matrix(path, values[1])
                os._exit(0)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            found = pca.load_matrix(path, n_components=2, n_elements=700)
            which = [np.array_equal(found, each) for each in values]
            assert any(which)
            print(call, code, which.index(True), len(os.listdir(path.parent)))
            if code == 0:
                break
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    rows = [tuple(map(int, line.split())) for line in result.stdout.splitlines()]
    assert [code for _, code, _, _ in rows] == [-9] * (len(rows) - 1) + [0]
    assert len(rows) > 8
    found = [which for _, _, which, _ in rows]
    assert found == sorted(found), "the old one up to the rename, the new one after it"
    assert found[0] == 0
    assert found[-1] == 1
    assert any(entries == 2 for _, _, _, entries in rows), "some were killed with their work half done"


def test_a_live_writer_keeps_what_it_writes(tmp_path: Path) -> None:
    """A second writer, of this process and of another one, removes the leftovers of the dead alone."""
    dead = tmp_path / f".boost_ext.{socket.gethostname()}.dead.part"
    foreign, old = (tmp_path / f".boost_ext.elsewhere.{name}.part" for name in ("new", "old"))
    empty = tmp_path / f".boost_ext.{socket.gethostname()}.empty.part"
    for folder in (dead, foreign, old, empty):
        folder.mkdir()
    for folder in (dead, foreign, old):
        (folder / "lock").touch()
        (folder / "p.npy").write_bytes(b"half")
    os.utime(old, (1, 1))
    target = tmp_path / "p.npy"
    with files.replacing(target) as part:
        part.write_bytes(b"first")
        files.write_bytes(target, b"second")
        script = "import sys; from boost_ext import files; files.write_text(sys.argv[1], 'third')"
        subprocess.run([sys.executable, "-c", script, str(target)], check=True, timeout=60)
        assert target.read_text() == "third"
        assert part.read_bytes() == b"first"
        assert {entry.name for entry in tmp_path.iterdir()} == {"p.npy", foreign.name, part.parent.name}
    assert target.read_bytes() == b"first"
    assert {entry.name for entry in tmp_path.iterdir()} == {"p.npy", foreign.name}


def test_file_and_folder_are_synced_around_the_rename(tmp_path: Path, monkeypatch) -> None:
    done: list[str] = []
    replace, fsync = os.replace, os.fsync

    def synced(descriptor: int) -> None:
        done.append("sync " + Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def renamed(source: Path, target: Path) -> None:
        done.append("rename " + Path(target).name)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    files.write_text(tmp_path / "a.json", "{}")
    pca.save_matrix(tmp_path / "p.npy", OLD)
    assert done == [
        "sync a.json",
        "rename a.json",
        f"sync {tmp_path.name}",
        "sync p.npy",
        "rename p.npy",
        f"sync {tmp_path.name}",
    ]
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_failed_body_writes_nothing(tmp_path: Path) -> None:
    def write() -> None:
        with files.replacing(tmp_path / "a") as part:
            part.touch()
            raise KeyError

    with pytest.raises(KeyError):
        write()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        files.write_text(tmp_path / "missing" / "a", "")
