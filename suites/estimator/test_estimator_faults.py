"""What a user sees, and what is lost, when a worker or the driver comes to grief."""

import time
from pathlib import Path
from typing import Any

import pytest
from disteval import WorldError

from suites.helpers.needs import framework, needs

torch = framework("torch")

from disteval.estimator import Estimator  # noqa: E402

from suites.estimator import tiny  # noqa: E402

pytestmark = needs("torch")

WORKFLOW = [("train", 1), ("val", 1)]
CREATORS = [tiny.training, tiny.validation]
EPOCHS = 4


def config_of(folder: Path, crime: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    config = {
        "work_dir": str(folder / "work"),
        "checkpoints": {"interval": 1},
        "dropout": 0.2,
        "epochs": EPOCHS,
    }
    if crime is not None:
        config["crime"] = {"rank": 1, "epoch": 2, "once": str(folder / "once")} | crime
    return config | more


def fit(config: dict[str, Any], end: Path, **options: Any) -> list[dict[str, Any]]:
    with Estimator(tiny.runner, config, "local", 2, progress=False, **options) as estimator:
        records = estimator.fit(CREATORS, WORKFLOW)
        estimator.save(end)
    return records


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return fit(config_of(folder), folder / "end.pt"), folder / "end.pt"


KILLED: dict[str, Any] = {"stage": "after_train_iter"}


@pytest.mark.parametrize("crime", [KILLED, {"stage": "save", "rank": 0}], ids=["step", "save"])
def test_a_lost_worker_costs_nothing_beyond_the_last_checkpoint(
    crime: dict[str, Any], undisturbed: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = fit(config_of(tmp_path, crime), tmp_path / "end.pt", max_failures=1)
    assert (tmp_path / "once").exists()
    assert tiny.facts(records) == tiny.facts(undisturbed[0])
    tiny.assert_same_state(tmp_path / "end.pt", undisturbed[1])
    assert "epoch_2.pt" in caplog.text


def test_checkpoints_of_an_earlier_training_are_not_taken_for_this_one(
    undisturbed: Any, tmp_path: Path
) -> None:
    fit(config_of(tmp_path, lr=0.5), tmp_path / "earlier.pt")
    crime = {"stage": "after_train_iter", "epoch": 0}
    records = fit(config_of(tmp_path, crime), tmp_path / "end.pt", max_failures=1)
    assert tiny.facts(records) == tiny.facts(undisturbed[0])


def test_more_failures_than_allowed_are_told_with_the_last_workers_traceback(
    tmp_path: Path,
) -> None:
    crime = {"stage": "before_train_iter", "kind": "raise", "often": 9}
    begin = time.monotonic()
    with pytest.raises(WorldError) as caught:
        fit(config_of(tmp_path, crime), tmp_path / "end.pt", max_failures=1)
    assert time.monotonic() - begin < 60
    assert (tmp_path / "once").read_bytes() == b"xx"
    assert sorted(path.name for path in (tmp_path / "work").glob("*.pt")) == [
        "epoch_1.pt", "epoch_2.pt",
    ]  # fmt: skip
    report = str(caught.value)
    assert report.startswith("rank 1")
    assert "run fit" in report
    assert "in _commit" in report
    assert isinstance(caught.value.errors[1], LookupError)


@needs("ray")
def test_ray_trains_as_local_processes_do_and_replaces_a_killed_worker(
    undisturbed: Any, tmp_path: Path
) -> None:
    config = config_of(tmp_path, KILLED)
    options = {"max_failures": 1, "world_size": 2, "progress": False}
    with Estimator(tiny.runner, config, "ray", **options) as estimator:
        records = estimator.fit(CREATORS, WORKFLOW)
        assert estimator.evaluate(tiny.validation)["correct"] == records[-1]["correct"]
        estimator.save(tmp_path / "end.pt")
    assert (tmp_path / "once").exists()
    assert tiny.facts(records) == tiny.facts(undisturbed[0])
    tiny.assert_same_state(tmp_path / "end.pt", undisturbed[1])
