"""The plugin runs users' tests on ranks, and reports on those that pass and those that fail."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval.conformance.check import select_rules

from suites.helpers.needs import needs
from suites.helpers.processes import mpirun, run_plainly, torchrun

ROOT = Path(__file__).parents[2]
Run = Callable[..., subprocess.CompletedProcess[str]]

# Those that apply to these backends, which are no subclasses of the tensor template.
RULES = len(select_rules()) - len(select_rules(["9.*"]))

# Real processes that need no library.
SOCKETS = "--backend=suites.mutants.sockets:Sockets"

BAD_TESTS = """
import os, signal, threading, pytest

def gather(backend, rank):
    return backend.all_gather_object(rank)

def raise_on_1(backend, rank):
    if rank == 1:
        raise LookupError("the mistake of rank 1")
    return rank

def crash_on_1(backend, rank):
    if rank == 1:
        os.abort()
    return backend.all_gather_object(rank)

def hang_on_1(backend, rank):
    if rank == 1:
        threading.Event().wait(60)
    return backend.all_gather_object(rank)

@pytest.mark.parametrize("work", [gather, raise_on_1, gather, crash_on_1, gather, hang_on_1])
def test_work(world, work):
    ranks = list(range(world.world_size))
    found = world.run(work, *ranks)
    assert found == ([ranks] * world.world_size if work is gather else ranks)

def test_alone():
    assert True
"""

MARKED = """
import pytest

@pytest.mark.world_sizes(2, 4)
def test_size(world, record_property):
    assert world.run(lambda backend: backend.world_size) == [world.world_size] * world.world_size

@pytest.mark.needs("propagates_errors")
@pytest.mark.world_sizes(1)
def test_needs(world):
    assert False
"""

MODEST = """
from suites.mutants.sockets import Sockets
from disteval.contract import Capabilities, No

class Modest(Sockets):
    capabilities = Capabilities(propagates_errors=No("it seemed hard"))
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs pytest with the plugin on a file of tests, under a launcher."""

    def start(tests: str, *options: str, under: tuple[str, ...] = ()) -> object:
        (tmp_path / "test_mine.py").write_text(tests)
        launcher = [*under, sys.executable] if under else [sys.executable]
        options = ("-m", "pytest", "-p", "disteval.conformance.plugin", "-rs", *options)
        return run_plainly([*launcher, *options], tmp_path, 180)

    return start  # type: ignore[return-value]


def counts(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """Return how many tests passed, failed and so on, by the last line that pytest prints."""
    lines = re.findall(r"^.*\bin \d+\.\d+s\b.*$", done.stdout, re.MULTILINE)
    return {word.rstrip("s"): int(n) for n, word in re.findall(r"(\d+) ([a-z]+)", lines[-1])}


def test_bad_tests_fail_one_by_one_and_each_says_why(run: Run) -> None:
    done = run(BAD_TESTS, SOCKETS, "--world-size=3", "--world-timeout=5")
    assert done.returncode == 1, done.stdout + done.stderr
    assert counts(done) == {"failed": 3, "passed": 4}
    for found in (
        r"rank 1 .*LookupError", r"rank 1 .*SIGABRT", r"rank 1: .* all_gather_object #2",
        r"rank 0: .* all_gather_object #2", r"in hang_on_1",
    ):  # fmt: skip
        assert re.search(found, done.stdout), found
    assert "raise self" not in done.stdout  # the code of a world is no part of a user's test


def test_markers(run: Run, tmp_path: Path) -> None:
    (tmp_path / "modest.py").write_text(MODEST)
    done = run(MARKED, "--backend=modest:Modest", "--strict-markers")
    assert counts(done) == {"passed": 2, "skipped": 1}, done.stdout + done.stderr
    assert re.search(r"Modest .*propagates_errors: it seemed hard", done.stdout)
    done = run(MARKED.replace("propagates", "swallows"), SOCKETS)
    assert (done.returncode, "'swallows_errors'" in done.stderr) == (4, True)


def test_a_backend_that_is_named_must_be_there(run: Run) -> None:
    done = run(BAD_TESTS, "--backend=nowhere:Class", "-k", "gather")
    assert (done.returncode, done.stderr.count("ERROR")) == (4, 1), done.stderr


ALONE = """
import pytest

