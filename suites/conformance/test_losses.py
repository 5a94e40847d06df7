"""A rank that something outside ends makes no backend broken, and none conformant either."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval import FrameError
from disteval.conformance.check import check_backend, select_rules
from disteval.contract import Capabilities, No, Rendezvous
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.faults import fork_servers
from suites.helpers.needs import needs
from suites.helpers.processes import (
    is_running,
    processes_below,
    run_plainly,
    start_as_from_a_terminal,
    wait_for,
)
from suites.mutants.sockets import Sockets

FOLDER = "DISTEVAL_TEST_FOLDER"
HERE = "suites.conformance.test_losses"
NOT_AGAIN = "not happen again"


def nth_time(what: str) -> int:
    """Return how many times a process of this test has called this function so, this one too."""
    with Path(os.environ[FOLDER], what).open("ab", buffering=0) as file:
        file.write(b"x")
        return file.tell()


class Waits(Sockets):
    """A correct backend whose rank 1 stops at the first text, writes its pid and never goes on."""

    launcher = "local"

    def all_gather_object(self, obj: Any) -> list[Any]:
        if self.rank == 1 and type(obj) is str and nth_time("waits") == 1:
            draft = Path(os.environ[FOLDER], "draft")
            draft.write_text(str(os.getpid()))
            draft.rename(draft.with_name("pid"))
            threading.Event().wait()
        return super().all_gather_object(obj)


class HangsWhereUnmatched(Sockets):
    """A backend that says that it can't tell ranks in different collectives, which wait."""

    launcher = "local"
    capabilities = Capabilities(detects_mismatches=No("calls have no numbers"))

    def all_gather_object(self, obj: Any) -> list[Any]:
        try:
            return super().all_gather_object(obj)
        except FrameError:
            return [threading.Event().wait()]

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        try:
            return super().broadcast_object(obj, src)
        except FrameError:
            return threading.Event().wait()


def test_a_declared_loss_costs_no_other_rule_its_verdict() -> None:
    rules = select_rules(["6.4", "7.1", "8.1"])
    report = check_backend(HangsWhereUnmatched, (5,), rules=rules, timeout=2, examples=2)
    assert [one.outcome for one in report.rules] == ["unsupported", "unsupported", "passed"]


class Crashes(Sockets):
    """A backend that falls at each text."""

    launcher = "local"

    def all_gather_object(self, obj: Any) -> list[Any]:
        if self.rank == 1 and type(obj) is str:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().all_gather_object(obj)


class HangsOnce(ThreadsDist):
    """A backend whose rank 0 comes too late for the first text, and only then."""

    times = 1

    def all_gather_object(self, obj: Any) -> list[Any]:
        if self.rank == 0 and type(obj) is str and nth_time("hangs") <= self.times:
            threading.Event().wait(20)
        return super().all_gather_object(obj)


class Hangs(HangsOnce):
    """A backend whose rank 0 never sends text."""

    times = 1000


class WrongOnce(ThreadsDist):
    """A backend whose rank 0 has one wrong result, is late at the next text, and then right."""

    late_at = 2

    def all_gather_object(self, obj: Any) -> list[Any]:
        gathered = super().all_gather_object(obj)
        time = nth_time("gathers") if self.rank == 0 else 0
        if time == self.late_at:
            threading.Event().wait(20)
        return gathered[::-1] if time == 1 else gathered


class ReturnsOnce(Sockets):
    """A backend that returns from the first collective in which it notices a loss."""

    launcher = "local"

    def all_gather_object(self, obj: Any) -> list[Any]:
        try:
            return super().all_gather_object(obj)
        except OSError:
            if nth_time("returns") == 1:
                return [obj] * self.world_size
            raise


class DiesAtStart(Sockets):
    """A backend whose first rank 1 is killed while it joins its group."""

    launcher = "local"

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        if rank == 1 and nth_time("starts") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        super().init_process(rank, world_size, rendezvous)


class LateToJoinAgain(ThreadsDist):
    """A backend whose rank 0 waits in vain when it joins its second group."""

    late_at = (2,)

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        if rank == 0 and nth_time("joins") in cls.late_at:
            raise TimeoutError("no other rank came")
        super().init_process(rank, world_size, rendezvous)


class NeverJoinsAgain(LateToJoinAgain):
    late_at = (2, 4)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return tmp_path


@contextlib.contextmanager
def killed_when_it_waits(folder: Path) -> Iterator[None]:
    """Kill the process that `Waits` names, from this process, which is no part of the check."""

    def kill() -> None:
        if wait_for((folder / "pid").exists, 60):
            os.kill(int((folder / "pid").read_text()), signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "disteval.cli", "check", f"{HERE}:Waits", *arguments]


@needs("jinja2")
def test_a_rank_killed_from_outside_leaves_the_rule_without_a_verdict(folder: Path) -> None:
    rules = ("--rules=1.1,2.2,3.3", "--world-size=2", "--examples=2")
    with killed_when_it_waits(folder):
        done = run_plainly(command(*rules, "--json=r.json", "--html=r.html"), folder, 120)
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.search(rf"{HERE}:Waits .*1\.1, 3\.3 .*; not judged: .*2\.2 .* 2\n", done.stdout)
    report = json.loads((folder / "r.json").read_text())
    assert report["verdict"] == "incomplete"
    assert [r["outcome"] for r in report["rules"]] == ["passed", "error", "passed"]
    lost = report["rules"][1]
    assert re.match("rank 1 .*SIGKILL", lost["message"])
    assert NOT_AGAIN in lost["message"]
    assert "rank" in lost["observed"]
    for option in (f"{HERE}:Waits", "--rules 2.2", "--world-size 2"):
        assert option in lost["replay"]
    for told in (lost["message"], lost["replay"]):
        assert told in done.stdout
    assert NOT_AGAIN in (folder / "r.html").read_text()


