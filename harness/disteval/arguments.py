"""Checks of arguments that many functions take, with one wording for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disteval.errors import UsageError
from disteval.extras import when_used

if TYPE_CHECKING:
    import numpy as np
else:
    np = when_used("numpy")  # many commands need no arrays


def is_count(value: Any, least: int = 1, most: int | None = None) -> bool:
    """Return whether a value is a whole number in a range; True and False are not numbers here.

    Args:
        value: Any value; NumPy's integers are whole numbers too.
        least: The smallest number of the range.
        most: The largest number of the range; None sets no limit.
    """
    # Nearly all are int; the check against an abstract class takes ten times as long.
    whole = type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))
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
        raise UsageError(f"{name} must be a whole number {limit}, not {value!r:.200}")
    return int(value)


def check_function(value: Any) -> None:
    """Raise UsageError if a value that each rank is to run can't be called."""
    if not callable(value):
        raise UsageError(f"expected a function that each rank runs, not {value!r:.200}")


def check_flag(name: str, value: Any) -> None:
    """Raise UsageError if a value is neither True nor False, but a name or number, say."""
    if not isinstance(value, bool) and not isinstance(value, np.bool_):
        raise UsageError(f"{name} must be True or False, not {value!r:.200}")


def check_positive(name: str, value: Any, of: str = "") -> None:
    """Raise UsageError if a value is not a positive number, of a unit such as " of seconds"."""
    if isinstance(value, bool) or not isinstance(value, Real) or not value > 0:  # type: ignore[operator]
        raise UsageError(f"{name} must be a positive number{of}, not {value!r:.200}")


def check_seconds(name: str, value: Any) -> None:
    """Raise UsageError if a value is not a positive number of seconds."""
    check_positive(name, value, " of seconds")
    if float(value) > 1e9:
        raise UsageError(f"{name} must be at most 1e9 seconds, which is 30 years, not {value!r}")


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
        raise UsageError(f"{name} {value!r:.200} is not known; use {listed}")
    return value


def check_path(name: str, value: Any) -> Path:
    """Return a path, or raise UsageError if a value is no string or path object that can be one."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise UsageError(f"{name} must be a path, such as 'folder/name', not {value!r:.200}")
    return Path(path)


def check_output_file(name: str, path: Path) -> None:
    """Raise UsageError if an argument's file can't be written; the file is left as it is."""
    try:
        if path.is_dir():
            raise UsageError(f"{name} {path} is a folder; give the name of a file")
        if not path.parent.is_dir():
            raise UsageError(
                f"{name} {path}: the folder {path.parent} does not exist; create it, or give "
                f"another"
            )
        if path.is_file():
            path.open("ab").close()
        elif not path.exists():  # a device or a pipe is not opened: its reader would see an end
            _write_to(path.parent)
    except OSError as error:
        raise unwritable(name, path, error) from error


def check_output_folder(name: str, path: Path) -> None:
    """Raise UsageError if files can't be written to an argument's folder, which may be new."""
    try:
        _write_to(next(place for place in (path, *path.absolute().parents) if place.exists()))
    except OSError as error:
        raise unwritable(name, path, error) from error


def _write_to(folder: Path) -> None:
    import tempfile  # which imports much that many commands do not need

    tempfile.TemporaryFile(dir=folder).close()


def unwritable(name: str, path: Path, error: OSError) -> UsageError:
    """Return the error for an argument's file or folder that can't be written."""
    return UsageError(f"{name} {path} can't be written: {error.strerror}; give another place")


def is_switched_on(variable: str) -> bool:
    """Return whether an environment variable leaves a check on, as most values and none do."""
    return os.environ.get(variable, "").lower() not in ("off", "0", "no")


def found_value(value: Any) -> str:
    """Return a simple value as Python writes it, and of another one its type, for a message."""
    if value is None or isinstance(value, (bool, int, float, str, bytes, type, Path)):
        return f"{value!r:.200}"
    return f"a value of type {type(value).__name__}"


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return `` Did you mean 'name'?`` with the nearest known name, or nothing if none is near."""
    import difflib  # for mistakes alone

    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
