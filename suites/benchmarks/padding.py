"""Measure how long `disteval` and Flax take to pad a batch.

One run, interleaved, on eight virtual CPU devices::

    python -m suites.benchmarks.padding
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from disteval.padding import pad_shard_unpad
from flax import jax_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

DEVICES, ROWS, ROUNDS = 8, 4096, 15
WIDTH = 50 * 2**20 // 4 // ROWS


def time_of(call: Callable[[Any], Any], batch: Any) -> float:
    """Return the milliseconds of one call, including the wait for its result."""
    begin = time.perf_counter()
    jax.block_until_ready(call(batch))
    return (time.perf_counter() - begin) * 1e3


def main() -> None:
    """Let the functions take turns, and print a line for each."""
    jax.config.update("jax_num_cpu_devices", DEVICES)
    mesh = Mesh(np.array(jax.devices()), ("batch",))
    sharding = NamedSharding(mesh, PartitionSpec("batch"))
    total = jax.pmap(lambda x: x[:, 0].sum())
    flat = jax.jit(lambda x: x[:, 0].sum())
    ways: dict[str, Callable[[Any], Any]] = {
        "flax, pmap": jax_utils.pad_shard_unpad(total, (), static_return=True),
        "ours, pmap": pad_shard_unpad(total, (), static_return=True),
        "ours, jit over a mesh": pad_shard_unpad(flat, (), static_return=True, sharding=sharding),
    }
    whole = np.ones((ROWS, WIDTH), dtype=np.float32)
    odd = whole[: ROWS - 3]
    times: dict[str, list[float]] = {}
    for round_ in range(ROUNDS + 2):
        for name, call in ways.items():
            for kind, batch in (("no padding", whole), ("odd", odd)):
                took = time_of(call, batch)
                if round_ >= 2:  # the first ones compile
                    times.setdefault(f"{name}, {kind}", []).append(took)
    print(f"50 MiB of float32, {DEVICES} devices, load {os.getloadavg()[0]:.2f}; ms")
    for name, found in times.items():
        print(f"{name:36} {statistics.median(found):7.2f}  {min(found):7.2f} to {max(found):.2f}")


if __name__ == "__main__":
    main()
