"""Files that are written whole or not at all, and locks of folders."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import socket
import stat
import time
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from disteval.errors import UsageError

_log = logging.getLogger("disteval.files")
_LOCK = ".disteval.lock"
_PIECE_BYTES = 1 << 20


def write_atomically(
    path: Path, write: Callable[[BinaryIO], object], draft: str | None = None
) -> None:
    """Write a file under a temporary name and rename it, so that no reader finds a part of it.

    A file that is replaced keeps its mode. The folder's names are written to its disk as well.

    Args:
        path: The file, in a folder that exists.
        write: Writes the file's bytes to the open file that it is given.
        draft: The temporary name. By default, it is always the same one, so that the next writer
            replaces the file of a killed one.
    """
    mode = path.stat().st_mode & 0o777 if path.exists() else None
    temporary = path.with_name(draft or f".{path.name}.part")
    temporary.unlink(missing_ok=True)  # a killed writer's, or a link to a file that is not ours
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of JSON that has these fields, as an ``object_pairs_hook``.

    Raises:
        ValueError: A field is there twice, of which readers differ in the value that they take.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"one object has two values of {name!r:.200}")
    return found


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, which is read in pieces, as digits."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(_PIECE_BYTES):
            found.update(data)
    return str(found.hexdigest())


def sync_folder(folder: Path) -> None:
    """Write a folder's names to its disk, so that they survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def whose(found: os.stat_result, forbidden: int) -> str:
    """Return in words whose a file or folder is; an empty text if it is this user's alone.

    Args:
        found: What was found, of an open descriptor where the name may soon stand for another file.
        forbidden: The bits of the mode by which others could read or write it.
    """
    mode = stat.S_IMODE(found.st_mode)
    is_own = found.st_uid == os.geteuid() and not mode & forbidden
    return "" if is_own else f"belongs to user {found.st_uid} with mode {mode:04o}"


def check_own(folder: Path) -> None:
    """Refuse a folder in which a stranger may have put files; nothing in it is opened.

    Raises:
        UsageError: It belongs to another user, or every user may write to it.
        OSError: It can't be examined.
    """
    if why := whose(folder.stat(), 0o002):
        raise UsageError(
            f"{folder} {why}, and must be a folder of user {os.geteuid()} that not every user may "
            f"write to, for what lies in it decides what is read and written; give a new folder, "
            f"or make this one yours with mode 0755"
        )


def open_own(path: Path, forbidden: int, why: str) -> BinaryIO:
    """Open a file that is this user's to read; nothing of another is read, and no link followed.

    Args:
        path: The file.
        forbidden: As for `whose`.
        why: Why that matters, for the error.

    Raises:
        UsageError: It is a link, or belongs to another user, or others may read or write it.
        OSError: It can't be opened.
    """
    try:  # a pipe would be waited for
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UsageError(f"{path} is a symbolic link, and must be a file; remove it") from None
        raise
    file = os.fdopen(descriptor, "rb")
    if found := whose(os.fstat(descriptor), forbidden):
        file.close()
        raise UsageError(
            f"{path} {found}, and must be a file of user {os.geteuid()} with the mode "
            f"{0o666 & ~forbidden:04o} at most, for {why}"
        )
    return file


class Lock:
    """The lock of an open file or folder, which the kernel releases however the process ends.

    A fork of the process does not keep it.

    Args:
        path: The path of the file or folder.
        descriptor: Its descriptor, which is closed when the lock is released, or can't be had.

    Raises:
        BlockingIOError: Another process has the lock.
        FileNotFoundError: The file was removed after it was opened.
        OSError: The file system has no locks.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(path.lstat(), os.fstat(descriptor)):
                raise FileNotFoundError(path)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _held.add(self)

    @property
    def is_held(self) -> bool:
        """Whether this process has it: it has not released it, and was not forked since."""
        return self._descriptor >= 0

    def release(self) -> None:
        """Release the lock; releasing it twice is fine."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class FolderLock:
    """A lock that keeps other jobs out of a folder until it is released or the process ends.

    Args:
        folder: The folder, which exists.

    Raises:
        BlockingIOError: Another job has the lock; ``strerror`` says which process.
        UsageError: A stranger may have put files there, see `check_own`, or the lock is a link.
        OSError: The file system has no locks, or the file can't be made.
    """

    def __init__(self, folder: Path) -> None:
        check_own(folder)
        self._path = folder / _LOCK
        while True:
            try:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise UsageError(
                        f"{self._path} is a symbolic link, and not the lock of a job; remove it"
                    ) from None
                raise
            try:
                self._lock = Lock(self._path, os.dup(descriptor))
                os.ftruncate(descriptor, 0)
                holder = f"process {os.getpid()} on {socket.gethostname()} since {time.ctime()}"
                os.write(descriptor, holder.encode())
                return
            except BlockingIOError as error:
                holder = os.read(descriptor, 1000).decode(errors="replace")
                raise BlockingIOError(
                    error.errno, holder or "a process that is not known"
                ) from None
            except FileNotFoundError:  # the last holder has removed it after it was opened here
                continue
            finally:
                os.close(descriptor)

    def release(self) -> None:
        """Remove the file and release the lock; releasing it twice is fine."""
        if self._lock.is_held:
            with suppress(OSError):  # the disk may be lost by now
                self._path.unlink()
            self._lock.release()


def lock_folder(folder: Path, advice: str = "") -> FolderLock | None:
    """Make a folder, and keep other jobs out of it; return None where that can't be.

    Args:
        folder: The folder.
        advice: What else a user could do while another job uses it, for the error.

    Raises:
        UsageError: Another job uses it, or a stranger may have put files there.
        OSError: It can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return FolderLock(folder)
    except BlockingIOError as error:
        raise UsageError(
            f"{folder} is in use by {error.strerror}; wait until it has ended, or give this job a "
            f"folder of its own{advice}"
        ) from None
    except PermissionError:
        raise
    except OSError as error:
        _log.warning(
            "%s can't be locked (%s): see to it that no other job writes there", folder, error
        )
        return None


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _let_go() -> None:
    """Close a fork's descriptors, which would hold the locks of a process that has died."""
    for lock in _held:
        lock.release()


os.register_at_fork(after_in_child=_let_go)
