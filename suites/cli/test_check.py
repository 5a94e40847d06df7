"""``disteval check`` works for somebody who has written a backend."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval.conformance.check import select_rules

from suites.helpers.command import disteval, invoke
from suites.helpers.needs import needs
from suites.helpers.processes import mpirun, run_plainly, start_as_from_a_terminal

RULES = select_rules()
OF_TEMPLATES = len(select_rules(["9.*"]))

MINE = """
import time
from pathlib import Path
from disteval.world import detect_outer_world
from disteval_backends.threads_dist import ThreadsDist

class Good(ThreadsDist):
    pass

class Swapped(ThreadsDist):
    def all_gather_object(self, obj):
        gathered = super().all_gather_object(obj)
        return gathered[::-1]

class TwoMistakes(ThreadsDist):
    def all_gather_object(self, obj):
        gathered = super().all_gather_object(obj)
        return {1: gathered, 2: [*gathered, None]}.get(self.world_size, [b""] * self.world_size)

class SwappedAndSlow(Swapped):
    def broadcast_object(self, obj, src=0):
        late = time.monotonic() + 15
        while not Path("was_read").exists() and time.monotonic() < late:
            time.sleep(0.05)
        return super().broadcast_object(obj, src)

class Reversed(ThreadsDist):
    @property
    def rank(self):
        return self.world_size - 1 - super().rank

class Stuck(ThreadsDist):
    def all_gather_object(self, obj):
        import threading
        threading.Event().wait(60)

    broadcast_object = all_gather_object

class StuckAnywhere(Stuck):
    launcher = "local"
    rank = property(lambda self: detect_outer_world().rank)
    world_size = 2
    is_initialized = True

