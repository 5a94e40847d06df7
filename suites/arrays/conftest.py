"""Libraries that several modules of tests here need."""

from __future__ import annotations

from typing import Any

import pytest

from suites.helpers.needs import framework


@pytest.fixture
def tm() -> Any:
    """torchmetrics, which needs torch."""
    return framework("torchmetrics")
