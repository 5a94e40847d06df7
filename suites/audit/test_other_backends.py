"""The audit calls loops over other libraries than torch alike."""

from __future__ import annotations

import pytest
from disteval.audit import Audit

from suites.requirements import backend_class


@pytest.mark.parametrize("backend", ["mpi4py", "jax", "tf_collective"])
def test_a_wrong_loop_is_convicted_and_a_right_one_is_not(backend: str) -> None:
    backend_class(backend)
    wrong = Audit("suites.audit.wrong:counts_padding", (2,), backend, first=True).run()
    assert str(wrong.findings[0]).startswith("counted twice: sample 0 of 3 counts 0.5 instead of")
    right = Audit("suites.audit.right:sums_of_integers", (2,), backend).run()
    assert (right.verdict, right.reason) == ("sound", "")
