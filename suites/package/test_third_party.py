"""The third party's example repository works with the installed wheel."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suites.helpers.needs import framework, needs
from suites.package.conftest import Built, Environment

pytestmark = needs("build")


@pytest.fixture(scope="module")
def miniature(environment: Environment, clone: Path) -> Environment:
    """Install the third party's package from a copy of its repository."""
    source, copy = clone / "examples" / "third_party_backend", environment.folder / "theirs"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", ".pytest_cache"))
    environment.install(f"{copy}[test]")
    return replace(environment, folder=copy)


def test_its_own_tests_pass(miniature: Environment) -> None:
    # The workflow below tries other sizes.
    few = ["--world-size=2", "--examples=5"]
    done = miniature.run("python", "-m", "pytest", *few, seconds=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_my_backend.py" in done.stdout
    assert "failed" not in done.stdout


def test_the_suite_takes_it_by_name_from_any_folder(
    environment: Environment, miniature: Environment
) -> None:
    command = ["pytest", "-q", "--disteval-backend=my_pkg:MyBackend", "--world-size=2", "-k=W2-2"]
    done = environment.run(*command, "--pyargs", "disteval.conformance.suite", seconds=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


@needs("yaml")
def test_its_workflow_gives_a_verdict_and_a_report(
    miniature: Environment, built: Built, clone: Path
) -> None:
    yaml: Any = framework("yaml")
    theirs = yaml.safe_load((miniature.folder / ".github/workflows/ci.yml").read_text())
    contract = theirs["jobs"]["contract"]
    name = contract["uses"].partition("@")[0].partition("disteval-harness/")[2]
    ours = yaml.safe_load((clone / name).read_text())
    # YAML 1.1 reads the key "on" as true.
    declared = ours[True]["workflow_call"]["inputs"]
    assert " @ git+https://" in contract["with"]["harness"]  # it is on no index
    given = contract["with"] | {"harness": f"{built.wheel}[conformance,report]"}
    assert given["world-sizes"] == declared["world-sizes"]["default"]
    given |= {"examples": 5, "world-sizes": "1,3"}
    assert given.keys() <= declared.keys()
    inputs = {key: given.get(key, value.get("default")) for key, value in declared.items()}
    job = ours["jobs"]["check"]
    variables = {key: _filled(value, inputs) for key, value in job["env"].items()}
    for step in job["steps"]:
        if "run" in step:
            done = miniature.run(
                "bash", "-e", "-c", step["run"], seconds=400, NO_COLOR="1", **variables
            )
            assert done.returncode == 0, done.stdout + done.stderr
    assert "my_backend is conformant" in done.stdout
    report = json.loads((miniature.folder / "report.json").read_text())
    assert {rule["world_size"] for rule in report["rules"]} == {1, 3}
    assert "my_backend" in (miniature.folder / "report.html").read_text()
    assert (report["target_distribution"], report["target_version"]) == ("my-pkg", "0.1.0")
    _keep_a_page(miniature, theirs["jobs"]["page"])


def _keep_a_page(miniature: Environment, job: dict[str, Any]) -> None:
    """Run the job that keeps reports in a branch, with a repository of this machine."""
    kept = miniature.folder / "kept"
    branch = job["steps"][0]["with"]["ref"]
    git = f"git init -q -b {branch} --bare origin && git clone -q origin kept && cd kept"
    commit = "git -c user.name=a -c user.email=a@localhost commit -q --allow-empty -m Reports"
    setup = f"{git} && git switch -q --orphan {branch} && {commit} && git push -q origin {branch}"
    *_, keep = (step["run"] for step in job["steps"] if "run" in step)
    for command in (setup, f"cd kept && mkdir new && cp ../report.json new && {keep}"):
        done = miniature.run("bash", "-e", "-c", command, seconds=100)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "conformant" in (kept / "badge.svg").read_text()
    assert "0.1.0" in (kept / "index.html").read_text()
    shown = miniature.run("git", "-C", "origin", "ls-tree", "--name-only", branch)
    assert shown.stdout.split() == ["0.1.0.json", "badge.svg", "index.html"]


def _filled(text: str, inputs: dict[str, Any]) -> str:
    return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: str(inputs[found[1]]), text)
