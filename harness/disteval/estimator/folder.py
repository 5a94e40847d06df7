"""The folder of a training: its newest whole checkpoint, damaged files, and a lock against others.

The newest checkpoint is that of the highest epoch and iteration, which its last line says; the
dates of files are no help, since copies change them.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from disteval.arguments import check_path, unwritable
from disteval.contract import BaseDistBackend
from disteval.errors import UsageError, WeightsError
from disteval.estimator.checkpoint import FORMAT, LATEST, link_to, read_checkpoint
from disteval.estimator.files import Seal, problem_of, read_seal
from disteval.files import FolderLock, lock_folder

_NAME = re.compile(r"(epoch|iter)_\d+\.pt")
_SET_ASIDE = re.compile(r".*\.damaged(\.\d+)?")
_HEAD = 4096  # bytes in which an archive of ours has its format
_FIRST = (math.inf, math.inf, math.inf)


class Entry(NamedTuple):
    """A file that is, or was, a checkpoint; a seal of None says that it is damaged."""

    path: Path
    seal: Seal | None

    @property
    def training(self) -> str | None:
        """The training that the file belongs to."""
        return None if self.seal is None else self.seal.training

    def problem(self) -> str | None:
        """Return what is wrong with the file after reading all of it; None if it is whole."""
        try:
            with self.path.open("rb") as file:
                return problem_of(file)
        except OSError as error:
            return f"it can't be read: {error.strerror}"


def entries(folder: str | Path) -> list[Entry]:
    """Return a folder's checkpoints, without links, from the newest on; first those without end."""
    found = []
    for path in sorted(check_path("folder", folder).glob("[!.]*")):
        if path.is_symlink() or not path.is_file() or _SET_ASIDE.fullmatch(path.name):
            continue
        seal, head = None, b""
        with suppress(OSError), path.open("rb") as file:
            seal = read_seal(file)
            file.seek(0)
            head = file.read(_HEAD)
        if seal or _NAME.fullmatch(path.name) or FORMAT.encode() in head:
            found.append(Entry(path, seal))
    return sorted(found, key=lambda entry: entry.seal.age if entry.seal else _FIRST, reverse=True)


def checkpoints(folder: str | Path) -> list[Path]:
    """Return a folder's complete checkpoints, the newest one last."""
    return [entry.path for entry in reversed(entries(folder)) if entry.seal]


def find_checkpoint(folder: str | Path) -> tuple[Path | None, dict[Path, str]]:
    """Return the newest checkpoint of which every byte is right; and damaged ones with the reason.

    Raises:
        UsageError: The folder has checkpoints of several trainings.
    """
    found: Entry | None = None
    damaged: dict[Path, str] = {}
    for entry in entries(folder):
        if found is not None and entry.training == found.training:
            continue
        problem = entry.problem()
        if problem is not None:
            damaged[entry.path] = problem
        elif found is None:
            found = entry
        else:
            raise UsageError(
                f"{folder} has checkpoints of several trainings, such as {found.path.name} and "
                f"{entry.path.name}; leave those of one training there, or name a file"
            )
    return (None if found is None else found.path), damaged


def latest_checkpoint(folder: str | Path) -> Path | None:
    """Return the newest checkpoint of a folder that is whole; None if there is none.

    Every byte of it was compared with its checksum. Damaged files are passed over.

    Raises:
        UsageError: The folder has checkpoints of several trainings.
    """
    return find_checkpoint(folder)[0]


def fall_back(folder: str | Path, warn: Callable[[str], object]) -> Path | None:
    """Return `latest_checkpoint`, after newer files that are damaged were set aside.

    Args:
        folder: The folder.
        warn: Called with one sentence for each damaged file.

    Raises:
        UsageError: The folder has checkpoints of several trainings.
        WeightsError: It has checkpoints, and each of them is damaged; they stay as they are.
    """
    found, damaged = find_checkpoint(folder)
    if damaged and found is None:
        reasons = "; ".join(f"{path.name}: {reason}" for path, reason in damaged.items())
        raise WeightsError(
            f"{folder} has no whole checkpoint ({reasons}); copy one there, or give another folder "
            f"to begin anew"
        )
    if found is not None:
        set_aside(damaged, found, warn)
    return found


