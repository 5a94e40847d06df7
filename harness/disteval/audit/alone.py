"""Whether each rank counts all samples alone, as where a library finds no other rank.

Such a function is right at any world size, and proves nothing about several ranks. What one rank
returns for samples that the other ranks do not have shows it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from disteval.audit.answers import Answer, Result
from disteval.audit.case import Settings
from disteval.audit.judge import Problem, judge
from disteval.audit.planted import Planted
from disteval.audit.worlds import TORCHRUN, Calls

Reference = Callable[[Settings, Planted, Sequence[Answer]], Result | None]


def may_be_alone(settings: Settings, answers: Sequence[Answer]) -> bool:
    """Return whether there are several ranks, and each has read all samples.

    Where a function has written them to files, nobody knows who read them, so a rank may be alone
    if each has a result.
    """
    wanted = set(range(settings.size))
    everywhere = all({i for i, _ in answer.fetched} == wanted for answer in answers)
    unknown = all(answer.result is not None and not answer.fetched for answer in answers)
    return len(answers) > 1 and (everywhere or unknown)


def counted_alone(
    call: Calls, settings: Settings, planted: Planted, reference: Reference
) -> Problem | None:
    """Call a function with other samples on each rank, and return that each counts its own alone.

    Args:
        call: Calls the function.
        settings: A case with several ranks, in which each may have counted all samples.
        planted: What its samples hold.
        reference: Returns the result of one rank, by which other names are judged than the known.
    """
    size, ranks = settings.size, range(settings.world_size)
    ways = [[replace(planted, probe=range(1 + rank % size)) for rank in ranks]]
    # These have the same number and the same ids. Ranks that wait for each other may hang with
    # unequal numbers, and somebody else's ranks can't be started again.
    ways += (
        [[replace(planted, size=size + rank) for rank in ranks]]
        if call.session.can_start
        else [[replace(planted, other_ids=True, seed=planted.seed + rank) for rank in ranks]]
    )
    for own in ways:
        answers = call.attempt(settings, own)
        fits = {
            rank: [judge(one, [answer], reference(settings, one, [answer])).is_right for one in own]
            for rank, answer in enumerate(answers)
            if answer.result is not None
        }
        if not fits or not all(fits[rank][rank] for rank in fits):
            return None
        if not any(map(all, fits.values())):
            return Problem("counted alone", "", _sentence(call, settings))
    return None


def _sentence(call: Calls, settings: Settings) -> str:
    *others, last = map(str, range(settings.world_size))
    unset = [] if call.as_torchrun else [name for name in TORCHRUN if name not in os.environ]
    remedy = (
        f"{', '.join(unset)} {'is' if len(unset) == 1 else 'are'} not set here, and a library that "
        f"looks for ranks there, such as accelerate, finds none: start the ranks with torchrun, or "
        f"let the audit start them with --backend torch_cpu, or tell the library case.rank and "
        f"case.world_size"
        if unset
        else "deal the samples by case.rank and case.world_size, and add up the results of all "
        "ranks (accelerate does that without a GPU only as Accelerator(cpu=True)); a function for "
        "one rank says so with evaluate.assumes = ('one_rank',)"
    )
    return (
        f"ranks {', '.join(others)} and {last} each counted all {settings.size} samples alone, and "
        f"nothing of another rank's; {remedy}"
    )
