"""Options of the conformance suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("disteval")
    group.addoption("--backend", action="append", default=[], help="Only these backends.")
    group.addoption("--examples", type=int, default=25, help="Drawn examples a rule.")
    group.addoption("--world-size", default="1,2,3", help="World sizes, separated by commas.")
