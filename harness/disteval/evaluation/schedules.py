"""Who evaluates which units: fixed shares of ranks, or leases that ranks borrow."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from disteval import traces
from disteval.arguments import check_choice, check_count, check_seconds
from disteval.data.plan import Batch, dealt
from disteval.data.predictions import locked
from disteval.data.predictions.writer import is_due
from disteval.data.same_streams import check_streams
from disteval.data.sources import NOTHING, Indexed, Shards, Source
from disteval.errors import HarnessError, UsageError, describe_error
from disteval.evaluation.agreement import Failure, gathered, on_rank_0
from disteval.evaluation.gathered import GatheredPredictions
from disteval.evaluation.result import Evaluation, read_result
from disteval.evaluation.work import Work
from disteval.host import interrupts_held_back
from disteval.identity import short
from disteval.ledger import Ledger, LedgerLog, Part, merged, stored_of
from disteval.metrics.totals import pack_totals
from disteval.plain import packed

_log = logging.getLogger("disteval")

Finish = Callable[[Sequence[Part]], Evaluation]
"""A function of all that was evaluated to what was found, in one process."""


class Schedule:
    """Which units a rank evaluates, and what becomes of them.

    Attributes:
        rank: The rank.
        source: Yields the batches of units.
        seen: The number of samples that it has evaluated, padding included.
        is_kept: Whether what is committed is written to a disk.
        whole: Lets no interrupt end a block in the middle, if what was done before is kept.
    """

    rank: int
    source: Source
    is_kept: bool
    seen = 0
    whole: Callable[[], AbstractContextManager[None]] = nullcontext

    def leases(self) -> Iterator[Iterator[tuple[int, bool]]]:
        """Yield units that are committed together at the latest, each with whether it counts."""
        raise NotImplementedError

    def after(self, batch: Batch) -> Literal["go on", "commit", "drop"]:
        """Note that a batch is done; return what to do before the next one.

        ``commit`` commits what was done of the lease, and ``drop`` forgets it, and its rest.
        """
        raise NotImplementedError

    def commit(self, part: Part) -> None:
        """Commit what was done since the last commit."""
        raise NotImplementedError

    def keep(self, commit: Callable[[], None]) -> None:
        """Commit what was done before this rank failed or was interrupted, if that may be."""

    def total(self) -> int | None:
        """Return the number of samples of this rank, padding included; None if it is not known."""
        return None

    def complete(self, finish: Finish, failure: Failure | None) -> Evaluation:
        """Return what all ranks have found, once this one has evaluated all that it could.

        Args:
            finish: Proves what was evaluated, and computes the result.
            failure: What failed on this rank.
        """
        raise NotImplementedError


class Fixed(Schedule):
    """Each rank has its share before the first batch: units in turn.

    Every rank must make one and call its methods, once ranks agree.

    Args:
        work: What is evaluated.
        ledger: The folder of the ledger; None puts it to the predictions, if there are any.
        stack: Closes what this opens.

    Raises:
        UsageError: On every rank, when the ledger or the folder of predictions can't be used.
    """

    def __init__(self, work: Work, ledger: Path | None, stack: ExitStack) -> None:
        self._work, self._backend = work, work.backend
        self.rank = work.backend.rank
        self._stack = stack
        self._ledger: Ledger | None = None
        self._log: LedgerLog | None = None
        self._stored: tuple[Part, ...] = ()
        self._result: bytes | None = None
        self._found: Evaluation | None = None  # on rank 0, as it was computed
        self._since = ""
        self._parts: list[Part] = []
        self.is_kept = work.is_kept
        self._begin = self._last = time.monotonic()
        if self.is_kept:
            self.whole = interrupts_held_back
            self._open(ledger)
        self.source = work.source
        self.source.begin(stored_of(self._stored) if self._stored else NOTHING)

    def leases(self) -> Iterator[Iterator[tuple[int, bool]]]:
        """Yield this rank's units, see `Schedule`."""
        source, even = self.source, self._work.form.even
        if self._result is not None:
            return
        yield dealt(
            source.units, self._backend.world_size, self.rank,
            even=even and not isinstance(source, Shards), by_cost=source.by_cost,
        )  # fmt: skip

    def after(self, batch: Batch) -> Literal["go on", "commit"]:
        """Commit if predictions were written, or a ledger has waited long; see `Schedule`."""
        if self._log is None:
            return "go on"
        writer = self._work.writer
        is_over = is_due(self._begin, self._last) if writer is None else writer.parts
        return "commit" if is_over else "go on"

    def commit(self, part: Part) -> None:
        """Keep a part, on the disk if there is a ledger."""
        self._last = time.monotonic()
        if self.rank:  # it is sent, and what can't be packed is told as other errors of the loop
            part = part._replace(states=pack_totals(part.states))
        if self._log is not None and (part.ids or part.lengths):
            self._log.commit(part)
        self._parts = merged([*self._parts, part])

    def keep(self, commit: Callable[[], None]) -> None:
        """Commit what was done before this rank failed, if there is a ledger."""
        if self._log is not None:
            try:
                commit()
            except Exception as error:  # the failure that ends the evaluation is reported already
                _log.warning("what was done last can't be kept: %s", describe_error(error))

    def _open(self, ledger: Path | None) -> None:
        """Open the ledger on rank 0, and have every rank write to its folder."""
        work, backend = self._work, self._backend
        record, target = work.record(), work.folder

        def begin() -> tuple[Any, ...]:
            if target is not None:
                self._stack.enter_context(locked(target))
            self._ledger = Ledger(ledger, record, target)
            self._stack.callback(self._ledger.close)
            stored = [part._replace(states=b"", files=()) for part in self._ledger.stored]
            return self._ledger.run, tuple(stored), self._ledger.result, self._ledger.since

        begun, self._stored, self._result, self._since = on_rank_0(backend, begin, "begin")
        failure: str | None = None
        try:
            if self._ledger is not None:
                self._log = self._ledger.log
            else:
                # The same folder as on rank 0, which may be mounted elsewhere on this host.
                folder = ledger or (target and target.path)
                self._log = LedgerLog(begun._replace(folder=folder), hidden=ledger is None)
                self._stack.callback(self._log.close)
                self._log.check_place()
        except HarnessError as caught:
            failure = str(caught)
        for rank, other in enumerate(backend.all_gather_object(failure)):
            if other is not None:
                raise UsageError(f"rank {rank}: {other}")

    def total(self) -> int | None:
        """Return the number of samples of this rank, see `Schedule`."""
        source = self.source
        if not isinstance(source, Indexed):
            return None
        return sum(map(source.samples_of, self.leases()))

    def complete(self, finish: Finish, failure: Failure | None) -> Evaluation:
        """Gather what ranks have evaluated, and have rank 0 prove and compute; see `Schedule`."""
        work, backend = self._work, self._backend
        stored = sum(part.certificate.counted for part in self._stored)
        since = self._since if stored else ""
        if self._result is not None:
            found = read_result(self._result)
            return replace(found, world_size=backend.world_size, stored=stored, since=since)
        elements = None if work.stream is None else work.stream.elements
        stream: tuple[Any, ...] = ()
        if work.stream is not None and elements is not None:
            stream = (work.stream.lengths, elements.total()), short(work.canary.text)
        # Rank 0 computes, so its own parts stay where they are.
        parts = () if failure or not self.rank else tuple(part.plain() for part in self._parts)
        padded = self.seen - sum(part.certificate.counted for part in self._parts)
        with traces.span("metric", "gather"):
            notes = gathered(backend, (parts, padded, stream), failure)
        compared = 0
        if elements is not None:
            read, outputs = zip(*(note for *_, note in notes), strict=True)
            compared = check_streams(read, elements, backend)
            work.canary.settle(work, outputs)
        every = [*self._parts, *(Part.of(part) for others, *_ in notes for part in others)]
        with traces.span("metric", "compute"):
            data = on_rank_0(backend, partial(self._compute, finish, every), "compute the result")
        if self._ledger is not None and self._ledger.is_hidden:
            self._ledger.remove()  # the result is in the folder of predictions
        if isinstance(work.target, GatheredPredictions):
            work.target.finish()
        return replace(
            self._found or read_result(data),
            world_size=backend.world_size, stored=stored, since=since,
            padded=sum(each for _, each, _ in notes), compared=compared,
        )  # fmt: skip

    def _compute(self, finish: Finish, parts: Sequence[Part]) -> bytes:
        """Prove and compute on rank 0, and return what the other ranks and later runs get."""
        stored = [] if self._ledger is None else self._ledger.stored
        self._found = finish([*stored, *parts])
        if self._backend.world_size == 1 and self._ledger is None:
            return b""
        data = packed(self._found)
        if self._ledger is not None:
            self._ledger.finish(data)
        return data


