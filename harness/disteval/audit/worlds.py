"""The worlds in which a user's function is called, one for each world size."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

from disteval.audit.answers import Answer, with_logged
from disteval.audit.case import Settings
from disteval.audit.on_ranks import Target, call, merge, prepare
from disteval.audit.planted import Planted
from disteval.errors import UsageError, WorldError, describe_error
from disteval.judging.session import Session
from disteval.traces import TraceFolder
from disteval.world import World
from disteval.world.address import LOOPBACK
from disteval.world.channel.messages import packed

_TIMES_FIRST = 6.0  # the first call of new ranks may import large libraries and compile
_LEAST_SECONDS = 2.0
_TIMES_SLOWER = 20.0  # than any call before; a call that takes longer will not return

TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
"""The variables by which libraries over torch find this rank and the others."""


@dataclass(eq=False)
class Calls:
    """Calls of a user's function on ranks, which stay up from case to case.

    Each has a time limit: the user's, until a call hung; then one by what other calls took. The
    first call of new ranks may take longer: several times the user's limit, until the first calls
    of other ranks have shown how much longer it takes.

    Args:
        target: The user's function, or ``module:function``.
        backend: The backend whose group the function finds.
        launcher: How to start the ranks; None stands for the backend's own.
        timeout: The seconds that one call may take.
        led: Ranks that a launcher has started, to be used instead of starting any.
        trace: Where the worlds that are started record a trace.

    Attributes:
        hurry: Whether a call hung, so that calls are compared with others.
        patience: How many times longer calls may take, for a machine that is busy.
        session: The worlds.
        assumes: What the function assumes, once it was imported.
        has_merge: Whether it is a job that writes a part, once it was imported.
    """

    target: Target
    backend: str
    launcher: str | None
    timeout: float
    led: World | None = None
    trace: TraceFolder | None = None

    def __post_init__(self) -> None:
        self.hurry, self.patience = False, 1.0
        self.assumes, self.has_merge = (), False
        self.session: Session[World] = Session(
            self.backend, World, launcher=self.launcher, timeout=max(self.timeout, 20.0),
            trace=self.trace, led=self.led, prepare=self._prepare,
        )  # fmt: skip
        self._longest = {False: 0.0, True: 0.0}  # in ranks that have made a call, and in new ones
        self._called: set[int] = set()
        self._took: dict[int, float] = {}  # the shortest call of so many batches

    def __call__(self, settings: Settings, planted: Planted | Sequence[Planted]) -> list[Answer]:
        """Call the function on every rank.

        Args:
            settings: The case.
            planted: What the samples hold, on all ranks or on each.

        Raises:
            WorldError: A rank raised, was lost, or did not return in time.
        """
        size = settings.world_size
        world, fresh = self.session.world(size), self.is_fresh(size)
        self._called.add(size)
        each = [planted] * size if isinstance(planted, Planted) else planted
        begin, limit = time.monotonic(), self._limit(fresh)
        try:
            with TemporaryDirectory(dir=world.folder, ignore_cleanup_errors=True) as folder:
                calls = [(self.target, settings, one, Path(folder)) for one in each]
                found = world.run(call, *calls, timeout=limit)
                if self.has_merge and not any(answer.refused for answer in found):
                    found = world.run(merge, *[(*one, found) for one in calls], timeout=limit)
        except WorldError:
            # After an error in the middle of a loop, a rank may hold what disturbs the next call.
            self.renew(size)
            raise
        seconds = time.monotonic() - begin
        self._longest[fresh] = max(self._longest[fresh], seconds)
        self._took[settings.steps] = min(seconds, self._took.get(settings.steps, seconds))
        return with_logged(found)

    def attempt(self, settings: Settings, planted: Planted | Sequence[Planted]) -> Sequence[Answer]:
        """Call the function on every rank, and return no answers where that fails."""
        try:
            return self(settings, planted)
        except WorldError:
            return ()

    def expected_seconds(self, settings: Settings) -> float:
        """Return how long a call may take that has more batches than those so far."""
        few, many = min(self._took, default=0), max(self._took, default=0)
        if few == many:
            return 0.0
        each = (self._took[many] - self._took[few]) / (many - few)
        return self._took[few] + max(each, 0.0) * (settings.steps - few)

    def limit_of_replay(self, hung: bool) -> float:
        """Return the ``--timeout`` of a replay, which is the user's.

        The first call of a replay has nothing to be compared with, so one that is meant to hang
        gets a shorter limit: its first call may take as long as that of new ranks here.
        """
        if not hung:
            return self.timeout
        first = (self.timeout + self._spare) / _TIMES_FIRST
        return min(ceil(max(first, 2 * self._longest[False])), self.timeout)

    def _limit(self, fresh: bool) -> float:
        """Return the seconds that the next call may take, which may be the first of new ranks."""
        own = self.timeout
        if self.hurry:
            own = min(own, _LEAST_SECONDS + _TIMES_SLOWER * self._longest[False])
        return round(self.patience * (own + self._spare if fresh else own), 1)

    @property
    def _spare(self) -> float:
        """The seconds that the first call of new ranks may take besides."""
        spare = (_TIMES_FIRST - 1) * self.timeout
        known = self._longest[True]
        return min(spare, _LEAST_SECONDS + 4 * known) if known else spare

    @property
    def as_torchrun(self) -> bool:
        """Whether ranks that are started here have the environment of torchrun."""
        return self.session.can_start and self.session.cls.library == "torch"

    def is_fresh(self, world_size: int) -> bool:
        """Return whether the function was not called yet in the present world of that size."""
        return world_size not in self._called

    def renew(self, world_size: int) -> None:
        """End the world of that size, so that the next call finds another."""
        self._called.discard(world_size)
        self.session.renew(world_size)

    def _prepare(self, world: World) -> None:
        """Have every rank import the function; in torchrun's environment, where that is ours."""
        try:
            packed(self.target)
        except Exception as error:  # pickling runs code of any class
            raise UsageError(
                f"the function can't be sent to the ranks ({describe_error(error)}); write it into "
                f"a module, and name it as module:function"
            ) from error
        size, port = world.world_size, ""
        if self.as_torchrun:
            with socket.socket() as probe:
                probe.bind((LOOPBACK, 0))
                port = str(probe.getsockname()[1])
        of_rank = [_torchrun_variables(rank, size, port) if port else {} for rank in range(size)]
        given = [(self.target, variables) for variables in of_rank]
        # Libraries are imported here, which takes as long as a first call may.
        limit = max(self._limit(fresh=True), 60.0)
        found = world.run(prepare, *given, timeout=limit)
        self.assumes, self.has_merge = found[0]
        self._called.discard(size)


def _torchrun_variables(rank: int, world_size: int, port: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "TORCHELASTIC_RUN_ID": "disteval",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": port,
    }
