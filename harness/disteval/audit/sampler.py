"""The audit of a sampler alone: every small case, without ranks."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice, product
from typing import Any

from disteval.audit.case import Settings
from disteval.audit.findings import AuditReport, Kind, LoopFinding
from disteval.audit.on_ranks import load, name_of
from disteval.errors import UsageError, describe_error
from disteval.judging.report import replay

SIZES, WORLD_SIZES, BATCH_SIZES = range(65), range(1, 17), range(1, 9)
"""The numbers of samples, ranks, and samples in a batch that are tried."""

_OPTIONAL = ("batch_size", "epoch", "seed")
_SPARE = 1_000  # indices beyond four times the samples, after which a sampler does not end
_AS_TEXT = "it must return the indices of a rank's samples, or batches of them"

Shares = list[list[list[int]]]
"""The batches of each rank; where a sampler gives single indices, each is a batch."""


def audit_sampler(
    target: str | Callable[..., Any],
    world_sizes: Sequence[int] = WORLD_SIZES,
    *,
    only: Settings | None = None,
    seed: int = 0,
    seconds: float = 300.0,
) -> AuditReport:
    """Try a sampler in every small case: each sample must be dealt to one rank once.

    Args:
        target: A function of the number of samples, the number of ranks and the rank, or its name
            as ``module:function``. It returns the indices of the rank's samples, or batches of
            them. Parameters named ``batch_size``, ``epoch`` and ``seed`` get these.
        world_sizes: The numbers of ranks to try.
        only: The one case to try; None stands for all of up to 64 samples, and batches of up to 8.
        seed: What a parameter ``seed`` gets.
        seconds: The seconds after which no further case is tried.

    Raises:
        UsageError: There is no such function, or it has no such parameters.
    """
    name, function = name_of(target), load(target)
    takes = _optional(name, function)
    report, uneven = AuditReport(name, "none"), list[Settings]()

    def shares(settings: Settings, epoch: int = 0) -> Shares:
        known = {"batch_size": settings.batch_size, "epoch": epoch, "seed": seed}
        return _shares(name, function, settings, {option: known[option] for option in takes})

    batches = BATCH_SIZES if "batch_size" in takes else (1,)
    cases = [Settings(*each) for each in product(SIZES, batches, sorted({*world_sizes}))]
    begin = time.monotonic()
    for settings in [only] if only else cases:
        if time.monotonic() - begin > seconds:
            report.cases[settings] = "out of time"
            continue
        problems: list[tuple[Kind, str]]
        try:
            dealt = shares(settings)
        except UsageError:
            raise
        except Exception as error:  # a user's function may raise any exception
            problems = [("crashes", f"it raised {describe_error(error)}")]
        else:
            uneven += [settings] * (len({*map(len, dealt)}) > 1)
            problems = list(_problems(settings.size, dealt))
        report.cases[settings] = "wrong" if problems else "right"
        for kind, sentence in problems:
            if kind not in {found.kind for found in report.findings}:  # else in a smaller case
                case = str(settings)
                again = replay("audit", name, {"sampler": True, "case": case})
                report.findings.append(LoopFinding(
                    title=kind, where=case, sentence=sentence, replay=again, name="",
                    settings=settings,
                ))  # fmt: skip
    report.seconds = time.monotonic() - begin
    if not report.findings:
        report.reason = report.out_of_time(seconds)
    if uneven:
        report.warnings.append(
            f"in {len(uneven)} cases ranks have unequally many batches, first in {uneven[0]}, so a "
            f"collective in each batch would make ranks wait for each other"
        )
    if "epoch" in takes and not report.findings and not only:
        settings = Settings(SIZES[-1], BATCH_SIZES[0], 2)
        report.warnings.append(
            "epochs 0 and 1 have the same order, so the epoch makes no difference"
            if shares(settings, 0) == shares(settings, 1)
            else "another epoch has another order, so every rank must be told the same epoch"
        )
    return report


def _optional(name: str, function: Callable[..., Any]) -> list[str]:
    """Return which of the optional parameters a sampler has; UsageError if it can't be called."""
    try:
        found = inspect.signature(function)
        takes = [option for option in _OPTIONAL if option in found.parameters]
        found.bind(8, 2, 0, **dict.fromkeys(takes, 0))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{name} can't be called with a number of samples, a number of ranks and a rank "
            f"({error}); write it as def make_sampler(size, world_size, rank), with batch_size, "
            f"epoch or seed behind these if it needs them"
        ) from None
    return takes


def _shares(
    name: str, function: Callable[..., Any], settings: Settings, options: dict[str, int]
) -> Shares:
    """Return what a sampler gives to each rank."""
    most, found = 4 * settings.size + _SPARE, []
    for rank in range(settings.world_size):
        given = function(settings.size, settings.world_size, rank, **options)
        if not isinstance(given, Iterable):
            raise UsageError(f"{name} returned {given!r:.100} for rank {rank}; {_AS_TEXT}")
        batches = [_indices(name, each, most) for each in islice(given, most + 1)]
        if len(batches) > most or any(len(batch) > most for batch in batches):
            raise RuntimeError(
                f"the indices of rank {rank} do not end: more than {most} of {settings.size}"
            )
        found.append(batches)
    return found


def _indices(name: str, given: Any, most: int) -> list[int]:
    """Return an index, or a batch of them, as a list; of one that is longer, one more than most."""
    try:
        items = [*islice(given, most + 1)] if isinstance(given, Iterable) else [given]
        return [each.__index__() for each in items]
    except (AttributeError, TypeError):
        raise UsageError(f"{name} gave {given!r:.100} as an index; {_AS_TEXT}") from None


def _problems(size: int, shares: Shares) -> Iterable[tuple[Kind, str]]:
    """Yield what is wrong with samples that were dealt so."""
    ranks: dict[int, list[int]] = {}  # to which each sample was dealt
    for rank, batches in enumerate(shares):
        for index in chain(*batches):
            ranks.setdefault(index, []).append(rank)
    dropped = [sample for sample in range(size) if sample not in ranks]
    repeated = [sample for sample, dealt in sorted(ranks.items()) if len(dealt) > 1]
    times = sum(map(len, ranks.values()))
    as_many = times == size and bool(dropped)
    hint = "; as many are repeated as are dropped, as if ranks shuffled by different seeds"
    if outside := sorted(sample for sample in ranks if not 0 <= sample < size):
        yield "not in the data set", f"index {outside[0]} is dealt, and there are {size} samples"
    elif repeated:
        sample = repeated[0]
        told = " and ".join(map(str, sorted({*ranks[sample]})))
        dealt = f"sample {sample} of {size} is dealt {len(ranks[sample])} times, to rank {told}"
        yield "counted twice", f"{dealt}; {times} indices are dealt in all{hint * as_many}"
    if dropped:
        yield "dropped", f"sample {dropped[0]} of {size} is dealt to no rank{hint * as_many}"
