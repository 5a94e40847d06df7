"""Evaluations: results of metrics of any kind as JSON and as text, and several side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from disteval.errors import HarnessError
from disteval.metrics.arrays import kind_of, to_numpy
from disteval.report.files import check_table

Run = Mapping[str, Any]

MAX_VALUES = 1_000_000
"""The largest array of a result that a report holds; of a larger one it says the shape."""

MOST_ROWS = 100
"""How many values of a metric are shown, if they do not differ between evaluations."""

_DEPTH = 8  # the most dicts in each other
_WIDTH = 20  # numbers in a row of text
_SIDE, _PAGE_SIDE = 10, 50  # rows and columns of a matrix, as text and on a page
_BEFORE = 50  # characters that are shown before the first one that differs


Path = tuple[str | int, ...]
"""The way to a value: the name of the metric, then keys of dicts and places in lists."""


class ReportRow(NamedTuple):
    """A row of the table: what each evaluation has of one thing.

    ``sign`` is the outcome whose sign stands beside it: ``passed`` where all are equal to the last
    bit, ``failed`` where they have to be and are not, and empty where they may differ. ``odd`` has
    the places of those that differ from the first and should not.
    """

    name: str
    texts: Sequence[str]
    sign: str = ""
    odd: Collection[int] = ()


class Table(NamedTuple):
    """A result of two dimensions, such as a confusion matrix."""

    name: str
    rows: list[list[str]]


class Sides(NamedTuple):
    """All evaluations of one task, each with the name of its file."""

    task: str
    names: Sequence[str]
    facts: Sequence[ReportRow]
    matrices: Sequence[Table]


def side_by_side(runs: Iterable[tuple[str, Run]]) -> list[Sides]:
    """Put the evaluations of each task side by side."""
    tasks: dict[str, list[tuple[str, Run]]] = {}
    for name, run in runs:
        tasks.setdefault(run["task"], []).append((name, run))
    found = []
    for task, mine in tasks.items():
        names, same = [name for name, _ in mine], [run for _, run in mine]
        facts = results(same) + conduct(same) + origin(same)
        found.append(Sides(task, names, facts, matrices(same[0]["metrics"])))
    return found


def results(runs: Sequence[Run]) -> list[ReportRow]:
    """Return rows for the values that the metrics found.

    All values are compared. The first ones of a metric have rows, and all that differ.

    Raises:
        UsageError: There are too many values to compare.
    """
    found = [
        {path: (value, text_of(value)) for path, value in leaves(run["metrics"])} for run in runs
    ]
    metrics: dict[str | int, list[Path]] = {}
    for path in dict.fromkeys(path for each in found for path in each):
        metrics.setdefault(path[0], []).append(path)
    if len(runs) > 1:
        check_table(sum(map(len, metrics.values())), len(runs))
    missing = (..., "missing")  # no value of JSON is equal to it
    facts = []
    for metric, paths in metrics.items():
        compared = [
            _compared(name_of(path), [each.get(path, missing) for each in found]) for path in paths
        ]
        more = compared[MOST_ROWS:]
        differing = [fact for fact in more if fact.odd]
        facts += compared[:MOST_ROWS] + differing
        if left := len(more) - len(differing):
            text = f"{left} more values, which the report of --json has"
            facts.append(
                ReportRow(f"{metric}  …", [text] * len(runs), "passed" if len(runs) > 1 else "")
            )
    return facts


def conduct(runs: Sequence[Run]) -> list[ReportRow]:
    """Return what was evaluated and how, as the terminal and the page show it."""
    return _facts(_CONDUCT, runs)


def origin(runs: Sequence[Run]) -> list[ReportRow]:
    """Return when and with what each was made."""
    return _facts(_ORIGIN, runs)


def _facts(rows: Mapping[str, Callable[[Run], str]], runs: Sequence[Run]) -> list[ReportRow]:
    told = {name: [text_of(run) for run in runs] for name, text_of in rows.items()}
    return [
        _compared(name, [(text, text) for text in texts])
        if name == "digest"
        else ReportRow(name, texts)
        for name, texts in told.items()
        if any(texts)
    ]


def _compared(name: str, found: Sequence[tuple[Any, str]]) -> ReportRow:
    """Return a row of values that have to be equal, each with its text."""
    texts = [text for _, text in found]
    if len(found) < 2:
        return ReportRow(name, texts)
    exact = [repr(value) for value, _ in found]  # of floats, all digits
    odd = {place for place, text in enumerate(exact) if text != exact[0]}
    for place in sorted(odd, reverse=True):
        if texts[place] == found[0][1]:  # the difference is in what the text leaves out
            pairs = enumerate(zip(exact[0], exact[place], strict=False))
            begin = max(0, next((i for i, (a, b) in pairs if a != b), 0) - _BEFORE)
            for side in (0, place):
                texts[side] = f"{'… ' * (begin > 0)}{exact[side][begin:]:.400}"
    return ReportRow(name, texts, "failed" if odd else "passed", odd)


def _speed(run: Run) -> str:
    # Of a run that found all samples stored, there is no speed.
    return f"{run['samples_per_second']:.0f}" if run.get("stored") != run["size"] else ""


def _stored(run: Run) -> str:
    since = f"{run.get('stored')} of {run['size']}, begun {run.get('stored_since')}"
    return since if run.get("stored") else ""


def _device(run: Run) -> str:
    framework = f" ({run['framework']})" if "framework" in run else ""
    return f"{run.get('device') or ''}{framework}"


def _lost(run: Run) -> str:
    lost = run["leases"]["lost"]
    return "\n".join([str(len(lost)), *(f"rank {one['rank']}: {one['how']}" for one in lost)])


def _versions(run: Run) -> str:
    found = {"disteval": run["version"]} if "version" in run else {}
    return ", ".join(f"{name} {what}" for name, what in (found | run.get("versions", {})).items())


def _of_leases(text_of: Callable[[Run], str]) -> Callable[[Run], str]:
    return lambda run: text_of(run) if "leases" in run else ""


def plain(value: Any) -> Any:
    """Convert a metric's result to values of JSON: dicts, lists, texts, numbers and null.

    Arrays of every framework become lists. What has no form in JSON becomes its text, as a number
    that is not finite: ``NaN``, ``Infinity`` and ``-Infinity``.
    """
    if kind_of(value) != "numpy":
        try:
            value = to_numpy(value)
        except HarnessError:  # not of real numbers
            value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.size > MAX_VALUES:
        return f"an array of {value.dtype} of shape {value.shape}, too large for a report"
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, np.floating):  # one with more digits than Python's
        value = float(value)
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    elif hasattr(value, "_asdict"):  # a named tuple
        value = value._asdict()
    if isinstance(value, Mapping):
        return _object(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    return value if value is None else f"{value!r:.200}"


def _object(value: Mapping[Any, Any]) -> dict[str, Any]:
    found = {str(key): plain(item) for key, item in value.items()}
    if len(found) < len(value):  # such as 1 and "1"
        found = {repr(key): plain(item) for key, item in value.items()}
    return found


def leaves(metrics: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Yield each value in results that `plain` has converted, with the way to it.

    Values in dicts and in lists of lists are taken one by one, lists of numbers and matrices as a
    whole.
    """
    for name, value in metrics.items():
        yield from _leaves((name,), value)


