"""The parts of an evaluation that are done, on disk, so that the next run goes on from there.

Each process that evaluates, or lends leases, writes to one file of its own, and only to its end:
records, each with its length and a digest. A record that was not written to its end is as if it
were not there. It holds values that are read without running any code, see `disteval.plain`. A run
begins with a file that has all that earlier runs have left; when it is whole
the older files count no more, nor does what a process of an earlier run, which was thought to be
lost, may still write to its own.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from disteval.arguments import unwritable
from disteval.coverage import Certificate, add_certificates, add_contents, unpacked_ids
from disteval.data.predictions import (
    PartFile,
    Predictions,
    refuse_finished,
    remove_strays,
)
from disteval.data.sources import Stored
from disteval.errors import LedgerError, UsageError
from disteval.files import lock_folder, open_own, sync_folder
from disteval.identity import differences
from disteval.metrics.totals import States, fold_totals, pack_totals
from disteval.plain import dumps, is_pickled, loads

FOLD_BYTES = 64 << 20
"""When states take more than this, those that are sums are added up."""

PREDICTIONS = "the folder of predictions"
"""Their name in the record of an evaluation."""

_SOME_BYTES = 8 << 20  # of the states of parts in one message, unless a single part has more
_log = logging.getLogger("disteval.ledger")
_NAME = re.compile(r"\.?ledger-(\d{6,})-([0-9a-f]{16})\.log")
_VERSION = 5
_MAGIC = b"disteval ledger %d\n" % _VERSION
_HEAD = struct.Struct("<Q16s")
_PATIENCE_SECONDS = 10.0  # hosts of a network file system learn of a new file after some seconds
_JOIN = "; disteval eval --join adds ranks to one with --elastic"
_OTHER = "give the folder of a ledger, or one that is empty or new"


class Part(NamedTuple):
    """What a process has evaluated: all that is committed, merged, stored and proved.

    Attributes:
        rank: The rank.
        ids: The numbers of the samples, see `disteval.coverage.Counted.packed`.
        certificate: The proof of these numbers, and of the contents.
        states: The states of the metrics; as bytes in what is sent or written.
        files: The files of predictions.
        lengths: The number of elements of each part of a stream that was read to its end.
        contents: The digest of the elements of each part of a stream; None if it is unknown.
        repeatable: Whether the first samples had the same outputs twice; None if unknown.
        parts: The number of parts that it was merged from.
    """

    rank: int
    ids: tuple[bytes, ...]
    certificate: Certificate
    states: States
    files: tuple[PartFile, ...] = ()
    lengths: Mapping[int, int] = {}
    contents: Mapping[int, int | None] = {}
    repeatable: bool | None = None
    parts: int = 1

    @classmethod
    def of(cls, sent: tuple[Any, ...]) -> Part:
        """Return the part that `plain` was made of."""
        part = cls(*sent)
        return part._replace(certificate=Certificate(*part.certificate))

    def plain(self) -> tuple[Any, ...]:
        """Return the part without its classes, which a small message has no room for."""
        plain = self._replace(
            certificate=tuple(self.certificate),  # type: ignore[arg-type]
            states=pack_totals(self.states),
        )
        return tuple(plain)


_RECORDS: dict[str, list[type]] = {
    "run": [int, str], "begun": [], "seen": [], "settings": [dict], "since": [str],
    "part": [Part], "result": [bytes],
}  # fmt: skip
"""The kinds of records, and the types of their values."""


def merged(parts: Sequence[Part]) -> list[Part]:
    """Return parts as one, if all states are sums; else those parts themselves."""
    if len(parts) < 2:
        return [*parts]
    states = fold_totals([part.states for part in parts])
    return [*parts] if states is None else [joined(parts)._replace(states=states)]


def joined(parts: Sequence[Part]) -> Part:
    """Return parts as one, without the states of the metrics."""
    lengths: dict[int, int] = {}
    contents: dict[int, int | None] = {}
    for part in parts:
        lengths |= part.lengths
        for key, value in part.contents.items():
            contents[key] = add_contents(contents.get(key, 0), value)
    known = [part.repeatable for part in parts if part.repeatable is not None]
    return Part(
        parts[0].rank if parts else 0,
        tuple(block for part in parts for block in part.ids),
        add_certificates([part.certificate for part in parts]),
        b"",
        tuple(file for part in parts for file in part.files),
        lengths,
        contents,
        all(known) if known else None,
        sum(part.parts for part in parts),
    )


class LedgerRun(NamedTuple):
    """A run that writes to a ledger, as its other processes must know it.

    Attributes:
        folder: The folder; None if the ledger is in memory.
        number: The number of the run.
        token: What tells this run from another one with the same number.
        first: The name of the file that it began with.
    """

    folder: Path | None
    number: int = 0
    token: str = ""
    first: str = ""


class LedgerLog:
    """The file of a process of a run; other processes than the first make one when they commit.

    Args:
        run: The run.
        hidden: Whether the file's name begins with a dot.
    """

    def __init__(self, run: LedgerRun, *, hidden: bool = False) -> None:
        self._run = run
        name = f"ledger-{run.number:06d}-{secrets.token_hex(8)}.log"
        assert run.folder is not None
        self.path = run.folder / ("." * hidden + name)
        self._file: BinaryIO | None = None
        self._held = 0  # how many blocks of `together` are open

    def commit(self, part: Part) -> None:
        """Write a part to the disk; when this returns, it survives the death of the process.

        Within `together`, it does when that returns.

        Raises:
            LedgerError: It can't be written. Nothing of it is kept.
            UsageError: Its states had to be pickled, see `disteval.metrics.totals.check_kept`.
        """
        sealed = pack_totals(part.states)
        if is_pickled(sealed):
            raise UsageError(
                "a metric keeps values that the ledger does not hold; see docs/leases.md for those "
                "that it does, or leave the ledger out"
            )
        self.write("part", part._replace(states=sealed))

    def write(self, *record: Any) -> None:
        """Write a record."""
        with named_errors(self.path):
            if self._file is None:
                self._open(self.path)
            assert self._file is not None
            at = self._file.tell()
            try:
                _write_whole(self._file, _sealed(record))
                if not self._held:
                    os.fsync(self._file.fileno())
            except OSError:
                with suppress(OSError):
                    self._file.truncate(at)
                    self._file.seek(at)
                raise

    @contextmanager
    def together(self) -> Iterator[None]:
        """Have all that the block writes on the disk when it ends.

        A disk takes about as long for a hundred parts as for one.
        """
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            if self._file is not None:
                with named_errors(self.path):
                    os.fsync(self._file.fileno())

    def check_place(self) -> None:
        """Check that this process sees the folder of the run, and can write there.

        Raises:
            UsageError: It does not, or can't.
        """
        folder, until = self._run.folder, time.monotonic() + _PATIENCE_SECONDS
        if folder is None:
            return
        while not (folder / self._run.first).exists():
            if time.monotonic() > until:
                raise UsageError(
                    f"{folder} is not the folder that rank 0 sees; give a folder on a file system "
                    f"that the hosts of all ranks share"
                )
            time.sleep(0.05)
        self.write("seen")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _open(self, path: Path) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        file: BinaryIO = os.fdopen(descriptor, "wb", buffering=0)
        try:
            _write_whole(file, _MAGIC + _sealed(("run", self._run.number, self._run.token)))
        except OSError:
            file.close()
            path.unlink()  # without its beginning, nothing in it would count
            raise
        self._file = file
        sync_folder(path.parent)


class Ledger:
    """What earlier runs of an evaluation have left, and the file of the process that leads it.

    Args:
        folder: The folder, which is made if it is missing. None puts the ledger to the predictions
            until these are finished, in files whose names begin with a dot, and into memory if
            there are none.
        settings: What must be equal for the next run to go on, by name, as text.
        predictions: Where predictions are written, if they are; the caller holds their lock. A part
            whose files are damaged or missing there is forgotten.

    Attributes:
        stored: The parts of earlier runs.
        since: When the first of these began, such as ``2026-11-26 18:32 UTC``.
        result: The result, if the evaluation has finished.
        is_hidden: Whether the names of files begin with a dot.
        run: This run.
        log: The file of this process; None if the ledger is in memory.

    Raises:
        UsageError: The folder can't be written, has the ledger or the finished predictions of
            another evaluation or of another user, or another process uses it.
        LedgerError: The ledger is damaged, or can't be written.
    """

    def __init__(
        self,
        folder: str | Path | None,
        settings: Mapping[str, str],
        predictions: Predictions | None = None,
    ) -> None:
        self.stored: list[Part] = []
        self.since = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC"
        self.result: bytes | None = None
        self.is_hidden = folder is None and predictions is not None
        self._parts: list[Part] = []
        self._size = self._bound = 0
        self._lock = None
        self.run = LedgerRun(None)
        self.log: LedgerLog | None = None
        if self.is_hidden and predictions is not None:
            folder = predictions.path
            settings = {k: v for k, v in settings.items() if k != PREDICTIONS}  # it may be moved
        if folder is None:
            return
        path, begun = Path(folder), False
        try:
            with named_errors(path):
                self._lock = None if self.is_hidden else lock_folder(path, _JOIN)
                older, log = self._read(path, settings, predictions)
                with log.together():
                    log.write("settings", dict(settings))
                    log.write("since", self.since)
                    for part in self.stored:
                        log.commit(part)
                    if self.result is not None:
                        log.write("result", self.result)
                log.write("begun")
                begun = True
                for each in older:
                    each.unlink(missing_ok=True)
            if predictions is not None:
                self._look_at(predictions)
        except BaseException:
            if begun and not self.stored:
                self.remove()
            self.close()
            raise

    def _read(
        self, folder: Path, settings: Mapping[str, str], predictions: Predictions | None
    ) -> tuple[Sequence[Path], LedgerLog]:
        """Take what the newest run has left, and begin the next one.

        Returns:
            The files of before, and that of this process.
        """
        found = _newest(folder)
        told = "" if found is None else differences(found.settings, settings)
        if told and not (predictions is not None and self.is_hidden and predictions.overwrite):
            raise UsageError(
                f"the ledger in {folder} belongs to another evaluation: {told}; use the same "
                f"settings to go on, give another folder, or remove this one"
            )
        if found is not None and not told:
            where = None if predictions is None else predictions.path
            kept = [part for part in _once(folder, found.parts) if _has_files(where, part)]
            self.result = found.result if len(kept) == len(found.parts) else None
            self.stored = merged(kept)
            self.since = found.since or self.since
        self.run = LedgerRun(folder, 1 + (found.number if found else 0), secrets.token_hex(8))
        self.log = log = LedgerLog(self.run, hidden=self.is_hidden)
        self.run = self.run._replace(first=log.path.name)
        return [] if found is None else found.files, log

    def _look_at(self, predictions: Predictions) -> None:
        """Refuse finished predictions of something else, and remove files that nothing names."""
        files = [file for part in self.stored for file in part.files]
        there = refuse_finished(predictions, files)
        keep = () if there is None else there.parts
        if there is None or {part.name for part in keep} != {file.name for file in files}:
            self.result = None
        with named_errors(predictions.path):
            remove_strays(predictions.path, [*files, *keep])

    def some(self, start: int = 0) -> tuple[Sequence[Part], bool]:
        """Return as many committed parts as a message should hold, and whether the last is there.

        They are those of earlier runs and of this one, from ``start`` on.
        """
        parts = [*self.stored, *self._parts]
        stop, size = start, 0
        while stop < len(parts) and (
            stop == start or size + len(parts[stop].states) <= _SOME_BYTES
        ):
            size += len(parts[stop].states)
            stop += 1
        return parts[start:stop], stop >= len(parts)

    def commit(self, part: Part) -> None:
        """Commit a part, see `LedgerLog.commit`; large states that are sums are added up."""
        if self.log is not None:
            self.log.commit(part)
        self._parts.append(part)
        self._size += len(part.states)
        if self._size > max(FOLD_BYTES, 2 * self._bound):
            self._parts = merged(self._parts)
            self._size = self._bound = sum(len(each.states) for each in self._parts)

    def finish(self, result: bytes) -> None:
        """Write the result of the evaluation, which later runs find at once.

        One that had to be pickled is not written: they compute it again of all parts.
        """
        if self.log is not None and not is_pickled(result):
            self.log.write("result", result)

    def remove(self) -> None:
        """Remove the files, which are needed no more."""
        if self.run.folder is not None:
            for path in _files(self.run.folder):
                with suppress(OSError):  # it does no harm
                    path.unlink()

    def close(self) -> None:
        """Close the file and let another process in; closing it twice is fine."""
        if self.log is not None:
            self.log.close()
        if self._lock is not None:
            self._lock.release()


def _has_files(where: Path | None, part: Part) -> bool:
    if where is None:
        return True
    for file in part.files:
        if (problem := file.problem(where)) is not None:
            _log.warning("%s; the samples of this part are evaluated again", problem)
            return False
    return True


def stored_of(parts: Sequence[Part]) -> Stored:
    """Return what some parts amount to."""
    whole = joined(parts)
    return Stored(np.sort(unpacked_ids(whole.ids)), whole.lengths, whole.contents)


class _Found(NamedTuple):
    """What the newest run has left."""

    number: int
    settings: dict[str, str]
    parts: list[Part]
    result: bytes | None
    since: str
    files: list[Path]


def _newest(folder: Path) -> _Found | None:
    """Return what the newest run that has begun has left."""
    files = _files(folder)
    logs = [list(_records(path)) for path in files]
    runs = {
        records[0][1]: records
        for records in logs
        if records and records[0][0] == "run" and ("begun",) in records
    }
    if not runs:
        return None
    number = max(runs)
    _, _, token = runs[number][0]
    found = _Found(number, {}, [], None, "", files)
    for records in logs:
        if records and records[0] == ("run", number, token):
            for kind, *values in records[1:]:
                if kind == "part":
                    found.parts.append(*values)
                elif kind == "settings":
                    found.settings.update(*values)
                elif kind in ("result", "since"):
                    found = found._replace(**{kind: values[0]})
    return found


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def _records(path: Path) -> Iterator[tuple[Any, ...]]:
    """Yield the records of a file up to the first that is not whole."""
    with open_own(path, 0o022, "a ledger decides what counts; give another folder") as file:
        size = os.fstat(file.fileno()).st_size
        begin = file.read(len(_MAGIC))
        if begin != _MAGIC[: len(begin)]:
            version = begin.removeprefix(_MAGIC[:-2])
            # Where the number is ours, the file is damaged behind it.
            if len(version) < len(begin) and version[:1] != _MAGIC[-2:-1]:
                raise UsageError(
                    f"the ledger {path} has version {version.decode(errors='replace').strip()}, "
                    f"and this release of disteval knows version {_VERSION}; use the release that "
                    f"wrote it, or give another folder"
                )
            raise _no_ledger(path)
        while head := file.read(_HEAD.size):
            if len(head) < _HEAD.size:
                return
            length, digest = _HEAD.unpack(head)
            if length > size - file.tell():
                return
            data = file.read(length)
            if blake2b(data, digest_size=16).digest() != digest:
                _log.warning(
                    "%s is damaged from byte %d on; what it has there is evaluated again",
                    path, file.tell() - length,
                )  # fmt: skip
                return
            try:
                record = loads(data)
                kind, *values = record
                told = [*map(type, values)] == _RECORDS[kind]
            except (LookupError, TypeError, ValueError) as error:
                raise _no_ledger(path) from error
            if told and kind in ("part", "result"):
                held = values[0].states if kind == "part" else values[0]
                told = type(held) is bytes and not is_pickled(held)
            if not told:
                raise _no_ledger(path)
            yield record


def _no_ledger(path: Path) -> UsageError:
    return UsageError(f"{path} is not a ledger of disteval; {_OTHER}")


def _write_whole(file: BinaryIO, data: bytes) -> None:
    """Write bytes to an unbuffered file: a nearly full disk takes a part of them without error."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _sealed(record: tuple[Any, ...]) -> bytes:
    data = dumps(record)
    return _HEAD.pack(len(data), blake2b(data, digest_size=16).digest()) + data


def _once(folder: Path, parts: Sequence[Part]) -> Sequence[Part]:
    """Return parts none of which has a sample of one before."""
    ids = [unpacked_ids(part.ids) for part in parts]
    every = np.concatenate([np.zeros(0, np.int64), *ids])
    if len(np.unique(every)) == len(every):
        return parts
    known, found = set[int](), list[Part]()
    for part, numbers in zip(parts, ids, strict=True):
        mine = set(numbers.tolist())
        if len(mine) < len(numbers) or not known.isdisjoint(mine):
            _log.warning("a part in %s has samples of another one, and does not count", folder)
            continue
        known |= mine
        found.append(part)
    return found


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Raise errors of the file system as errors of this library."""
    try:
        yield
    except (PermissionError, FileExistsError, NotADirectoryError) as error:
        raise unwritable("the ledger", path, error) from error
    except OSError as error:
        raise LedgerError(
            f"the ledger {path} can't be read or written: {error}. Parts that were committed "
            f"before are kept; look whether the disk is full or was lost, and run the same "
            f"command again"
        ) from error
