"""``disteval check`` works for somebody who has written a backend."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval.cli import main
from disteval.conformance.runner import select_rules
from disteval.contract import BaseDistBackend
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.processes import mpirun, run_plainly, start_as_from_a_terminal
from suites.helpers.requirements import backend_class, framework

HERE = "suites.cli.test_check"
RULES = select_rules()
OF_TEMPLATES = len(select_rules(["9.*"]))

MINE = """
import time
from pathlib import Path
from disteval.worlds import detect_outer_world
from disteval_backends.threads_dist import ThreadsDist

class Good(ThreadsDist):
    pass

class Swapped(ThreadsDist):
    def all_gather_object(self, obj):
        gathered = super().all_gather_object(obj)
        return gathered[::-1]

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

class Markup(ThreadsDist):
    def all_gather_object(self, obj):
        raise LookupError("<script>alert(1)</script> [bold]")

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


class Partial(BaseDistBackend):
    """A backend without most of its members."""

    is_initialized = False
    rank = 0


class OverNothing(ThreadsDist):
    """A backend whose library can't be imported."""

    preload = ("no_such_library.core",)


@pytest.fixture
def check(tmp_path: Path) -> Any:
    (tmp_path / "mine.py").write_text(MINE)

    def run(*arguments: str, under: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        command = [*under, sys.executable, "-m", "disteval.cli", "check", *arguments]
        return run_plainly(command, tmp_path, 120)

    return run


def test_a_conformant_backend(check: Any, tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    done = check("mine:Good", "--world-size=1,2", "--examples=10", f"--json={report}")
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(report.read_text())
    assert f"mine:Good {found['covers']}\n" in done.stdout
    required = sum(rule.level != "optional" for rule in RULES)
    assert found["covers"].startswith(
        f"is conformant: all {required - OF_TEMPLATES} required rules hold at world sizes 1 and 2; "
        "not held against it: rules 7.1-7.3"
    )
    assert (found["target_distribution"], found["target_version"]) == ("", "")
    assert found["target"] == "mine:Good"
    assert found["verdict"] == "conformant"
    judged = [r for r in found["rules"] if r["outcome"] == "passed" and r["level"] != "optional"]
    assert found["required_run"] == len(judged)
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
        assert set(result) == {
            "id", "name", "sentence", "level", "world_size", "outcome", "examples", "seconds",
            "message", "counterexample", "observed", "replay", "cause",
        }  # fmt: skip


def test_a_broken_backend_gets_the_smallest_example_and_a_line_that_replays_it(
    check: Any,
) -> None:
    done = check("mine:Swapped", "--world-size=3", "--rules=2.1,2.3")
    assert done.returncode == 1
    assert done.stdout.count("likely cause: the objects are in another order") == 1
    assert (
        "breaks 2.3 (W=3); check one of these alone, with --rules, to see its example\nagain: "
        in done.stdout
    )
    assert "mine:Swapped is broken" in done.stdout
    assert "On every rank, entry r of an all-gather is rank r's object" in done.stdout
    # Shrunk: two ranks send None, and one sends the simplest thing that is not.
    found = re.search(r"example: gather \[(.{1,30})\]\n", done.stdout)
    assert found is not None, done.stdout
    assert found[1].count("None") == 2
    assert f"instead of [{found[1]}]" in done.stdout
    replay = "disteval check mine:Swapped --rules 2.1 --world-size 3 --seed 0 --examples 100"
    assert replay in done.stdout
    assert found[0] in check(*replay.split()[2:]).stdout


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
        output, errors = process.communicate(timeout=120)
    assert re.match(r"rule 2.1, all-gather order, fails at world size [23]: rank 0 got", found)
    assert errors == ""  # the failure at the other world size is in the table only
    assert "mine:SwappedAndSlow is broken" in output
    quiet = check(*arguments, "--rules=2.1", "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (1, "", "")


def test_a_backend_that_hangs_is_broken_soon_and_the_rest_is_not_run(check: Any) -> None:
    done = check("mine:Stuck", "--world-size=2,3", "--timeout=1", "--examples=5")
    assert done.returncode == 1
    assert "no progress for 1 s on all 2 ranks" in done.stdout
    assert "waits in all_gather_object #1" in done.stdout
    assert "not run: 2 rules in a row ended in a lost world" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("thread",), "no backend 'thread'. Did you mean 'threads'?"),
        (("none:Backend",), "importing none:Backend failed with ModuleNotFoundError"),
        ((f"{HERE}:Missing",), f"importing {HERE}:Missing failed with AttributeError"),
        ((f"{HERE}:MINE",), "is not a subclass of disteval.BaseDistBackend"),
        (
            (f"{HERE}:Partial",),
            "Partial, which lacks all_gather_object, broadcast_object, world_size",
        ),
        (("my.mod.Class",), "Give a class of your own as module:Class, such as 'my.mod:Class'."),
        (("my.mod",), "Give a class of your own as module:Class, such as 'my.mod:Class'."),
        (("threads", "--rules=77.*"), "no rule matches '77.*'; the known ones are: 1.1, 1.2"),
        (("threads", "--world-size=0"), "'0' is not a list of different whole numbers from 1 up"),
        (("threads", "--launcher=ssh"), "no launcher 'ssh'"),
        ((), "no backend is named; name one, or give --list"),
        (
            (f"{HERE}:OverNothing", "--rules=1.1", "--world-size=2"),
            "check: backend 'OverNothing' can't be used: importing no_such_library.core failed",
        ),
    ],
)
def test_what_cannot_be_judged_exits_with_2(arguments: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(main, ["check", *arguments])
    assert done.exit_code == 2
    assert message in done.output
    assert "Traceback" not in done.output


def test_what_was_not_tried_makes_no_backend_conformant(check: Any) -> None:
    nothing = check("mine:Good", "--rules=9.*", "--world-size=2")
    assert nothing.returncode == 2
    sentence = "mine:Good was not tried: no rule that was asked for applies\n0 examples in "
    assert sentence in nothing.stdout
    alone = check("non_dist", "--world-size=2,3")  # it declares that it can do only one
    assert alone.returncode == 2
    assert "non_dist was not tried: no rule that was asked for applies" in alone.stdout
    few = "--rules=1.[123],2.*,3.*,4.*,6.2,6.3"
    some = check("mine:Good", few, "--world-size=2", "--examples=5")
    assert some.returncode == 0  # all that was asked for holds
    assert "mine:Good passes rules 1.1-1.3, 2.1-2.4, 3.1-3.5, 4.1, 4.2" in some.stdout
    assert f", 6.2, 6.3 (of {len(RULES) - OF_TEMPLATES}) at world size 2\n" in some.stdout
    assert re.search(
        r"Left out of this check: rules .*5\.1.* and another world size\n", some.stdout
    )


def test_the_rules_are_listed() -> None:
    done = CliRunner().invoke(main, ["check", "--list"])
    assert done.exit_code == 0
    for rule in RULES:
        assert rule.number in done.output


def test_a_backend_that_is_wrong_about_its_ranks_is_broken_and_not_unjudged(check: Any) -> None:
    done = check("mine:Reversed", "--world-size=3", "--rules=1.*")
    assert done.returncode == 1, done.stderr
    assert "rank 0 of 3 says: rank 2, world size 3, in a group" in done.stdout


def test_ranks_that_the_wrong_launcher_started_are_not_judged(check: Any) -> None:
    done = check("mine:Reversed", "--world-size=3", "--rules=1.*", "--launcher=local")
    assert done.returncode == 2
    assert "its ranks must be started by its own launcher, 'threads'" in done.stderr


def test_the_report_as_a_page(check: Any, tmp_path: Path) -> None:
    framework("jinja2")
    page = tmp_path / "r.html"
    done = check("mine:Markup", "--world-size=1", "--rules=1.1,2.1", f"--html={page}")
    assert done.returncode == 1
    text = page.read_text()
    assert "identity" in text
    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert" not in text
    assert "[bold]" in text


def test_a_page_that_can_not_be_written_is_refused_before_anything_runs(
    check: Any, tmp_path: Path
) -> None:
    done = check("mine:Good", f"--html={tmp_path / 'none' / 'r.html'}")
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"the folder {tmp_path / 'none'} does not exist" in done.stderr


def test_a_replay_has_all_that_was_asked_for(check: Any, tmp_path: Path) -> None:
    asked = ("--world-size=2", "--rules=2.1", "--seed=7", "--examples=9", "--timeout=1.5")
    done = check("mine:Swapped", *asked, "--launcher=threads")
    replay = "disteval check mine:Swapped --rules 2.1 --world-size 2 --seed 7 --examples 9 "
    assert f"{replay}--timeout 1.5 --launcher threads" in done.stdout


@pytest.mark.parametrize("name", ["mpi4py", "torch_cpu"])
def test_an_outer_world_is_joined_and_reports_once(check: Any, name: str) -> None:
    backend_class("mpi4py")
    backend_class(name)
    done = check(name, "--examples=5", "--rules=1.[123],2.1,7.1", under=mpirun(3))
    assert done.returncode == 0, done.stderr
    sentence = rf"{name} passes rules 1.1-1.3, 2.1 \(of \d+\) at world size 3\n"
    assert len(re.findall(sentence, done.stdout)) == 1  # one world size proves no more
    assert "losing ranks would end this job" in done.stdout
    refused = check(name, "--world-size=2", under=mpirun(3))
    assert refused.returncode == 2
    assert refused.stderr.count("--world-size 2, but mpirun started 3 ranks; leave the") == 1


def test_an_outer_world_in_which_nothing_was_tried_does_not_pass(check: Any) -> None:
    backend_class("mpi4py")
    done = check("mpi4py", "--rules=7.1,7.2", under=mpirun(2))
    assert done.returncode == 2, done.stderr
    assert "mpi4py was not tried: no rule that was asked for applies\n0 examples" in done.stdout


def test_an_outer_world_that_is_lost_is_reported_as_not_judged(check: Any) -> None:
    backend_class("mpi4py")
    done = check("mine:StuckAnywhere", "--timeout=1", "--rules=1.1,2.1,2.2", under=mpirun(2))
    assert done.returncode != 0
    assert "mine:StuckAnywhere passes rule 1.1 (of " in done.stdout, done.stdout + done.stderr
    assert ") at world size 2; not judged: rules 2.1, 2.2 at world size 2\n" in done.stdout
    assert "this job can't start other ranks to try the rule again" in done.stdout
    assert "no progress for 1 s on all 2 ranks" in done.stdout
    assert "? 2.2 at W=2: not run: one rule ended in a lost world" in done.stdout
