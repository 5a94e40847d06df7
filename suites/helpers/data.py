"""What tests of data know of the inside: writers of predictions, digests, downloads and pickles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from disteval.coverage import Certificate, Counted, add_certificates, certify
from disteval.data import download
from disteval.data.cifar10 import BINARY_FOLDER, PYTHON_FOLDER
from disteval.data.contents import Elements, digests_of, digests_of_rows, snapshots, total
from disteval.data.digests import IncomparableError, digest_of
from disteval.data.predictions import PredictionWriter, run
from disteval.data.safe_pickle import load_arrays

__all__ = [
    "BINARY_FOLDER",
    "PYTHON_FOLDER",
    "Certificate",
    "Counted",
    "Elements",
    "IncomparableError",
    "PredictionWriter",
    "add_certificates",
    "certify",
    "digest_of",
    "digests_of",
    "digests_of_rows",
    "download",
    "impatient",
    "load_arrays",
    "snapshots",
    "total",
]


@contextmanager
def impatient(seconds: float) -> Iterator[None]:
    """Have rank 0 wait so long for the notes of other ranks in a folder of predictions."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run, "_PATIENCE_SECONDS", seconds)
        yield
