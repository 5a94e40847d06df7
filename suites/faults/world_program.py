"""A user's program: a world whose ranks add numbers up over their backend, with a known total.

The arguments are the backend, the launcher, the world size and the timeout.
"""

from __future__ import annotations

import sys
import time

from disteval.world import World

STEPS = 30


def total_of(world_size: int) -> int:
    """Return what the program prints."""
    return sum(step * (rank + 1) for step in range(STEPS) for rank in range(world_size))


def add_up(backend, _):
    """Return the sum of all ranks' numbers, gathered step by step."""
    total = 0
    for step in range(STEPS):
        total += sum(backend.all_gather_object(step * (backend.rank + 1)))
        time.sleep(0.02)
    return total


def main() -> None:
    """Start the world, and print the total that each rank has."""
    backend, launcher, size, timeout = sys.argv[1:]
    world_size = int(size)
    with World(backend, world_size, launcher=launcher, timeout=float(timeout)) as world:
        totals = world.run(add_up, *[None] * world_size)
    print("totals", *totals, flush=True)


if __name__ == "__main__":
    main()
