"""The worlds in which a user's function is called, one for each world size."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from math import ceil

from disteval.audit.answers import Answer
from disteval.audit.case import Settings
from disteval.audit.on_ranks import Call, Target, call, prepare
from disteval.audit.planted import Planted
from disteval.errors import UsageError, WorldError, describe_error
from disteval.registry import get_backend_class
from disteval.traces import TraceFolder
from disteval.world import World
from disteval.world.address import LOOPBACK
from disteval.world.channel.messages import packed

_TIMES_FIRST = 6.0  # the first call of new ranks may import large libraries and compile
_LEAST_SECONDS = 2.0
_TIMES_SLOWER = 20.0  # than any call before; a call that takes longer will not return

TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
"""The variables by which libraries over torch find this rank and the others."""


class Limits:
    """The time limits of calls: the user's, until a call hung; then by what other calls took.

    The first call of new ranks may take longer: several times the user's limit, until the first
    calls of other ranks have shown how much longer it takes.

    Args:
        timeout: The seconds that one call may take.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._longest = {False: 0.0, True: 0.0}  # in ranks that have made a call, and in new ones
        self.hurry = False

    def of(self, fresh: bool) -> float:
        """Return the seconds that the next call may take.

        Args:
            fresh: Whether it is the first call of new ranks.
        """
        own = self._timeout
        if self.hurry:
            own = min(own, _LEAST_SECONDS + _TIMES_SLOWER * self._longest[False])
        return round(own + self._spare if fresh else own, 1)

    @property
    def _spare(self) -> float:
        """The seconds that the first call of new ranks may take besides."""
        spare = (_TIMES_FIRST - 1) * self._timeout
        known = self._longest[True]
        return min(spare, _LEAST_SECONDS + 4 * known) if known else spare

    def of_replay(self, hung: bool) -> float:
        """Return the ``--timeout`` of a replay, which is the user's.

        The first call of a replay has nothing to be compared with, so one that is meant to hang
        gets a shorter limit: its first call may take as long as that of new ranks here.
        """
        if not hung:
            return self._timeout
        first = (self._timeout + self._spare) / _TIMES_FIRST
        enough = max(first, 2 * self._longest[False])
        return min(ceil(enough), self._timeout)

    def note(self, fresh: bool, seconds: float) -> None:
        """Note how long a call has taken."""
        self._longest[fresh] = max(self._longest[fresh], seconds)


class AuditWorlds:
    """The worlds of one audit, which stay up from case to case.

    Args:
        target: The user's function, or ``module:function``.
        backend: The backend whose group the function finds.
        launcher: How to start the ranks; None stands for the backend's own.
        timeout: The seconds that one call may take.
        led: Ranks that somebody else has started, to be used instead of starting any.
        trace: Where the worlds that are started record a trace.
    """

    def __init__(
        self,
        target: Target,
        backend: str,
        launcher: str | None,
        timeout: float,
        led: World | None = None,
        trace: TraceFolder | None = None,
    ) -> None:
        self._target, self._backend, self._launcher = target, backend, launcher
        self._timeout, self._led, self._trace = timeout, led, trace
        self.limits = Limits(timeout)
        self._worlds: dict[int, World] = {}
        self._fresh: set[int] = set()
        self._assumes: tuple[str, ...] = ()

    def assumptions(self, world_size: int) -> tuple[str, ...]:
        """Start the ranks of one world size, and return what the function assumes.

        Raises:
            WorldError: The ranks could not start, or could not import the function.
        """
        self._open(world_size)
        return self._assumes

    def call(self, settings: Settings, planted: Planted | Sequence[Planted]) -> list[Answer]:
        """Call the function on every rank.

        Args:
            settings: The case.
            planted: What the samples hold, on all ranks or on each.

        Raises:
            WorldError: A rank raised, was lost, or did not return in time.
        """
        world = self._open(settings.world_size)
        fresh = settings.world_size in self._fresh
        self._fresh.discard(settings.world_size)
        each = [planted] * settings.world_size if isinstance(planted, Planted) else planted
        calls = [Call(self._target, settings, one, world.folder) for one in each]
        begin = time.monotonic()
        try:
            found = world.run(call, *calls, timeout=self.limits.of(fresh))
            self.limits.note(fresh, time.monotonic() - begin)
            return found
        except WorldError:
            # After an error in the middle of a loop, a rank may hold what disturbs the next call.
            self.renew(settings.world_size)
            raise

    @property
    def are_led(self) -> bool:
        """Whether somebody else has started the ranks."""
        return self._led is not None

    @property
    def as_torchrun(self) -> bool:
        """Whether ranks that are started here have the environment of torchrun."""
        return not self.are_led and get_backend_class(self._backend).library == "torch"

    @property
    def are_lost(self) -> bool:
        """Whether somebody else's ranks are out of step, so that there are none to call."""
        return self._led is not None and not self._led.is_open

    def is_fresh(self, world_size: int) -> bool:
        """Return whether the function was not called yet in the present world of that size."""
        return world_size not in self._worlds or world_size in self._fresh

    def renew(self, world_size: int) -> None:
        """End the world of that size, so that the next call starts another."""
        world = self._worlds.pop(world_size, None)
        if world is not None and self._led is None:
            with suppress(WorldError):
                world.terminate()

    def close(self) -> None:
        """End every world that was started here."""
        for world in self._worlds.values():
            if self._led is None:
                world.close()

    def _open(self, world_size: int) -> World:
        if world_size not in self._worlds:
            self._worlds[world_size] = self._start(world_size)
            self._fresh.add(world_size)
        return self._worlds[world_size]

    def _start(self, world_size: int) -> World:
        if self._led is not None:
            self._led.join(self._backend)
            self._prepare(self._led)
            return self._led
        world = World(
            self._backend, world_size, launcher=self._launcher, timeout=max(self._timeout, 20.0),
            trace=self._trace,
        )  # fmt: skip
        try:
            self._prepare(world, _free_port() if self.as_torchrun else "")
        except BaseException:
            world.terminate()
            raise
        return world

    def _prepare(self, world: World, port: str = "") -> None:
        """Have every rank import the function; with a port, in the environment of torchrun."""
        try:
            packed(self._target)
        except Exception as error:  # pickling runs code of any class
            raise UsageError(
                f"the function can't be sent to the ranks ({describe_error(error)}); write it into "
                f"a module, and name it as module:function"
            ) from error
        size = world.world_size
        of_rank = [_torchrun_variables(rank, size, port) if port else {} for rank in range(size)]
        found = world.run(
            prepare, *[(self._target, each) for each in of_rank], timeout=max(self._timeout, 60.0)
        )
        self._assumes = found[0]


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


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return str(probe.getsockname()[1])
