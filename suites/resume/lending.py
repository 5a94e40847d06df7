"""Lenders of a few units for tests, and ranks that borrow from them or talk to them by hand."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from disteval.coverage import Certificate, certify
from disteval.leases import Borrower, Lender
from disteval.leases.messages import Ask, Finished, Hello, Lend
from disteval.worlds import control_directory

UNITS = 12

SETTINGS = {"batch_size": "4", "metrics": "['a']"}


@contextmanager
def lending(**options: Any) -> Iterator[tuple[Lender, Path]]:
    directory = control_directory.create()
    lender = Lender(options.pop("folder", None), directory.path, **{"timeout": 30.0, **options})
    try:
        yield lender, directory.path
    finally:
        lender.close(0.0)
        directory.remove()


def certificate(start: int, stop: int) -> Certificate:
    return certify(np.arange(start, stop))


def add_up(parts: Any) -> list[int]:
    """Return the units of all leases, as the ranks committed them."""
    return [unit for _, _, totals, *_ in parts for unit in pickle.loads(totals)]


def work(directory: Path, rank: int | None = None, size: int = 0, **options: Any) -> Finished:
    """Do leases until there are none; the result is a list of all units, and some bytes."""
    with Borrower(directory, rank, SETTINGS, UNITS, **options) as borrower:
        for lease in borrower:
            units = list(range(lease.start, lease.stop))
            borrower.commit(lease, pickle.dumps(units), certificate(*lease[1:]), {})
        return borrower.finish(lambda parts: (add_up(parts), bytes(size)))


def units_of(finished: Finished) -> list[int]:
    assert finished.value is not None
    found: list[int] = pickle.loads(finished.value)[0]
    return found


ALL = list(range(UNITS))


def hello(rank: int, token: bytes = b"?", **changed: str) -> Hello:
    return Hello(rank, token, "here", os.getpid(), SETTINGS | changed, UNITS)


def tell(connection: Connection, message: Any) -> None:
    connection.send_bytes(pickle.dumps(message))


def hear(connection: Connection) -> Any:
    assert connection.poll(30)
    return pickle.loads(connection.recv_bytes())


def lent(connection: Connection, rank: int) -> Any:
    """Take a lease as a rank that does nothing with it."""
    tell(connection, hello(rank))
    hear(connection)
    tell(connection, Ask())
    found = hear(connection)
    assert isinstance(found, Lend)
    return found
