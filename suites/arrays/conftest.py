"""Libraries that several modules of tests here need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from suites.helpers.needs import framework


@pytest.fixture
def tm() -> Any:
    """torchmetrics, which needs torch."""
    return framework("torchmetrics")


@pytest.fixture
def of_one_state(tm: Any) -> Callable[..., Any]:
    """Makes a metric whose result is its state, which ``replace`` makes of the last and a batch."""

    def make(first: Any, reduction: str | None, replace: Callable[..., Any]) -> Any:
        class OfOneState(tm.Metric):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.add_state("state", first, reduction)

            def update(self, *values: Any) -> None:
                self.state = replace(self.state, *values)

            def compute(self) -> Any:
                return self.state

        return OfOneState()

    return make