@pytest.mark.parametrize("number", range(2))
def test_alone(number):
    assert number >= 0
"""


def test_options_that_no_test_can_use_are_refused(run: Run) -> None:
    options = ("--backend=threads", "--world-size", "2", "--examples=5", "--world-timeout=20")
    done = run(ALONE, *options)
    assert done.returncode == 4, done.stdout + done.stderr
    for option in ("--backend", "--world-size", "--examples", "--world-timeout"):
        assert option in done.stderr
    assert "passed" not in done.stdout
    # The options of a project that has tests on ranks hold for its other tests, too.
    assert counts(run(ALONE, "-o", f"addopts={' '.join(options)}")) == {"passed": 2}


def test_workers_that_can_not_use_an_option_stop_and_say_so(run: Run) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    done = run(ALONE, "--backend=threads", "-n1")
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout + done.stderr
    assert "--backend" in done.stdout


def test_a_test_that_fails_as_expected_was_tried(run: Run) -> None:
    expected = MARKED.replace("@pytest.mark.needs", "@pytest.mark.xfail(strict=True)  # ")
    done = run(expected, SOCKETS, "-k", "needs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert counts(done)["xfailed"] == 1


SUITE = ("--pyargs", "disteval.conformance.suite")
ALL_ON_TWO = ("--backend=threads", "--backend=non_dist", "--world-size=2")


def verdicts(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines of the plugin's own summary."""
    return re.findall(r"=+ disteval =+\n((?:[^=\n].*\n)*)", done.stdout)[0].splitlines()


def test_the_summary_says_what_was_tried_also_by_several_workers(run: Run) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    # Each worker has worlds of its own. One backend can't do these world sizes, so it is skipped.
    options = (SOCKETS, "--backend=non_dist", "--world-size=2,3", "-n2")
    done = run("", *SUITE, *options, "--examples=5", "-k", "1.1 or W3-2.1")
    tried, *untried = verdicts(done)
    assert re.match(rf"\S*Sockets .*1\.1 \(of {RULES}\).* 2 and 3.* 2\.1 .* 3$", tried)
    assert [line.count("non_dist") for line in untried] == [1, 1]
    assert done.returncode == 2, done.stdout + done.stderr


def test_a_summary_tells_what_is_broken_and_what_one_world_size_does_not_prove(run: Run) -> None:
    broken = "suites.mutants.broken.gathered:ReversedOrder"
    options = (f"--backend={broken}", "--backend=threads", "--world-size=2", "--examples=5")
    done = run("", *SUITE, *options, "-k", "1.1 or 2.1")
    first, second = verdicts(done)
    assert re.match(rf"{broken} .*broken.* 2\.1 \(of {RULES}\) .* 2$", first)
    assert re.match(rf"threads passes .* 1\.1, 2\.1 \(of {RULES}\) .* 2$", second)
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("tests", "options"),
    [
        ("", (*SUITE, *ALL_ON_TWO, "-k", "9.1 or (non_dist and 1.1)")),
        (MARKED, ("--backend=modest:Modest", "-k", "needs")),
    ],
)
def test_a_run_in_which_nothing_was_tried_does_not_pass(
    run: Run, tmp_path: Path, tests: str, options: tuple[str, ...]
) -> None:
    (tmp_path / "modest.py").write_text(MODEST)
    done = run(tests, *options)
    assert "status is 2" in verdicts(done)[-1]
    assert (done.returncode, "skipped" in done.stdout) == (2, True)


