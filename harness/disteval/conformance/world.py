"""The worlds in which a backend is held to the rules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import index
from typing import Any

from disteval.conformance.causes import Seen, address_in_use
from disteval.contract import BaseDistBackend
from disteval.errors import UsageError, WorldError, describe_error
from disteval.registry import get_backend_class
from disteval.traces import TraceFolder
from disteval.world import Launcher, World
from disteval.world.launchers.local import LocalLauncher
from disteval.world.launchers.ray import RayLauncher, cluster_cpus, share_of_cpu
from disteval.world.world import BACKEND_SECONDS

_LIBRARIES = ("torch", "torch.distributed", "jax", "tensorflow", "paddle")

Identity = tuple[bool, int | str, int | str]
"""Whether a backend is in a group, its rank, and its world size; text where that is no integer."""


class JudgedWorld(World):
    """A world that lets a backend be wrong about its ranks, for rules 1.1 and 1.3 to judge.

    Attributes:
        before: The identity that the backend reported on each rank before it joined its group, or
            the exception that it raised.
    """

    before: Sequence[Identity | str] = ()

    def join(
        self, backend: str | type[BaseDistBackend], backend_timeout: float = BACKEND_SECONDS
    ) -> None:
        """See `World.join`."""
        self.leave()
        self.load(backend)
        cls = get_backend_class(backend) if isinstance(backend, str) else backend
        # Some libraries are imported only then.
        classes = [cls] * self.world_size
        self.before = self.run(_identity_of_new, *classes, timeout=self._start_seconds)
        super().join(cls, backend_timeout)

    def check_ranks(self, cls: type[BaseDistBackend], found: Any) -> None:
        """See `World.check_ranks`."""
        if not (self.attached or self._launcher.name == cls.launcher):
            super().check_ranks(cls, found)


class BackendWorlds:
    """The present world of one backend at one size, and another one after it was lost.

    Args:
        backend: A registered name, or a class that the ranks can import.
        world_size: The number of ranks.
        led: Ranks that somebody else has started, to be used instead of starting any.
        launcher: How to start the ranks; None stands for the launcher that the class names.
        timeout: As for `World`.
        backend_timeout: As for `World`.
        threads: As for `World`.
        trace: As for `World`.
        started: Called with each world that was started.
        sizes: All world sizes of the check, where they are known.

    Attributes:
        cls: The backend's class.
        name: The name of the backend, as it was given.
        world_size: See above.
        is_smallest: Whether no smaller world of the check has several ranks.
        can_be_lost: Whether other worlds can be started beside the present one.

    Raises:
        UsageError: ``led`` has another number of ranks.
    """

    def __init__(
        self,
        backend: str | type[BaseDistBackend],
        world_size: int,
        *,
        led: JudgedWorld | None = None,
        launcher: str | None = None,
        timeout: float = 20.0,
        backend_timeout: float = BACKEND_SECONDS,
        threads: int | None = None,
        trace: TraceFolder | None = None,
        started: Callable[[World], None] = lambda _: None,
        sizes: Iterable[int] = (),
    ) -> None:
        if led is not None:
            led.timeout = timeout
            if led.world_size != world_size:
                raise UsageError(
                    f"world size {world_size}, but this job has {led.world_size} ranks, no more "
                    f"and no fewer"
                )
        self.cls = get_backend_class(backend) if isinstance(backend, str) else backend
        self.can_be_lost, self.world_size = led is None, world_size
        self.is_smallest = world_size == min((size for size in sizes if size > 1), default=None)
        self.name = backend if isinstance(backend, str) else backend.__name__
        self._backend = backend
        self._led, self._launcher = led, launcher
        self._timeout, self._started = timeout, started
        self._backend_timeout, self._threads = backend_timeout, threads
        self._trace = trace
        self._world: JudgedWorld | None = None

    def get(self) -> JudgedWorld:
        """Return the present world, or another one if that was lost; its ranks are in step."""
        if self._world is None or not self._world.is_open:
            if self._led is None:
                self._world = self.fresh(self._backend_timeout)
            else:
                with _naming_the_cause(self.world_size):
                    self._led.join(self._backend)
                self._world = self._led
        return self._world

    def another(
        self, backend_timeout: float = BACKEND_SECONDS, timeout: float | None = None
    ) -> BackendWorlds:
        """Return other worlds of the same backend and size; they are closed by themselves.

        Args:
            backend_timeout: As for `World`.
            timeout: As for `World`; None stands for that of these worlds.
        """
        return BackendWorlds(
            self._backend,
            self.world_size,
            launcher=self._launcher,
            timeout=timeout or self._timeout,
            backend_timeout=backend_timeout,
            threads=self._threads,
            trace=self._trace,
            started=self._started,
        )

    def join_again(self) -> None:
        """Have the ranks of the present world leave their group, and join another one."""
        world = self.get()
        self._world = None  # without a group it serves no rule
        world.join(self._backend, self._backend_timeout)
        self._world = world

    def fresh(self, backend_timeout: float) -> JudgedWorld:
        """Start another world whose ranks may be lost, and whose backend waits that long."""
        launcher = _launcher(self._launcher, self.cls, self.world_size)
        with _naming_the_cause(self.world_size):
            world = JudgedWorld(
                self._backend,
                self.world_size,
                launcher=launcher,
                backend_timeout=backend_timeout,
                timeout=self._timeout,
                threads=self._threads,
                trace=self._trace,
            )
        self._started(world)
        return world

    @property
    def is_lost(self) -> bool:
        """Whether the present world was lost."""
        return self._world is not None and not self._world.is_open

    def close(self) -> None:
        """End the present world; ranks that somebody else has started leave its group only."""
        if self._world is None or not self._world.is_open:
            return
        if self._led is None:
            self._world.close()
        else:
            with suppress(WorldError):  # the rules have been judged; the world says that it is lost
                self._world.leave()

    def __enter__(self) -> BackendWorlds:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _naming_the_cause(world_size: int) -> Iterator[None]:
    """Add the likely cause to the error of a world that does not start."""
    try:
        yield
    except WorldError as error:
        if cause := address_in_use(Seen(object, world_size, error)):
            error.args = (f"{error}\nlikely cause: {cause}",)
        raise


def _launcher(chosen: str | None, cls: type[BaseDistBackend], world_size: int) -> str | Launcher:
    """Return the launcher of one world.

    On Ray it leaves room for a second world; on this host it forks ranks also off libraries that
    are not known to be safe, as long as they have started no thread: a check starts many.
    """
    name = chosen or cls.launcher
    if name == LocalLauncher.name:
        imported = [library for library in _LIBRARIES if library.partition(".")[0] in sys.modules]
        return LocalLauncher(preload=list(dict.fromkeys([*cls.preload, *imported])))
    if name != RayLauncher.name:
        return name
    with RayLauncher.kept():
        return RayLauncher(cpus_per_worker=share_of_cpu(cluster_cpus(), 2 * world_size))


def identity_of(backend: BaseDistBackend) -> Identity:
    """Return the identity that a backend reports."""
    return bool(backend.is_initialized), _integer(backend.rank), _integer(backend.world_size)


def _integer(value: Any) -> int | str:
    try:
        return index(value)
    except TypeError:  # what it is may not even be comparable
        return f"{value!r:.200}"


def _identity_of_new(_: None, cls: type[BaseDistBackend]) -> Identity | str:
    try:
        return identity_of(cls())
    except Exception as error:  # rule 1.3 judges it; the world can start all the same
        return describe_error(error)