"""


@pytest.fixture
def check(tmp_path: Path) -> Any:
    (tmp_path / "mine.py").write_text(MINE)

    def run(*arguments: str, under: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        if not under:
            return disteval(tmp_path, "check", *arguments)
        command = [*under, sys.executable, "-m", "disteval.cli", "check", *arguments]
        return run_plainly(command, tmp_path, 120)

    return run


def test_a_conformant_backend(check: Any, tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    done = check("mine:Good", "--world-size=1,2", "--examples=3", f"--json={report}")
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(report.read_text())
    assert f"mine:Good {found['covers']}\n" in done.stdout
    required = sum(rule.level != "optional" for rule in RULES)
    assert re.search(rf"\b{required - OF_TEMPLATES}\b.* 1 and 2; .*7\.1-7\.3", found["covers"])
    assert (found["target_distribution"], found["target_version"]) == ("", "")
    assert (found["target"], found["verdict"]) == ("mine:Good", "conformant")
    assert {(r["id"], r["world_size"]) for r in found["rules"]} == {
        (rule.number, size) for rule in RULES for size in (1, 2)
    }
    for result in found["rules"]:
        # Threads can't be lost, this is no tensor template, and some rules need another rank.
        alone = result["world_size"] == 1
        applies = (
            not alone if result["id"] in ("6.4", "7.4", "7.5") else result["id"][0] not in "79"
        )
        assert result["outcome"] == ("passed" if applies else "unsupported")
        assert bool(result["examples"]) == applies
        assert applies or result["message"]


def test_a_broken_backend_gets_the_smallest_example_and_a_line_that_replays_it(check: Any) -> None:
    done = check("mine:Swapped", "--world-size=3", "--rules=2.1,2.3")
    assert done.returncode == 1
    assert len(re.findall(r"^usually: .*\brank r\b", done.stdout, re.M)) == 1
    # Shrunk: two ranks send None, and one sends the simplest thing that is not.
    found = re.search(r"gather (\[.{1,30}\])\n", done.stdout)
    assert found is not None, done.stdout
    assert found[1].count("None") == 2 and done.stdout.count(found[1]) >= 2
    replay = replayed(done.stdout)
    asked = {"--rules": "2.1", "--world-size": "3", "--seed": "0", "--examples": "100"}
    assert options_of(replay) == asked
    assert found[0] in check(*replay).stdout


def test_failures_of_one_mistake_are_told_once_and_two_mistakes_are_both_told(
    check: Any, tmp_path: Path
) -> None:
    options = ("--world-size=1,2,3,4", "--rules=2.3", "--json=r.json")
    done = check("mine:TwoMistakes", *options)
    assert re.findall(r"^also: .*", done.stdout, re.M) == ["also: rule 2.3 at world size 4"]
    assert done.stdout.count("✗ breaks rule 2.3") == len(done.stderr.splitlines()) == 2
    found = json.loads((tmp_path / "r.json").read_text())["rules"]
    assert [result["also"] for result in found] == [[], [], [["2.3", 4]], []]
    assert all(result["counterexample"] for result in found[1:])


def replayed(output: str) -> list[str]:
    """Return the words after ``disteval check`` of the first command that an output shows."""
    found = re.search(r"disteval check (mine:Swapped( --\S+ \S+)+)", output)
    assert found is not None, output
    return found[1].split()


def options_of(words: list[str]) -> dict[str, str]:
    return dict(zip(words[1::2], words[2::2], strict=True))


def test_the_first_failure_of_each_rule_is_printed_while_the_check_goes_on(
    check: Any, tmp_path: Path
) -> None:
    arguments = ("mine:SwappedAndSlow", "--world-size=2,3", "--examples=5")
    command = [sys.executable, "-m", "disteval.cli", "check", *arguments, "--rules=2.1,3.3"]
    with start_as_from_a_terminal(command, cwd=tmp_path) as process:
        assert process.stderr is not None
        found = process.stderr.readline()
        assert process.poll() is None  # rule 3.3 ends after the file is there
        (tmp_path / "was_read").touch()
        _, errors = process.communicate(timeout=120)
    assert re.search(r"\b2\.1\b.*\b[23]: rank 0 ", found)
    assert (process.returncode, errors) == (1, "")  # at the other size it is in the table only
    quiet = check(*arguments, "--rules=2.1", "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (1, "", "")


def test_a_backend_that_hangs_is_broken_soon_and_the_rest_is_not_run(
    check: Any, tmp_path: Path
) -> None:
    options = ("--rules=2.*,3.1", "--world-size=2", "--timeout=1", "--examples=5", "--json=r.json")
    command = [sys.executable, "-m", "disteval.cli", "check", "mine:Stuck", *options]
    done = run_plainly(command, tmp_path, 120)
    assert done.returncode == 1
    found = json.loads((tmp_path / "r.json").read_text())
    hung = [rule for rule in found["rules"] if "1 s" in rule["message"]]
    assert hung and "all_gather_object" in done.stdout
    assert "not run: 2 rules" in done.stdout


@pytest.mark.parametrize(
    "words", [("mine:Good", "--rules=9.*", "--world-size=2"), ("non_dist", "--world-size=2,3")]
)
def test_what_was_not_tried_makes_no_backend_conformant(
    check: Any, words: tuple[str, ...], tmp_path: Path
) -> None:
    done = check(*words, f"--json={tmp_path / 'r.json'}")
    assert (done.returncode, words[0] in done.stdout) == (2, True)
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["verdict"] == "incomplete"


def test_rules_that_were_asked_for_are_named_and_those_that_were_left_out(check: Any) -> None:
    few = "--rules=1.[123],2.*,3.*,4.*,6.2,6.3"
    some = check("mine:Good", few, "--world-size=2", "--examples=5")
    assert some.returncode == 0  # all that was asked for holds
    for ranges in ("1.1-1.3", "2.1-2.4", "3.1-3.5", f"(of {len(RULES) - OF_TEMPLATES})"):
        assert ranges in some.stdout
    assert re.search(r"Left out .*5\.1", some.stdout)


def test_the_rules_are_listed() -> None:
    done = invoke("check", "--list")
    assert done.exit_code == 0
    for rule in RULES:
        assert rule.number in done.output


def test_a_backend_that_is_wrong_about_its_ranks_is_broken_and_not_unjudged(check: Any) -> None:
    done = check("mine:Reversed", "--world-size=3", "--rules=1.*")
    assert done.returncode == 1, done.stderr
    assert re.search(r"rank 0\b.*rank 2\b", done.stdout)
    wrong = check("mine:Reversed", "--world-size=3", "--rules=1.*", "--launcher=local")
    assert wrong.returncode == 2  # another launcher started its ranks, so they are not judged
    assert "Reversed" in wrong.stderr and "'threads'" in wrong.stderr


def test_a_replay_has_all_that_was_asked_for(check: Any) -> None:
    asked = {
        "--rules": "2.1", "--world-size": "2", "--seed": "7", "--examples": "9", "--timeout": "1.5",
        "--launcher": "threads",
    }  # fmt: skip
    done = check("mine:Swapped", *(f"{name}={value}" for name, value in asked.items()))
    assert options_of(replayed(done.stdout)) == asked


@needs("mpi4py")
def test_an_outer_world_is_joined_and_reports_once(check: Any) -> None:
    done = check("mpi4py", "--examples=5", "--rules=1.[123],2.1,7.1", under=mpirun(3))
    assert done.returncode == 0, done.stderr
    verdicts = re.findall(r"^mpi4py .*1\.1-1\.3, 2\.1 .* 3; .* 2\.1$", done.stdout, re.MULTILINE)
    assert len(verdicts) == 1  # one world size proves no more


@needs("mpi4py")
def test_an_outer_world_in_which_nothing_was_tried_does_not_pass(check: Any) -> None:
    done = check("mpi4py", "--rules=7.1,7.2", under=mpirun(2))
    assert (done.returncode, "not tried" in done.stdout) == (2, True), done.stderr


@needs("mpi4py")
def test_an_outer_world_that_is_lost_is_reported_as_not_judged(check: Any) -> None:
    done = check("mine:StuckAnywhere", "--timeout=1", "--rules=1.1,2.1,2.2", under=mpirun(2))
    assert done.returncode != 0
    assert re.search(r"passes .*1\.1 ", done.stdout), done.stdout + done.stderr
    assert re.search(r"not judged: .*2\.1, 2\.2 ", done.stdout)
    assert re.search(r"\b1 s\b.* 2 ranks", done.stdout)
