"""On several ranks: one model is trained, one is evaluated, and all go on or fail together."""

import logging
import logging.handlers
import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import RankError, UsageError, WeightsError, WorldError, get_dist_backend
from disteval.world import World

from suites.helpers.needs import framework, needs

torch = framework("torch")
data = torch.utils.data

from disteval.estimator import EpochBasedRunner, distribute, latest_checkpoint  # noqa: E402
from disteval.estimator.hooks import CheckpointHook, Hook  # noqa: E402

from suites.estimator.tiny import Noise, Tiny, facts, samples  # noqa: E402
from suites.helpers.gradients import averages_of  # noqa: E402

pytestmark = needs("torch", "torch_cpu")

WORKFLOW = [("train", 1), ("val", 1)]


@pytest.fixture(scope="module")
def two() -> Iterator[World]:
    with World("torch_cpu", 2, timeout=60.0) as world:
        yield world


def make(backend: Any, norm: bool = False, dropout: float = 0.0, **options: Any) -> Any:
    torch.manual_seed(5)
    model = distribute(Tiny(dropout, norm))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    runner = EpochBasedRunner(model, optimizer=optimizer, **options)
    assert (runner.rank, runner.world_size) == (backend.rank, backend.world_size)
    runner.register_training_hooks({"policy": "cosine", "by_epoch": False}, optimizer_config={})
    for seed, seeder in enumerate((random.seed, np.random.seed, torch.manual_seed)):
        seeder(10 * backend.rank + seed)
    return runner


def share(backend: Any, size: int, batch_size: int) -> Any:
    """A rank's part of training data, shuffled."""
    dataset = samples(size)
    sampler = data.DistributedSampler(dataset, backend.world_size, backend.rank, seed=4)
    return data.DataLoader(dataset, batch_size, sampler=sampler)


def validation(size: int) -> Any:
    """Validation data, of which ranks may evaluate unequally many batches, or none."""
    return data.DataLoader(samples(size, seed=1), 2)


