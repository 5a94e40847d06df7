"""Each function to start from, which ``disteval audit --write`` prints, is sound as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from disteval.audit import Audit
from disteval.audit.cases import parse
from disteval.cli.audit import STARTERS, audit_command

from suites.helpers.needs import needs

LIBRARIES = {"plain": "torch", "keras": "tensorflow", "flax": "jax"}
WHOLE = ("plain", "torchmetrics")
"""Those that every case is tried with; the others, whose libraries load slowly, get one."""


def _backend(starter: str) -> str:
    return {"keras": "tf_collective", "flax": "jax"}.get(starter, "torch_cpu")


@pytest.mark.parametrize(
    "starter",
    [
        pytest.param(name, marks=needs(LIBRARIES.get(name, name), _backend(name)))
        for name in STARTERS
    ],
)
def test_a_function_to_start_from_is_sound(
    starter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = _backend(starter)
    printed = CliRunner().invoke(audit_command, ["--write", starter])
    (tmp_path / f"my_{starter}_eval.py").write_text(printed.output)
    monkeypatch.syspath_prepend(tmp_path)
    # In one case ranks have unequally many samples, and one has a short batch.
    only = None if starter in WHOLE else parse("N=3,B=2,W=2")
    report = Audit(f"my_{starter}_eval:evaluate", (1, 2), backend, timeout=60.0, only=only).run()
    assert (report.verdict, report.reason) == ("sound", ""), (report.findings, report.details)
