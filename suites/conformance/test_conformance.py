"""Every backend that is installed here keeps the contract.

Its worlds run side by side; test_plugin.py runs the suite for third parties.
"""

from __future__ import annotations

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval import LibraryMissingError
from disteval.conformance.runner import check_backend
from disteval.contract import No
from disteval.errors import WorldError
from disteval.registry import get_backend_class, list_all_backends

from suites.helpers.needs import each, missing

EXAMPLES = 25


@pytest.mark.parametrize("backend", each(*list_all_backends()))
def test_a_backend_keeps_the_contract(backend: str) -> None:
    cls = get_backend_class(backend)
    sizes = (1,) if isinstance(cls.capabilities.multi_rank, No) else (1, 2, 3)
    if cls.launcher == "ray":  # whose worlds run one after another, and take seconds to start
        sizes = (1, 2)
    try:
        report = check_backend(backend, sizes, examples=EXAMPLES)
    except WorldError as error:
        # Ranks may find out that the backend can't be used on this machine.
        if isinstance(error.common, LibraryMissingError):
            missing(backend, str(error.common))
        raise
    wrong = [result for result in report.rules if result.outcome in ("failed", "error")]
    assert wrong == []
    assert report.verdict == "conformant", report.covers
