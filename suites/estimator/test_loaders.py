"""A loader is dealt to the workers without losing a sample, an option or the user's intention."""

from typing import Any

import pytest
from disteval import ShardPlan, UsageError

from suites.helpers.needs import framework, needs

torch = framework("torch")
data = torch.utils.data

from disteval.estimator.loaders import with_sampler  # noqa: E402

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


def init_worker(worker: int) -> None:
    pass


def drawn(loader: Any, world_size: int, training: bool, epoch: int = 0) -> list[list[int]]:
    """The samples of each rank, in the order in which it draws them."""
    found = []
    for rank in range(world_size):
        dealt = with_sampler(loader, rank, world_size, training)
        if training:
            dealt.sampler.set_epoch(epoch)
        found.append([int(i) for batch in dealt for i in batch])
    return found


def flat(ranks: list[list[int]]) -> list[int]:
    return [sample for rank in ranks for sample in rank]


@pytest.mark.parametrize(("size", "world_size"), SIZES)
def test_validation_draws_every_sample_once_in_order(size: int, world_size: int) -> None:
    padded = data.DistributedSampler(Numbers(size), num_replicas=world_size, rank=0)
    for options in ({"shuffle": False}, {"shuffle": True}, {"sampler": padded}):
        loader = data.DataLoader(Numbers(size), batch_size=2, drop_last=True, **options)
        ranks = drawn(loader, world_size, training=False)
        assert ranks == [list(range(rank, size, world_size)) for rank in range(world_size)]


@pytest.mark.parametrize(("size", "world_size"), SIZES)
def test_training_draws_every_sample_in_an_order_of_its_epoch(size: int, world_size: int) -> None:
    loader = data.DataLoader(Numbers(size), batch_size=2, shuffle=True)
    first, again, second = (drawn(loader, world_size, True, epoch) for epoch in (3, 3, 4))
    assert first == again
    assert first != second or size == 2
    assert len({len(rank) for rank in first}) == 1
    assert set(flat(first)) == set(range(size))
    assert sum(map(len, first)) == -(-size // world_size) * world_size


def test_training_with_drop_last_draws_none_twice() -> None:
    loader = data.DataLoader(Numbers(11), batch_size=2, shuffle=True, drop_last=True)
    found = flat(drawn(loader, 2, training=True))
    assert len(found) == len(set(found)) == 8


def test_training_keeps_the_order_of_a_loader_that_does_not_shuffle() -> None:
    loader = data.DataLoader(Numbers(6), batch_size=2)
    assert drawn(loader, 2, training=True, epoch=5) == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize("training", [False, True])
def test_every_other_option_survives(training: bool) -> None:
    options: dict[str, Any] = {
        "num_workers": 1,
        "collate_fn": tuple,
        "pin_memory": True,
        "timeout": 5,
        "worker_init_fn": init_worker,
        "multiprocessing_context": "spawn",
        "generator": torch.Generator(),
        "prefetch_factor": 3,
        "persistent_workers": True,
    }
    loader = OwnLoader(Numbers(9), batch_size=4, shuffle=True, **options)
    dealt = with_sampler(loader, 1, 2, training)
    assert type(dealt) is OwnLoader
    assert dealt.batch_size == 4
    for name in options:
        assert getattr(dealt, name) == getattr(loader, name), name
    assert isinstance(loader.sampler, data.RandomSampler), "the user's own loader was changed"


@pytest.mark.parametrize("training", [False, True])
def test_a_batch_sampler_survives(training: bool) -> None:
    batches = data.BatchSampler(data.RandomSampler(Numbers(10)), 3, drop_last=False)
    loader = data.DataLoader(Numbers(10), batch_sampler=batches)
    dealt = with_sampler(loader, 0, 2, training)
    assert [len(batch) for batch in dealt] == [3, 2]
    assert dealt.batch_sampler.batch_size == 3


def test_a_loader_without_batches_survives() -> None:
    loader = data.DataLoader(Numbers(5), batch_size=None)
    assert list(with_sampler(loader, 1, 2, training=False)) == [1, 3]


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
    for training in (False, True):
        with pytest.raises(UsageError, match="the loader"):
            with_sampler(loader, 0, 2, training)
    assert with_sampler(loader, 0, 1, training=True) is loader


def test_a_sampler_that_deals_for_its_rank_stays() -> None:
    own = data.DistributedSampler(Numbers(10), num_replicas=2, rank=1, seed=7)
    loader = data.DataLoader(Numbers(10), 2, sampler=own)
    assert with_sampler(loader, 1, 2, training=True) is loader
    with pytest.raises(UsageError, match=type(own).__name__):
        with_sampler(loader, 0, 2, training=True)


def test_what_is_no_loader_is_refused() -> None:
    with pytest.raises(UsageError, match="not list"):
        with_sampler([1, 2], 0, 1, training=True)


def test_the_sampler_that_a_refusal_advises_is_taken() -> None:
    for indices in (ShardPlan(10, 3, 1).indices, ShardPlan(10, 3, 1).indices.tolist()):
        loader = data.DataLoader(Numbers(10), 2, sampler=indices)
        assert [int(i) for batch in with_sampler(loader, 1, 3, False) for i in batch] == [1, 4, 7]
        with pytest.raises(UsageError, match="leave it out"):
            with_sampler(loader, 0, 3, training=False)
