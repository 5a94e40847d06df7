"""Functions that are separate jobs, of which each writes a part, and the merge of the parts.

Each rank is a job. Jobs do not wait for each other, and one of them may be lost, killed while it
writes, or run twice. The merge must then fail, or its result must be right all the same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from disteval.audit.case import Case, Settings
from disteval.audit.findings import Kind
from disteval.audit.guard import guarded
from disteval.audit.judge import Problem
from disteval.errors import UsageError

_KILLED = "as of a job that was killed while it wrote"

DAMAGES: Mapping[str, tuple[Kind, str]] = {
    "lost": ("part lost", "the part of {} was lost"),
    "repeated": ("part repeated", "{} ran twice"),
    "shortened": ("part truncated", f"the part of {{}} lacks its last line, {_KILLED}"),
    "cut": ("part truncated", f"the part of {{}} lacks its last character, {_KILLED}"),
    "emptied": ("part truncated", f"the part of {{}} is empty, {_KILLED}"),
}
"""What may happen to a job: the kind of a finding, and what happened in words."""


def is_hit(settings: Settings, rank: int, *damages: str) -> bool:
    """Return whether one of these things happens to the job of a rank."""
    return settings.damage in damages and settings.job == rank


def run_again(job: Any, case: Case) -> list[Any]:
    """Return what a job returns when it is run a second time; nothing if it refuses that."""
    try:
        with guarded():
            return [job(case)]
    except Exception:  # of any kind; the part of the first run is there
        return []


def parts_of(returned: Sequence[Any], settings: Settings, rank: int) -> list[Path]:
    """Return the paths of the parts of a job, after what the case does to them.

    Args:
        returned: What each run of the job returned.
        settings: The case.
        rank: The number of the job.

    Raises:
        UsageError: It is not the path of a file.
    """
    parts = []
    for each in returned:
        if not isinstance(each, (str, os.PathLike)) or not Path(each).is_file():
            raise UsageError(
                f"it returned {each!r:.100}, which is not the path of a file; a function that has "
                f"a merge must write a part, and return the path of that file"
            )
        parts.append(Path(each).absolute())
    if is_hit(settings, rank, "lost"):
        parts.pop().unlink()
    if is_hit(settings, rank, "shortened", "cut", "emptied"):
        data = parts[0].read_bytes()
        lines, characters = data.rstrip(b"\n").rfind(b"\n") + 1, len(data.rstrip()) - 1
        kept = {"shortened": lines, "cut": max(characters, 0), "emptied": 0}
        parts[0].write_bytes(data[: kept[settings.damage]])
    return parts


def told(problem: Problem, settings: Settings) -> Problem:
    """Return a wrong result of a merge with what had happened to the parts before."""
    kind, happened = DAMAGES[settings.damage]
    what = happened.format(f"job {settings.job} of {settings.world_size}")
    sentence = f"{what}, and the merge returned a result without an error: {problem.sentence}"
    return Problem(kind, "", sentence)