@dataclass(frozen=True)
class Leases:
    """Batches that ranks borrow, so that ranks other than rank 0 may be lost.

    A rank asks for batches when it has finished others. The batches, and so the results, are those
    of one rank. See docs/leases.md.

    Args:
        timeout: The seconds after which the batches of a rank that has finished none go to another
            rank; a batch must take less.
        group_size: The number of consecutive ranks that borrow together, as those of a model that
            spans several ranks.
        in_group: ``same``: each of them evaluates all batches, as a tensor-parallel model needs.
            ``turns``: they take them in turn, and call ``predict`` equally often, as one needs
            whose parameters are sharded. A model of torch with sharded parameters borrows so by
            itself, with all ranks in one group, unless a ``group_size`` is given.

    Raises:
        UsageError: A value is of another kind or out of range.
    """

    timeout: float = 60.0
    group_size: int = 1
    in_group: Literal["same", "turns"] = "same"

    def __post_init__(self) -> None:
        check_choice("in_group", self.in_group, ("same", "turns"))
        check_count("group_size", self.group_size)
        check_seconds("timeout", self.timeout)

    @property
    def same(self) -> int:
        """The number of consecutive ranks that evaluate the same batches."""
        return self.group_size if self.in_group == "same" else 1

    def of_work(self, work: Work, ledger: Path | None) -> Leases:
        """Return these leases, and have ranks compare their settings; check that work fits them.

        They are of one group of all ranks if a model's parameters are sharded over these.

        Raises:
            UsageError: The samples have no numbers, predictions are gathered in memory, or the
                world size is no multiple of the ranks of a lease.
        """
        world = work.backend.world_size  # of disteval eval, whose ranks no backend joins, it is 1
        if work.spans_ranks and self.group_size == 1 < world and work.stream is None:
            spread = replace(self, group_size=world, in_group="turns")
            return spread.of_work(work, ledger)
        if work.stream is not None and not isinstance(work.stream, Shards):
            if work.stream.sharded is not None:
                raise UsageError(
                    "limit can't be kept in leases of shards, whose lengths nobody knows; leave it "
                    "or leases out, or name fewer shards"
                )
            raise UsageError(
                "a stream can't be cut into leases, because its samples have no numbers; give a "
                "list or anything with a length and an index, disteval.data.ShardedStream, or "
                "leave leases out"
            )
        if isinstance(work.target, GatheredPredictions):
            raise UsageError(
                "predictions in leases can't be gathered in memory, because ranks may be lost; "
                "give a folder, or leave leases out"
            )
        if work.task.even_calls and self.group_size < world:
            raise UsageError(
                "even_calls=True can't be kept in leases, of which no rank knows how many another "
                "one gets; leave it out, or let all ranks borrow together by group_size"
            )
        if work.spans_ranks and self.group_size == 1 < world:
            raise UsageError(
                "ranks that share a model's parameters can't borrow shards one by one; give their "
                "number as Leases(group_size=…), or leave leases out"
            )
        if self.group_size > 1:  # ranks of a group may have different parts of a model
            work.settings = {k: v for k, v in work.settings.items() if k not in work.weights}
        if world % self.group_size:
            raise UsageError(
                f"a world size of {world} is no multiple of group_size={self.group_size}; start "
                f"another number of ranks"
            )
        if self.in_group == "turns" and work.stream is not None:
            raise UsageError(
                "in_group='turns' can't be kept for shards, whose lengths nobody knows; leave it "
                "out, or make a list of the samples"
            )
        work.settings |= asdict(self)
        work.settings["ledger"] = None if ledger is None else str(ledger.absolute())
        return self