def launcher(name: str) -> tuple[str, ...]:
    """Return the words that start two ranks."""
    return {"mpirun": mpirun, "torchrun": torchrun}[name](2)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        pytest.param("mpirun", "mpi4py", marks=needs("mpi4py")),
        pytest.param("torchrun", "torch_cpu", marks=needs("torch_cpu")),
    ],
)
def test_an_outer_world_is_joined_and_reports_once(run: Run, name: str, backend: str) -> None:
    """`suites/docs` joins that of horovodrun."""
    # Two backends, one after the other, on the same two processes.
    backends = [SOCKETS, f"--backend={backend}"]
    done = run(BAD_TESTS, *backends, "-k", "gather or raise or alone", under=launcher(name))
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("session starts") == 1
    assert f"{name} started 2" in done.stdout
    assert counts(done).items() >= {"failed": 2, "passed": 7}.items()
    assert re.search("rank 1 .*LookupError", done.stdout)


@needs("mpi4py")
def test_an_outer_world_in_which_nothing_was_tried_does_not_pass(run: Run) -> None:
    done = run("", *SUITE, "--backend=mpi4py", "-k", "7.1", under=launcher("mpirun"))
    backend, whole = verdicts(done)
    assert ("mpi4py" in backend, "status is 2" in whole) == (True, True)
    assert done.returncode == 2, done.stdout + done.stderr


@needs("mpi4py")
@pytest.mark.parametrize("ours", [True, False])
def test_a_run_that_tries_nothing_on_launched_ranks_does_not_pass(run: Run, ours: bool) -> None:
    """Of our suites, those tests are left out that use no ranks."""
    under = launcher("mpirun")
    skipped = "import pytest\n\ndef test_it():\n    pytest.skip('no reason')\n"
    words = [*under, sys.executable, "-m", "pytest", "suites/library/test_extras.py"]
    done = run_plainly(words, ROOT, 180) if ours else run(skipped, under=under)
    assert "status is 2" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 2, done.stderr


@needs("mpi4py")
def test_an_outer_world_that_is_lost_says_why_and_what_was_not_run(run: Run) -> None:
    tests = BAD_TESTS.replace("crash_on_1, gather, hang_on_1", "hang_on_1, gather")
    options = ("--backend=mpi4py", "--world-timeout=5")
    done = run(tests, *options, under=launcher("mpirun"))
    assert done.returncode != 0
    assert re.search("rank 1: .*all_gather_object", done.stdout), done.stdout + done.stderr
    assert counts(done).items() >= {"failed": 2, "passed": 3, "error": 1}.items()


IN_MPIS_STYLE = """
import time

def test_world(world):
    assert world.run(lambda backend: backend.rank) == [0, 1]

def test_slow():
    time.sleep(4)

def test_style():
    from mpi4py import MPI
    assert MPI.COMM_WORLD.allreduce(1) == 2
"""


@needs("mpi4py")
def test_a_test_that_calls_mpi_itself_ends_and_says_how_to_run_it(run: Run) -> None:
    options, under = ("--backend=mpi4py", "--world-timeout=3"), launcher("mpirun")
    alone = run(IN_MPIS_STYLE, "-k", "style", under=under)  # it would be the first to begin MPI
    assert counts(alone)["failed"] == 1, alone.stdout + alone.stderr
    begun = run(IN_MPIS_STYLE, *options, under=under)
    assert (begun.returncode != 0, " .." in begun.stdout) == (True, True), begun.stdout
    for done, found in ((alone.stdout, "imports mpi4py.MPI"), (begun.stderr, "waited for 3 s")):
        assert re.search(rf"::test_style \S* ?{found}.* world\.run .* -p no:", done), done


@needs("mpi4py")
def test_ranks_of_mpi_end_after_an_error_of_usage(run: Run, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from mpi4py import MPI")  # whose end waits for all
    done = run(ALONE, "--examples=5", under=launcher("mpirun"))
    assert (done.returncode != 0, "--examples can't" in done.stderr) == (True, True)


@needs("mpi4py")
def test_another_world_size_than_the_launchers_is_refused_once(run: Run) -> None:
    options = ("--backend=mpi4py", "--world-size=3")
    done = run(BAD_TESTS, *options, under=launcher("mpirun"))
    assert done.returncode != 0
    told = re.findall(r"--world-size 3.*mpirun .*2 ranks", done.stderr)
    assert len(told) == 1, done.stdout + done.stderr
