"""The files that others' tools read: they parse, and agree with the project."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from suites.helpers.needs import framework, needs
from suites.package.conftest import run_here

EXTRAS = ("conformance", "report")
"""The extras of the session with the oldest versions."""


@pytest.fixture(scope="module")
def project(clone: Path) -> dict[str, Any]:
    tomllib: Any = importlib.import_module("tomllib")
    found: dict[str, Any] = tomllib.loads((clone / "pyproject.toml").read_text())["project"]
    return found


def test_the_oldest_versions_are_those_that_pyproject_allows(
    project: dict[str, Any], clone: Path
) -> None:
    extras = project["optional-dependencies"]
    allowed = project["dependencies"] + [line for extra in EXTRAS for line in extras[extra]]
    tried = re.findall(r"^([\w-]+)==(\S+)$", (clone / "tools/oldest.txt").read_text(), re.MULTILINE)
    assert len(dict(tried)) == len(tried) == len(allowed)
    for line in allowed:
        name, bound = re.fullmatch(r"([\w-]+)>=(\S+)", line).groups()  # type: ignore[union-attr]
        version = dict(tried)[name]
        assert version == bound + ".0" * (version.count(".") - bound.count(".")), line


@needs("yaml")
def test_the_citation_says_what_pyproject_says(project: dict[str, Any], clone: Path) -> None:
    yaml: Any = framework("yaml")
    found = yaml.safe_load((clone / "CITATION.cff").read_text())
    assert found["cff-version"] == "1.2.0"
    assert {"message", "authors"} <= found.keys()
    assert found["title"] == project["name"]
    for ours, theirs in {
        "version": "version",
        "license": "license",
        "abstract": "description",
    }.items():
        assert found[ours] == project[theirs]
    assert found["keywords"] == project["keywords"]


@needs("build")
@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("vendor.github-workflows", "**/.github/workflows/*.yml"),
        ("custom.github-workflows-require-timeout", "**/.github/workflows/ci.yml"),
        ("vendor.github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
    ],
)
def test_github_reads_its_files(clone: Path, schema: str, pattern: str) -> None:
    files = [str(path) for path in clone.glob(pattern) if ".nox" not in path.parts]
    assert files
    done = run_here("check_jsonschema", "--builtin-schema", schema, *files)
    assert done.returncode == 0, done.stdout + done.stderr


@needs("yaml")
def test_ci_runs_the_sessions_of_the_noxfile(clone: Path, tmp_path: Path) -> None:
    yaml: Any = framework("yaml")
    jobs = yaml.safe_load((clone / ".github/workflows/ci.yml").read_text())["jobs"]
    [step] = [step for step in jobs["list"]["steps"] if step.get("id") == "list"]
    output = tmp_path / "output"
    script = step["run"].replace("python3", sys.executable)
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=clone,
        env={"GITHUB_OUTPUT": str(output), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    sessions = json.loads(output.read_text().partition("sessions=")[2])
    assert {"static", "tests-core", "tests-package"} <= set(sessions)
    assert jobs["python"]["strategy"]["matrix"]["python"] == _pythons(clone)


def _pythons(clone: Path) -> list[str]:
    classifiers = (clone / "pyproject.toml").read_text()
    return re.findall(r"Programming Language :: Python :: (3\.\d+)", classifiers)