def set_aside(
    damaged: Mapping[Path, str], used: Path | None, warn: Callable[[str], object]
) -> None:
    """Rename damaged files, whose names the training that continues would take, and say so."""
    instead = (
        "and there is no whole one before it" if used is None else f"so {used.name} is used instead"
    )
    for path, reason in damaged.items():
        if Entry(path, None).problem() is None:
            continue  # another training has replaced it meanwhile
        kept, turn = path.with_name(f"{path.name}.damaged"), 2
        while os.path.lexists(kept):
            kept, turn = path.with_name(f"{path.name}.damaged.{turn}"), turn + 1
        result = f"the damaged file is kept as {kept.name}"
        try:
            path.rename(kept)
        except OSError as error:  # in a folder that can only be read, for example
            result = f"it could not be renamed ({error.strerror})"
        warn(f"the checkpoint {path} is damaged ({reason}), {instead}; {result}")
    with suppress(OSError):
        if used is not None and not (used.parent / LATEST).exists():
            link_to(used)


def read_whole_state(path: Path, warn: Callable[[str], object]) -> bytes:
    """Return the bytes of a checkpoint, or of the newest whole one of a folder.

    Raises:
        UsageError: The folder has checkpoints of several trainings.
        WeightsError: There is no whole checkpoint, or it holds weights alone.
    """
    if path.is_dir():
        path = fall_back(path, warn) or path / LATEST
    if "rng" not in read_checkpoint(path):
        raise WeightsError(
            f"{path} holds weights alone, so training can't be resumed from it; give a file of "
            f"save() or of a checkpoint hook, or load the weights in runner_creator"
        )
    return path.read_bytes()


def read_together(
    backend: BaseDistBackend, checkpoint: str | Path, warn: Callable[[str], object]
) -> tuple[dict[str, Any], str]:
    """Read a checkpoint on all ranks, which all take the same one or raise the same error.

    Args:
        backend: Carries messages between the ranks; every rank must call this.
        checkpoint: A file; or a folder, of which rank 0 chooses the newest whole checkpoint.
        warn: Called on rank 0 with one sentence for each damaged file.

    Returns:
        The content, and the path.

    Raises:
        UsageError: The folder has no checkpoints, or those of several trainings.
        WeightsError: The file can't be read on some rank, or ranks see different files.
    """
    path, chosen = check_path("checkpoint", checkpoint), None
    failure: Exception | None = None
    if backend.rank == 0 and path.is_dir():
        try:
            chosen = fall_back(path, warn)
            if chosen is None:
                raise UsageError(f"{path} has no checkpoint to continue from; give another folder")
        except (UsageError, WeightsError) as error:
            failure = error
        except OSError as error:  # the other ranks wait for the result, whatever it is
            failure = WeightsError(f"{path} can't be read ({error.strerror}); correct that first")
    chosen, failure = backend.broadcast_object((chosen, failure), src=0)
    if failure is not None:
        raise failure
    path = chosen or path
    content: dict[str, Any] = {}
    reason = identity = None
    try:
        content = read_checkpoint(path)
        position = {key: content.get(key) for key in ("epoch", "iter", "position", "meta")}
        identity = repr(position)
    except WeightsError as error:
        reason = str(error)
    told = backend.all_gather_object((reason, identity))
    for rank, (other, _) in enumerate(told):
        if other is not None:
            raise WeightsError(other if other == reason else f"rank {rank}: {other}")
    for rank, (_, other) in enumerate(told):
        if other != told[0][1]:
            raise WeightsError(
                f"rank {rank} reads another file under the name {path} than rank 0; give all ranks "
                f"the same file"
            )
    return content, str(path)


class FolderLocks:
    """The locks of folders in which one training at a time may write.

    The kernel releases them when the process that holds them ends, however it ends.
    """

    def __init__(self) -> None:
        self._locks: dict[Path, FolderLock | None] = {}

    def take(self, folder: Path) -> None:
        """Lock a folder, which is made if it is missing; do nothing if this object has it.

        Raises:
            UsageError: Another training is using it, and which process; or it can't be written.
        """
        folder = folder.resolve()
        if folder not in self._locks:
            try:
                self._locks[folder] = lock_folder(folder)
            except OSError as error:
                raise unwritable("the folder of a training", folder, error) from error

    def release(self) -> None:
        """Unlock the folders."""
        while self._locks:
            _, lock = self._locks.popitem()
            if lock is not None:
                lock.release()

    def __enter__(self) -> FolderLocks:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