def weights(runner: Any) -> dict[str, Any]:
    model = getattr(runner.model, "module", runner.model)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def differ(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    assert list(one) == list(other)
    return [name for name in one if not torch.equal(one[name], other[name])]


def train_one_batch_each(backend: Any) -> Any:
    runner = make(backend, max_epochs=1)
    records = runner.run([share(backend, 16, 16 // backend.world_size)], [("train", 1)])
    return weights(runner), facts(records)


def test_gradients_are_averaged_so_two_ranks_train_as_one(two: World) -> None:
    (one, first), (other, second) = two.run(train_one_batch_each)
    assert differ(one, other) == []
    assert first == second
    single, [record] = train_one_batch_each(get_dist_backend("non_dist"))
    for name, tensor in single.items():
        assert torch.allclose(tensor, one[name], rtol=0, atol=1e-6), name
    assert first[0]["loss"] == pytest.approx(record["loss"], abs=1e-6)
    assert first[0]["num_samples"] == 16


def distribute_by_ddp_alone(backend: Any) -> None:
    runner = make(backend, max_epochs=1)
    runner.model = torch.nn.parallel.DistributedDataParallel(Tiny())
    runner.run([share(backend, 8, 4)], [("train", 1)])


def test_a_train_step_that_goes_past_ddp_is_refused(two: World) -> None:
    with pytest.raises(WorldError, match="averaged") as caught:
        two.run(distribute_by_ddp_alone)
    assert isinstance(caught.value.common, UsageError)


def warnings_of(backend: Any, kind: str) -> list[str]:
    """What rank by rank is logged where training is of such a model."""
    runner = make(backend, max_epochs=1)
    runner.logger = logging.Logger("of this run")
    said = logging.handlers.BufferingHandler(100)
    runner.logger.addHandler(said)
    if kind == "plain":
        runner.model = Tiny()
    if kind == "parts":
        runner.model = Tiny()
        runner.model.fc = torch.nn.parallel.DistributedDataParallel(runner.model.fc)
    runner.optimizer = torch.optim.SGD(runner.model.parameters(), lr=0.2)
    runner.run([share(backend, 8, 4)], [("train", 1)])
    return [record.getMessage() for record in said.buffer]


@pytest.mark.parametrize("kind", ["plain", "distributed", "parts"])
def test_a_model_that_averages_no_gradients_is_warned_of(two: World, kind: str) -> None:
    first, second = two.run(warnings_of, kind, kind)
    assert second == []
    assert len(first) == (kind == "plain")
    if kind == "plain":
        assert "Tiny" in first[0]
        assert "disteval.estimator.distribute" in first[0]


def validate_unevenly(backend: Any, size: int) -> Any:
    runner = make(backend, norm=True, max_epochs=2)
    runner.run([share(backend, 40, 8)], [("train", 1)])
    before = weights(runner)
    steps: list[int] = []
    runner.register_hook(Steps(steps))
    [record] = runner.run([validation(size)], [("val", 1)])
    return before, weights(runner), len(steps), facts([record])[0]


class Steps(Hook):
    """Writes down the number of samples of each validation step that was counted."""

    def __init__(self, steps: list[int]) -> None:
        self._steps = steps

    def after_val_iter(self, runner: Any) -> None:
        assert len(runner.data_batch[1]) == runner.outputs["num_samples"]
        self._steps.append(runner.outputs["num_samples"])


@pytest.mark.parametrize("size", [1, 7, 101])
def test_all_ranks_evaluate_the_same_weights_and_count_each_sample(two: World, size: int) -> None:
    (before, after, batches, record), (other, after_1, batches_1, record_1) = two.run(
        validate_unevenly, size, size
    )
    # Each rank's batch norm has seen other data since the ranks last agreed.
    assert set(differ(before, other)) == {"norm.running_mean", "norm.running_var"}
    assert differ(before, after) == differ(after, after_1) == []
    assert (batches_1 == 0) == (size == 1)
    assert batches >= batches_1
    model = Tiny(norm=True)
    model.load_state_dict(after)
    alone = EpochBasedRunner(model)
    [single] = facts(alone.run([validation(size)], [("val", 1)]))
    assert record == record_1
    # A batch is the same at any world size, so all numbers are, to the last bit.
    assert {**record, "epoch": 0, "iter": 0} == single
    assert record["evaluated"] == size


def train_and_save(backend: Any, folder: str) -> Any:
    runner = make(backend, norm=True, dropout=0.3, max_epochs=3, work_dir=folder)
    runner.register_hook(Noise())
    runner.register_hook(CheckpointHook(2, by_epoch=False), "BELOW_NORMAL")
    runner.run([share(backend, 36, 6), validation(21)], WORKFLOW)
    return weights(runner), facts(runner.records)


def go_on(backend: Any, path: str) -> Any:
    runner = make(backend, norm=True, dropout=0.3, max_epochs=3)
    runner.register_hook(Noise())
    runner.resume(path)
    runner.run([share(backend, 36, 6), validation(21)], WORKFLOW)
    return weights(runner), facts(runner.records), runner.trained()


@pytest.fixture(scope="module")
def trained(two: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("trained")
    return folder, two.run(train_and_save, str(folder), str(folder))


@pytest.mark.parametrize("done", [2, 4, 6])
def test_resumed_on_as_many_ranks_equals_not_interrupted(
    two: World, trained: tuple[Path, Any], done: int
) -> None:
    folder, whole = trained
    path = str(folder / f"iter_{done}.pt")
    for (end, records), (found, told, _) in zip(whole, two.run(go_on, path, path), strict=True):
        assert differ(end, found) == []
        assert told == records[len(records) - len(told) :] and told[0]["iter"] >= done


def test_a_checkpoint_of_two_ranks_is_resumed_on_another_number(trained: tuple[Path, Any]) -> None:
    folder, _ = trained
    path = str(folder / "iter_4.pt")  # in the middle of the second epoch
    with World("torch_cpu", 3, timeout=60.0) as world:
        one, two = (world.run(go_on, *[path] * 3) for _ in range(2))
    for (found, records, at), (again, _, _) in zip(one, two, strict=True):
        assert differ({k: v for k, v in found.items() if "fc" in k},
                      {k: v for k, v in one[0][0].items() if "fc" in k}) == []  # fmt: skip
        assert differ(found, again) == []  # what is not known is drawn from the seed
        assert records == one[0][1]
        assert at[0] == 3
        assert records[-1]["evaluated"] == 21


def give_rank_1_something_else(backend: Any, what: str) -> None:
    runner = make(backend, max_epochs=1)
    loader = share(backend, 16, 4)
    if backend.rank == 1 and what == "workflow":
        runner.run([loader], [("train", 2)])
    if backend.rank == 1 and what == "mode":
        runner.run([loader], [("test", 1)])
    if backend.rank == 1 and what == "batches":
        loader = data.DataLoader(samples(16), 4)
    runner.run([loader], [("train", 1)])


@pytest.mark.parametrize(
    ("what", "kind", "told"),
    [
        ("workflow", UsageError, "workflow"),
        ("batches", UsageError, r"\[2\].*rank 0.*\[4\]"),
        ("mode", RankError, "rank 1 .*'test'"),
    ],
)
def test_a_mistake_of_one_rank_is_told_to_all(two: World, what: str, kind: Any, told: str) -> None:
    with pytest.raises(WorldError) as caught:
        two.run(give_rank_1_something_else, what, what)
    assert isinstance(caught.value.common, kind)
    assert len(caught.value.errors) == 2
    for error in caught.value.errors.values():
        assert re.search(told, str(error)), error


def keep_checkpoints_in(backend: Any, folder: str) -> None:
    runner = make(backend, max_epochs=1, work_dir=folder)
    runner.register_hook(CheckpointHook())
    runner.run([share(backend, 16, 4)], [("train", 1)])


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A folder that can't be created, because it would be below a file."""
    (tmp_path / "file").touch()
    return str(tmp_path / "file" / "below")


def test_a_folder_that_can_not_be_written_is_told_to_all(two: World, folder: str) -> None:
    with pytest.raises(WorldError, match="work_dir") as caught:
        two.run(keep_checkpoints_in, folder, folder)
    assert isinstance(caught.value.common, UsageError)
    assert two.run(rank_of) == [0, 1]


def test_a_folder_that_another_training_uses_is_told_to_all(two: World, tmp_path: Path) -> None:
    class Trains(CheckpointHook):
        def before_run(self, runner: Any) -> None:
            super().before_run(runner)
            with pytest.raises(WorldError, match=str(os.getpid())) as caught:
                two.run(keep_checkpoints_in, str(tmp_path), str(tmp_path))
            assert isinstance(caught.value.common, UsageError)

    runner = EpochBasedRunner(Tiny(), work_dir=tmp_path)
    runner.register_hook(Trains())
    runner.run([validation(4)], [("val", 1)])
    assert latest_checkpoint(tmp_path) is None


def resume_from(backend: Any, path: str) -> Any:
    runner = make(backend, norm=True, dropout=0.3)
    runner.resume(path)
    return runner.epoch, runner.training, weights(runner)


def test_all_ranks_fall_back_to_the_same_checkpoint_or_none_goes_on(
    two: World, trained: tuple[Path, Any], tmp_path: Path
) -> None:
    work = tmp_path / "work"
    shutil.copytree(trained[0], work)
    newest, before = work / "iter_9.pt", work / "iter_8.pt"
    with pytest.raises(WorldError, match="rank 1"):
        two.run(resume_from, str(before), str(newest))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    with pytest.raises(WorldError, match=rf"rank 1 .*{newest.name} .*damaged"):
        two.run(resume_from, str(before), str(newest))
    with pytest.raises(WorldError, match=rf"{newest.name} .*damaged") as caught:
        two.run(resume_from, str(newest), str(newest))
    assert isinstance(caught.value.common, WeightsError)
    one, other = two.run(resume_from, str(work), str(work))
    assert one[:2] == other[:2] and differ(one[2], other[2]) == []
    assert latest_checkpoint(work) == before


def rank_of(backend: Any) -> int:
    return int(backend.rank)


def accumulate(backend: Any, batches: int) -> Any:
    runner = make(backend, max_epochs=2)
    runner.hooks = []
    runner.register_training_hooks(None, {"accumulate": batches})
    averaged = averages_of(runner.model)
    runner.run([share(backend, 32, 8 // batches)], [("train", 1)])
    return weights(runner), averaged


def test_gradients_of_several_batches_are_those_of_one_large_batch(two: World) -> None:
    ((large, steps), _), ((small, averaged), (other, _)) = (
        two.run(accumulate, n, n) for n in (1, 4)
    )
    assert differ(small, other) == []
    assert averaged == steps == [0] * 4  # not once for each batch
    for name, tensor in small.items():
        assert torch.allclose(tensor, large[name], rtol=0, atol=1e-6), name
