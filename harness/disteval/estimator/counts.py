"""Counts that a user gives: of epochs, iterations or failures."""

from __future__ import annotations

from typing import Any

from disteval.errors import UsageError


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return a count, or raise UsageError unless it is an integer from ``least`` up."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name} must be an integer from {least} up, not {value!r}")
    return value
