"""What a backend does beside the contract, to which suites/properties hold every one."""

import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import FrameError, UsageError, frames, get_dist_backend
from disteval.default_backend import set_group_of_world
from disteval.metrics import Mean, MetricGroup
from disteval.registry import get_backend_class
from disteval.world import World

from suites.helpers.faults import use_small_rounds
from suites.helpers.needs import each, needs
from suites.helpers.processes import mpi_variables, mpirun

WORLD_SIZE = 3


@pytest.fixture(scope="module", params=each("torch_cpu", "mpi4py"))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with World(request.param, WORLD_SIZE) as world:
        yield world


class Rebuilt:
    """An object that counts how often this process has unpickled one."""

    times = 0

    def __reduce__(self) -> Any:
        return Rebuilt.again, ()

    @classmethod
    def again(cls) -> int:
        cls.times += 1
        return cls.times


def count_rebuilding(backend: Any) -> Any:
    before = Rebuilt.times
    small = backend.broadcast_object(Rebuilt(), 1) - before
    _, padded = backend.broadcast_object((b"x" * 10_000, Rebuilt()), 1)
    return small, padded - before


def means_without_a_backend(backend: Any) -> Any:
    """Compute the mean of the ranks' numbers in all ways, without the world's help."""
    set_group_of_world(None)
    mean, group = Mean(), MetricGroup({"mean": Mean()})
    mean.add([backend.rank])
    group.add([backend.rank])
    return mean.compute(), group.compute()["mean"], Mean()([backend.rank])


def test_what_is_broadcast_is_rebuilt_once(world: World) -> None:
    assert world.run(count_rebuilding) == [(1, 2)] * WORLD_SIZE


def test_a_metric_without_a_backend_is_computed_over_the_group(world: World) -> None:
    assert world.run(means_without_a_backend) == [({"mean": 1.0},) * 3] * WORLD_SIZE


def gather_while_rank_1_has_no_key(backend: Any) -> str:
    if backend.rank == 1:
        frames.set_key(b"")
    try:
        return f"opened {backend.all_gather_object(backend.rank)}"
    except FrameError as error:
        return "refused" if re.search(r"\bkey\b|\bMAC\b", str(error)) else str(error)


@pytest.mark.parametrize("name", each("torch_cpu", "mpi4py"))
def test_what_a_process_without_the_key_of_the_group_sends_is_refused(name: str) -> None:
    """As what a stranger sends who has taken a rank's place."""
    with World(name, 2) as world:
        assert world.run(gather_while_rank_1_has_no_key) == ["refused"] * 2


@pytest.mark.parametrize("name", each("non_dist", "torch_cpu", "mpi4py"))
def test_alone_and_outside_of_any_launcher_a_backend_is_a_world_of_one(name: str) -> None:
    backend = get_dist_backend(name)
    assert (backend.rank, backend.world_size) == (0, 1)
    mine = {"a": [1]}
    assert backend.all_gather_object(mine) == [mine]
    assert backend.broadcast_object(mine) == mine
    assert backend.broadcast_object(mine) is not mine
    with pytest.raises(UsageError, match="src=1 "):
        backend.broadcast_object(mine, 1)


@needs("torch_cpu")
def test_torch_serves_a_process_group_of_the_users_own() -> None:
    with World("torch_cpu", 3) as world:
        found = world.run(_use_own_group)
    assert found[0] == found[2] == (2, [0, 2], 2, [8 << 18, 8 << 19], 7)
    assert found[1] == "refused"


def _use_own_group(backend: Any) -> Any:
    import torch
    import torch.distributed as dist

    group = dist.new_group([0, 2])
    own = type(backend.inner)(group)
    try:
        # Rank 1 of the group is rank 2 of the world.
        found = (
            own.world_size,
            own.all_gather_object(backend.rank),
            own.broadcast_object(backend.rank, 1),
        )
        # A message of the user's own is on its way while large objects are gathered.
        message = torch.tensor([7])
        sent = dist.isend(message, 2, group) if own.rank == 0 else None
        large = own.all_gather_object(np.full(1 << (18 + own.rank), own.rank))
        assert all((array == rank).all() for rank, array in enumerate(large))
        if sent is None:
            message.zero_()
            dist.recv(message, 0, group)
        else:
            sent.wait()
        return *found, [array.nbytes for array in large], int(message)
    except UsageError:
        return "refused"


