"""The worlds in which a backend is held to the rules."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from operator import index
from typing import Any

from disteval.conformance.causes import Seen, address_in_use
from disteval.contract import BaseDistBackend
from disteval.errors import WorldError, describe_error
from disteval.registry import get_backend_class
from disteval.world import Launcher, World
from disteval.world.launchers import LocalLauncher
from disteval.world.ray import RayLauncher, cluster_cpus, joined_ray, share_of_cpu
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

    def __init__(
        self,
        backend: str | type[BaseDistBackend] | None,
        world_size: int,
        *,
        launcher: str | Launcher | None = None,
        **options: Any,
    ) -> None:
        if backend is not None and not isinstance(launcher, Launcher):
            cls = get_backend_class(backend)
            launcher = launcher or cls.launcher
            if launcher == LocalLauncher.name:
                # It forks ranks also off libraries that are not known to be safe, as long as they
                # have started no thread: a check starts many.
                found = [lib for lib in _LIBRARIES if lib.partition(".")[0] in sys.modules]
                launcher = LocalLauncher(preload=list(dict.fromkeys([*cls.preload, *found])))
            elif launcher == RayLauncher.name:  # which has to have room for a second world
                with joined_ray():
                    cpus = share_of_cpu(cluster_cpus(), 2 * world_size)
                launcher = RayLauncher(cpus_per_worker=cpus)
        super().__init__(backend, world_size, launcher=launcher, **options)

    def join(
        self, backend: str | type[BaseDistBackend], backend_timeout: float = BACKEND_SECONDS
    ) -> None:
        """See `World.join`; the error names the likely cause."""
        try:
            self.leave()
            self.load(backend)
            cls = get_backend_class(backend)
            # Some libraries are imported only then.
            classes = [cls] * self.world_size
            self.before = self.run(_identity_of_new, *classes, timeout=self._start_seconds)
            super().join(cls, backend_timeout)
        except WorldError as error:
            if cause := address_in_use(Seen(object, self.world_size, error)):
                error.args = (f"{error}\nlikely cause: {cause}",)
            raise

    def check_ranks(self, cls: type[BaseDistBackend], found: Any) -> None:
        """See `World.check_ranks`."""
        if not (self.attached or self._launcher.name == cls.launcher):
            super().check_ranks(cls, found)


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
