"""The estimator on a Ray that it starts here trains as on local processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from suites.helpers.needs import framework, needs

framework("torch")

from disteval.estimator import Estimator  # noqa: E402

from suites.estimator import tiny  # noqa: E402
from suites.estimator.test_estimator_faults import CREATORS, WORKFLOW, config_of  # noqa: E402

pytestmark = needs("torch", "ray")

STAGE = {"stage": "after_train_iter"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    """The same training on local processes."""
    folder = tmp_path_factory.mktemp("local")
    return fit(config_of(folder), folder / "end.pt", launcher="local"), folder / "end.pt"


def fit(config: dict[str, Any], end: Path, **options: Any) -> list[dict[str, Any]]:
    with Estimator(
        tiny.runner, config, world_size=2, progress=False, **{"launcher": "ray"} | options
    ) as estimator:
        records = estimator.fit(CREATORS, WORKFLOW)
        assert estimator.evaluate(tiny.validation)["correct"] == records[-1]["correct"]
        estimator.save(end)
    return records


def test_ray_trains_as_local_processes_do_and_replaces_a_killed_worker(
    undisturbed: Any, tmp_path: Path
) -> None:
    records = fit(config_of(tmp_path, STAGE), tmp_path / "end.pt", max_failures=1)
    assert (tmp_path / "once").exists()
    assert tiny.facts(records) == tiny.facts(undisturbed[0])
    tiny.assert_same_state(tmp_path / "end.pt", undisturbed[1])
