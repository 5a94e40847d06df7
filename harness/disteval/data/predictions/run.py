"""The beginning of a run that writes to a folder: what is there, and whether all ranks see it."""

from __future__ import annotations

import logging
import secrets
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from disteval.arguments import unwritable
from disteval.contract import BaseDistBackend
from disteval.data.predictions.columns import Ids
from disteval.data.predictions.parts import NAME, NOTE, Part, read_note, sealed, unsealed
from disteval.data.predictions.reader import UNFINISHED, VERSION, finished
from disteval.data.predictions.settings import Predictions
from disteval.errors import HarnessError, UsageError
from disteval.files import FolderLock, lock_folder, write_atomically
from disteval.identity import differences

_log = logging.getLogger("disteval.predictions")
_PATIENCE_SECONDS = 10.0  # hosts of a network file system learn of a new file after some seconds
_SMALL = 1 << 20
_PROBE = bytes(1 << 16)
_OTHER = "give another folder, remove this one, or overwrite=True (--overwrite) to begin anew"


@dataclass
class Run:
    """A run, as one rank sees it.

    Attributes:
        token: The run's name, which its parts bear; the same after it was interrupted.
        start: The number of times that the run was started.
        kept: The parts that are there already, and the ids of each.
        lock: The lock of the folder, on rank 0.
    """

    token: str
    start: int
    kept: list[tuple[Part, Ids]]
    lock: FolderLock | None = None

    def release(self) -> None:
        """Release the lock, if this rank has it."""
        if self.lock is not None:
            self.lock.release()


def begin(
    backend: BaseDistBackend, where: Predictions, settings: dict[str, Any], *, exact: bool
) -> Run:
    """Begin a run, or go on with an interrupted one; every rank must call it.

    Args:
        backend: Joins the ranks.
        where: The folder.
        settings: What must be equal for a run to go on.
        exact: Whether parts are of use only if they give the outputs back to the last bit.

    Raises:
        UsageError: On every rank: the folder has a finished result, or an interrupted run with
            other settings; another job uses it; it can't be written; or some rank sees another
            folder.
    """
    run, names = Run("", 0, []), list[str]()
    failure: str | None = None
    damaged: dict[str, str] = {}
    try:
        if backend.rank == 0:
            failure = _attempt(where.path, lambda: _begin_on_rank_0(where, settings, run, names))
        run.token, run.start, names, failure = backend.broadcast_object(
            (run.token, run.start, names, failure), src=0
        )
        if failure is None:
            failure = _attempt(
                where.path, lambda: _examine(backend, where.path, run, names, damaged)
            )
        told = backend.all_gather_object((failure, damaged))
        for rank, (other, _) in enumerate(told):
            if other is not None:
                raise UsageError(other if other == told[0][0] else f"rank {rank}: {other}")
    except BaseException:
        run.release()
        raise
    damaged = {name: reason for _, found in told for name, reason in found.items()}
    run.kept = [(part, ids) for part, ids in run.kept if part.name not in damaged]
    restorable = where.record is None and all(part.is_exact for part, _ in run.kept)
    discarded = exact and bool(run.kept) and not restorable
    if discarded:
        run.kept = []
    if backend.rank == 0:
        _report(where.path, run, damaged, discarded=discarded)
    return run


def _attempt(folder: Path, step: Callable[[], object]) -> str | None:
    """Do a step that other ranks wait for, and return why it failed; None if it did not."""
    try:
        step()
    except HarnessError as error:
        return str(error)
    except OSError as error:
        return str(unwritable("the folder of predictions", folder, error))
    return None


def remove_strays(folder: Path, keep: set[str]) -> None:
    """Remove drafts, notes and files of parts, except those of the parts to keep."""
    for path in folder.iterdir():
        found = NAME.fullmatch(path.name)
        if found and (found[1] not in keep or path.name.startswith(".")):
            path.unlink(missing_ok=True)


def _begin_on_rank_0(
    where: Predictions, settings: dict[str, Any], run: Run, names: list[str]
) -> None:
    """Lock the folder, look at what it has, and write down that a run has begun."""
    folder = where.path
    run.lock = lock_folder(folder)
    run.token, run.start, keep = take_up(where, settings)
    for path in folder.glob(f"part-{run.token}-*{NOTE}"):
        if NAME.fullmatch(path.name):
            names.append(path.name)
            keep.add(path.name.removesuffix(NOTE))
    remove_strays(folder, keep)