def matrices(metrics: Mapping[str, Any]) -> list[Table]:
    """Return the results of two dimensions that are small enough to be shown as tables."""
    return [
        Table(name_of(path), [[text_of(number) for number in row] for row in leaf])
        for name, value in metrics.items()
        for path, leaf in islice(_leaves((name,), value), MOST_ROWS)
        if _is_matrix(leaf) and max(len(leaf), len(leaf[0])) <= _PAGE_SIDE
    ]


def text_of(value: Any) -> str:
    """Return a value as a person reads it; the report has all its digits."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    if not isinstance(value, (dict, list)):
        return str(value)
    if _is_matrix(value):
        return _matrix_text(value)
    if isinstance(value, dict) or any(isinstance(item, (dict, list)) for item in value):
        return f"{len(value)} values"
    texts = [text_of(item) for item in value[:_WIDTH]]
    more = [f"… ({len(value)} values)"] if len(value) > _WIDTH else []
    return ", ".join(texts + more) or "no values"


def _matrix_text(matrix: list[list[Any]]) -> str:
    if max(len(matrix), len(matrix[0])) > _SIDE:
        return f"{len(matrix)} x {len(matrix[0])} values"
    texts = [[text_of(item) for item in row] for row in matrix]
    widest = max(len(text) for row in texts for text in row)
    return "\n".join(" ".join(text.rjust(widest) for text in row) for row in texts)


def name_of(path: Path) -> str:
    """Return the way to a value as a person reads it."""
    return "  ".join(map(str, path))


def _leaves(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list) and not _is_matrix(value):
        items = enumerate(value) if any(isinstance(item, (dict, list)) for item in value) else ()
    if not items or len(path) > _DEPTH:
        yield path, value
        return
    for key, item in items:
        yield from _leaves((*path, key), item)


def _is_matrix(value: Any) -> TypeGuard[list[list[Any]]]:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(row, list) and row for row in value)
        and len({len(row) for row in value}) == 1
        and not any(isinstance(item, (dict, list)) for row in value for item in row)
    )


def coverage(run: Mapping[str, Any]) -> str:
    """Return in words what was proved about the samples of an evaluation."""
    if run["coverage"] != "by index":
        return f"{run['coverage']}, each once"
    if run.get("repeatable") is False:
        return "by index, for samples or outputs are random"
    return f"by index, contents of {run.get('compared', 0)} of {run['size']} samples compared"


def doubts(run: Mapping[str, Any]) -> str:
    """Return in words what is odd about an evaluation; nothing for most."""
    for found in run["metrics"].values():
        size = found.get("size", 0) if isinstance(found, dict) else 0  # as `Accuracy` counts
        for name in found if size and isinstance(size, int) else ():
            right = found.get(f"correct_{name}")
            if isinstance(right, int) and found[name] != right / size:
                return f"not as it was written: {found[name]} is not {right} of {size}"
    if run.get("repeatable") is False:
        return "some samples, or the outputs of predict for them, were others when repeated"
    if run.get("difference"):
        return f"outputs of ranks differ by up to {run['difference']:.3g} for the same samples"
    return ""


_CONDUCT: dict[str, Callable[[Run], str]] = {
    "samples": "{0[size]}".format,
    "of an earlier run": _stored,
    "coverage": coverage,
    "digest": lambda run: run.get("digest") or "",
    "model": doubts,
    "duplicates dropped": "{0[padded]}".format,
    "samples/s": _speed,
    "ranks": "{0[world_size]}".format,
    "backend": "{0[backend]}".format,
    "device": _device,
    "leases": _of_leases("{0[leases][committed]}".format),
    "batches repeated": _of_leases("{0[leases][repeated]} of {0[leases][batches]}".format),
    "ranks lost": _of_leases(_lost),
    "predictions": lambda run: run.get("predictions", ""),
}
_ORIGIN: dict[str, Callable[[Run], str]] = {
    "when, UTC": lambda run: run.get("created", ""),
    "command": lambda run: run.get("command", ""),
    "versions": _versions,
    "batch size": "{0[batch_size]}".format,
    "seconds": "{0[seconds]:.3g}".format,
}
