"""The results folder of asv, as curves over commits.

The layout is asv's version 2: ``benchmarks.json`` has each benchmark's unit and the names of its
parameters, and each machine's folder has one JSON file for each commit and environment.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from disteval.errors import UsageError, describe_error
from disteval.report.files import read_json

LAYOUT = 2

_MAX_POINTS = 500_000
_MAX_CHOICES = 10_000  # of one benchmark: a few lists of values make any number of choices
_END_OF_DATES = 253_402_300_800_000  # the year 10000, which Python's dates do not have

Parameters = tuple[tuple[str, str], ...]
"""The name and value of each parameter; a value is text that ``repr`` returned."""


@dataclass(frozen=True)
class Point:
    """The result of one benchmark at one commit.

    The date is in milliseconds since 1970, UTC. The value is NaN if the benchmark was skipped, and
    None if it failed.
    """

    commit: str
    date: int
    value: float | None

    @property
    def skipped(self) -> bool:
        """Whether the benchmark was skipped because it can't run there."""
        return self.value is not None and math.isnan(self.value)


@dataclass
class Curve:
    """One benchmark with one choice of parameters on one machine, its points in date order.

    The environment is asv's name for the packages that were installed.
    """

    benchmark: str
    unit: str
    machine: str
    environment: str
    parameters: Parameters
    points: list[Point] = field(default_factory=list)

    @property
    def measured(self) -> list[Point]:
        """The points that have a number."""
        return [p for p in self.points if p.value is not None and not p.skipped]

    @property
    def skipped(self) -> bool:
        """Whether the benchmark was skipped at every commit."""
        return all(point.skipped for point in self.points)


def read_history(folder: Path) -> list[Curve]:
    """Read asv's results folder, and sort its curves by benchmark, machine and environment.

    Raises:
        UsageError: The folder has no results or too many, or one of its files can't be read.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; give the results_dir of asv.conf.json")
    files = sorted(p for p in folder.glob("*/*.json") if p.name != "machine.json" and p.is_file())
    if not files:
        raise UsageError(f"{folder} has no results; run asv run, and give its results_dir")
    known = _read(folder / "benchmarks.json")
    curves: dict[Any, Curve] = {}
    count = 0
    for path in files:
        try:
            for curve in _curves_of(_read(path), path.parent.name, known):
                count += 1
                if count > _MAX_POINTS:
                    raise UsageError(
                        f"{folder} has more than {_MAX_POINTS} results; give a folder with fewer"
                    )
                key = (curve.benchmark, curve.machine, curve.environment, curve.parameters)
                curves.setdefault(key, curve)
                if curves[key] is not curve:
                    curves[key].points += curve.points
        except UsageError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise UsageError(
                f"{path} does not have the layout of asv's results ({describe_error(error)}); "
                f"run asv run again, or remove the file"
            ) from error
    for curve in curves.values():
        curve.points.sort(key=lambda point: (point.date, point.commit))
    return sorted(curves.values(), key=lambda c: (c.benchmark, c.machine, c.environment))


def _curves_of(found: dict[str, Any], machine: str, known: dict[str, Any]) -> Iterator[Curve]:
    """Yield the curves of one file, each with its one point."""
    results = found["results"].items()
    commit, date = str(found["commit_hash"]), int(found["date"])
    if not 0 <= date < _END_OF_DATES:
        raise ValueError(f"{date} ms after 1970 is not a date before the year 10000")
    for benchmark, columns in results:
        # asv leaves out trailing columns that are empty.
        row = dict(zip(found["result_columns"], columns, strict=False))
        described = known.get(benchmark, {})
        parameters = row.get("params") or []
        number = math.prod(len(of_one) for of_one in parameters)
        if not 0 < number <= _MAX_CHOICES:
            raise ValueError(f"{benchmark} has {number} choices of parameters")
        choices = list(itertools.product(*parameters))
        values = row.get("result")
        if values is None:  # all of them failed
            values = [None] * len(choices)
        names = [str(name) for name in described.get("param_names", [])]
        names += [f"param{i + 1}" for i in range(len(names), len(choices[0]))]
        for choice, value in zip(choices, values, strict=True):
            point = Point(commit, date, None if value is None else float(value))
            yield Curve(
                benchmark,
                str(described.get("unit", "")),
                machine,
                str(found["env_name"]),
                tuple(zip(names, map(str, choice), strict=True)),
                [point],
            )


def _read(path: Path) -> dict[str, Any]:
    found = read_json(path, "run asv run again, or remove it", finite=False)
    version = found.get("version") if isinstance(found, dict) else None
    if version != LAYOUT:
        raise UsageError(
            f"{path} has asv's layout {version!r}, not {LAYOUT}; convert it with asv update"
        )
    return found  # type: ignore[no-any-return]
