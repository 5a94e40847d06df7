"""Entry r of a gather is rank r's object to the last bit, and a broadcast gives the root's object.

The rules of the contract say it, and every backend is held to them: at several world sizes side by
side, or, on ranks that a launcher has started, one rule after the other.
"""

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval import LibraryMissingError
from disteval.conformance.check import check_backend
from disteval.errors import WorldError
from disteval.registry import get_backend_class, list_all_backends
from disteval.world import detect_outer_world

from suites.helpers.needs import each, missing

if detect_outer_world():
    from disteval.conformance.suite.test_conformance import test_rule  # noqa: F401


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Check the backends of ``--backend``, or all of them."""
    if "backend" in metafunc.fixturenames:
        named = metafunc.config.getoption("backend")
        metafunc.parametrize("backend", each(*(named or list_all_backends())))


def test_a_backend_keeps_the_contract(backend: str, pytestconfig: pytest.Config) -> None:
    cls = get_backend_class(backend)
    asked = pytestconfig.getoption("world_size")
    # Worlds of one rank, which all other properties leave to threads, are checked on each.
    sizes = sorted({1, *(asked or (2, 3))})
    if cls.capabilities.why_not("multi_rank"):
        sizes = [1]
    elif cls.launcher == "ray":  # whose worlds run one after another, and take seconds to start
        sizes = asked or (1, 2)
    try:
        report = check_backend(
            backend,
            sizes,
            examples=pytestconfig.getoption("examples"),
            timeout=pytestconfig.getoption("world_timeout"),
        )
    except WorldError as error:
        # Ranks may find out that the backend can't be used on this machine.
        if isinstance(error.common, LibraryMissingError):
            missing(backend, str(error.common))
        raise
    wrong = [result for result in report.rules if result.outcome in ("failed", "error")]
    assert wrong == []
    # Some rules are not tried at the world sizes of every --world-size.
    assert report.verdict == "conformant" or (asked and report.exit_code == 0), report.covers
