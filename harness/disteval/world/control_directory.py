"""The control directories of worlds: private to one user, and locked as long as their leader lives.

All of them lie in one folder of mode 0700, where nobody else can create a name. A stranger who has
made that folder first is refused, and never trusted. The kernel releases the lock of a leader
however it ends, so a directory whose lock is free belongs to nobody.

The folder is not in ``XDG_RUNTIME_DIR``: that is small, and it is removed when its user logs out,
while a world goes on.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from disteval.errors import WorldError
from disteval.files import Lock, whose

# A sweep, or a leader that ends, holds the lock of a directory while it removes it.
_ATTEMPTS = 250
_POLL_SECONDS = 0.02
_REMEDY = (
    "remove it if it is yours, or set DISTEVAL_CONTROL_DIR or TMPDIR to a folder that only you "
    "can write to"
)


STACK_SIGNAL = signal.SIGUSR1
"""The signal at which a rank writes its stacks to its file."""

Kind = Literal["collectives", "stack", "out", "ended"]


def rank_file(directory: Path, rank: int, kind: Kind) -> Path:
    """Return where a rank logs its collectives, writes its stacks or output, or how it ended."""
    return directory / f"rank-{rank}.{kind}"


class ControlDirectory:
    """A control directory that this process has made and locked; `create` returns it."""

    def __init__(self, path: Path, lock: Lock) -> None:
        self.path = path
        self._lock = lock

    def remove(self) -> None:
        """Remove the directory, and release its lock afterwards; removing it twice is fine."""
        if self._lock.is_held:
            _remove(self.path)
            self._lock.release()


def folder(local: bool = False) -> Path:
    """Return the folder of all control directories of this user.

    It lies in ``DISTEVAL_CONTROL_DIR``, which several hosts may share, or in the folder for
    temporary files, which is of this host alone and used where ``local`` is true.
    """
    base = "" if local else os.environ.get("DISTEVAL_CONTROL_DIR")
    return Path(base or tempfile.gettempdir()).absolute() / f"disteval-{os.geteuid()}"


def create(
    path: Path | None = None, local: bool = False, keep: Callable[[Path], None] = lambda _: None
) -> ControlDirectory:
    """Make and lock an empty control directory.

    Args:
        path: Where ranks that somebody else has started look for it. A directory that a dead leader
            has left there is removed. None stands for a new name in `folder`.
        local: As for `folder`.
        keep: Called with the path, before a directory of a new name is made, so that whoever is to
            remove it after this process knows it, whenever that is killed.

    Raises:
        WorldError: Another leader uses that path, or no private directory can be made.
    """
    is_new, path = path is None, path or folder(local) / f"world-{secrets.token_hex(4)}"
    for _ in range(_ATTEMPTS):
        # A sweep or another leader's end may remove either directory at any moment.
        with suppress(FileNotFoundError):
            _make_folder(path.parent)
            if is_new:  # what lies at a name that others know may be a stranger's
                keep(path)
            _make(path)
            lock = _lock(path)
            if lock is not None and not any(path.iterdir()):
                keep(path)
                return ControlDirectory(path, lock)
            if lock is not None:  # a dead leader has left it
                _remove(path)
                lock.release()
        time.sleep(_POLL_SECONDS)
    raise WorldError(
        f"another world of this job is using {path}, and a job can have one at a time; wait until "
        f"it has ended"
    )


def open_private(path: Path) -> int:
    """Open a directory that this user alone may enter, and return the descriptor.

    If it lies in a folder of control directories, that folder is checked in the same way; nobody
    else can then give its name to another directory.

    Raises:
        FileNotFoundError: It does not exist.
        WorldError: It is a link or no directory, belongs to another user, or lets others in.
    """
    if path.parent.name == folder().name:
        os.close(open_private(path.parent))
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError as error:
        found = "is a symbolic link" if path.is_symlink() else f"can't be opened ({error.strerror})"
        raise _refusal(path, found) from None
    # The descriptor is examined, since the name may stand for something else a moment later.
    if not (why := whose(os.fstat(descriptor), 0o077)):
        return descriptor
    os.close(descriptor)
    raise _refusal(path, why)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a directory as `open_private` does, and close it at the end of the block."""
    descriptor = open_private(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sweep(local: bool = False) -> list[Path]:
    """Remove the control directories of leaders that have died, and return where they were."""
    swept = []
    with suppress(FileNotFoundError):
        with opened(folder(local)):
            paths = sorted(folder(local).iterdir())
        for path in paths:
            # Other files are left alone, and directories that their leaders remove meanwhile.
            with suppress(FileNotFoundError, WorldError):
                if (lock := _lock(path)) is not None:
                    _remove(path)
                    lock.release()
                    swept.append(path)
    return swept


def _make_folder(path: Path) -> None:
    try:
        mode = path.parent.stat().st_mode
    except OSError as error:
        raise _refusal(path, f"can't be made ({error.strerror})") from None
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise _refusal(path, "lies in a folder where any user can exchange it")
    _make(path)
    with opened(path):
        pass


def _make(path: Path) -> None:
    """Make a private directory, unless the name is taken."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _refusal(path, f"can't be made ({error.strerror})") from None


def _refusal(path: Path, found: str) -> WorldError:
    expected = f"expected a directory of user {os.geteuid()} with mode 0700"
    return WorldError(f"{path} {found}; {expected}, for the key of a world lies there; {_REMEDY}")


def _lock(path: Path) -> Lock | None:
    """Lock a directory; return None if another has locked it, or has removed it meanwhile."""
    try:
        return Lock(path, open_private(path))
    except (BlockingIOError, FileNotFoundError):
        return None
    except OSError as error:
        raise _refusal(path, f"can't be locked ({error.strerror})") from None


def _remove(path: Path) -> None:
    """Remove a control directory, and the folder of all of them if it was the last."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.parent.rmdir()
