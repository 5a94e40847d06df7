"""A trace of real ranks says which rank the others waited for, and what that rank did."""

import functools
import itertools
import json
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import WorldError, evaluate, traces
from disteval.metrics import Accuracy
from disteval.world import LocalLauncher, World

from suites.helpers.command import invoke
from suites.helpers.faults import fill_disk_of_trace
from suites.helpers.traces import TraceSummary, WorldTrace, read_worlds, summarise, timeline

SECONDS = 0.1  # that the slow rank takes longer for each of its batches
BATCHES = 4


class SlowRows:
    """Labels 0 to 3 in turn, which are slow to read on one rank."""

    def __init__(self, size: int, seconds: float) -> None:
        self.size, self.seconds = size, seconds

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[int, int]:
        time.sleep(self.seconds / 10)
        return index % 4, index % 4


def evaluate_slowly(backend: Any, what: str) -> Any:
    """Evaluate; rank 1 is slow to read, or slow to compute."""
    slow = SECONDS if backend.rank == 1 else 0.0
    samples = SlowRows(20 * BATCHES, slow if what == "data" else 0.0)

    def predict(labels: Any) -> Any:
        time.sleep(slow if what == "compute" else 0.0)
        return np.eye(4)[labels]

    return evaluate(predict, samples, {"accuracy": Accuracy()}, backend, 10).metrics


def import_this(_: Any) -> None:
    """Have ranks import this module, which takes long where other processes compute."""


def traced(folder: Path, backend: str, what: str) -> TraceSummary:
    with World(backend, 2, trace=folder) as world:
        world.run(import_this)
        found = world.run(evaluate_slowly, what, what)
        assert found == [{"accuracy": {"top1": 1.0}}] * 2
    (read,) = read_worlds(folder)
    check_rows(read)
    return summarise(read)


def check_rows(world: WorldTrace) -> None:
    """Hold the rows to what every run has."""
    assert [row.name for row in world.rows] == ["leader", "rank 0", "rank 1"]
    assert all(row.is_whole and not row.dropped for row in world.rows)
    kinds = ("start", "order")
    orders = [{e.name for e in row.events if e.category in kinds} for row in world.rows]
    assert orders[0] == orders[1] == orders[2] > {f"run {evaluate_slowly.__name__}"}
    for row in world.ranks:
        doing = [*timeline(row.events)]
        assert all(a.end == b.start for a, b in itertools.pairwise(doing))
        names = [event.name for event in row.events]
        assert names.count("predict") == names.count("add") == BATCHES
        numbers = [e.arguments["number"] for e in row.events if e.category == "collective"]
        assert numbers == [*range(1, len(numbers) + 1)]
        collectives = [e for e in row.events if e.category == "collective"]
        assert all(e.arguments["bytes"] >= 512 for e in collectives)
        assert sum(e.arguments.get("samples", 0) for e in row.events) == 10 * BATCHES


def check_slow(summary: TraceSummary, what: str) -> None:
    """Hold the summary to what was made slow."""
    longer = SECONDS * BATCHES
    assert summary.slowest is not None
    assert (summary.slowest.rank, summary.slowest.kind) == (1, what)
    assert summary.slowest.name == {"data": "load", "compute": "predict"}[what]
    assert summary.slowest.more > longer / 2
    waited = {pair: total / 1e9 for pair, (total, _) in summary.waits.by_pair().items()}
    assert waited[0, 1] > longer / 2
    assert waited[0, 1] == max(waited.values())
    fast, slow = summary.ranks
    assert fast.seconds["waiting"] > longer / 2
    assert slow.seconds[what] >= longer


@pytest.mark.usefixtures("without_canary")
@pytest.mark.parametrize("what", ["data", "compute"])
def test_threads_of_which_one_is_slow(what: str, tmp_path: Path) -> None:
    # What an evaluation imports is loaded by then, for which one of the ranks would take longer.
    evaluate(lambda labels: np.eye(4)[labels], SlowRows(20, 0.0), {"a": Accuracy()}, "non_dist")
    check_slow(traced(tmp_path / "run", "threads", what), what)


class AnotherClock(LocalLauncher):
    """Starts rank 1 with a clock that is 1,000 seconds ahead, as on another host."""

    name = "another_clock"

    def commands(self, directory: Path, world_size: int) -> list[list[str]]:
        first, second = super().commands(directory, world_size)
        return [first, [*AHEAD, *second]]


AHEAD = ["unshare", "--time", "--monotonic", "1000", "--fork", "--kill-child"]