ONCE: dict[str, tuple[Any, str, dict[str, Any], list[str], str]] = {
    "a group joined again too late": (LateToJoinAgain, "1.5", {}, ["error"], NOT_AGAIN),
    "and again on other ranks": (NeverJoinsAgain, "1.5", {}, ["failed"], "twice"),
    "a crash each time": (
        Crashes, "1.1 2.2 3.3", {"examples": 2}, ["passed", "failed", "passed"],
        "(?s)^rank 1 .*SIGSEGV.*twice.*rank 1 .*SIGSEGV",
    ),
    "a survivor that returns once": (ReturnsOnce, "1.1 7.2", {}, ["passed", "failed"], "rank 1 r"),
    "a start that is killed once": (
        DiesAtStart, "1.1 3.3", {"examples": 2}, ["error", "passed"],
        f"(?s)^rank 1 .*SIGKILL.*{NOT_AGAIN}",
    ),
    "a wrong result, and late after it": (
        WrongOnce, "2.2", {"timeout": 1}, ["failed"], "(?s) 1 s on.*rank 0 had a wrong result",
    ),
}  # fmt: skip
"""A backend, the rules that are tried, how they end, and what is said of the first bad one."""


@pytest.mark.parametrize("name", ONCE)
def test_a_loss_convicts_only_where_it_recurs_and_a_wrong_result_always(name: str) -> None:
    backend, rules, options, outcomes, told = ONCE[name]
    size = 3 if issubclass(backend, LateToJoinAgain) else 2
    report = check_backend(backend, (size,), rules=select_rules(rules.split()), **options)
    assert [result.outcome for result in report.rules] == outcomes
    assert report.exit_code == (1 if "failed" in outcomes else 2)
    bad = next(result for result in report.rules if result.outcome != "passed")
    assert re.search(told, bad.message), bad.message
    assert bad.counterexample or backend is not Crashes


@pytest.mark.parametrize(
    ("backend", "outcomes"), [(HangsOnce, ["error", "passed"]), (Hangs, ["failed", "failed"])]
)
def test_a_timeout_convicts_only_where_it_recurs_and_costs_one_more_at_all_sizes(
    folder: Path, backend: type[ThreadsDist], outcomes: list[str]
) -> None:
    report = check_backend(backend, (2, 3), rules=select_rules(["2.2"]), timeout=1, examples=2)
    assert sorted(result.outcome for result in report.rules) == outcomes
    assert report.exit_code == {"error": 2, "failed": 1}[outcomes[0]]
    [first, *_] = sorted(report.rules, key=lambda result: result.outcome)
    assert " 1 s on" in first.message
    if backend is Hangs:
        assert (folder / "hangs").stat().st_size == 3  # at both sizes, and again at the smaller one


def test_killed_fork_servers_and_ranks_cost_one_rule_its_verdict() -> None:
    before, killed = set(processes_below(os.getpid())) - fork_servers(), []

    def kill_all(result: Any) -> None:
        if not killed:  # between two rules
            killed.extend(set(processes_below(os.getpid())) - before)
            for pid in killed:
                with contextlib.suppress(ProcessLookupError):  # a rank ends with its server
                    os.kill(pid, signal.SIGKILL)

    rules = select_rules(["1.1", "2.2", "3.3"])
    report = check_backend(Sockets, (2,), rules=rules, examples=2, on_result=kill_all)
    assert len(killed) >= 4, "two servers and two ranks"
    assert [result.outcome for result in report.rules] == ["passed", "error", "passed"]
    assert "was lost" in report.rules[1].message
    assert NOT_AGAIN in report.rules[1].message
    assert not any(map(is_running, killed))


def test_ranks_that_can_not_be_started_anew_are_not_judged_after_a_loss(folder: Path) -> None:
    def start(rank: int) -> subprocess.Popen[str]:
        told = {"PMI_RANK": str(rank), "PMI_SIZE": "2", "PMIX_NAMESPACE": "a"}
        told |= {"DISTEVAL_CONTROL_DIR": str(folder), "COLUMNS": "200"}
        asked = command("--rules=1.1,2.2,3.3", "--json=r.json")
        return start_as_from_a_terminal(asked, cwd=folder, env=os.environ | told)

    with killed_when_it_waits(folder), start(0) as leader, start(1) as follower:
        output, errors = leader.communicate(timeout=120)
        follower.communicate(timeout=60)
    assert leader.returncode == 2, output + errors
    assert re.search(r":Waits .*1\.1 .*; not judged: .*2\.2, 3\.3 .* 2\n", output), output
    assert re.search(
        rf"2\.2 at world size 2: rank 1 .* {HERE}:Waits --rules 2\.2 --world-size 2", output
    )
    results = json.loads((folder / "r.json").read_text())["rules"]
    assert [result["outcome"] for result in results] == ["passed", "error", "error"]


def test_the_suite_for_other_repositories_says_so_too(folder: Path) -> None:
    options = ["--pyargs", "disteval.conformance.suite", "--world-size=2", "-k", "2.2", "-p"]
    options += ["no:cacheprovider", f"--disteval-backend={HERE}:Waits", "--examples=2"]
    with killed_when_it_waits(folder):
        done = run_plainly([sys.executable, "-m", "pytest", *options], folder, 120)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search("not judged.*rank 1 .*SIGKILL", done.stdout), done.stdout
