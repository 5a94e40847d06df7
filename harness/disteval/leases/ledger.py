"""The committed leases of an evaluation on disk, so that the next run goes on from there.

The ledger is a SQLite database in WAL mode that one process at a time has open. It is locked as a
whole (``locking_mode=EXCLUSIVE``), so that no memory is shared between processes; docs/leases.md
says what that means for network file systems.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from disteval.arguments import unwritable
from disteval.coverage import Certificate
from disteval.errors import LedgerError, UsageError
from disteval.files import FolderLock, sync_folder
from disteval.identity import differences
from disteval.leases.book import Lease
from disteval.leases.rows import TABLE, Committed, Rows, digest_of

NAME = "ledger.sqlite"
_OURS = 0x64766C67  # SQLite's application_id: "dvlg"
_VERSION = 2
_LAST = (1 << 63) - 1  # SQLite's largest integer
_OTHER = "give the folder of a ledger, or one that is empty or new"
_TABLES = f"""
    CREATE TABLE settings (position INTEGER PRIMARY KEY, name TEXT NOT NULL, value TEXT NOT NULL);
    {TABLE}
    CREATE TABLE result (bytes BLOB NOT NULL, digest BLOB NOT NULL);
    PRAGMA application_id = {_OURS};
    PRAGMA user_version = {_VERSION};
