"""Measure object collectives of `disteval` and of the libraries, and raw buffers, in one run.

python -m suites.benchmarks.objects [--backends mpi4py,torch_cpu] [--rounds 15]

Two ranks gather a small dict, and 80 MB of float32. The contestants take turns, round after round,
in the same processes; every result is verified. The floor is the library's collective of one buffer
into memory allocated afresh, for an object collective must return new memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from disteval.contract import BaseDistBackend
from disteval.worlds import World

WORLD_SIZE = 2
SMALL = {"rank": 1, "top1": 0.5, "size": 10_000}
LARGE = 20_000_000
"""The number of float32 values in 80 MB."""

Contestant = Callable[[Any], Any]


def main() -> None:
    """Let the collectives take turns on each backend, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backends", default="mpi4py,torch_cpu")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before, {WORLD_SIZE} ranks\n")
    for backend in options.backends.split(","):
        print("\n".join(tables(backend, options.rounds)))


def tables(backend: str, rounds: int) -> Iterator[str]:
    """Measure on ranks that are started here, and yield the tables as Markdown."""
    with World(backend, WORLD_SIZE) as world:
        tasks = [rounds] * WORLD_SIZE
        small, large = (world.run(f, *tasks, timeout=300) for f in (race_small, race_large))
    yield from _table(f"{backend}, all-gather of a dict of three numbers", "µs", 1e6, small)
    yield ""
    yield from _table(f"{backend}, all-gather of 80 MB of float32", "ms", 1e3, large)


def _table(
    title: str, unit: str, scale: float, ranks: list[dict[str, list[float]]]
) -> Iterator[str]:
    """Yield a table of the slowest rank's medians and their ratio to the raw buffer."""
    slowest = {
        name: [max(times) * scale for times in zip(*(rank[name] for rank in ranks), strict=True)]
        for name in ranks[0]
    }
    floor = statistics.median(slowest["raw buffer"])
    yield f"| {title} | {unit} (median) | min | max | ratio |\n|---|---:|---:|---:|---:|"
    for name, times in slowest.items():
        middle = statistics.median(times)
        spread = f"{min(times):.1f} | {max(times):.1f}"
        yield f"| {name} | {middle:.1f} | {spread} | {middle / floor:.2f} |"


def race_small(backend: BaseDistBackend, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of one all-gather of a dict, for each round of 300 calls."""
    contestants = objects_of(backend) | {"raw buffer": raw_of(backend)}
    buffer = np.zeros(64, dtype=np.uint8)
    return race(backend, contestants, {"raw buffer": buffer}, SMALL, rounds, 300)


def race_large(backend: BaseDistBackend, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of one all-gather of 80 MB, for each round."""
    array = np.arange(LARGE, dtype=np.float32)
    contestants = objects_of(backend) | {"raw buffer": raw_of(backend)}
    return race(backend, contestants, {}, array, rounds, 1)


def race(
    backend: BaseDistBackend,
    contestants: dict[str, Contestant],
    own: dict[str, Any],
    obj: Any,
    rounds: int,
    calls: int,
) -> dict[str, list[float]]:
    """Let the collectives gather ``obj``, or their ``own`` object, in turns."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for round_ in range(rounds + 1):
        for name, gather in contestants.items():
            mine = own.get(name, obj)
            backend.all_gather_object(None)  # a common start
            begin = time.perf_counter()
            for _ in range(calls):
                gathered = gather(mine)
            seconds = (time.perf_counter() - begin) / calls
            verify(gathered, mine)
            del gathered
            if round_:
                times[name].append(seconds)
    return times


def verify(gathered: Any, sent: Any) -> None:
    """Check that the same object came from every rank."""
    for came in gathered:
        if not np.array_equal(came, sent) if isinstance(sent, np.ndarray) else came != sent:
            raise SystemExit("a contestant returned something else than was sent")


def without_log(backend: BaseDistBackend) -> BaseDistBackend:
    """The backend itself, without the log that worlds keep of its collectives."""
    found: BaseDistBackend = getattr(backend, "inner", backend)
    return found


def objects_of(backend: BaseDistBackend) -> dict[str, Contestant]:
    """Return the object collective of the backend and those of its library."""
    ours = without_log(backend)
    found: dict[str, Contestant] = {"disteval": ours.all_gather_object}
    name = type(ours).__name__
    if name == "MPI4PyDist":
        from mpi4py import MPI
        from mpi4py.util import pkl5

        found["mpi4py allgather"] = MPI.COMM_WORLD.allgather
        found["mpi4py pkl5 allgather"] = pkl5.Intracomm(MPI.COMM_WORLD).allgather
    elif name == "TorchCPUDist":
        import torch.distributed as dist

        def all_gather_object(obj: Any) -> list[Any]:
            gathered: list[Any] = [None] * WORLD_SIZE
            dist.all_gather_object(gathered, obj)
            return gathered

        found["torch all_gather_object"] = all_gather_object
    elif name == "TFHorovodDist":
        import horovod.tensorflow as hvd

        found["hvd.allgather_object"] = hvd.allgather_object
    return found


def raw_of(backend: BaseDistBackend) -> Contestant:
    """Return the library's collective of one buffer, which fills a new buffer."""
    name = type(without_log(backend)).__name__
    if name == "MPI4PyDist":
        from mpi4py import MPI

        def gather_mpi(array: Any) -> Any:
            gathered = np.empty((WORLD_SIZE, *array.shape), array.dtype)
            MPI.COMM_WORLD.Allgather(array, gathered)
            return gathered

        return gather_mpi
    if name == "TorchCPUDist":
        import torch
        import torch.distributed as dist

        def gather_torch(array: Any) -> Any:
            mine = torch.from_numpy(array)
            gathered = [torch.empty_like(mine) for _ in range(WORLD_SIZE)]
            dist.all_gather(gathered, mine)
            return [other.numpy() for other in gathered]

        return gather_torch
    if name == "TFHorovodDist":
        import horovod.tensorflow as hvd
        import tensorflow as tf

        def gather_horovod(array: Any) -> Any:
            gathered = hvd.allgather(tf.constant(array), name="raw").numpy()
            return gathered.reshape(WORLD_SIZE, *array.shape)

        return gather_horovod
    raise SystemExit(f"there is no raw collective to hold {name} against")


if __name__ == "__main__":
    main()
