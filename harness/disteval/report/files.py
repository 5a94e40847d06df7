"""The JSON files of ``--json`` of ``disteval check``, ``eval`` and ``fit``, which pages show.

`docs/report.schema.json` describes them to everybody else. What is here is as much of it as a page
relies on, so that a file is refused before a page is drawn of it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from disteval.errors import UsageError

SCHEMA_VERSION = 1
"""Of the JSON; raised by what a reader of the version before would misunderstand."""


class _Each(NamedTuple):
    """An object with any names, whose values are all of one shape."""

    shape: Any


class _Maybe(NamedTuple):
    """What may be null, or not there."""

    shape: Any


_NUMBER = (int, float)
_TEXTS = ("id", "name", "sentence", "message", "counterexample", "observed", "replay")
_RESULT = dict.fromkeys(_TEXTS, str) | {
    "level": {"required", "optional", "stochastic"},
    "world_size": int,
    "outcome": {"passed", "failed", "unsupported", "error"},
    "examples": int,
    "seconds": _NUMBER,
}
_PHASE = {
    "epoch": int,
    "iter": int,
    "mode": {"train", "val"},
    "num_samples": int,
    "loss": _Maybe(_NUMBER),
    "lr": _Maybe(_NUMBER),
    "accuracy": _Maybe(_NUMBER),
    "correct": _Maybe(int),
    "evaluated": _Maybe(int),
    "images_per_second": _NUMBER,
    "seconds": _NUMBER,
}
_SHAPES: dict[str, dict[str, Any]] = {
    "check": {
        "version": str,
        "created": str,
        "target": str,
        "verdict": {"conformant", "broken", "incomplete"},
        "required_run": int,
        "seed": int,
        "examples": int,
        "timeout": _NUMBER,
        "launcher": (str, type(None)),
        "rules": [_RESULT],
    },
    "eval": {
        "accuracy": _Each(_NUMBER),
        "correct": _Each(int),
        "size": int,
        "evaluated": int,
        "padded": int,
        "coverage": str,
        "world_size": int,
        "backend": str,
        "framework": str,
        "device": str,
        "dataset": str,
        "batch_size": int,
        "images_per_second": _NUMBER,
        "seconds": _NUMBER,
    },
    "fit": {
        "launcher": str,
        "world_size": int,
        "epochs": int,
        "batch_size": int,
        "lr": _NUMBER,
        "seed": int,
        "data": str,
        "resumed": _Maybe(str),
        "best": _Maybe({"epoch": int, "correct": int, "evaluated": int}),
        "records": [_PHASE],
        "seconds": _NUMBER,
    },
}
_NAMES = {str: "text", int: "an integer", float: "a number", dict: "an object", list: "a list"}
_NAMES[type(None)] = "null"


def check_json_path(path: Path | None) -> None:
    """Refuse, before there is anything to write, a file whose folder is not there.

    Raises:
        UsageError: There is no such folder.
    """
    if path is not None and not path.parent.is_dir():
        raise UsageError(f"--json {path}: the folder {path.parent} does not exist")


def write_run(path: Path | None, run: dict[str, Any]) -> None:
    """Write what a command found, where ``--json`` asked for it.

    Args:
        path: Where to; an existing file is replaced. None writes nothing.
        run: As the schema has it; a number that is not finite, which JSON can't hold, becomes null.

    Raises:
        UsageError: The file can't be written.
    """
    if path is None:
        return
    try:
        path.write_text(json.dumps(_finite(run), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--json {path} can't be written: {error}") from error


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_run(path: Path) -> dict[str, Any]:
    """Read one file that `write_run` wrote.

    Raises:
        UsageError: It can't be read, or is not such a file.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} can't be read as JSON ({error}); {_REMEDY}") from error
    if reason := why_no_run(found):
        raise UsageError(f"{path} is no report of disteval: {reason}; {_REMEDY}")
    run: dict[str, Any] = found
    return run


_REMEDY = "write it with --json FILE of disteval check, eval or fit"


def why_no_run(found: object) -> str:
    """Why parsed JSON is not what a page can be made of; empty where it is."""
    if not isinstance(found, dict):
        return f"the whole is {_kind(found)}, not an object"
    version, kind = found.get("schema_version"), found.get("kind")
    if type(version) is not int or version != SCHEMA_VERSION:
        return f"schema_version is {version!r}, and {SCHEMA_VERSION} is the one that is known here"
    if not isinstance(kind, str) or kind not in _SHAPES:
        return f"kind is {kind!r}, not one of {', '.join(_SHAPES)}"
    return _misfit(found, _SHAPES[kind], "")


def _misfit(value: Any, shape: Any, where: str) -> str:
    """Where a value is not of a shape: a type or several, a set of texts, a list or an object."""
    if isinstance(shape, _Maybe):
        return "" if value is None else _misfit(value, shape.shape, where)
    if isinstance(shape, (dict, _Each)):
        if not isinstance(value, dict):
            return f"{where} is {_kind(value)}, not an object"
        shapes = shape if isinstance(shape, dict) else dict.fromkeys(value, shape.shape)
        needed = (name for name, part in shapes.items() if not isinstance(part, _Maybe))
        if missing := [name for name in needed if name not in value]:
            return f"{where or 'the whole'} has no {missing[0]!r}"
        parts = [
            (value.get(name), part, f"{where}.{name}".strip(".")) for name, part in shapes.items()
        ]
    elif isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where} is {_kind(value)}, not a list"
        parts = [(item, shape[0], f"{where}[{i}]") for i, item in enumerate(value)]
    elif isinstance(shape, set):
        known = isinstance(value, str) and value in shape
        return "" if known else f"{where} is {value!r}, not one of {', '.join(sorted(shape))}"
    else:
        kinds = shape if isinstance(shape, tuple) else (shape,)
        fits = isinstance(value, kinds) and not isinstance(value, bool)
        names = " or ".join(_NAMES[kind] for kind in kinds)
        return "" if fits else f"{where} is {_kind(value)}, not {names}"
    return next(filter(None, (_misfit(*part) for part in parts)), "")


def _kind(value: object) -> str:
    return "true or false" if isinstance(value, bool) else _NAMES[type(value)]