def take_up(where: Predictions, settings: dict[str, Any]) -> tuple[str, int, set[str]]:
    """Write down that a run has begun, or goes on.

    Returns:
        Its name, the number of times that it was started, and see `refuse_finished`.

    Raises:
        UsageError: The folder has a finished result, or an interrupted run with other settings.
        OSError: It can't be written.
    """
    folder, keep = where.path, refuse_finished(where)
    token, start = _interrupted(where, settings, keep) or (secrets.token_hex(4), 0)
    content = {"disteval": "predictions", "version": VERSION, "settings": settings}
    data = sealed({**content, "run": token, "start": start + 1})
    # Ranks that borrow leases write at the same time; drafts of parts are removed at the end.
    draft = f".part-{token}-{secrets.randbits(62)}-00000-000000.unfinished"
    write_atomically(folder / UNFINISHED, lambda file: file.write(data), draft)
    return token, start + 1, keep


def refuse_finished(where: Predictions) -> set[str]:
    """Return the names of the parts of a finished result that may be replaced.

    Raises:
        UsageError: The folder has a finished result, and it may not.
    """
    result = finished(where.path)
    if result is not None and not where.overwrite:
        raise UsageError(
            f"{where.path} has finished predictions of {result.size} samples in {result.format}; "
            f"read them with load_predictions, give another folder, or overwrite=True (--overwrite)"
        )
    return set() if result is None else {part.name for part in result.parts}


def _interrupted(
    where: Predictions, settings: dict[str, Any], done: set[str]
) -> tuple[str, int] | None:
    """Return token and start of the interrupted run that goes on; None if a run begins anew.

    That of the parts that are ``done`` was interrupted after it had written its manifest.
    """
    try:
        found = unsealed(where.path / UNFINISHED, _SMALL)
        reason = differences(found.get("settings") or {}, settings)
    except FileNotFoundError:
        return None
    except ValueError as error:
        found, reason = {}, str(error)
    if not reason:
        token, start = str(found["run"]), int(found["start"])
        is_done = any(name.startswith(f"part-{token}-") for name in done)
        return None if is_done else (token, start)
    if not where.overwrite:
        raise UsageError(
            f"{where.path} has an interrupted run of something else: {reason}; {_OTHER}"
        )
    return None


def _check_place(folder: Path, run: Run) -> None:
    """Check that this rank sees the folder of rank 0, and can write there."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        with suppress(OSError, ValueError):
            found = unsealed(folder / UNFINISHED, _SMALL)
            if (found.get("run"), found.get("start")) == (run.token, run.start):
                break
        if time.monotonic() > until:
            raise UsageError(
                f"{folder} is not the folder that rank 0 sees; give a folder on a file system that "
                f"the hosts of all ranks share"
            )
        time.sleep(0.05)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(_PROBE)
        file.flush()


def _examine(
    backend: BaseDistBackend, folder: Path, run: Run, names: list[str], damaged: dict[str, str]
) -> None:
    """Check the place, read all notes, and compare the digests of a share of parts."""
    _check_place(folder, run)
    for turn, name in enumerate(sorted(names)):
        part_name = name.removesuffix(NOTE)
        try:
            part, ids = read_note(folder / name)
        except (OSError, ValueError, KeyError, TypeError) as error:
            damaged[part_name] = f"{name} can't be read ({error})"
            continue
        run.kept.append((part, ids))
        mine = turn % backend.world_size == backend.rank
        problem = part.problem(folder) if mine else None
        if problem:
            damaged[part_name] = problem
    # Ranks that outlived an interrupted start may have written samples that the next start wrote.
    every = np.concatenate([np.zeros(0, np.int64), *(ids for _, ids in run.kept)])
    if len(np.unique(every)) < len(every):
        seen: set[int] = set()
        for part, ids in run.kept:
            if seen.isdisjoint(ids.tolist()):
                seen.update(ids.tolist())
            else:
                damaged[part.name] = "samples of it are in another part"


def _report(folder: Path, run: Run, damaged: dict[str, str], *, discarded: bool) -> None:
    """Say on rank 0 what is kept, and remove the notes of what is not."""
    for name, reason in damaged.items():
        _log.warning(
            "the part %s in %s is damaged (%s); its samples are computed again",
            name,
            folder,
            reason,
        )
    if discarded:
        _log.warning(
            "the predictions in %s do not hold the outputs that metrics need, because of record= "
            "or their types, so all samples are computed again", folder,
        )  # fmt: skip
    elif run.kept:
        _log.warning(
            "%s has %d samples of an interrupted run, which are not computed again",
            folder, sum(part.rows for part, _ in run.kept),
        )  # fmt: skip
    kept = {part.name for part, _ in run.kept}
    for path in folder.glob(f"part-*{NOTE}"):
        if NAME.fullmatch(path.name) and path.name.removesuffix(NOTE) not in kept:
            path.unlink(missing_ok=True)
