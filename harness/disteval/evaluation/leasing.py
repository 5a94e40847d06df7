"""How ranks borrow leases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from disteval.arguments import check_count
from disteval.data.predictions import Predictions, Sink
from disteval.data.shards import ShardedStream
from disteval.errors import UsageError
from disteval.evaluation.work import Work
from disteval.metrics.totals import check_totals


@dataclass(frozen=True)
class Leases:
    """Batches that ranks borrow, so that ranks other than rank 0 may be lost.

    A rank asks for batches when it has finished others. The batches, and so the results, are those
    of one rank. See docs/leases.md.

    Args:
        timeout: The seconds after which the batches of a rank that has finished none go to another
            rank; a batch must take less.
        group_size: The number of consecutive ranks that evaluate the same batches together, as
            those of a model that spans several ranks.

    Raises:
        UsageError: A value is of another kind or out of range.
    """

    timeout: float = 60.0
    group_size: int = 1

    def __post_init__(self) -> None:
        check_count("group_size", self.group_size)
        known = isinstance(self.timeout, Real) and not isinstance(self.timeout, bool)
        if not known or not 0 < self.timeout < math.inf:
            raise UsageError(f"timeout must be a number of seconds above 0, not {self.timeout!r}")

    def settings(self, work: Work, ledger: Path | None = None) -> dict[str, Any]:
        """Check that work can be done in leases, and return what must be the same on every rank.

        Raises:
            UsageError: The samples have no numbers, a metric can't be added up, or the world size
                is no multiple of the ranks of a lease.
        """
        if work.opened is None and not isinstance(work.samples, ShardedStream):
            raise UsageError(
                "a stream can't be cut into leases, because its samples have no numbers; give a "
                "list or anything with a length and an index, disteval.data.ShardedStream, or "
                "leave leases out"
            )
        if work.opened is None and work.dealing.limit is not None:
            raise UsageError(
                "limit can't be kept in leases of shards, whose lengths nobody knows; leave it "
                "or leases out, or name fewer shards"
            )
        if type(work.target) not in (Sink, Predictions):
            raise UsageError(
                "predictions in leases can't be gathered in memory, because ranks may be lost; "
                "give a folder, or leave leases out"
            )
        if isinstance(work.target, Predictions):
            work.settings["the folder of predictions"] = str(work.target.path.absolute())
        if work.opened is None:
            stream = work.dealing.stream(work.samples, work.backend)
            work.settings["the number of samples"] = stream.settings
        check_totals(work.metrics)
        work.dealing.check_even("leases", self.group_size < work.backend.world_size)
        if self.group_size > 1:  # ranks of a group may have different parts of a model
            work.settings = {k: v for k, v in work.settings.items() if k not in work.weights}
        world = work.backend.world_size
        if world > 1 and world % self.group_size:
            raise UsageError(
                f"group_size is {self.group_size}, and {world} ranks are no multiple of "
                f"it; start another number of ranks"
            )
        folder = None if ledger is None else str(ledger.absolute())
        return {"timeout": self.timeout, "group_size": self.group_size, "ledger": folder}
