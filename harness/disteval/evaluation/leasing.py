"""The arguments of an evaluation in leases."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from disteval.arguments import check_count, check_path
from disteval.data.predictions import Predictions, Sink
from disteval.data.shards import ShardedStream
from disteval.errors import UsageError
from disteval.evaluation.work import Work
from disteval.metrics.totals import check_totals


@dataclass(frozen=True)
class Leasing:
    """How ranks borrow leases, see `disteval.evaluate`.

    Raises:
        UsageError: A value is of another kind or out of range, or is given without leases.
    """

    ledger: str | os.PathLike[str] | None = None
    timeout: float = 60.0
    ranks_per_lease: int = 1
    schedule: str = "leases"

    def __post_init__(self) -> None:
        check_count("ranks_per_lease", self.ranks_per_lease)
        if self.ledger is not None:
            check_path("ledger", self.ledger)
        known = isinstance(self.timeout, Real) and not isinstance(self.timeout, bool)
        if not known or not 0 < self.timeout < math.inf:
            raise UsageError(
                f"lease_timeout must be a number of seconds above 0, not {self.timeout!r}"
            )
        given = {"ledger": self.ledger is not None, "ranks_per_lease": self.ranks_per_lease > 1}
        for name in (name for name, is_given in given.items() if is_given):
            if self.schedule != "leases":
                raise UsageError(f'{name} needs leases; add schedule="leases", or leave it out')

    @property
    def folder(self) -> Path | None:
        """The folder of the ledger."""
        return None if self.ledger is None else Path(self.ledger)

    def settings(self, work: Work) -> dict[str, Any]:
        """Check that work can be done in leases, and return what must be the same on every rank.

        Raises:
            UsageError: The samples have no numbers, a metric can't be added up, or the world size
                is no multiple of the ranks of a lease.
        """
        if work.opened is None and not isinstance(work.samples, ShardedStream):
            raise UsageError(
                "a stream can't be cut into leases, because its samples have no numbers; give a "
                "list or anything with a length and an index, disteval.data.ShardedStream, or "
                'schedule="static"'
            )
        if work.opened is None and work.dealing.limit is not None:
            raise UsageError(
                "limit can't be kept in leases of shards, whose lengths nobody knows; leave it "
                'out, name fewer shards, or give schedule="static"'
            )
        if type(work.target) not in (Sink, Predictions):
            raise UsageError(
                "predictions in leases can't be gathered in memory, because ranks may be lost; "
                'give a folder, or schedule="static"'
            )
        if isinstance(work.target, Predictions):
            work.settings["the folder of predictions"] = str(work.target.path.absolute())
        if work.opened is None:
            stream = work.dealing.stream(work.samples, work.backend)
            work.settings["the number of samples"] = stream.settings
        check_totals(work.metrics)
        if self.ranks_per_lease > 1:  # ranks of a group may have different parts of a model
            work.settings = {k: v for k, v in work.settings.items() if k not in work.weights}
        world = work.backend.world_size
        if world > 1 and world % self.ranks_per_lease:
            raise UsageError(
                f"ranks_per_lease is {self.ranks_per_lease}, and {world} ranks are no multiple of "
                f"it; start another number of ranks"
            )
        ledger = None if self.folder is None else str(self.folder.absolute())
        return {
            "lease_timeout": self.timeout,
            "ranks_per_lease": self.ranks_per_lease,
            "ledger": ledger,
        }
