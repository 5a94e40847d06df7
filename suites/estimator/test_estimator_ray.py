"""The estimator on a Ray that it starts here trains as on local processes."""

from pathlib import Path
from typing import Any

from suites.helpers.needs import framework, needs

framework("torch")

from disteval.estimator import Estimator  # noqa: E402

from suites.estimator import tiny  # noqa: E402
from suites.estimator.test_estimator_faults import (  # noqa: E402
    CREATORS,
    KILLED,
    WORKFLOW,
    config_of,
)

pytestmark = needs("torch", "ray")


def fit(config: dict[str, Any], end: Path, **options: Any) -> list[dict[str, Any]]:
    with Estimator(
        tiny.runner, config, world_size=2, progress=False, **{"launcher": "ray"} | options
    ) as estimator:
        records = estimator.fit(CREATORS, WORKFLOW)
        assert estimator.evaluate(tiny.validation)["correct"] == records[-1]["correct"]
        estimator.save(end)
    return records


def test_ray_trains_as_local_processes_do_and_replaces_a_killed_worker(tmp_path: Path) -> None:
    local, end = tmp_path / "local", tmp_path / "end.pt"
    undisturbed = fit(config_of(local), tmp_path / "local.pt", launcher="local")
    records = fit(config_of(tmp_path, KILLED), end, max_failures=1)
    assert (tmp_path / "once").exists()
    assert tiny.facts(records) == tiny.facts(undisturbed)
    tiny.assert_same_state(end, tmp_path / "local.pt")
