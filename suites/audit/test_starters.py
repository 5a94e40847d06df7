"""Each function to start from, which ``disteval audit --write`` prints, is sound as it is."""

from pathlib import Path

import pytest

from suites.helpers.audits import audited
from suites.helpers.command import completions, invoke
from suites.helpers.needs import needs

LIBRARIES = {"plain": "torch", "keras": "tensorflow", "flax": "jax"}
BACKENDS = {"keras": "tf_collective", "flax": "jax"}


@pytest.mark.parametrize(
    "starter",
    [
        pytest.param(name, marks=needs(LIBRARIES.get(name, name), BACKENDS.get(name, "torch_cpu")))
        for name in completions("audit", "--write", "")
    ],
)
def test_a_function_to_start_from_is_sound(
    starter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"my_{starter}_eval.py").write_text(invoke("audit", "--write", starter).output)
    monkeypatch.syspath_prepend(tmp_path)
    # In it ranks have unequally many samples, and one has a short batch; libraries load slowly.
    case = "N=3,B=2,W=2"
    target, backend = f"my_{starter}_eval:evaluate", BACKENDS.get(starter, "torch_cpu")
    report = audited(target, (1, 2), backend, timeout=60.0, case=case)
    assert (report.verdict, report.reason) == ("sound", ""), (report.findings, report.details)