def test_ranks_with_another_clock_are_brought_on_that_of_the_leader(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run([*AHEAD, "true"], check=False).returncode:
        pytest.skip("no time namespace can be made here")
    with World(None, 2, launcher=AnotherClock(), trace=tmp_path / "run") as world:
        now = world.run(read_the_clock)
    assert now[1] - now[0] > 900 * 10**9
    (read,) = read_worlds(tmp_path / "run")
    leader, *ranks = (
        next(e for e in row.events if e.name == "run read_the_clock") for row in read.rows
    )
    header = read.ranks[1].header
    assert header["offset_from"] == "round trips"
    assert abs(header["offset_ns"] + 1_000 * 10**9) <= header["offset_error_ns"] < 10**9
    for event in ranks:  # each order is carried out while the leader waits for it
        assert leader.start - header["offset_error_ns"] <= event.start
        assert event.end <= leader.end + header["offset_error_ns"]


def read_the_clock(_: Any) -> int:
    return time.monotonic_ns()


def fail_on_one(backend: Any) -> None:
    backend.all_gather_object(0)
    if backend.rank == 1:
        raise KeyError("no such sample")
    time.sleep(0.2)


def test_a_trace_of_ranks_that_failed_says_so(tmp_path: Path) -> None:
    with pytest.raises(WorldError), World("threads", 2, trace=tmp_path / "run") as world:
        world.run(fail_on_one)
    (read,) = read_worlds(tmp_path / "run")
    ((what, ranks),) = summarise(read).failures
    assert "rank 1 " in what and "KeyError" in what
    assert "KeyError" in ranks["rank 1"]
    assert [e.name for e in read.ranks[1].events][-1] == "run fail_on_one"


def hang(_: Any) -> None:
    for name in ("first", "second"):
        with traces.span("data", name):
            pass
    threading.Event().wait(60)


def test_a_rank_that_hangs_leaves_what_it_has_recorded(tmp_path: Path) -> None:
    with World(None, 2, launcher=LocalLauncher(), trace=tmp_path / "run") as world:
        world.run(import_this)
        with pytest.raises(WorldError):
            world.run(hang, timeout=2)
    (read,) = read_worlds(tmp_path / "run")
    assert [[e.name for e in row.events][-2:] for row in read.ranks] == [["first", "second"]] * 2


def fill_the_disk_of_one(backend: Any, secret: str) -> str:
    if backend.rank == 1:
        fill_disk_of_trace()
    return secret


def test_a_trace_that_is_cut_short_is_told_and_holds_no_arguments(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    folder = tmp_path / "run"
    with World("threads", 2, trace=folder) as world:
        given = functools.partial(fill_the_disk_of_one, secret="a password")
        assert world.run(given) == ["a password"] * 2
    assert str(folder) in caplog.text and "rank 1" in caplog.text
    assert not any(b"password" in file.read_bytes() for file in folder.iterdir())
    (read,) = read_worlds(folder)
    assert f"run {fill_the_disk_of_one.__name__}" in [e.name for e in read.rows[0].events]
    caplog.clear()
    with World("threads", 2, trace=tmp_path / "whole") as world:
        world.run(read_the_clock)
    assert caplog.text == ""


def test_commands_write_traces_and_show_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    task = ["eval", "suites.helpers.lease_task:task", "--limit=40", "--batch-size=5"]
    of_task = [*task, "--backend", "threads", "--trace", "run"]
    done = invoke(*of_task, "--world-size", "2")
    assert done.exit_code == 0, done.output
    again = invoke(*of_task)
    assert again.exit_code == 2 and "(world-1-" in again.output
    done = invoke("trace", "run", "--json", "shares.json")
    assert done.exit_code == 0, done.output
    assert "rank 1" in done.output and "slowest: rank" in done.output
    assert json.loads(Path("run/trace.json").read_text())["traceEvents"]
    (world,) = json.loads(Path("shares.json").read_text())["worlds"]
    assert [rank["rank"] for rank in world["ranks"]] == [0, 1]
    for rank in world["ranks"]:
        assert rank["samples"] == 20 and rank["whole"]
        parts = {name: s for name, s in rank["seconds"].items() if name != "total"}
        assert sum(parts.values()) == pytest.approx(rank["seconds"]["total"])
    elastic = [*task, "--elastic", "--launcher", "threads", "--trace", "leases"]
    done = invoke(*elastic, "--world-size", "2")
    assert done.exit_code == 0, done.output
    (read,) = read_worlds(Path("leases"))
    leases = [e for row in read.ranks for e in row.events if e.category == "lease"]
    # The last ones may be lent twice, so that nobody waits for a slow rank.
    units = {u for e in leases for u in range(e.arguments["start"], e.arguments["stop"])}
    assert units == {*range(8)}
    for wrong, named in (
        (["trace", "run", "--merged", "run/world-1-leader.jsonl"], "--merged run/"),
        (["trace", "nowhere"], "nowhere"),
        (["trace", "run", "--world", "7"], "world 7"),
        # A backend joins no ranks that may be lost.
        ([*of_task, "--elastic", "--launcher", "threads"], "--elastic"),
    ):
        done = invoke(*wrong)
        assert done.exit_code == 2 and named in done.output
