"""An estimator trains, evaluates and predicts on several workers as one process would."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import UsageError, WeightsError, WorldError, get_dist_backend
from disteval.metrics import Accuracy, CrossEntropy

from suites.helpers.needs import framework, needs
from suites.helpers.processes import is_running, wait_for
from suites.helpers.processes import pids_of_ranks as pids_of

torch = framework("torch")

import safetensors.torch  # noqa: E402
from disteval.estimator import EpochBasedRunner, Estimator  # noqa: E402
from disteval.estimator.creators import Source  # noqa: E402
from disteval.estimator.rank import Trainee, joined  # noqa: E402

from suites.estimator import tiny  # noqa: E402

pytestmark = needs("torch")

WORKFLOW = [("train", 1), ("val", 1)]
CREATORS = [tiny.training, tiny.validation]


def local(config: dict[str, Any] | None = None, world_size: int = 2, **options: Any) -> Estimator:
    return Estimator(tiny.runner, config, "local", world_size, **{"progress": False} | options)


def right_alone(model: Any, config: dict[str, Any]) -> int:
    """How many predictions are right when one process evaluates the model, batch by batch."""
    with torch.no_grad():
        return sum(
            int((model(x).argmax(dim=1) == y).sum())
            for x, y in torch.utils.data.DataLoader(tiny.validation(config).dataset, 7)
        )


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
        assert record["loss"] > 0
        assert record["samples_per_second"] > 0
        assert ("lr" in record) == (record["mode"] == "train")
        if record["mode"] == "val":
            assert record["accuracy"] == record["correct"] / 101
    assert records[-1]["correct"] > 60


def test_validation_finds_the_integer_that_one_process_finds(trained: Any) -> None:
    estimator, records = trained
    model = estimator.get_model()
    assert not model.training
    assert records[-1]["correct"] == right_alone(model, {})
    assert estimator.evaluate(tiny.validation)["correct"] == records[-1]["correct"]


def test_evaluate_takes_any_metrics(trained: Any) -> None:
    estimator, records = trained
    metrics = {"accuracy": Accuracy(topk=(1, 3), counts=True), "entropy": CrossEntropy()}
    found = estimator.evaluate(tiny.validation, metrics)
    assert found["accuracy_correct_top1"] == records[-1]["correct"]
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


OUTPUTS = {
    "nothing": (lambda rows: None, "returned NoneType for a batch"),
    "by name": (lambda rows: dict(zip("abcd", rows, strict=False)), "returned dict for a batch"),
    "two tensors": (lambda rows: (rows, rows), "returned tuple for a batch"),
    "a number": (lambda rows: rows.mean(), "returned a single number for a batch"),
    "too few rows": (lambda rows: rows[1:], "returned 9 rows for 12 samples"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_without_a_row_for_each_sample_is_refused(name: str) -> None:
    output, message = OUTPUTS[name]

    def predicting(config: Any) -> Any:
        made = tiny.runner(config)
        made.model.predict_step = lambda batch: output(made.model(batch[0]))
        return made

    trainee = Trainee(get_dist_backend("non_dist"), Source("runner", predicting), {}, 0, "cpu")
    with pytest.raises(UsageError, match=message):
        trainee.predict(Source("loader", twelve))


class Dealt(torch.utils.data.IterableDataset):  # type: ignore[misc]
    num_replicas, rank = 2, 0

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Any:
        return iter(tiny.samples(6))


def test_predictions_whose_places_nobody_knows_are_refused(trained: Any) -> None:
    def dealt(config: Any) -> Any:
        data = Dealt()
        data.rank = torch.distributed.get_rank()
        return torch.utils.data.DataLoader(data, 2)

    with pytest.raises(UsageError, match=r"0.*dealt"):
        trained[0].predict(dealt)


def test_rows_of_different_shapes_are_refused() -> None:
    parts = [np.zeros((2, 3)), np.zeros((2, 4))]
    with pytest.raises(UsageError, match=r"\(3,\).*\(4,\)"):
        joined(parts)


def test_a_folder_in_the_place_of_a_saved_file_is_refused(trained: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        trained[0].save(tmp_path)


def twelve(config: Any) -> Any:
    return torch.utils.data.DataLoader(tiny.samples(12), 4)


def test_a_workflow_of_validation_alone_ends(trained: Any) -> None:
    estimator, records = trained
    [record] = estimator.fit([tiny.validation], [("val", 1)])
    assert record["correct"] == records[-1]["correct"]


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


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[list[float], Path]]:
    """Training losses of three epochs at a global batch size of 12, and the state after them."""
    found = {}
    folder = tmp_path_factory.mktemp("states")
    for world_size in (1, 2, 3):
        config = {"batch_size": 12 // world_size, "epochs": 5}
        with local(config, world_size) as estimator:
            records = estimator.fit(CREATORS, WORKFLOW, max_epochs=3)
            estimator.save(folder / f"{world_size}.pt")
        losses = [record["loss"] for record in records if record["mode"] == "train"]
        found[world_size] = losses, folder / f"{world_size}.pt"
    return found


@pytest.mark.parametrize("world_size", [2, 3])
def test_several_workers_train_as_one(curves: Any, world_size: int) -> None:
    assert curves[world_size][0] == pytest.approx(curves[1][0], abs=1e-4)


def test_training_resumes_on_another_number_of_workers(curves: Any) -> None:
    ends = {}
    for world_size in (1, 3):
        with local({"batch_size": 12 // world_size, "epochs": 5}, world_size) as estimator:
            estimator.load(curves[2][1])
            records = estimator.fit(CREATORS, WORKFLOW, max_epochs=5)
        assert [record["epoch"] for record in records] == [4, 4, 5, 5]
        ends[world_size] = [record["loss"] for record in records]
    assert ends[1] == pytest.approx(ends[3], abs=1e-4)


def test_training_resumed_is_training_not_interrupted_to_the_bit(tmp_path: Path) -> None:
    # Dropout draws from each worker's generators.
    config = {"dropout": 0.3, "norm": True}
    part, whole, resumed = (tmp_path / name for name in ("part.pt", "whole.pt", "resumed.pt"))
    with local(config) as estimator:
        estimator.fit(CREATORS, WORKFLOW, max_epochs=2)
        estimator.save(part)
        records = estimator.fit(CREATORS, WORKFLOW, max_epochs=4)
        estimator.save(whole)
    with local(config, seed=1) as estimator:
        estimator.load(part)
        again = estimator.fit(CREATORS, WORKFLOW, max_epochs=4)
        estimator.save(resumed)
    assert tiny.facts(again) == tiny.facts(records)
    tiny.assert_same_state(resumed, whole)


def test_one_file_that_is_damaged_is_refused_and_changes_nothing(
    trained: Any, tmp_path: Path
) -> None:
    estimator, records = trained
    estimator.save(tmp_path / "state.pt")
    damaged = bytearray((tmp_path / "state.pt").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "state.pt").write_bytes(damaged)
    with pytest.raises(WeightsError, match=r"state\.pt"):
        estimator.load(tmp_path / "state.pt")
    with pytest.raises(WeightsError, match=r"nothing\.pt"):
        estimator.load(tmp_path / "nothing.pt")
    assert estimator.evaluate(tiny.validation)["correct"] == records[-1]["correct"]


def test_an_iteration_based_runner_trains_too() -> None:
    with Estimator(tiny.iterations, {}, "local", 2, progress=False) as estimator:
        records = estimator.fit(CREATORS, [("train", 4), ("val", 1)])
    assert [(record["mode"], record["iter"]) for record in records] == [
        (mode, n) for n in (4, 8, 10) for mode in ("train", "val")
    ]


class Scorer(torch.nn.Linear):
    """A model without steps, for a batch processor."""


def lose(model: Any, batch: Any, train_mode: bool) -> dict[str, Any]:
    x, y = batch
    loss = torch.nn.functional.cross_entropy(model(x), y)
    return {"loss": loss, "log_vars": {"loss": loss.item()}, "num_samples": len(y)}


def processing(config: Any) -> EpochBasedRunner:
    model = Scorer(tiny.FEATURES, tiny.CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    runner = EpochBasedRunner(model, lose, optimizer)
    runner.register_training_hooks(None, optimizer_config={})
    return runner


def test_a_batch_processor_trains_on_several_workers_as_on_one() -> None:
    losses = []
    for world_size in (1, 2):
        config = {"batch_size": 12 // world_size}
        with Estimator(processing, config, "local", world_size, progress=False) as estimator:
            records = estimator.fit([tiny.training], [("train", 1)], max_epochs=3)
            with pytest.raises(UsageError, match=r"Scorer.*accuracy"):
                estimator.evaluate(tiny.validation, {"accuracy": Accuracy()})
            assert "accuracy" not in estimator.evaluate(tiny.validation)
        losses.append([record["loss"] for record in records])
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)


def test_weights_alone_are_no_state_to_go_on_from(trained: Any, tmp_path: Path) -> None:
    estimator, records = trained
    weights = estimator.get_model().state_dict()
    torch.save(weights, tmp_path / "weights.pt")
    safetensors.torch.save_file(weights, tmp_path / "best.safetensors")
    for name in ("weights.pt", "best.safetensors"):
        with pytest.raises(WeightsError, match=name):
            estimator.load(tmp_path / name)
    assert estimator.evaluate(tiny.validation)["correct"] == records[-1]["correct"]


def test_an_evaluation_hook_of_the_creator_is_exact(tmp_path: Path) -> None:
    config = {"eval_hook": True, "work_dir": str(tmp_path)}
    with local(config) as estimator:
        records = estimator.fit([tiny.training], [("train", 1)])
        model = estimator.get_model()
    assert [record["mode"] for record in records] == ["train", "val"] * 2
    assert records[-1]["correct"] == right_alone(model, {})
    assert (tmp_path / "best.safetensors").is_file()


def fails(config: Any) -> Any:
    raise ZeroDivisionError("the creator's own mistake")


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


BAD_RUNNERS = {
    "raises": (fails, "runner_creator raised ZeroDivisionError: the creator's own mistake"),
    "returns nothing": (nothing, "runner_creator returned None"),
    "returns something else": (numbers, "runner_creator returned a list; it must return"),
    "is none": (7, "runner_creator must be a function of a config, not 7"),
    "can't travel": (holds_a_lock(), "runner_creator can't be sent to ranks"),
}
BAD_LOADERS = {
    "raises": (fails, r"0 \(fails\).*ZeroDivisionError"),
    "returns nothing": (nothing, r"0 \(nothing\).*None"),
    "returns something else": (numbers, r"\(numbers\).*list"),
    "is empty": (empty, r"\(empty\)"),
    "has no batch": (dropped, r"\(dropped\).* 4 samples"),
    "is none": (None, "creator 0 .*None"),
    "can't travel": (holds_a_lock(), "creator 0 "),
}


@pytest.mark.parametrize("name", BAD_RUNNERS)
def test_a_bad_runner_creator_is_told_in_a_sentence(name: str) -> None:
    creator, message = BAD_RUNNERS[name]
    with pytest.raises(UsageError, match=message):
        Estimator(creator, {}, "local", 2, progress=False)


@pytest.mark.parametrize("name", BAD_LOADERS)
def test_a_bad_loader_creator_is_told_and_the_estimator_goes_on(trained: Any, name: str) -> None:
    estimator, records = trained
    creator, message = BAD_LOADERS[name]
    with pytest.raises(UsageError, match=message):
        estimator.fit([creator], [("train", 1)], max_epochs=9)
    assert estimator.evaluate(tiny.validation)["correct"] == records[-1]["correct"]


def test_what_a_creator_raised_comes_with_its_traceback(trained: Any) -> None:
    with pytest.raises(UsageError) as caught:
        trained[0].evaluate(fails)
    assert "in fails" in str(caught.value.__cause__)


def test_arguments_are_refused_before_anything_is_started() -> None:
    for options, message in (
        ({"launcher": "spark"}, "'spark'"),
        ({"device": "tpu"}, "'tpu'"),
        ({"launcher": "local", "address": "auto"}, "use it with launcher='ray'"),
        ({"gpus_per_worker": 1}, "gpus_per_worker=1 is for a Ray cluster"),
        (
            {"launcher": "local", "world_size": 0},
            "world size must be a whole number from 1 up, not 0",
        ),
        (
            {"launcher": "local", "max_failures": -1},
            "max_failures must be a whole number from 0 up",
        ),
        ({"config": [1]}, "config must be a dict, not a value of type list"),
        ({"seed": "a"}, "seed must be a whole number from 0 to"),
        ({"progress": "no"}, "progress must be True or False, not 'no'"),
        ({"cpus_per_worker": -1}, "cpus_per_worker must be a positive number, not -1"),
    ):
        with pytest.raises(UsageError, match=message):
            Estimator(tiny.runner, **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([tiny.training], WORKFLOW), "one for each"),
        ((tiny.training, [("train", 1)]), "given as a list"),
        ((CREATORS, [("train", 1), ("test", 1)]), "'test'"),
        ((CREATORS, [("train", 1), "val"]), "'val'"),
        ((CREATORS, WORKFLOW, 0), "max_epochs"),
    ],
)
def test_fit_refuses_what_can_not_work(trained: Any, arguments: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trained[0].fit(*arguments)


def test_no_process_stays_and_a_saved_state_revives_an_estimator(tmp_path: Path) -> None:
    estimator = local()
    pids = pids_of(estimator)
    estimator.fit(CREATORS, WORKFLOW, max_epochs=1)
    estimator.save(tmp_path / "state.pt")
    estimator.shutdown()
    estimator.shutdown()
    assert wait_for(lambda: not any(is_running(pid) for pid in pids))
    with pytest.raises(WorldError, match=r"load\(\)"):
        estimator.fit(CREATORS, WORKFLOW)
    with estimator:
        estimator.load(tmp_path / "state.pt")
        records = estimator.fit(CREATORS, WORKFLOW, max_epochs=2)
    assert [record["epoch"] for record in records] == [2, 2]
