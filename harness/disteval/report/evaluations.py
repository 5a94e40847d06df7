"""Evaluations side by side: what each was, what it found, and whether all found the same."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from disteval.report import values
from disteval.report.files import check_table

Run = Mapping[str, Any]

_BEFORE = 50  # characters that are shown before the first one that differs


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


class Sides(NamedTuple):
    """All evaluations of one task, each with the name of its file."""

    task: str
    names: Sequence[str]
    facts: Sequence[ReportRow]
    matrices: Sequence[values.Table]


def side_by_side(runs: Iterable[tuple[str, Run]]) -> list[Sides]:
    """Put the evaluations of each task side by side."""
    tasks: dict[str, list[tuple[str, Run]]] = {}
    for name, run in runs:
        tasks.setdefault(run["task"], []).append((name, run))
    found = []
    for task, mine in tasks.items():
        names, same = [name for name, _ in mine], [run for _, run in mine]
        facts = results(same) + conduct(same) + origin(same)
        found.append(Sides(task, names, facts, values.matrices(same[0]["metrics"])))
    return found


def results(runs: Sequence[Run]) -> list[ReportRow]:
    """Return rows for the values that the metrics found.

    All values are compared. The first ones of a metric have rows, and all that differ.

    Raises:
        UsageError: There are too many values to compare.
    """
    found = [
        {path: (value, values.text_of(value)) for path, value in values.leaves(run["metrics"])}
        for run in runs
    ]
    metrics: dict[str | int, list[values.Path]] = {}
    for path in dict.fromkeys(path for each in found for path in each):
        metrics.setdefault(path[0], []).append(path)
    if len(runs) > 1:
        check_table(sum(map(len, metrics.values())), len(runs))
    missing = (..., "missing")  # no value of JSON is equal to it
    facts = []
    for metric, paths in metrics.items():
        compared = [
            _compared(values.name_of(path), [each.get(path, missing) for each in found])
            for path in paths
        ]
        more = compared[values.MOST_ROWS :]
        differing = [fact for fact in more if fact.odd]
        facts += compared[: values.MOST_ROWS] + differing
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


_CONDUCT: dict[str, Callable[[Run], str]] = {
    "samples": "{0[size]}".format,
    "of an earlier run": _stored,
    "coverage": values.coverage,
    "digest": lambda run: run.get("digest") or "",
    "model": values.doubts,
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
