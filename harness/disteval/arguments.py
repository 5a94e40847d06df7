"""Checks of arguments that many functions take, with one wording for all of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from numbers import Integral
from typing import Any

from disteval.errors import UsageError


def is_count(value: Any, least: int = 1, most: int | None = None) -> bool:
    """Return whether a value is a whole number in a range; True and False are not numbers here.

    Args:
        value: Any value; NumPy's integers are whole numbers too.
        least: The smallest number of the range.
        most: The largest number of the range; None sets no limit.
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    return whole and least <= int(value) and (most is None or int(value) <= most)


def check_count(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return a whole number as an int, or raise UsageError if it is out of range.

    Args:
        name: The argument's name, for the message.
        value: The value that the caller gave.
        least: The smallest number that is allowed.
        most: The largest number that is allowed; None sets no limit.

    Raises:
        UsageError: The value is not a whole number, or it is out of range.
    """
    if not is_count(value, least, most):
        limit = f"from {least} up" if most is None else f"from {least} to {most}"
        raise UsageError(f"{name} must be a whole number {limit}, not {value!r}")
    return int(value)


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return a value that is one of the choices, or raise UsageError that lists them.

    Args:
        name: The argument's name, for the message.
        value: The value that the caller gave.
        choices: Every value that is allowed.

    Raises:
        UsageError: The value is not one of the choices.
    """
    *others, last = map(repr, choices)
    if not isinstance(value, str) or repr(value) not in (*others, last):
        listed = f"{', '.join(others)} or {last}" if others else last
        raise UsageError(f"{name} {value!r} is not known; use {listed}")
    return value


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return `` Did you mean 'name'?`` with the nearest known name, or nothing if none is near."""
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
