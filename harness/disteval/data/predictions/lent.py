"""Predictions of leases: a part counts when the commit of its lease names it.

A lease may be evaluated twice, by ranks that do not know of each other, and a rank may die with a
part half written. So each process has names of its own for parts, the commit has the digest of
each part's note, and the note has the digests of the part's files.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from disteval.arguments import unwritable
from disteval.coverage import Certificate
from disteval.data.predictions.buffer import PartBuffer
from disteval.data.predictions.columns import Ids
from disteval.data.predictions.manifest import complete, remove_leftovers
from disteval.data.predictions.parts import NOTE, Part, digest_of, read_note
from disteval.data.predictions.reader import UNFINISHED, finished
from disteval.data.predictions.run import refuse_finished, remove_strays, take_up
from disteval.data.predictions.settings import Predictions
from disteval.data.predictions.sink import Sink
from disteval.errors import CoverageError
from disteval.files import lock_folder

_log = logging.getLogger("disteval.predictions")


class LeaseWriter(Sink):
    """Writes the predictions of the leases that this process evaluates.

    The folder is looked at when the first sample is written, at the latest: a rank without a lease
    does not mind what is there, such as the result that other ranks have just finished.

    Args:
        where: The folder and the format.
        settings: The record of what is evaluated.
    """

    def __init__(self, where: Predictions, settings: Mapping[str, str]) -> None:
        self._where = where
        self._settings = {"format": where.format, **settings}
        self._buffer: PartBuffer | None = None
        self._last: list[Part] = []

    def _open(self) -> PartBuffer:
        """Look at the folder and begin, unless that was done."""
        if self._buffer is None:
            with _naming(self._where.path):
                self._where.path.mkdir(parents=True, exist_ok=True)
                token, *_ = take_up(self._where, self._settings)
            # The number is this process's own, since a rank that was lost may still write.
            self._buffer = PartBuffer(self._where, f"part-{token}-{secrets.randbits(62)}-00000")
        return self._buffer

    def write(self, ids: Ids, outputs: Any, batch: Any = None) -> None:
        """Take the outputs of some samples of a lease.

        Raises:
            UsageError: The folder has something else, or can't be written; or the outputs can't
                be stored in this format.
        """
        self._open().add(ids, outputs, batch)

    def take(self) -> dict[str, str]:
        """Write what waits; return the note of each part of the lease, with its digest."""
        self._last = [] if self._buffer is None else self._buffer.take()
        notes = [part.name + NOTE for part in self._last]
        return {note: digest_of(self._where.path / note) for note in notes}

    def drop(self) -> None:
        """Remove what was written of a lease that does not count."""
        if self._buffer is not None:
            self._buffer.drop()
            self._remove(self._buffer.take())

    def clean(self) -> None:
        """Remove what this process wrote while another one completed the predictions."""
        there = finished(self._where.path) if self._last else None
        if there is not None:
            kept = {part.name for part in there.parts}
            self._remove([part for part in self._last if part.name not in kept])

    def complete(
        self,
        committed: Sequence[Mapping[str, str]],
        size: int,
        certificates: Sequence[Certificate],
    ) -> None:
        """Write the manifest, after coverage was proved, and remove what no commit has named.

        Another process may have done so before, and may have been lost while it removed the rest.

        Args:
            committed: What `take` returned for each lease that counts.
            size: The number of samples.
            certificates: The proof of coverage.

        Raises:
            CoverageError: A part is missing or damaged.
            UsageError: The folder can't be written.
        """
        folder = self._where.path
        notes = {name: digest for files in committed for name, digest in files.items()}
        done = _finished_parts(folder)
        if done is not None and done.keys() == notes.keys():
            remove_leftovers(folder, [*done.values()])
            return
        parts = [_committed(folder, name, digest, done) for name, digest in notes.items()]
        with _naming(folder):
            complete(folder, self._settings, parts, size, certificates)

    def _remove(self, parts: Sequence[Part]) -> None:
        for part in parts:
            for suffix in (NOTE, *part.files):
                with suppress(OSError):  # it does no harm
                    (self._where.path / (part.name + suffix)).unlink()


class CommittedParts:
    """The predictions of committed leases, as the process that lends leases sees them.

    Args:
        where: The folder.
    """

    def __init__(self, where: Predictions) -> None:
        self._folder = where.path

    @cached_property
    def _done(self) -> dict[str, Part] | None:
        """The parts of the result, by the names of their notes, which are removed."""
        return _finished_parts(self._folder)

    def has(self, files: Mapping[str, str]) -> bool:
        """Return whether every byte of some parts is there; `LeaseWriter.take` has named them."""
        for name, digest in files.items():
            try:
                found = _committed(self._folder, name, digest, self._done).problem(self._folder)
            except CoverageError as error:
                found = str(error)
            if found:
                _log.warning("%s; the samples of its lease are evaluated again", found)
                return False
        return True

    def are_finished(self) -> bool:
        """Return whether the folder has a result."""
        return self._done is not None


@contextmanager
def locked_for_leases(where: Predictions, *, is_new: bool) -> Iterator[None]:
    """Keep other jobs out of a folder meanwhile; the process that lends leases does so.

    At the end, what ranks have written after the predictions were complete is removed.

    Args:
        where: The folder.
        is_new: Whether the evaluation begins; one that goes on may have finished its predictions.

    Raises:
        UsageError: Another job uses the folder, it has a finished result, or it can't be written.
    """
    with _naming(where.path):
        lock = lock_folder(where.path)
    try:
        if is_new:
            refuse_finished(where)
        yield
        there = finished(where.path)
        if there is not None and not (where.path / UNFINISHED).exists():
            with suppress(OSError):  # it does no harm
                remove_strays(where.path, {part.name for part in there.parts})
    finally:
        if lock is not None:
            lock.release()


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unwritable("the folder of predictions", folder, error) from error


def _finished_parts(folder: Path) -> dict[str, Part] | None:
    result = finished(folder)
    return None if result is None else {part.name + NOTE: part for part in result.parts}


def _committed(folder: Path, name: str, digest: str, done: Mapping[str, Part] | None) -> Part:
    if done is not None and name in done:
        return done[name]
    try:
        if digest_of(folder / name) == digest:
            return read_note(folder / name)[0]
        found = "does not have the bytes that were committed"
    except (OSError, ValueError, KeyError, TypeError) as error:
        found = f"can't be read ({error})"
    raise CoverageError(
        f"{name} of the predictions in {folder} {found}; give a folder on a file system that all "
        f"hosts share, or begin anew with another ledger"
    )
