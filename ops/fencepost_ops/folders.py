"""Folders of local servers: one owner at a time, and temporary ones that vanish with their owner."""

import fcntl
import os
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from fencepost_ops.processes import Lifeline, LocalServerError

ORPHAN_ENDS_WITHIN = (
    20.0  # seconds the children of a killed owner get to end before the folder counts as taken
)


class FolderTakenError(LocalServerError):
    """Somebody who is alive owns the folder."""


class DataDirLock:
    """Exclusive ownership of a data folder, held until release() and by every child that inherits fileno().

    An advisory lock on the file `lock` inside (flock): it vanishes with its last holder, so a crash leaves
    nothing to clean up. When the owner is dead and its children are still ending, taking it waits for them.
    """

    def __init__(
        self,
        folder: Path,
        *,
        owner: str = "another `fencepost up`",
        advice: str = "stop it or choose another --data",
    ) -> None:
        """Take the lock; raises FolderTakenError, which names the owner's pid."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise LocalServerError(
                f"{folder} cannot be used: {error.strerror}; choose another folder"
            ) from error
        try:
            deadline = time.monotonic() + ORPHAN_ENDS_WITHIN
            while not self._try():
                pid = self._owner()
                if is_running(pid) or time.monotonic() > deadline:
                    raise FolderTakenError(f"{owner} (pid {pid}) runs on {folder}; {advice}")
                time.sleep(0.05)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)
        except BaseException:
            os.close(self._fd)
            raise

    def _try(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _owner(self) -> int:
        text = os.pread(self._fd, 32, 0).strip()
        return int(text) if text.isdigit() else 0

    def fileno(self) -> int:
        """The descriptor a child keeps so that the folder stays taken while the child lives."""
        return self._fd

    def release(self) -> None:
        """Give the folder back. May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class TemporaryFolder:
    """A new private folder (mode 0700), removed by close() and also when this process is killed."""

    def __init__(self, prefix: str = "fencepost-", *, parent: Path | None = None) -> None:
        self._lifeline = Lifeline({"folder": prefix, "parent": str(parent or tempfile.gettempdir())})
        try:
            self.path = Path(self._lifeline.demand("folder"))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the folder with all it holds, waiting for processes that still write there."""
        self._lifeline.close(60.0)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write_private(file: Path, text: str) -> None:
    """Write a new file that only its owner may read, in the place of an old one."""
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(text)


def is_running(pid: int) -> bool:
    """Whether such a process exists and is no zombie (told apart only where there is /proc)."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return not Path("/proc/self").exists()
    return state != b"Z"
