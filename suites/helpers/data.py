"""What tests of data know of the inside: writers of predictions, digests and downloads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from disteval import ledger
from disteval.coverage import Counted, certify, unpacked_ids
from disteval.data import download
from disteval.data.cifar10 import BINARY_FOLDER
from disteval.data.collate import collate
from disteval.data.contents import Elements, digests_of, digests_of_rows, total
from disteval.data.digests import IncomparableError, digest_of, snapshot
from disteval.data.plan import Batch
from disteval.data.samples import Items
from disteval.data.sources import NOTHING, Form, Indexed
from disteval.default_backend import get_dist_backend


def load(samples: Any, workers: int, size: int = 50) -> list[Batch]:
    """Read so many samples in batches of eight, as one rank does with so many processes."""
    form = Form(8, 8, size, None, collate, workers)
    with closing(Indexed(Items(samples), form, get_dist_backend("non_dist"))) as source:
        source.begin(NOTHING)
        return list(source.read((unit, True) for unit in range(source.units or 0)))


def pickled_for_workers(samples: Any) -> bytes:
    """Return what is sent to each process that reads samples ahead; this needs torch."""
    from disteval.data.processes import _pickled

    return _pickled(Items(samples))


@contextmanager
def impatient(seconds: float) -> Iterator[None]:
    """Have ranks wait so long for the file that the first of them has made in a folder."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ledger, "_PATIENCE_SECONDS", seconds)
        yield
