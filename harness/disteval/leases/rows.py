"""The committed leases in the database of a ledger, a row each, or folded into fewer rows."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from disteval.coverage import Certificate, add_certificates
from disteval.leases.book import Lease
from disteval.metrics.totals import fold_totals

TABLE = """
    CREATE TABLE leases (
        start INTEGER PRIMARY KEY, stop INTEGER NOT NULL, number INTEGER NOT NULL,
        leases INTEGER NOT NULL, counted INTEGER NOT NULL, mixed TEXT NOT NULL,
        contents TEXT, totals BLOB NOT NULL, files TEXT NOT NULL, digest BLOB NOT NULL
    );
"""
FOLD_BYTES = 64 << 20
"""When totals take more than this, those of leases that lie side by side are added up."""

_MOST_BYTES = 1 << 29  # of totals that are added up, which SQLite and a message have to hold


class Committed(NamedTuple):
    """A lease that counts, or several that lie side by side and were folded into one.

    Attributes:
        lease: The lease.
        leases: The number of leases that it was folded from.
        totals: The totals of the metrics, as bytes.
        certificate: The proof of which samples the lease counted.
        files: The files that belong to the lease, by name, with their digests.
    """

    lease: Lease
    leases: int
    totals: bytes
    certificate: Certificate
    files: Mapping[str, str]


class Rows:
    """The rows of committed leases. They do not overlap.

    Totals of some MB each, such as the sums of a confusion matrix of many classes, would make a
    ledger of 10,000 leases one of many GB. So totals are added up, which changes no result, when
    all of them take more than `FOLD_BYTES`, or than twice what was left the last time.

    Args:
        database: The database, which has a transaction whenever rows are changed.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._size = self._measured()
        self._bound = max(FOLD_BYTES, self._size)

    def overlap(self, lease: Lease) -> bool:
        """Return whether units of a lease are committed already."""
        # The last row that starts before this lease stops decides.
        last = "SELECT stop FROM leases WHERE start < ? ORDER BY start DESC LIMIT 1"
        found = self._database.execute(last, (lease.stop,)).fetchone()
        return found is not None and found[0] > lease.start

    def insert(self, committed: Committed) -> None:
        """Write a row, and fold all of them if they take too much."""
        self._write(committed)
        self._size += len(committed.totals)
        if self._size > self._bound:
            self._fold()
            self._size = self._measured()
            self._bound = max(FOLD_BYTES, 2 * self._size)

    def remove(self, leases: Sequence[Lease]) -> None:
        """Remove the rows of leases."""
        starts = [(lease.start,) for lease in leases]
        self._database.executemany("DELETE FROM leases WHERE start = ?", starts)
        self._size = self._measured()

    def between(self, start: int, stop: int) -> Iterator[Committed]:
        """Yield the leases that start in this range of units, in order.

        Raises:
            sqlite3.DatabaseError: One is damaged.
        """
        select = "SELECT * FROM leases WHERE start >= ? AND start < ? ORDER BY start"
        for row in self._database.execute(select, (start, stop)):
            first, last, number, leases, counted, mixed, contents, totals, files, _ = row
            if digest_of(row[:-1]) != row[-1]:
                raise sqlite3.DatabaseError(f"lease {number} differs from what was written")
            yield Committed(
                Lease(number, first, last),
                leases,
                totals,
                Certificate(counted, int(mixed), None if contents is None else int(contents)),
                json.loads(files),
            )

    def _measured(self) -> int:
        (found,) = self._database.execute("SELECT sum(length(totals)) FROM leases").fetchone()
        return found or 0

    def _write(self, committed: Committed) -> None:
        lease, leases, totals, certificate, files = committed
        numbers = lease.start, lease.stop, lease.number, leases, certificate.counted
        contents = None if certificate.contents is None else str(certificate.contents)
        row = *numbers, str(certificate.mixed), contents, totals, json.dumps(dict(files))
        self._database.execute(
            "INSERT INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, digest_of(row))
        )

    def _fold(self) -> None:
        """Put one row in the place of each run of rows that lie side by side."""
        runs: list[list[int]] = []
        select = "SELECT start, stop FROM leases ORDER BY start"
        for start, stop in self._database.execute(select):
            if runs and runs[-1][1] == start:
                runs[-1][1:] = stop, runs[-1][2] + 1
            else:
                runs.append([start, stop, 1])
        for start, stop in (run[:2] for run in runs if run[2] > 1):
            totals = fold_totals(each.totals for each in self.between(start, stop))
            if totals is None or len(totals) > _MOST_BYTES:
                return
            rest = [each._replace(totals=b"") for each in self.between(start, stop)]
            self._database.execute(
                "DELETE FROM leases WHERE start >= ? AND start < ?", (start, stop)
            )
            self._write(
                Committed(
                    # New leases are numbered from the highest number on.
                    Lease(max(each.lease.number for each in rest), start, stop),
                    sum(each.leases for each in rest),
                    totals,
                    add_certificates([each.certificate for each in rest]),
                    {name: digest for each in rest for name, digest in each.files.items()},
                )
            )


def digest_of(row: Sequence[Any]) -> bytes:
    """Return the BLAKE2b digest of values, by which damage is found that SQLite can't see."""
    hashed = hashlib.blake2b(digest_size=16)
    for value in row:
        found = value if isinstance(value, bytes) else str(value).encode()
        hashed.update(b"%d " % len(found) + found)
    return hashed.digest()