"""


class Ledger:
    """The committed leases of one evaluation, and its result when it has finished.

    Args:
        folder: The folder of the ledger, which is made if it is missing. None keeps the ledger in
            memory.
        settings: What must be equal for the next run to go on, by name, as values that JSON knows.

    Raises:
        UsageError: The folder can't be written, has the ledger of another evaluation or of
            another user, or another leader uses it.
        LedgerError: The ledger is damaged.
    """

    def __init__(self, folder: str | Path | None, settings: Mapping[str, Any]) -> None:
        self._folder = None if folder is None else Path(folder)
        self._lock: FolderLock | None = None
        path = ":memory:"
        if self._folder is not None:
            self._lock = _locked(self._folder)
            path = str(self._folder / NAME)
        try:
            with self._named_errors():
                if self._folder is not None:
                    _make_private(self._folder / NAME)
                self._database = sqlite3.connect(
                    path, timeout=0, isolation_level=None, check_same_thread=False
                )
                self._open(settings)
        except BaseException:
            self.close()
            raise

    def committed(self, start: int = 0) -> Iterator[Committed]:
        """Yield all leases that count, in the order of their units, one after another.

        Args:
            start: The first unit of the first lease.

        Raises:
            LedgerError: One is damaged.
        """
        with self._named_errors():
            yield from self._rows.between(start, _LAST)

    def commit(
        self,
        lease: Lease,
        leases: int,
        totals: bytes,
        certificate: Certificate,
        files: Mapping[str, str],
    ) -> None:
        """Write a lease to the disk; when this returns, it survives the death of the process.

        Within `together`, it does when that returns. See `Committed` for the arguments.

        Raises:
            LedgerError: It can't be written, or some of its units were committed before. Nothing
                of it is kept.
        """
        with self.together():
            if self._rows.overlap(lease):
                raise LedgerError(
                    f"{self._name} has units of lease {lease.number} (from {lease.start} to "
                    f"{lease.stop - 1}) in another lease already; no unit may count twice. "
                    "Please report this"
                )
            self._rows.insert(Committed(lease, leases, totals, certificate, files))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write all that the block commits at once, when it ends, or nothing of it.

        A disk takes about as long for a hundred leases as for one.
        """
        with self._named_errors():
            if self._database.in_transaction:
                yield
                return
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
                raise

    @property
    def result(self) -> bytes | None:
        """The result of the evaluation; None if it has not finished.

        Raises:
            LedgerError: The result is damaged.
        """
        with self._named_errors():
            row = self._database.execute("SELECT bytes, digest FROM result").fetchone()
        if row is not None and digest_of(row[:1]) != row[1]:
            raise self._damaged("the result differs from what was written")
        return None if row is None else row[0]

    def finish(self, result: bytes) -> None:
        """Write the result of the evaluation, which later runs find at once."""
        with self.together():
            self._database.execute("DELETE FROM result")
            self._database.execute(
                "INSERT INTO result VALUES (?, ?)", (result, digest_of((result,)))
            )

    def forget(self, leases: Sequence[Lease]) -> None:
        """Remove leases, and the result, which are to be evaluated again."""
        with self.together():
            self._database.execute("DELETE FROM result")
            self._rows.remove(leases)

    def close(self) -> None:
        """Close the file and let another leader in; closing it twice is fine."""
        with suppress(AttributeError, sqlite3.Error):
            self._database.close()
        if self._lock is not None:
            self._lock.release()

    def _open(self, settings: Mapping[str, Any]) -> None:
        """Make the tables, or check that they are those of the same evaluation."""
        database = self._database
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        ours, version = (
            database.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version")
        )
        is_new = not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not is_new and ours != _OURS:
            raise UsageError(f"{self._name} is the database of another program; {_OTHER}")
        if not is_new and version != _VERSION:
            raise UsageError(
                f"{self._name} has version {version}, and this release of disteval knows version "
                f"{_VERSION}; use the release that wrote it, or give another folder"
            )
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        here = [(name, json.dumps(value, sort_keys=True)) for name, value in settings.items()]
        if is_new:
            with self.together():
                for statement in _TABLES.split(";"):
                    database.execute(statement)
                add = "INSERT INTO settings (name, value) VALUES (?, ?)"
                database.executemany(add, here)
            if self._folder is not None:
                sync_folder(self._folder)
        else:
            select = "SELECT name, value FROM settings ORDER BY position"
            self._compare(database.execute(select).fetchall(), here)
        self._rows = Rows(database)

    def _compare(self, there: Sequence[tuple[str, str]], here: Sequence[tuple[str, str]]) -> None:
        """Raise UsageError with the settings that differ."""
        old, new = ({name: json.loads(value) for name, value in each} for each in (there, here))
        told = differences(old, new)
        if told:
            raise UsageError(
                f"{self._name} belongs to another evaluation: {told}; use the same settings to go "
                f"on, give another folder, or remove this one"
            )

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Raise errors of SQLite and of the file system as errors of this library."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise UsageError(
                    f"{self._name} is open in another process; wait until it ends, or give "
                    "another folder"
                ) from error
            raise LedgerError(
                f"{self._name} can't be read or written: {error}. Leases that were committed "
                "before are kept; look whether the disk is full or was lost, and run the same "
                "command again"
            ) from error
        except sqlite3.DatabaseError as error:
            if "not a database" in str(error):
                raise UsageError(f"{self._name} is not a ledger: {error}; {_OTHER}") from error
            raise self._damaged(str(error)) from error
        except OSError as error:
            raise unwritable("the ledger", self._folder or Path(NAME), error) from error

    def _damaged(self, how: str) -> LedgerError:
        return LedgerError(
            f"{self._name} is damaged: {how}. Copy it back from a backup, or remove it and begin "
            "anew"
        )

    @property
    def _name(self) -> str:
        return "the ledger" if self._folder is None else f"the ledger {self._folder / NAME}"


def _locked(folder: Path) -> FolderLock:
    """Make the folder, and keep other leaders out of it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return FolderLock(folder)
    except BlockingIOError as error:
        raise UsageError(
            f"the ledger's folder {folder} is in use by {error.strerror}; wait until that ends, "
            "add ranks to it with --join, or give another folder"
        ) from error
    except OSError as error:
        raise unwritable("the ledger's folder", folder, error) from error


def _make_private(path: Path) -> None:
    """Make an empty file that only this user can read and write, or check the one that is there."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    found = os.fstat(descriptor)
    os.close(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise UsageError(
            f"the ledger {path} belongs to user {found.st_uid} with mode {found.st_mode & 0o777:o},"
            f" and only user {os.geteuid()} may write it, since it decides what counts; give "
            "another folder"
        )
