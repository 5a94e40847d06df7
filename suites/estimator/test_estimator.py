"""An estimator trains, evaluates and predicts on several workers as one process would."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disteval import UsageError, WeightsError, WorldError
from disteval.metrics import Accuracy, CrossEntropy

from suites.helpers.needs import framework, needs
from suites.helpers.processes import is_running, wait_for
from suites.helpers.processes import pids_of_ranks as pids_of

torch = framework("torch")

import safetensors.torch  # noqa: E402
from disteval.estimator import EpochBasedRunner, Estimator  # noqa: E402

from suites.estimator import tiny  # noqa: E402

pytestmark = needs("torch")

WORKFLOW = [("train", 1), ("val", 1)]
CREATORS = [tiny.training, tiny.validation]


def local(config: dict[str, Any] | None = None, world_size: int = 2, **options: Any) -> Estimator:
    return Estimator(tiny.runner, config, "local", world_size, **{"progress": False} | options)


@pytest.fixture(scope="module")
def trained() -> Iterator[tuple[Estimator, list[dict[str, Any]]]]:
    """Three epochs on two workers, with batch norms, whose statistics differ between workers."""
    with local({"norm": True}) as estimator:
        yield estimator, estimator.fit(CREATORS, WORKFLOW, max_epochs=3)


def test_fit_tells_one_record_for_each_epoch_and_phase(trained: Any) -> None:
    _, records = trained
    told = [(record["epoch"], record["mode"], record["num_samples"]) for record in records]
    assert told == [(e, mode, n) for e in (1, 2, 3) for mode, n in (("train", 96), ("val", 101))]
    for record in records:
        for name in ("loss", "samples_per_second"):
            assert record[name] > 0
        assert ("lr" in record) == (record["mode"] == "train")
        if record["mode"] == "val":
            assert record["accuracy"] == record["correct"] / 101
    assert records[-1]["correct"] > 60


def test_evaluate_takes_any_metrics(trained: Any) -> None:
    estimator, records = trained
    metrics = {"accuracy": Accuracy(topk=(1, 3), counts=True), "entropy": CrossEntropy()}
    found = estimator.evaluate(tiny.validation, metrics)
    correct = found["accuracy_correct_top1"]
    assert correct == records[-1]["correct"]
    assert found["accuracy_top3"] == 1.0
    assert found["entropy"] == pytest.approx(found["loss"], abs=1e-6)


def test_predict_returns_each_sample_once_in_the_order_of_the_data(trained: Any) -> None:
    estimator, _ = trained
    scores = estimator.predict(tiny.validation)
    x, _ = tiny.validation({}).dataset.tensors
    with torch.no_grad():
        expected = estimator.get_model()(x).numpy()
    assert scores.shape == (101, 3)
    assert abs(scores - expected).max() < 1e-6


class Predicting(tiny.Tiny):
    """Returns two rows for each sample, but for the last sample of a batch of five."""

    def predict_step(self, batch: Any) -> Any:
        rows = self(batch[0])[: 4 if len(batch[0]) == 5 else None]
        return rows, 2 * rows


def test_an_output_has_a_row_of_each_tensor_for_each_sample() -> None:
    creators = [
        lambda config, size=size: torch.utils.data.DataLoader(tiny.samples(12), size)
        for size in (4, 5)
    ]
    runner = lambda config: EpochBasedRunner(Predicting())  # noqa: E731
    with Estimator(runner, {}, "local", 1, progress=False) as estimator:
        one, other = estimator.predict(creators[0])
        with pytest.raises(WorldError, match=r"5 samples .* 4 rows"):
            estimator.predict(creators[1])
    assert one.shape == (12, 3) and (other == 2 * one).all()


def test_a_folder_in_the_place_of_a_saved_file_is_refused(trained: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        trained[0].save(tmp_path)


def test_fit_again_goes_on_with_the_same_workers_and_shows_their_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with local({"log": {"interval": 4}}, progress=True) as estimator:
        first = estimator.fit(CREATORS, WORKFLOW, max_epochs=1)
        pids = pids_of(estimator)
        again = estimator.fit(CREATORS, WORKFLOW, max_epochs=3)
        over = estimator.fit(CREATORS, WORKFLOW, max_epochs=3)
        assert pids_of(estimator) == pids
    assert [record["epoch"] for record in first + again] == [1, 1, 2, 2, 3, 3]
    assert [record["iter"] for record in first + again] == [6, 6, 12, 12, 18, 18]
    assert over == []
    shown = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert shown == [
        line
        for epoch in "123"
        for line in (["epoch", epoch, "[4/6]"], ["epoch", epoch, "train"], ["epoch", epoch, "val"])
    ]


def test_a_damaged_state_and_weights_alone_are_refused_and_change_nothing(
    trained: Any, tmp_path: Path
) -> None:
    estimator, records = trained
    estimator.save(tmp_path / "state.pt")
    damaged = bytearray((tmp_path / "state.pt").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "state.pt").write_bytes(damaged)
    weights = estimator.get_model().state_dict()
    torch.save(weights, tmp_path / "weights.pt")
    safetensors.torch.save_file(weights, tmp_path / "best.safetensors")
    for name in ("state.pt", "nothing.pt", "weights.pt", "best.safetensors"):
        with pytest.raises(WeightsError, match=name):
            estimator.load(tmp_path / name)
    assert estimator.evaluate(tiny.validation)["correct"] == records[-1]["correct"]


def fails(config: Any) -> Any:
    raise ZeroDivisionError("its own mistake")


def nothing(config: Any) -> Any:
    return None


def numbers(config: Any) -> Any:
    return [1, 2]


def empty(config: Any) -> Any:
    return torch.utils.data.DataLoader(tiny.samples(0), 8)


def dropped(config: Any) -> Any:
    return torch.utils.data.DataLoader(tiny.samples(9), 8, shuffle=True, drop_last=True)


def holds_a_lock() -> Any:
    own = threading.Lock()
    return lambda config: own


BAD = {
    "raises": (fails, "ZeroDivisionError: its own"),
    "returns nothing": (nothing, "None"),
    "returns something else": (numbers, "list"),
    "is none": (7, "7"),
    "can't travel": (holds_a_lock(), "lock"),
}
BAD_LOADERS = BAD | {"is empty": (empty, "empty"), "has no batch": (dropped, "dropped.* 4 ")}


@pytest.mark.parametrize("name", ["raises", "returns something else"])
def test_a_bad_runner_creator_is_refused(name: str) -> None:
    creator, told = BAD[name]
    with pytest.raises(UsageError, match=f"runner_creator.*{told}"):
        Estimator(creator, {}, "local", 1, progress=False)


@pytest.mark.parametrize("name", BAD_LOADERS)
def test_a_bad_loader_creator_is_told_and_the_estimator_goes_on(trained: Any, name: str) -> None:
    estimator, records = trained
    creator, told = BAD_LOADERS[name]
    with pytest.raises(UsageError, match=told):
        estimator.fit([creator], [("train", 1)], max_epochs=9)
    assert estimator.evaluate(tiny.validation)["correct"] == records[-1]["correct"]


def test_what_a_creator_raised_comes_with_its_traceback(trained: Any) -> None:
    with pytest.raises(UsageError) as caught:
        trained[0].evaluate(fails)
    assert "in fails" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"launcher": "spark"}, "'spark'"),
        ({"device": "tpu"}, "'tpu'"),
        ({"launcher": "local", "address": "auto"}, "'ray'"),
        ({"gpus_per_worker": 1}, "gpus_per_worker=1"),
        ({"launcher": "local", "world_size": 0}, "world size .* 0"),
        ({"launcher": "local", "max_failures": -1}, "max_failures"),
        ({"config": [1]}, "config .* list"),
        ({"seed": "a"}, "seed .* 'a'"),
        ({"progress": "no"}, "progress .* 'no'"),
        ({"cpus_per_worker": -1}, "cpus_per_worker"),
    ],
)
def test_arguments_are_refused_before_anything_is_started(
    options: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        Estimator(tiny.runner, **options)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (([tiny.training], WORKFLOW), "one for each"),
        ((tiny.training, [("train", 1)]), "list"),
        ((CREATORS, [("train", 1), ("test", 1)]), "'test'"),
        ((CREATORS, [("train", 1), "val"]), "'val'"),
        ((CREATORS, WORKFLOW, 0), "max_epochs"),
    ],
)
def test_fit_refuses_what_can_not_work(trained: Any, arguments: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        trained[0].fit(*arguments)


def test_no_process_stays_and_a_saved_state_revives_an_estimator(tmp_path: Path) -> None:
    estimator = local({"work_dir": str(tmp_path), "checkpoints": {}})
    pids = pids_of(estimator)
    estimator.fit(CREATORS, WORKFLOW, max_epochs=1)
    estimator.save(tmp_path / "epoch_1.pt")  # in the place of a checkpoint
    estimator.shutdown()
    estimator.shutdown()
    assert wait_for(lambda: not any(is_running(pid) for pid in pids))
    with pytest.raises(WorldError, match=r"load\(\)"):
        estimator.fit(CREATORS, WORKFLOW)
    with estimator:
        estimator.load(tmp_path / "epoch_1.pt")
        records = estimator.fit(CREATORS, WORKFLOW, max_epochs=2)
    assert [record["epoch"] for record in records] == [2, 2]
