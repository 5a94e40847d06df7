"""A world on a Ray of this machine is what it is as local processes, and leaves nothing."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pytest
from disteval import LibraryMissingError, UsageError, WorldError
from disteval.world import RayLauncher, World, report_progress
from disteval_backends.non_dist import NonDist
from hypothesis import given
from hypothesis import strategies as st

from suites.helpers.needs import framework, needs
from suites.helpers.processes import (
    left_over,
    processes_below,
    run_plainly,
    start_as_from_a_terminal,
)
from suites.helpers.ray_nodes import (
    joined_ray,
    share_of_cpu,
)

SOCKETS = "suites.mutants.sockets:Sockets"  # real processes, and no library to import
DISTEVAL = [sys.executable, "-m", "disteval.cli"]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Ray, of which one is running here."""
    found = framework("ray")
    with joined_ray():
        yield found


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files with a short name, as Ray's sockets need it."""
    folder = Path(tempfile.mkdtemp(prefix="t-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def describe(backend: Any) -> dict[str, Any]:
    return {
        "rank": backend.rank,
        "pid": os.getpid(),
        "folder": str(Path.cwd()),
        "threads": os.environ["OMP_NUM_THREADS"],
        "library": "torch" in sys.modules,
    }


def gather(backend: Any, value: Any) -> Any:
    return backend.all_gather_object(value)


def wait_for_ever(backend: Any) -> None:
    report_progress(0, 1)
    signal.pause()


@needs("ray")
def test_a_second_world_fits_beside_the_first_and_threads_are_as_asked_for(ray: Any) -> None:
    half, other = RayLauncher(cpus_per_worker=0.5), RayLauncher(cpus_per_worker=0.5)
    with (
        World(SOCKETS, 2, launcher=half, threads=3) as one,
        World(SOCKETS, 1, launcher=other) as two,
    ):
        assert (one.run(gather, 1, 2), two.run(gather, 3)) == ([[1, 2]] * 2, [[3]])
        assert [found["threads"] for found in one.run(describe)] == ["3"] * 2


def use_own_group(backend: Any) -> Any:
    from ray.util import collective

    collective.init_collective_group(backend.world_size, backend.rank, "gloo", "own")
    own = type(backend.inner)("own")
    try:
        # The numbers of one group's collectives do not depend on those of the other.
        backend.all_gather_object(backend.rank)
        return own.all_gather_object(own.rank), backend.all_gather_object(backend.rank)
    finally:
        collective.destroy_collective_group("own")


@needs("ray_collective")
def test_a_group_of_the_users_own_has_numbers_of_its_own(ray: Any) -> None:
    with World("ray_collective", 2) as world:
        assert world.run(use_own_group) == [([0, 1], [0, 1])] * 2


@needs("ray")
def test_more_cpus_than_there_are_are_refused_at_once(ray: Any) -> None:
    with pytest.raises(WorldError, match=r"\b2\b.*\b1000\b"):
        World(SOCKETS, 2, launcher=RayLauncher(cpus_per_worker=1000))
    assert all(group["state"] == "REMOVED" for group in ray.util.placement_group_table().values())


@needs("ray")
def test_a_process_is_in_one_cluster_alone(ray: Any) -> None:
    with pytest.raises(UsageError, match="already"):
        World("non_dist", 1, launcher=RayLauncher("203.0.113.7:6379"))


class ByMpirun(NonDist):
    launcher: ClassVar[str] = "mpirun"


def test_a_backend_that_names_another_launcher_is_refused() -> None:
    with pytest.raises(UsageError, match="ByMpirun"):
        World(ByMpirun, 1, launcher="ray")


@pytest.mark.parametrize(
    "options", [{"cpus_per_worker": 0}, {"gpus_per_worker": -1}, {"strategy": "TIGHT"}]
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    [value] = options.values()
    with pytest.raises(UsageError, match=rf"={value}\b|{value!r}"):
        RayLauncher(**options)


def test_without_ray_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(LibraryMissingError, match=r"'\.\[ray\]'"):
        World("non_dist", 1, launcher="ray")


@given(st.lists(st.integers(0, 16), min_size=1, max_size=6), st.integers(1, 40))
def test_the_share_of_a_cpu_is_the_largest_that_fits(nodes: list[int], parts: int) -> None:
    def fit(share: float) -> int:
        return sum(int(cpus / share + 1e-6) for cpus in nodes)

    share = share_of_cpu(nodes, parts)
    assert 0 < share <= 1
    if any(nodes):
        assert fit(share) >= parts
        assert share == 1 or fit(share + 2e-4) < parts


SCRIPT = """
from disteval.world import World
from suites.worlds.test_ray import describe, wait_for_ever
with World("suites.mutants.sockets:Sockets", 2, launcher="ray") as world:
    print(*(found["pid"] for found in world.run(describe)), flush=True)
    world.run(wait_for_ever, timeout=600)
"""


@needs("ray")
def test_a_leader_that_is_killed_leaves_no_process_and_no_file(temporary: Path) -> None:
    leader = start_as_from_a_terminal(
        [sys.executable, "-c", SCRIPT], env=os.environ | {"TMPDIR": str(temporary)}
    )
    assert leader.stdout is not None
    assert len(leader.stdout.readline().split()) == 2
    everything = processes_below(leader.pid)
    assert len(everything) > 3
    leader.kill()
    leader.communicate(timeout=90)
    assert left_over(everything) == []
    assert list(temporary.iterdir()) == []


STRANGERS = """
import grpc, os
from http.client import HTTPConnection
from pathlib import Path
from suites.helpers.processes import processes_below
from suites.helpers.ray_nodes import joined_ray, listening

for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
    del os.environ[name]  # which that module has set
CALLS = ["CoreWorkerService/PushTask", "NodeManagerService/RequestWorkerLease",
         "ObjectManagerService/Push", "NodeInfoGcsService/GetAllNodeInfo"]

def heard():
    return listening(os.getpid(), *processes_below(os.getpid()))

def answer(port, call, header):
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    try:
        channel.unary_unary(f"/ray.rpc.{call}")(b"", timeout=30, metadata=header)
    except grpc.RpcError as error:
        return error.code().name
    return "answered"

def http_status(port):
    web = HTTPConnection("127.0.0.1", port, timeout=30)
    web.request("POST", "/get_or_create_runtime_env", b"")
    return f"http {web.getresponse().status}"

with joined_ray():
    import ray
    assert ray.get(ray.remote(lambda: 1).remote()) == 1
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    print(oct(token.stat().st_mode & 0o777), oct(token.parent.stat().st_mode & 0o777))
    print(*{host for host, _ in heard()})
    for header in ((), (("authorization", "Bearer " + "0" * 64),)):
        told = {answer(port, call, header) for _, port in heard() for call in CALLS}
        print(*sorted(told - {"UNIMPLEMENTED", "UNAVAILABLE"}))
    for _, port in heard():
        if answer(port, CALLS[0], ()) == "UNAVAILABLE":  # it does not speak gRPC
            print(http_status(port))
print(any(name.startswith("RAY_AUTH") for name in os.environ), token.exists())
"""


@needs("ray")
def test_a_cluster_that_is_started_here_admits_nobody_and_leaves_no_token(
    tmp_path: Path, temporary: Path
) -> None:
    if find_spec("grpc") is None:
        pytest.skip("a stranger's calls to Ray are made with grpcio, which is not installed")
    outside = {name: value for name, value in os.environ.items() if "RAY_AUTH" not in name}
    done = subprocess.run(
        [sys.executable, "-c", STRANGERS],
        env=outside | {"HOME": str(tmp_path), "TMPDIR": str(temporary)},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    refused = ["UNAUTHENTICATED", "UNAUTHENTICATED", "http 401"]
    told = [
        "loopback"
        if set(line.split()) <= {"0100007F", "0000000000000000FFFF00000100007F"}
        else line
        for line in done.stdout.splitlines()
    ]
    assert told == ["0o600 0o700", "loopback", *refused, "False False"]
    assert list(tmp_path.iterdir()) == list(temporary.iterdir()) == []


@needs("ray")
def test_an_address_where_nobody_answers_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unheard.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        options = ["--launcher=ray", "--world-size=1", "--rules=1.1"]
        done = run_plainly([*DISTEVAL, "check", "non_dist", *options], tmp_path, 60)
    assert (done.returncode, address in done.stderr) == (2, True)


@needs("ray")
def test_a_ray_that_the_user_has_begun_goes_on(tmp_path: Path, temporary: Path) -> None:
    script = (
        "import ray\n"
        "from disteval.world import World\n"
        "from suites.worlds.test_ray import describe\n"
        f"ray.init('local', num_cpus=1, include_dashboard=False, _temp_dir={str(temporary)!r})\n"
        "with World('non_dist', 1, launcher='ray') as world:\n"
        "    assert world.run(describe)[0]['rank'] == 0\n"
        "print(ray.is_initialized(), ray.get(ray.remote(lambda: 'there').remote()))\n"
        "unclosed = World('non_dist', 1, launcher='ray')\n"
    )
    done = run_plainly([sys.executable, "-c", script], tmp_path, 100)
    assert done.returncode == 0, done.stderr
    # Ray may add lines of its own, such as one on the worker of the task.
    assert "True there" in done.stdout.splitlines()
    assert "Traceback" not in done.stderr


@pytest.fixture
def joinable(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands join the Ray that runs here, instead of starting another."""
    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    # Ray would look for that address under the host's own, where this cluster does not listen.
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


@needs("ray")
def test_a_check_joins_the_ray_that_is_there(joinable: None, tmp_path: Path) -> None:
    options = ["--launcher=ray", "--world-size=2", "--rules=1.1,2.1", "--json=report.json"]
    done = run_plainly([*DISTEVAL, "check", SOCKETS, *options], tmp_path, 120)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert [rule["outcome"] for rule in report["rules"]] == ["passed", "passed"]
    assert report["launcher"] == "ray"
