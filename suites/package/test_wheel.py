"""The published files work in an environment that has nothing else."""

import json
import zipfile
from pathlib import Path

from suites.helpers.needs import needs
from suites.package.conftest import Built, Environment, run_here

pytestmark = needs("build")


def test_the_files_are_accepted_by_who_checks_them(built: Built) -> None:
    for command in (
        ["twine", "check", "--strict", str(built.wheel), str(built.sdist)],
        ["check_wheel_contents", str(built.wheel)],
    ):
        done = run_here(*command)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_sdist_builds_the_same_wheel(built: Built, tmp_path: Path) -> None:
    command = ["pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(built.sdist)]
    done = run_here(*command, seconds=300)
    assert done.returncode == 0, done.stdout + done.stderr
    [again] = tmp_path.glob("*.whl")
    assert _contents(again) == _contents(built.wheel)


def _contents(wheel: Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.CRC for entry in archive.infolist()}


def test_no_file_that_the_library_needs_is_missing(built: Built, clone: Path) -> None:
    there = {
        str(path.relative_to(clone / root))
        for root in ("harness", "backends")
        for path in (clone / root).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert there <= _contents(built.wheel).keys()


def test_the_command_works_outside_of_the_clone(environment: Environment) -> None:
    shown = environment.run("disteval", "--help")
    assert shown.returncode == 0, shown.stderr
    assert "Prove distributed evaluation right" in shown.stdout
    checked = environment.run("disteval", "check", "non_dist", "--examples=10")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "non_dist is conformant" in checked.stdout


def test_the_doctor_says_what_would_make_the_rest_work(environment: Environment) -> None:
    done = environment.run("disteval", "doctor", "--json", DISTEVAL_REQUIRE="non_dist,threads")
    assert done.returncode == 0, done.stderr
    found = {row["name"]: row for row in json.loads(done.stdout)["backends"]}
    assert found["non_dist"]["works"]
    assert found["threads"]["works"]
    for name, extra in {"torch_cpu": "torch", "mpi4py": "mpi", "jax": "jax"}.items():
        assert f"pip install '.[{extra}]'" in found[name]["why_not"]
        assert not found[name]["works"]


def test_other_test_runs_are_left_alone(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--backend', '--world-size')\n"
    )
    (tmp_path / "test_it.py").write_text(
        "def test_it(request):\n    assert request.config.getoption('--backend') == 'theirs'\n"
    )
    done = environment.run("pytest", "-q", "--backend=theirs", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
