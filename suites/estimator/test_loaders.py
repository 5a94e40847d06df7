"""A loader is dealt to the workers without losing a sample, an option or the user's intention."""

from typing import Any

import numpy as np
import pytest
from disteval import UsageError

from suites.helpers.needs import framework, needs

torch = framework("torch")
data = torch.utils.data

from disteval.estimator import EpochBasedRunner, with_sampler  # noqa: E402

pytestmark = needs("torch")

SIZES = [(10, 1), (10, 2), (10, 3), (2, 3), (7, 4)]


class Numbers(data.Dataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


class Endless(data.IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(4))


class OwnLoader(data.DataLoader):
    pass


class EvenOnes(data.Sampler):
    def __iter__(self) -> Any:
        return iter(range(0, 10, 2))

    def __len__(self) -> int:
        return 5


class OwnBatches(data.BatchSampler):
    pass


def drawn(loader: Any, world_size: int, epoch: int = 0) -> list[list[int]]:
    """The samples of each rank, in the order in which it draws them."""
    found = []
    for rank in range(world_size):
        dealt = with_sampler(loader, rank, world_size)
        dealt.sampler.set_epoch(epoch)
        found.append([int(i) for batch in dealt for i in batch])
    return found


class Model(torch.nn.Module):
    def val_step(self, batch: Any, optimizer: Any) -> dict[str, Any]:
        return {"log_vars": {"mean": float(sum(batch)) / len(batch)}, "num_samples": len(batch)}


def validated(loader: Any) -> dict[str, Any]:
    """The record of a validation on one rank."""
    [record] = EpochBasedRunner(Model()).run([loader], [("val", 1)])
    return record


def flat(ranks: list[list[int]]) -> list[int]:
    return [sample for rank in ranks for sample in rank]


@pytest.mark.parametrize("size", [1, 10, 11])
def test_validation_counts_every_sample_once(size: int) -> None:
    padded = data.DistributedSampler(Numbers(size), num_replicas=3, rank=0)
    for options in (
        {"shuffle": True, "batch_size": 2, "drop_last": True},
        {"sampler": padded, "batch_size": 2},
    ):
        record = validated(data.DataLoader(Numbers(size), **options))
        assert (record["num_samples"], record["mean"]) == (size, (size - 1) / 2)


class Pictures(Numbers):
    """Has the attributes of a data set of arrays, and what its samples are made of."""

    images = np.zeros((9, 2, 2, 3), np.uint8)
    labels = np.zeros(9, np.int64)


@pytest.mark.parametrize("workers", [0, 1])
def test_validation_reads_samples_by_the_data_set_and_its_collate(workers: int) -> None:
    loader = data.DataLoader(Pictures(9), 4, collate_fn=doubled, num_workers=workers)
    assert validated(loader)["mean"] == 8


def doubled(samples: list[int]) -> Any:
    return torch.tensor(samples) * 2


def test_a_stream_is_validated_to_its_end() -> None:
    record = validated(data.DataLoader(Endless(), 3))
    assert (record["num_samples"], record["mean"]) == (4, 1.5)


FIELDS = {
    "dicts": [{"a": i, "b": (i, str(i))} for i in range(5)],
    "tuples": [(i, str(i)) for i in range(5)],
    "tensors": data.TensorDataset(torch.arange(5), torch.eye(5)),
}


@pytest.mark.parametrize("kind", FIELDS)
def test_the_batch_of_validation_is_that_of_the_loader(kind: str) -> None:
    loader, batches = data.DataLoader(FIELDS[kind], 3), []
    model = Model()
    model.val_step = lambda batch, optimizer: (  # type: ignore[method-assign]
        batches.append(repr(batch)) or {"log_vars": {}, "num_samples": 3 - ("4" in repr(batch))}
    )
    EpochBasedRunner(model).run([loader], [("val", 1)])
    assert {repr(batch) for batch in loader} <= {*batches}


@pytest.mark.parametrize(("size", "world_size"), SIZES)
def test_training_draws_every_sample_in_an_order_of_its_epoch(size: int, world_size: int) -> None:
    loader = data.DataLoader(Numbers(size), batch_size=2, shuffle=True)
    first, again, second = (drawn(loader, world_size, epoch) for epoch in (3, 3, 4))
    assert first == again
    assert first != second or size == 2
    assert len({len(rank) for rank in first}) == 1
    assert set(flat(first)) == set(range(size))
    assert sum(map(len, first)) == -(-size // world_size) * world_size


def test_training_with_drop_last_draws_none_twice() -> None:
    loader = data.DataLoader(Numbers(11), batch_size=2, shuffle=True, drop_last=True)
    found = flat(drawn(loader, 2))
    assert len(found) == len(set(found)) == 8


def test_training_keeps_the_order_of_a_loader_that_does_not_shuffle() -> None:
    loader = data.DataLoader(Numbers(6), batch_size=2)
    assert drawn(loader, 2, epoch=5) == [[0, 2, 4], [1, 3, 5]]


def test_every_other_option_survives() -> None:
    options: dict[str, Any] = {
        "num_workers": 1,
        "collate_fn": tuple,
        "pin_memory": True,
        "timeout": 5,
        "worker_init_fn": print,
        "multiprocessing_context": "spawn",
        "generator": torch.Generator(),
        "prefetch_factor": 3,
        "persistent_workers": True,
    }
    loader = OwnLoader(Numbers(9), batch_size=4, shuffle=True, **options)
    dealt = with_sampler(loader, 1, 2)
    assert type(dealt) is OwnLoader
    assert dealt.batch_size == 4
    for name in options:
        assert getattr(dealt, name) == getattr(loader, name), name
    assert isinstance(loader.sampler, data.RandomSampler), "the user's own loader was changed"


def test_a_loader_without_batches_is_not_validated() -> None:
    with pytest.raises(UsageError, match="batch_size=None"):
        validated(data.DataLoader(Numbers(5), batch_size=None))


CHOICES = {
    "sampler": lambda: data.DataLoader(Numbers(10), 2, sampler=EvenOnes()),
    "replacement": lambda: data.DataLoader(
        Numbers(10), 2, sampler=data.RandomSampler(Numbers(10), replacement=True)
    ),
    "batch sampler": lambda: data.DataLoader(
        Numbers(10), batch_sampler=OwnBatches(data.SequentialSampler(Numbers(10)), 2, False)
    ),
    "iterable": lambda: data.DataLoader(Endless(), 2),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_of_the_user_is_refused_on_several_workers_and_stays_on_one(choice: str) -> None:
    loader = CHOICES[choice]()
    with pytest.raises(UsageError, match="the loader"):
        with_sampler(loader, 0, 2)
    if choice != "iterable":
        assert with_sampler(loader, 0, 1) is loader
        with pytest.raises(UsageError, match="Subset"):
            validated(loader)


def test_a_sampler_that_deals_for_its_rank_stays() -> None:
    own = data.DistributedSampler(Numbers(10), num_replicas=2, rank=1, seed=7)
    loader = data.DataLoader(Numbers(10), 2, sampler=own)
    assert with_sampler(loader, 1, 2) is loader
    with pytest.raises(UsageError, match=type(own).__name__):
        with_sampler(loader, 0, 2)


def test_what_is_no_loader_is_refused() -> None:
    with pytest.raises(UsageError, match="not list"):
        with_sampler([1, 2], 0, 1)
    with pytest.raises(UsageError, match="not list"):
        validated([1, 2])
