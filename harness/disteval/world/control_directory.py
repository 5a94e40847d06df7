"""The control directories of worlds: private to one user, and locked as long as their leader lives.

All of them lie in one folder of mode 0700, where nobody else can create a name. A stranger who has
made that folder first is refused, and never trusted. The kernel releases the lock of a leader
however it ends, so a directory whose lock is free belongs to nobody.

The folder is not in ``XDG_RUNTIME_DIR``: that is small, and it is removed when its user logs out,
while a world goes on.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from disteval.errors import WorldError

# A sweep, or a leader that ends, holds the lock of a directory while it removes it.
_ATTEMPTS = 250
_POLL_SECONDS = 0.02
_REMEDY = (
    "remove it if it is yours, or set DISTEVAL_CONTROL_DIR or TMPDIR to a folder that only you "
    "can write to"
)


class ControlDirectory:
    """A control directory that this process has made and locked; `create` returns it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        _held.add(self)

    def remove(self) -> None:
        """Remove the directory, and release its lock afterwards; removing it twice is fine."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            _remove(self.path)
            os.close(descriptor)


_held: weakref.WeakSet[ControlDirectory] = weakref.WeakSet()


def _let_go() -> None:
    """Close a fork's descriptors, which would hold the locks of a leader that has died."""
    for directory in _held:
        if directory._descriptor >= 0:
            os.close(directory._descriptor)
            directory._descriptor = -1


os.register_at_fork(after_in_child=_let_go)


def folder(local: bool = False) -> Path:
    """Return the folder of all control directories of this user.

    It lies in ``DISTEVAL_CONTROL_DIR``, which several hosts may share, or in the folder for
    temporary files, which is of this host alone and used where ``local`` is true.
    """
    base = "" if local else os.environ.get("DISTEVAL_CONTROL_DIR")
    return Path(base or tempfile.gettempdir()).absolute() / f"disteval-{os.geteuid()}"


def create(name: str = "", local: bool = False) -> ControlDirectory:
    """Make and lock an empty control directory in `folder`.

    Args:
        name: The name under which ranks that somebody else has started look for it. A directory
            that a dead leader has left there is removed. Empty stands for a name of its own.
        local: As for `folder`.

    Raises:
        WorldError: Another leader uses that name, or no private directory can be made.
    """
    for _ in range(_ATTEMPTS):
        path = folder(local) / (name or f"world-{secrets.token_hex(4)}")
        # A sweep or another leader's end may remove either directory at any moment.
        with suppress(FileNotFoundError):
            _make_folder(path.parent)
            _make(path)
            if made := _take(path):
                return made
        time.sleep(_POLL_SECONDS)
    raise WorldError(
        f"another world of this job is using {path}, and a job can have one at a time; wait until "
        f"it has ended"
    )


def _take(path: Path) -> ControlDirectory | None:
    """Lock a directory; return None if it is locked, or was not empty and is removed now."""
    descriptor = open_private(path)
    try:
        if _lock(descriptor, path):
            if not any(path.iterdir()):
                taken, descriptor = ControlDirectory(path, descriptor), -1
                return taken
            _remove(path)
        return None
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def open_private(path: Path) -> int:
    """Open a directory that this user alone may enter, and return the descriptor.

    If it lies in a folder of control directories, that folder is checked in the same way.

    Raises:
        FileNotFoundError: It does not exist.
        WorldError: It is a link or no directory, belongs to another user, or lets others in.
    """
    if path.parent.name == folder().name:
        with opened(path.parent) as parent:
            return _open(path, path.name, parent)
    return _open(path, str(path), None)


def _open(path: Path, name: str, parent: int | None) -> int:
    """Open a directory by its name in an open one, or by its path."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except FileNotFoundError:
        raise
    except OSError as error:
        found = "is a symbolic link" if path.is_symlink() else f"can't be opened ({error.strerror})"
        raise _refusal(path, found) from None
    # The descriptor is examined, since the name may stand for something else a moment later.
    found_stat = os.fstat(descriptor)
    mode = stat.S_IMODE(found_stat.st_mode)
    if found_stat.st_uid == os.geteuid() and not mode & 0o077:
        return descriptor
    os.close(descriptor)
    raise _refusal(path, f"belongs to user {found_stat.st_uid} with mode {mode:04o}")


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
            with suppress(FileNotFoundError, WorldError), opened(path) as descriptor:
                if _lock(descriptor, path):
                    _remove(path)
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


def _lock(descriptor: int, path: Path) -> bool:
    """Lock a directory until the descriptor is closed.

    Returns:
        Whether it is locked now; not if another has locked it, or has removed it meanwhile.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError as error:
        raise _refusal(path, f"can't be locked ({error.strerror})") from None


def _remove(path: Path) -> None:
    """Remove a control directory, and the folder of all of them if it was the last."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.parent.rmdir()
