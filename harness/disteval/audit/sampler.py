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
    sampler = _Sampler(target, seed)
    report = AuditReport(sampler.name, "none")
    batches = BATCH_SIZES if "batch_size" in sampler.takes else (1,)
    cases = [Settings(*each) for each in product(SIZES, batches, sorted({*world_sizes}))]
    begin = time.monotonic()
    for settings in [only] if only else cases:
        late = time.monotonic() - begin > seconds
        report.cases[settings] = "out of time" if late else sampler.judge(report, settings)
    report.seconds = time.monotonic() - begin
    if not report.findings:
        report.reason = report.out_of_time(seconds)
    if uneven := sampler.uneven:
        report.warnings.append(
            f"in {len(uneven)} cases ranks have unequally many batches, first in {uneven[0]}, so a "
            f"collective in each batch would make ranks wait for each other"
        )
    if "epoch" in sampler.takes and not report.findings and not only:
        report.warnings.append(sampler.says_of_epochs())
    return report


class _Sampler:
    """A user's sampler.

    Attributes:
        name: Its name.
        takes: Which of the optional parameters it has.
        uneven: The cases in which ranks have unequally many batches.
    """

    def __init__(self, target: str | Callable[..., Any], seed: int) -> None:
        self.name, self.uneven = name_of(target), list[Settings]()
        self._function: Callable[..., Any] = load(target)
        self._seed = seed
        try:
            parameters = inspect.signature(self._function).parameters
            self.takes = [name for name in _OPTIONAL if name in parameters]
            inspect.signature(self._function).bind(8, 2, 0, **self._options(2, 0))
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{self.name} can't be called with a number of samples, a number of ranks and a "
                f"rank ({error}); write it as def make_sampler(size, world_size, rank), with "
                f"batch_size, epoch or seed behind these if it needs them"
            ) from None

    def shares(self, settings: Settings, epoch: int = 0) -> Shares:
        """Return what each rank gets."""
        options = self._options(settings.batch_size, epoch)
        most, found = 4 * settings.size + _SPARE, []
        for rank in range(settings.world_size):
            given = self._function(settings.size, settings.world_size, rank, **options)
            if not isinstance(given, Iterable):
                raise UsageError(f"{self.name} returned {given!r:.100} for rank {rank}; {_AS_TEXT}")
            batches = [_indices(self.name, each, most) for each in islice(given, most + 1)]
            if len(batches) > most or any(len(batch) > most for batch in batches):
                raise RuntimeError(
                    f"the indices of rank {rank} do not end: more than {most} of {settings.size}"
                )
            found.append(batches)
        return found

    def judge(self, report: AuditReport, settings: Settings) -> str:
        """Judge one case, add what is wrong to the report, and return the outcome."""
        try:
            shares = self.shares(settings)
        except UsageError:
            raise
        except Exception as error:  # a user's function may raise any exception
            self._add(report, settings, "crashes", f"it raised {describe_error(error)}")
            return "wrong"
        if len({*map(len, shares)}) > 1:
            self.uneven.append(settings)
        ranks: dict[int, list[int]] = {}
        for rank, batches in enumerate(shares):
            for index in chain(*batches):
                ranks.setdefault(index, []).append(rank)
        problems = list(_problems(settings.size, ranks))
        for kind, sentence in problems:
            self._add(report, settings, kind, sentence)
        return "wrong" if problems else "right"

    def says_of_epochs(self) -> str:
        """Return whether the order depends on the epoch."""
        settings = Settings(SIZES[-1], BATCH_SIZES[0], 2)
        first, second = (self.shares(settings, epoch) for epoch in (0, 1))
        if first == second:
            return "epochs 0 and 1 have the same order, so the epoch makes no difference"
        return "another epoch has another order, so every rank must be told the same epoch"

    def _options(self, batch_size: int, epoch: int) -> dict[str, int]:
        known = {"batch_size": batch_size, "epoch": epoch, "seed": self._seed}
        return {name: known[name] for name in self.takes}

    def _add(self, report: AuditReport, settings: Settings, kind: Kind, sentence: str) -> None:
        """Add a finding, unless a smaller case has shown its kind."""
        if all(found.kind != kind for found in report.findings):
            again = replay("audit", self.name, {"sampler": True, "case": str(settings)})
            report.findings.append(
                LoopFinding(
                    title=kind, where=str(settings), sentence=sentence, replay=again, name="",
                    settings=settings,
                )
            )  # fmt: skip


def _indices(name: str, given: Any, most: int) -> list[int]:
    """Return an index, or a batch of them, as a list; of one that is longer, one more than most."""
    try:
        items = [*islice(given, most + 1)] if isinstance(given, Iterable) else [given]
        return [each.__index__() for each in items]
    except (AttributeError, TypeError):
        raise UsageError(f"{name} gave {given!r:.100} as an index; {_AS_TEXT}") from None


def _problems(size: int, ranks: dict[int, list[int]]) -> Iterable[tuple[Kind, str]]:
    """Yield what is wrong with samples of which each was dealt to these ranks."""
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
