"""Faults and states that only the inside of the library can be brought into."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any

import pytest
from disteval import BaseDistBackend, default_backend, registry, traces
from disteval.conformance.rules import callers
from disteval.traces.recorder import Recorder
from disteval.world import processes
from disteval.world.channel import messages


def fork_a_child(backend: BaseDistBackend, seconds: float) -> str:
    """Return what was wrong with a forked child that gathers, as rule 5.6 finds it."""
    return callers.fork_a_child(backend, seconds)


def fill_disk_of_trace() -> None:
    """End the trace of this rank as a full disk ends it."""
    recorder = traces.current()
    assert recorder is not None and recorder._file is not None
    recorder._file.close()
    recorder._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115


def add_instance(patched: pytest.MonkeyPatch, name: str, backend: BaseDistBackend) -> None:
    """Have a backend be one that this process has made under its name."""
    patched.setitem(default_backend._instances, name, backend)


def forget_default(patched: pytest.MonkeyPatch) -> None:
    """Choose no backend for this process."""
    patched.setattr(default_backend, "_default", None)


def add_class(patched: pytest.MonkeyPatch, name: str, backend: type[BaseDistBackend]) -> None:
    """Register a backend that ends with the test."""
    patched.setitem(registry._registered, name, backend)


def use_small_rounds(backend: BaseDistBackend, most: int) -> None:
    """Have a backend over MPI send so many bytes in one round."""
    sys.modules[type(backend).__module__]._ROUND_BYTES = most  # type: ignore[attr-defined]


def break_ring(backend: BaseDistBackend) -> None:
    """Have the next collective of a backend over MLX fail on this rank alone."""
    type(backend)._group = "no group"  # type: ignore[attr-defined]


def free_port(host: str) -> AbstractContextManager[tuple[str, int]]:
    """Hold a port that a rank of MLX may listen on."""
    from disteval_backends.mlx_dist import _reserved

    return _reserved(host)


def limit_messages(patched: pytest.MonkeyPatch, most: int) -> None:
    """Let messages between the leader of a world and ranks that are threads hold so many bytes."""
    patched.setattr(messages, "MAX_MESSAGE_BYTES", most)


def fork_servers() -> set[int]:
    """Return the processes that local ranks of this process are forked off."""
    return {one.pid for group in processes._kept.forking.values() for one in group}
