"""Who fetched which sample, which says where a sample was dealt too often or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from disteval.audit.answers import Fetched
from disteval.audit.case import ITSELF
from disteval.audit.judge import Problem


class Fetch(NamedTuple):
    """A fetch of a sample: the rank, and its loader worker as `Fetches.take` numbers it."""

    rank: int
    worker: int = ITSELF


def fetches_of(fetched: Sequence[Fetched], size: int) -> list[list[Fetch]]:
    """Return the fetches of each sample by all ranks."""
    found: list[list[Fetch]] = [[] for _ in range(size)]
    for rank, each in enumerate(fetched):
        for sample, worker in each:
            found[sample].append(Fetch(rank, worker))
    return found


def dealt(problem: Problem, fetched: Sequence[Fetched], size: int) -> Problem:
    """Add to a wrong number of samples how they were dealt, as far as that was noted."""
    fetches = fetches_of(fetched, size)
    left_out = sum(not each for each in fetches)
    if problem.kind == "weighted wrongly" and 0 < left_out < size and not problem.is_explained:
        problem = problem._replace(kind="dropped")
    if not any(fetched) or problem.kind not in ("counted twice", "dropped"):
        return problem
    order = sorted(range(size), key=lambda i: len(fetches[i]))
    sample = order[-1] if problem.kind == "counted twice" else order[0]
    what = f"sample {sample} was {described(fetches[sample])}"
    if not fetches[sample] and left_out > 1:
        what += f", nor were {left_out - 1} others"
    if len(fetches[sample]) == 1:
        what = "each sample was fetched once, so it happened after that"
        if len(fetches[order[0]]) != len(fetches[order[-1]]):
            return problem
    return problem._replace(sentence=f"{problem.sentence}; {what}")


def described(fetches: Sequence[Fetch]) -> str:
    """Return in words how often a sample was fetched, and by whom."""
    if not fetches:
        return "fetched by no rank"
    times = "once" if len(fetches) == 1 else f"{len(fetches)} times"
    return f"fetched {times}, by {_fetchers(fetches)}"


def _fetchers(fetches: Sequence[Fetch]) -> str:
    """Return in words who fetched a sample: ranks, or the workers of ranks."""
    if all(fetch.worker == ITSELF for fetch in fetches):
        return _listed("rank", sorted({fetch.rank for fetch in fetches}))
    found = []
    for rank in sorted({fetch.rank for fetch in fetches}):
        workers = sorted({fetch.worker for fetch in fetches if fetch.rank == rank})
        numbered = [worker for worker in workers if worker >= 0]
        others = [-worker for worker in workers if worker < ITSELF]
        parts = [("worker", numbered), ("process", others)]
        found += [f"{_listed(what, some)} of rank {rank}" for what, some in parts if some]
        found += [f"rank {rank}"] * (ITSELF in workers)
    return " and ".join(found)


def _listed(what: str, numbers: Sequence[int]) -> str:
    plural = ("es" if what.endswith("s") else "s") * (len(numbers) > 1)
    *others, last = map(str, numbers)
    return f"{what}{plural} " + (f"{', '.join(others)} and {last}" if others else last)
