"""The JSON files of ``--json`` of `disteval`, for pages.

``report.schema.json``, beside this file, describes them. A file that does not fit the schema is
refused before a page is drawn from it.
"""

from __future__ import annotations

import json
import math
import os
import threading
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from disteval.arguments import unwritable
from disteval.errors import UsageError
from disteval.extras import needs
from disteval.files import once_each, write_atomically

MAX_BYTES = 16 << 20
"""The most JSON that a page is made of; the report of a check takes less than one MiB."""

MAX_CELLS = 100_000
"""The most cells of a table that compares reports."""

_MAX_NUMBER = 1e300  # numbers are shown as floats, of which the largest is 1.8e308

_SHOWN = 200  # characters of a message about a value from a file, which may be of any length
_REMEDY = "write it with --json FILE of disteval check, audit, eval, fit or verify"

_OTHERS = {
    "compare": "disteval compare writes the page of a comparison itself, with --html FILE",
    "certificate": "disteval verify reads a certificate",
}
"""What else the commands write, and what is done with it."""


def write_file(option: str, path: Path, text: str) -> None:
    """Write the file that an option named, or raise UsageError if it can't be written.

    The file is there as a whole or as it was before, also after a crash or on a full disk.
    """
    try:
        target = Path(os.path.realpath(path))  # a symbolic link stays one
        if path.exists() and not (path.is_file() and os.access(target.parent, os.W_OK)):
            path.write_text(text, encoding="utf-8")  # a device, a pipe, or in a closed folder
        else:
            draft = f".{os.getpid()}-{threading.get_ident():x}.part"
            write_atomically(target, lambda file: file.write(text.encode()), draft)
    except OSError as error:
        raise unwritable(option, path, error) from error


def write_run(path: Path | None, run: dict[str, Any]) -> None:
    """Write the report of a command to the file that ``--json`` named, if it named one.

    A number that is not finite becomes null, because JSON can't hold it.
    """
    if path is not None:
        write_file("--json", path, json.dumps(_finite(run), indent=2) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_json(path: Path) -> Any:
    """Read a JSON file that is not trusted."""
    try:
        with path.open("rb") as file:  # a device says that it has 0 bytes, and never ends
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        return json.loads(
            data.decode(), object_pairs_hook=once_each, parse_int=lambda text: int(_number(text)),
            parse_float=lambda text: float(_number(text)), parse_constant=_number,
        )  # fmt: skip
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} can't be read as JSON ({error}); {_REMEDY}") from error


def _number(text: str) -> str:
    if not abs(float(text)) <= _MAX_NUMBER:
        raise ValueError(f"the number {text:.{_SHOWN}} is not between ±{_MAX_NUMBER:g}")
    return text


def check_table(rows: int, columns: int) -> None:
    """Refuse a table that would take too long to draw, and may be much larger than its files."""
    if rows * columns > MAX_CELLS:
        raise UsageError(
            f"the page would have a table of {rows} rows and {columns} columns, and a table has "
            f"at most {MAX_CELLS} cells; give fewer reports"
        )


def read_run(path: Path) -> dict[str, Any]:
    """Read a report that `write_run` wrote.

    Raises:
        UsageError: The file can't be read, or is not a report.
        LibraryMissingError: jsonschema is not installed.
    """
    found: dict[str, Any] = _read_json(path)
    kind = found.get("kind") if isinstance(found, dict) else None
    if isinstance(kind, str) and kind in _OTHERS:
        raise UsageError(f"{path} is a file of the kind {kind!r}: {_OTHERS[kind]}")
    try:
        reason = why_no_run(found)
    except RecursionError:  # the message would have shown a value
        reason = "it has lists in lists, too many to show"
    if reason:
        raise UsageError(f"{path} is not a report of disteval: {reason}; {_REMEDY}")
    return found


def why_no_run(found: object) -> str:
    """Return what is wrong with parsed JSON that is not a report; nothing where it is one."""
    error = next(_validator().iter_errors(found), None)
    if error is None:
        return ""
    place = error.json_path.removeprefix("$").removeprefix(".") or "the whole"
    wrong = error.message
    if error.validator == "const":  # this message would not say what was found
        wrong = f"{error.instance!r} is not {error.validator_value!r}"
    if len(wrong) > _SHOWN:
        wrong = f"{wrong[: _SHOWN // 2]} … {wrong[-_SHOWN // 2 :]}"
    return f"{place}: {wrong}"


@cache
def _validator() -> Any:
    with needs("a report file", "report"):
        from jsonschema import Draft202012Validator
    schema = resources.files("disteval.report").joinpath("report.schema.json")
    return Draft202012Validator(json.loads(schema.read_text(encoding="utf-8")))
