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
        UsageError: The folder has no results, or one of its files can't be read.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; give the results_dir of asv.conf.json")
    files = sorted(path for path in folder.glob("*/*.json") if path.name != "machine.json")
    if not files:
        raise UsageError(f"{folder} has no results; run asv run, and give its results_dir")
    known = _read(folder / "benchmarks.json")
    curves: dict[Any, Curve] = {}
    for path in files:
        try:
            for curve in _curves_of(_read(path), path.parent.name, known):
                key = (curve.benchmark, curve.machine, curve.environment, curve.parameters)
                curves.setdefault(key, curve)
                if curves[key] is not curve:
                    curves[key].points += curve.points
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{path} does not have the layout of asv's results ({describe_error(error)}); "
                f"run asv run again, or remove the file"
            ) from error
    for curve in curves.values():
        curve.points.sort(key=lambda point: (point.date, point.commit))
    return sorted(curves.values(), key=lambda c: (c.benchmark, c.machine, c.environment))


def _curves_of(found: dict[str, Any], machine: str, known: dict[str, Any]) -> Iterator[Curve]:
    """Yield the curves of one file, each with its one point."""
    for benchmark, columns in found["results"].items():
        # asv leaves out trailing columns that are empty.
        row = dict(zip(found["result_columns"], columns, strict=False))
        described = known.get(benchmark, {})
        choices = list(itertools.product(*row.get("params") or []))
        values = row.get("result")
        if values is None:  # all of them failed
            values = [None] * len(choices)
        names = described.get("param_names", [])
        names += [f"param{i + 1}" for i in range(len(names), len(choices[0]))]
        for choice, value in zip(choices, values, strict=True):
            number = None if value is None else float(value)
            point = Point(str(found["commit_hash"]), int(found["date"]), number)
            yield Curve(
                benchmark,
                str(described.get("unit", "")),
                machine,
                str(found["env_name"]),
                tuple(zip(names, map(str, choice), strict=True)),
                [point],
            )


def _read(path: Path) -> dict[str, Any]:
    found = read_json(path, "run asv run again, or remove it")
    version = found.get("version") if isinstance(found, dict) else None
    if version != LAYOUT:
        raise UsageError(
            f"{path} has asv's layout {version!r}, not {LAYOUT}; convert it with asv update"
        )
    return found  # type: ignore[no-any-return]
