"""The ranks that are judged: started here, one world for each size, or led where a launcher is.

``disteval eval`` does not use it: it has one world of one size, in which ranks may be lost, and a
launcher's ranks are one more way to start that world. `leading` would add a second path there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from disteval.contract import BaseDistBackend
from disteval.errors import HarnessError, UsageError, WorldError
from disteval.launched import LaunchedJob
from disteval.registry import get_backend_class
from disteval.traces import TraceFolder
from disteval.traces.folder import as_folder
from disteval.world import World, detect_outer_world, follow, release, share_cores, why_not_in

W = TypeVar("W", bound=World)

_STARTED_BY = {
    "mpirun": ("mpirun", "-np"),
    "horovodrun": ("horovodrun", "-np"),
    "srun": ("srun", "-n"),
    "torchrun": ("torchrun", "--no-python", "--nproc-per-node"),
}
"""The commands that start ranks of a number that comes after them."""


@dataclass
class Led(Generic[W]):
    """What a command judges on.

    Attributes:
        sizes: The world sizes to try.
        world: The ranks that a launcher has started; None where ranks are to be started.
        outer: What the launcher says of them.
        trace: Where the judgement records a trace.
        exit_code: The status with which the other ranks end where the block does not end by an
            exit of its own.
    """

    sizes: Sequence[int]
    world: W | None = None
    outer: LaunchedJob | None = None
    trace: TraceFolder | None = None
    exit_code: int = 2

    @property
    def started_by(self) -> tuple[str, ...]:
        """The words of a command that starts as many ranks; nothing where ranks are started."""
        return () if self.outer is None else (*_STARTED_BY[self.outer.launcher], str(self.sizes[0]))

    def why_not(self, backend: str) -> str:
        """Have led ranks import a backend, and return why it can't run on them; or nothing.

        Raises:
            HarnessError: It can't be imported.
        """
        if self.world is None or self.outer is None:
            return ""
        self.world.load(backend)
        return why_not_in(self.outer, backend, get_backend_class(backend))


@contextmanager
def leading(
    asked: Sequence[int] | None,
    default: Sequence[int],
    tell: Callable[[HarnessError], object],
    *,
    world: type[W],
    interface: str | None = None,
    trace: Path | None = None,
) -> Iterator[Led[W]]:
    """Judge in the block, on ranks that a launcher has started if it has.

    On their ranks above 0 the block never begins: they follow rank 0, and end with the exit status
    with which its block ends.

    Args:
        asked: The world sizes that the user has named; None stands for ``default``, or for the
            number of ranks that are there.
        default: The world sizes where nothing was asked for.
        tell: Called with an error, which then ends the command with status 2. It comes before
            other ranks are dismissed, for this process ends at that where they are lost.
        world: The class of the world in which ranks are led.
        interface: As for `World.lead`.
        trace: The folder of ``--trace``, which only the process that leads makes.
    """
    led: Led[W] = Led(asked or default)
    code = 2
    try:
        outer = detect_outer_world()
        if outer is not None and outer.rank > 0:
            sys.exit(follow(outer))
        led.trace = as_folder(trace, "--trace")
        if outer is not None:
            share_cores(outer)
            led.world = world.lead(outer, interface=interface, trace=led.trace)
            led.outer, led.sizes = outer, (outer.world_size,)
            if asked not in (None, led.sizes):
                raise UsageError(
                    f"--world-size {','.join(map(str, asked or ()))}, but {outer.launcher} started "
                    f"{outer.world_size} ranks; leave the option out, or start as many ranks"
                )
        yield led
        code = led.exit_code
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        raise
    except HarnessError as error:
        tell(error)
        sys.exit(code)
    except BaseException:
        if led.world is not None and not led.world.is_open:
            led.world = None  # to release lost ranks would end this process before it tells
        raise
    finally:
        if led.world is not None:  # MPI, where it has begun, waits at exit for all ranks
            release(led.world, code)


@dataclass(eq=False)
class Session(Generic[W]):
    """The present world of one backend at each size, and another one after it was lost.

    Args:
        backend: A registered name, ``module:Class``, or a class that the ranks can import.
        kind: The class of the worlds.
        launcher: How to start the ranks; None stands for the launcher that the class names.
        timeout: As for `World`.
        threads: As for `World`.
        trace: As for `World`.
        led: Ranks that a launcher has started, to be used instead of starting any.
        prepare: Called with each world before it is used at its size.
    """

    backend: str | type[BaseDistBackend]
    kind: type[W]
    _: KW_ONLY
    launcher: str | None = None
    timeout: float = 20.0
    threads: int | None = None
    trace: TraceFolder | None = None
    led: W | None = None
    prepare: Callable[[W], object] = lambda _: None

    def __post_init__(self) -> None:
        self._present: dict[int, W] = {}
        self._started: list[W] = []
        self._stopped = False
        if self.led is not None:
            self.led.timeout = self.timeout

    @property
    def can_start(self) -> bool:
        """Whether other ranks can be started, so that the present ones may be lost."""
        return self.led is None

    @cached_property
    def cls(self) -> type[BaseDistBackend]:
        """The backend's class; led ranks import it all at once, as some libraries want."""
        if self.led is not None:
            self.led.load(self.backend)
        return get_backend_class(self.backend)

    def world(self, size: int) -> W:
        """Return the present world of that size, or another one if that was lost.

        Raises:
            UsageError: Ranks of another number are led.
            WorldError: The ranks do not start, or do not join their group.
        """
        world = self._present.get(size)
        if world is None or not world.is_open:
            world = self._present[size] = self.fresh(size) if self.led is None else self.led
            try:
                if world is self.led:
                    if world.world_size != size:
                        raise UsageError(
                            f"world size {size}, but this job has {world.world_size} ranks, no "
                            f"more and no fewer"
                        )
                    world.join(self.backend)
                self.prepare(world)
            except BaseException:
                self.renew(size)
                raise
        return world

    def fresh(self, size: int, **options: Any) -> W:
        """Start another world of that size, whose ranks may be lost; the caller closes it.

        Args:
            size: The number of ranks.
            **options: Options of `World`, in place of the session's.
        """
        given: dict[str, Any] = {"launcher": self.launcher, "timeout": self.timeout}
        given |= {"threads": self.threads, "trace": self.trace}
        world = self.kind(self.cls, size, **given | options)
        self._started.append(world)
        if self._stopped:
            self.stop()
        return world

    def join_again(self, size: int) -> None:
        """Have the ranks of the present world leave their group, and join another one."""
        world = self._present.pop(size)  # without a group it serves nobody
        world.join(self.backend)
        self._present[size] = world

    def is_lost(self, size: int | None = None) -> bool:
        """Return whether the present world of that size was lost; without a size, led ranks."""
        world = self.led if size is None else self._present.get(size)
        return world is not None and not world.is_open

    def renew(self, size: int) -> None:
        """End the present world of that size at once, so that the next one is another.

        Ranks that a launcher has started stay, and join another group.
        """
        world = self._present.pop(size, None)
        if world is not None and self.led is None:
            with suppress(WorldError):
                world.terminate()

    def stop(self) -> None:
        """Terminate the ranks of all worlds that this session has started or is starting."""
        self._stopped = True
        for world in self._started:
            world.terminate()

    def close(self, size: int | None = None) -> None:
        """End the present world of that size, or of all; led ranks leave their group only."""
        for each in [size] if size is not None else [*self._present]:
            world = self._present.pop(each, None)
            if world is None or not world.is_open:
                continue
            if self.led is None:
                world.close()
            else:
                # What was to be judged is; the world itself says that it is lost.
                with suppress(WorldError):
                    world.leave()

    def __enter__(self) -> Session[W]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
