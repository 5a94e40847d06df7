"""What the documents show is run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from suites.requirements import framework

ROOT = Path(__file__).parents[2]


def python_blocks(name: str) -> list[str]:
    path = ROOT / name
    if not path.exists():
        pytest.skip("the documents are not part of an installed package; run this from a clone")
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)


def run(code: str, folder: Path) -> str:
    script = folder / "script.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_contract_page_has_every_rule_as_it_is_checked() -> None:
    pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    from harness.conformance.runner import select_rules

    if not (ROOT / "docs").is_dir():
        pytest.skip("the documents are not part of an installed package; run this from a clone")
    listed = re.findall(r"^- \*\*(\S+)\*\* (.*) \*\((\w+).*\)\*$", _read("docs/contract.md"), re.M)
    assert listed == [(rule.number, rule.sentence, rule.level) for rule in select_rules()]


def _read(name: str) -> str:
    return (ROOT / name).read_text()


def test_readme(tmp_path: Path) -> None:
    framework("torch")
    [block] = python_blocks("README.md")
    printed = run(block, tmp_path)
    assert printed.startswith("{'top1': 0.79")
    assert printed.endswith("10000 0\n")


def test_the_example_of_a_test_on_ranks(tmp_path: Path) -> None:
    block, one_rule = python_blocks("docs/suites.md")
    tests = tmp_path / "test_ranks.py"
    tests.write_text(block)
    arguments = ["-q", "-p", "harness.conformance.plugin", "--backend=threads", str(tests)]
    printed = run(f"import pytest; raise SystemExit(pytest.main({arguments}))", tmp_path)
    assert "4 passed" in printed
    run(one_rule, tmp_path)


def test_the_new_backend_works_as_written(tmp_path: Path) -> None:
    backend, usage = python_blocks("docs/new_backend.md")
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "backend.py").write_text(backend)
    entry_points = re.search(
        r"```toml\n\[project.entry-points.\"disteval.backends\"\]\n(.*?)```",
        (ROOT / "docs/new_backend.md").read_text(),
        flags=re.DOTALL,
    )
    assert entry_points is not None
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    declared = entry_points[1].replace('"', "")
    (info / "entry_points.txt").write_text(f"[disteval.backends]\n{declared}")
    assert run(usage, tmp_path) == f"{[['a', 'b', 'c']] * 3}\n"
    check = (
        "from harness import RankError\n"
        "from harness.worlds import World\n"
        "def work(backend, obj):\n"
        "    sent = [backend.broadcast_object(obj, src) for src in range(3)]\n"
        "    try: backend.all_gather_object((lambda: 0) if backend.rank == 1 else 0)\n"
        "    except RankError as error: return sent, error.rank\n"
        "with World('file', 3) as world:\n"
        "    assert world.run(work, 1, 'b', None) == [([1, 'b', None], 1)] * 3\n"
    )
    run(check, tmp_path)
    pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    judge = (
        "from harness.cli import main\n"
        "main(['check', 'my_package.backend:FileDist', '--world-size=1,2,3', '--examples=15'])\n"
    )
    assert "is conformant" in run(judge, tmp_path)
