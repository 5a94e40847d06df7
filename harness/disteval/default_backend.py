"""The backend that joins this process's results with those of other ranks.

A caller chooses one by name, or gives an instance. Where nobody chose one, a process that is alone
computes over itself. One of several processes takes the group that it is in, and never answers for
itself in silence. Looking for groups imports no framework: a group that this process is in belongs
to a library that has been imported already.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

from disteval.contract import BaseDistBackend
from disteval.errors import UsageError
from disteval.launched import LAUNCHERS, launched_job
from disteval.registry import list_all_backends, load_backend_class, unknown_backend

_LIBRARIES = {
    "torch_cpu": ("torch.distributed", "is_initialized"),
    "mpi4py": ("mpi4py.MPI", "Is_initialized"),
    "tf_horovod": ("horovod.tensorflow", "is_initialized"),
    "jax": ("jax.distributed", "is_initialized"),
    "paddle": ("paddle.distributed", "is_initialized"),
}
"""The module of each library, and the function in it that says whether there is a group."""

_ALONE = (
    "If each process is meant to compute over its own samples alone, add "
    "disteval.set_default_dist_backend('non_dist')."
)

_instances: dict[str, BaseDistBackend] = {}
_default: str | BaseDistBackend | None = None
_inherited: set[str] = set()  # the groups of the process that this one was forked from


class _World(threading.local):
    """The group that the rank of a `disteval.world.World` in this thread has joined, if any."""

    backend: BaseDistBackend | None = None
    pid = 0
    rank, world_size = 0, 1


_world = _World()


def get_dist_backend(name: str | BaseDistBackend | None = None) -> BaseDistBackend:
    """Return the backend of that name, always the same instance for the same name.

    Args:
        name: A name of `list_all_backends`, or ``module:Class``. A backend is returned as it is.
            None stands for the default: the name given to `set_default_dist_backend`, or else
            ``non_dist`` in a process that is alone, and in one of several processes the backend of
            the one group that is initialised.

    Raises:
        UnknownBackendError: No backend is registered under ``name``.
        BackendUnavailableError: The backend's library or its module can't be imported.
        UsageError: ``name`` is neither a name nor a backend; or it is None in one of several
            processes that is in no group, or in more than one.
    """
    name = _default if name is None else name
    if name is None:
        return _fitting()
    if isinstance(name, BaseDistBackend):
        return name
    if not isinstance(name, str):
        raise UsageError(
            f"a backend must be a name, such as 'torch_cpu', or an instance of a backend, "
            f"not {name!r}"
        )
    if name not in _instances:
        _instances[name] = load_backend_class(name)()
    return _instances[name]


def set_default_dist_backend(name: str | BaseDistBackend) -> None:
    """Set the backend that is used wherever none is given.

    Args:
        name: A name of `list_all_backends`, ``module:Class``, or a backend.

    Raises:
        UnknownBackendError: No backend is registered under ``name``.
    """
    global _default
    is_known = isinstance(name, BaseDistBackend) or name in list_all_backends()
    if not is_known and ":" not in str(name):
        raise unknown_backend(name)
    _default = name


def joining_backend(chosen: str | BaseDistBackend | None) -> BaseDistBackend:
    """Return the backend over which results are to be computed; see `get_dist_backend`.

    Raises:
        UsageError: As `get_dist_backend` does; or a launcher has started several processes, and the
            backend, which could join them, has not done so.
    """
    backend = get_dist_backend(chosen)
    if backend.world_size > 1 or not backend.capabilities.multi_rank:
        return backend
    job = launched_job()
    if job is None or job.world_size == 1:
        return backend
    name = type(backend).__name__
    if not backend.is_initialized:
        raise UsageError(
            f"{job}, and {name} is not initialised in it. Before results are computed, add "
            f"{LAUNCHERS[job.launcher].joins}. {_ALONE}"
        )
    if job.launcher == backend.launcher and not isinstance(chosen, BaseDistBackend):
        raise UsageError(
            f"{job}, and {name} finds one process; it uses another library than "
            f"{job.launcher} does. Use the {job.launcher} of that library. {_ALONE}"
        )
    return backend


def set_group_of_world(backend: BaseDistBackend | None) -> None:
    """Remember the group that this thread has joined as a rank of a world; None once it left."""
    _world.backend, _world.pid = backend, os.getpid()


def set_rank_of_world(rank: int, world_size: int) -> None:
    """Remember that this thread is a rank of a world, whether it has joined a group or not."""
    _world.rank, _world.world_size = rank, world_size


def is_rank_of_world() -> bool:
    """Return whether this thread is a rank of a world of several ranks."""
    return _world.world_size > 1


def _fitting() -> BaseDistBackend:
    """Return the backend for a caller that chose none."""
    groups = _groups()
    if len(groups) > 1:
        found = " and ".join(f"{name} ({_place(group)})" for name, group in groups.items())
        lines = " or ".join(f"disteval.set_default_dist_backend({name!r})" for name in groups)
        raise UsageError(
            f"this process is in more than one group, {found}, and no backend was chosen. "
            f"Pass dist_backend= the name of one, or add {lines}."
        )
    if groups:
        return next(iter(groups.values()))
    job = launched_job()
    if job is not None and job.world_size > 1:
        raise UsageError(
            f"{job}, no group is initialised in it, and no backend was chosen. Before results are "
            f"computed, add {LAUNCHERS[job.launcher].joins}. {_ALONE}"
        )
    if _world.world_size > 1 and _world.backend is None:
        raise UsageError(
            f"this is rank {_world.rank} of a World of {_world.world_size} ranks, which has joined "
            f"no group, and no backend was chosen. Give the World a backend, or call its join "
            f"with one, before results are computed. {_ALONE}"
        )
    return get_dist_backend("non_dist")


def _groups() -> dict[str, BaseDistBackend]:
    """Return the groups of several ranks that this process is in, by the backend's name."""
    if _world.backend is not None:
        groups, forked = {"its world": _world.backend}, _world.pid != os.getpid()
    else:
        found = _initialised()
        groups = {name: get_dist_backend(name) for name in found}
        forked = not _inherited.isdisjoint(found)
    groups = {name: group for name, group in groups.items() if group.world_size > 1}
    if groups and forked:
        name, group = next(iter(groups.items()))
        raise UsageError(
            f"this process was forked from {_place(group)} of a group of {name}, whose "
            f"connections it can't use, and no backend was chosen. Compute in the rank itself. "
            f"{_ALONE}"
        )
    return groups


def _initialised() -> list[str]:
    """Return the names of the backends that are in a group, as their libraries say."""
    found = []
    for name, (module, function) in _LIBRARIES.items():
        is_initialized = getattr(sys.modules.get(module), function, None)
        if is_initialized is not None and is_initialized():
            if name == "torch_cpu":  # the name of the backend that moves tensors of its group
                devices = sys.modules["torch.distributed"].get_backend_config()
                name = "torch_cpu" if "cpu" in str(devices) else "torch_cuda"
            found.append(name)
    known = (*_LIBRARIES, "torch_cuda")
    others = (name for name, own in _instances.items() if name not in known and own.is_initialized)
    return [*found, *others]


def _place(group: BaseDistBackend) -> str:
    return f"rank {group.rank} of {group.world_size}"


def _remember_groups() -> None:
    with suppress(Exception):  # a fork may not fail for this
        _inherited.update(_initialised())


os.register_at_fork(after_in_child=_remember_groups)
