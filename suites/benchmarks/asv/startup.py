"""How long does it take to import the harness and to start a world?"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from disteval.world import World

from . import _worlds

ROUNDS = 3
IMPORT = "import time; t = time.perf_counter(); import disteval; print(time.perf_counter() - t)"

START = """
import sys, time
from disteval.world import World
name, world_size = sys.argv[1], int(sys.argv[2])
begin = time.perf_counter()
with World(name, world_size) as world:
    seconds = time.perf_counter() - begin
    assert world.run(lambda joined: joined.rank) == list(range(world_size))
print(seconds)
"""


class Startup:
    """The time of `import disteval` in a new interpreter, without the start of the interpreter."""

    timeout = 60.0

    def track_import(self) -> float:
        """Return the median of three interpreters, after one that fills the file cache."""
        return _median_of_interpreters(IMPORT)

    track_import.unit = "seconds"  # type: ignore[attr-defined]


class StartWorld:
    """The time from the start of a world until all ranks have joined, measured by the leader."""

    params = (["threads", "torch_cpu", "mpi4py"], [1, 3])
    param_names = ("backend", "world_size")
    timeout = 300.0

    def setup(self, backend: str, world_size: int) -> None:
        _worlds.require_backend(backend, world_size)

    def track_first(self, backend: str, world_size: int) -> float:
        """Return the time of the first world of a process, the median of three processes."""
        return _median_of_interpreters(START, backend, str(world_size))

    track_first.unit = "seconds"  # type: ignore[attr-defined]

    def track_start(self, backend: str, world_size: int) -> float:
        """Return the median of three worlds of one process, each of which must know its ranks."""
        seconds = []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            world = World(backend, world_size, timeout=_worlds.SECONDS)
            seconds.append(time.perf_counter() - begin)
            with world:
                ranks = world.run(lambda joined: joined.rank)
            if ranks != list(range(world_size)):
                raise AssertionError(f"{world_size} ranks were started, but they say {ranks}")
        return statistics.median(seconds)

    track_start.unit = "seconds"  # type: ignore[attr-defined]


def _median_of_interpreters(code: str, *arguments: str) -> float:
    """Return the median of what new interpreters print, after one that fills the file cache."""
    command = [sys.executable, "-c", code, *arguments]
    runs = [subprocess.run(command, check=True, capture_output=True) for _ in range(ROUNDS + 1)]
    return statistics.median(float(run.stdout) for run in runs[1:])
