"""Checks of arguments that many functions take."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from disteval.errors import UsageError


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return a count as a Python integer; NumPy's integers are accepted too.

    Args:
        name: What the caller calls the argument, for the message.
        value: The argument.
        least: The smallest value that is allowed.

    Raises:
        UsageError: The argument is not an integer, or is smaller than ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise UsageError(f"{name} must be an integer from {least} up, not {value!r}")
    return int(value)