@needs("mpi4py")
def test_mpi_serves_a_communicator_of_the_users_own() -> None:
    with World("mpi4py", 3) as world:
        found = world.run(_use_own_communicator)
    assert found == [(2, [0, 2], 2), (1, [1], 1), (2, [0, 2], 2)]


def _use_own_communicator(backend: Any) -> Any:
    from mpi4py import MPI

    own = type(backend.inner)(MPI.COMM_WORLD.Split(backend.rank % 2, backend.rank))
    last = own.world_size - 1
    return (
        own.world_size,
        own.all_gather_object(backend.rank),
        own.broadcast_object(backend.rank, last),
    )


@needs("mpi4py")
def test_large_mpi_objects_travel_in_rounds_and_leave_no_file_to_ranks_that_are_killed() -> None:
    with World("mpi4py", 3) as world:
        sizes = world.run(_gather_in_small_rounds)
        files = world.run(_files_of_mpi)
    assert sizes == [([10_000, 0, 333], [10_000, 0, 333])] * 3
    assert files == [[]] * 3


def _files_of_mpi(backend: Any) -> list[str]:
    maps = Path("/proc/self/maps").read_text().splitlines()
    found = {line.split(maxsplit=5)[-1] for line in maps}
    return [name for name in found if "mpich" in Path(name).name and Path(name).exists()
            and name.startswith("/dev/shm/")]  # fmt: skip


def _gather_in_small_rounds(backend: Any) -> Any:
    use_small_rounds(backend.inner, 1000)
    objects = [bytes(range(250)) * 40, b"", b"\1" * 333]
    gathered = backend.all_gather_object(objects[backend.rank])
    sent = [backend.broadcast_object(objects[backend.rank], src) for src in range(3)]
    assert gathered == sent == objects
    return [len(obj) for obj in gathered], [len(obj) for obj in sent]


def _mpi_job(tmp_path: Path, *around: str) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of an MPI job of which rank 1 raises."""
    script = tmp_path / "job.py"
    script.write_text(
        "import disteval\n"
        "backend = disteval.get_dist_backend('mpi4py')\n"
        "if backend.rank == 1: raise LookupError('the one mistake')\n"
        "backend.all_gather_object(1)\n"
    )
    command = [*mpirun(WORLD_SIZE), *around, sys.executable, str(script)]
    return command, os.environ | mpi_variables()


@needs("mpi4py")
def test_an_exception_on_one_mpi_rank_ends_the_job(tmp_path: Path) -> None:
    command, environment = _mpi_job(tmp_path)
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert ("rank 1 of 3" in done.stderr, "LookupError" in done.stderr) == (True, True)


@needs("mpi4py")
def test_an_mpi_job_does_not_end_before_somebody_has_read_why(tmp_path: Path) -> None:
    fifo = tmp_path / "stderr"
    os.mkfifo(fifo)
    command, environment = _mpi_job(tmp_path, "sh", "-c", f'exec "$@" 2>"{fifo}"', "sh")
    with subprocess.Popen(command, env=environment) as job:
        try:
            # Without waiting for a writer, which never comes where mpirun fails.
            with open(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), "rb") as output:
                assert select.select([output], [], [], 60)[0]
                with pytest.raises(subprocess.TimeoutExpired):
                    job.wait(1)
                os.set_blocking(output.fileno(), True)
                assert b"rank 1 of 3 raised" in output.read()
            assert job.wait(30) != 0
        finally:
            job.kill()


@needs("torch_cuda")
def test_cuda_without_a_device_says_so() -> None:
    cls = get_backend_class("torch_cuda")
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device; what is tested is one without")
    with pytest.raises(ImportError, match="'torch_cpu'"):
        cls()


def _cuda_collectives(backend: Any, obj: Any) -> Any:
    return backend.all_gather_object(obj), backend.broadcast_object(obj)


@needs("torch_cuda")
def test_cuda_world_of_one() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device here")
    with World("torch_cuda", 1) as world:
        assert world.run(_cuda_collectives, {"a": 1}) == [([{"a": 1}], {"a": 1})]
