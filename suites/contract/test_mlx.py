"""MLX's ring: large arrays in pieces, waits that sleep, and one error that is an error for all."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval.world import World

from suites.helpers.faults import break_ring, free_port
from suites.helpers.needs import needs

pytestmark = needs("mlx")

PIECE = 448 << 10
SIZES = [PIECE - 64, PIECE, PIECE + 1, 3 * PIECE + 5]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World("mlx", 3, backend_timeout=20.0) as world:
        yield world


def _gather_numbered(backend: Any, size: int) -> bool:
    def of(rank: int) -> Any:
        return np.random.default_rng(rank).integers(0, 256, size + rank, dtype=np.uint8)

    found = backend.all_gather_object(of(backend.rank))
    sent = [backend.broadcast_object(of(src), src) for src in range(backend.world_size)]
    pairs = zip(found, sent, range(backend.world_size), strict=True)
    return all(np.array_equal(array, of(rank)) for *two, rank in pairs for array in two)


@pytest.mark.parametrize("size", SIZES)
def test_pieces_of_an_array_are_put_together(world: World, size: int) -> None:
    assert world.run(_gather_numbered, *[size] * 3) == [True] * 3


def _seconds_of_cpu_in_a_wait(backend: Any) -> float:
    backend.all_gather_object(0)
    if backend.rank == 1:
        time.sleep(1.0)
    begin = time.process_time()
    backend.all_gather_object(0)
    return time.process_time() - begin


def test_a_rank_that_waits_leaves_its_core_to_others(world: World) -> None:
    assert max(world.run(_seconds_of_cpu_in_a_wait)) < 0.4  # of about 1 s


def _fail_once(backend: Any) -> list[str]:
    """Return the errors of three collectives, in the first of which rank 2 fails by itself."""
    if backend.rank == 2:
        break_ring(backend.inner)
    told = []
    for _ in range(3):
        try:
            told.append(str(backend.all_gather_object(backend.rank)))
        except Exception as error:
            told.append(f"{type(error).__name__}: {error}")
    return told


def test_after_an_error_no_rank_waits_or_gets_another_collectives_bytes(world: World) -> None:
    for first, *later in world.run(_fail_once):
        assert re.match(r"\w+Error: ", first), first
        for each in later:
            assert each.startswith("HarnessError: MLX's ring")


RANK = """
import os, disteval
from disteval.metrics import Mean
mean = Mean()
mean.add([float(os.environ["MLX_RANK"])])
try:
    mean.compute()
except disteval.UsageError as error:
    assert "add disteval.set_default_dist_backend('mlx')" in str(error), error
    disteval.set_default_dist_backend("mlx")
    print(mean.compute())
"""


def test_ranks_of_mlx_launch_are_never_alone(tmp_path: Path) -> None:
    hosts = tmp_path / "ring.json"
    variables = {"MLX_HOSTFILE": str(hosts), "PYTHONPATH": os.pathsep.join(sys.path)}
    with ExitStack() as held:
        nodes = [held.enter_context(free_port("127.0.0.1")) for _ in range(3)]
        hosts.write_text(json.dumps([[f"{host}:{port}"] for host, port in nodes]))
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK],
                env=os.environ | variables | {"MLX_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(len(nodes))
        ]
        try:
            told = [rank.communicate(timeout=60)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    assert told == ["{'mean': 1.0}\n"] * 3
