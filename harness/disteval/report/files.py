"""The JSON files of ``--json`` of ``disteval check``, ``eval`` and ``fit``, which pages show.

``report.schema.json``, beside this file, describes them. A file that does not fit the schema is
refused before a page is drawn from it.
"""

from __future__ import annotations

import json
import math
import tempfile
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from disteval.errors import UsageError
from disteval.extras import needs

SCHEMA_VERSION = 1
"""The JSON's version; a change that readers of the last version would misunderstand raises it."""

_KINDS = {str: "text", int: "an integer", float: "a number", dict: "an object", list: "a list"}
_TYPES = {
    "string": "text", "integer": "an integer", "number": "a number", "object": "an object",
    "array": "a list", "null": "null", "boolean": "true or false",
}  # fmt: skip
_SHOWN = 80  # characters of a wrong value that a message shows
_REMEDY = "write it with --json FILE of disteval check, eval or fit"


def check_output_file(option: str, path: Path) -> None:
    """Raise UsageError if an option's file can't be written; the file is left as it is."""
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise UsageError(
            f"{option} {path}: the folder {path.parent} does not exist; create it, or give another"
        )
    try:
        if path.is_file():
            path.open("ab").close()
        elif not path.exists():  # a device or a pipe is not opened: its reader would see an end
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise _unwritable(option, path, error) from error


def check_output_folder(option: str, path: Path) -> None:
    """Raise UsageError if files can't be written to an option's folder, which may not exist yet."""
    try:
        there = next(place for place in (path, *path.absolute().parents) if place.exists())
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise _unwritable(option, path, error) from error


def _unwritable(option: str, path: Path, error: OSError) -> UsageError:
    return UsageError(f"{option} {path} can't be written: {error.strerror}; give another place")


def write_file(option: str, path: Path, text: str) -> None:
    """Write the file that an option named, or raise UsageError if it can't be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(option, path, error) from error


def write_run(path: Path | None, run: dict[str, Any]) -> None:
    """Write the report of a command to the file that ``--json`` named.

    Args:
        path: The file, which is replaced if it exists; None writes nothing.
        run: The report, as the schema describes it. A number that is not finite becomes null,
            because JSON can't hold it.

    Raises:
        UsageError: The file can't be written.
    """
    if path is not None:
        write_file("--json", path, json.dumps(_finite(run), indent=2) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_run(path: Path) -> dict[str, Any]:
    """Read a report that `write_run` wrote.

    Raises:
        UsageError: The file can't be read, or is not a report.
        LibraryMissingError: jsonschema is not installed.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} can't be read as JSON ({error}); {_REMEDY}") from error
    if reason := why_no_run(found):
        raise UsageError(f"{path} is not a report of disteval: {reason}; {_REMEDY}")
    run: dict[str, Any] = found
    return run


def why_no_run(found: object) -> str:
    """Return what is wrong with parsed JSON that is not a report; nothing where it is one.

    Raises:
        LibraryMissingError: jsonschema is not installed.
    """
    error = next(_validator().iter_errors(found), None)
    if error is None:
        return ""
    place = error.json_path.removeprefix("$").removeprefix(".") or "the whole"
    if error.validator == "required":
        missing = next(name for name in error.validator_value if name not in error.instance)
        return f"{place} has no {missing!r}"
    if error.validator == "type":
        types = error.validator_value
        allowed = " or ".join(
            _TYPES[name] for name in ([types] if isinstance(types, str) else types)
        )
        return f"{place} is {_kind(error.instance)}, not {allowed}"
    if error.validator in ("const", "enum"):
        known = error.validator_value if error.validator == "enum" else [error.validator_value]
        return f"{place} is {_short(error.instance)}, not {' or '.join(map(str, known))}"
    return f"{place} is {_short(error.instance)}, but {error.validator} is {error.validator_value}"


@cache
def _validator() -> Any:
    with needs("a report file", "report"):
        from jsonschema import Draft202012Validator
    schema = resources.files("disteval.report").joinpath("report.schema.json")
    return Draft202012Validator(json.loads(schema.read_text(encoding="utf-8")))


def _short(value: object) -> str:
    """Write a value from a file, which may be of any length."""
    if isinstance(value, (dict, list)):
        return _kind(value)
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _kind(value: object) -> str:
    if value is None:
        return "null"
    return "true or false" if isinstance(value, bool) else _KINDS[type(value)]
