"""A user's loaders: the share of each rank for training, and the data set for validation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from disteval.errors import UsageError


def with_sampler(loader: DataLoader, rank: int, world_size: int, seed: int = 0) -> DataLoader:
    """Return a training loader of this rank's share, which keeps every option of the loader.

    ``shuffle=True`` becomes a ``DistributedSampler`` that shuffles and has ``set_epoch``; a loader
    that does not shuffle keeps its order. The ranks get equally many samples, so up to
    ``world_size - 1`` of them are drawn twice an epoch, or, with ``drop_last``, left out. Another
    sampler, batch sampler or iterable data set stays as it is on one rank, or if its
    ``num_replicas`` and ``rank`` are those of this rank; otherwise it is refused.

    Args:
        loader: The user's loader. Its ``batch_size`` is that of each rank.
        rank: The rank whose share is returned.
        world_size: The number of ranks that share the data set.
        seed: Decides, with the epoch, the order of a shuffled loader.

    Raises:
        UsageError: The argument is not a ``DataLoader``, can't be split without a guess, or is
            empty.
    """
    chooser = _chooser(loader)
    if loader.batch_size is not None and _takes_each_once(chooser):
        check_not_empty(loader)
        shuffle, last = isinstance(chooser, RandomSampler), loader.drop_last
        sampler = DistributedSampler(loader.dataset, world_size, rank, shuffle, seed, last)
        share = copy.copy(loader)
        # DataLoader refuses to set these attributes, because of iterators that it may have.
        share.__dict__.update(
            sampler=sampler, batch_sampler=BatchSampler(sampler, loader.batch_size, last),
            _iterator=None,
        )  # fmt: skip
        if not len(share):
            raise UsageError(
                f"each of {world_size} ranks gets {len(sampler)} samples, and with drop_last no "
                f"batch of {loader.batch_size}; make batches smaller"
            )
        return share
    own = getattr(chooser, "rank", None), getattr(chooser, "num_replicas", None)
    if world_size == 1 or own == (rank, world_size):
        check_length(loader, "the loader")
        return loader
    is_stream = isinstance(chooser, IterableDataset)
    raise UsageError(
        f"the loader chooses its samples by {_name_of(chooser)}, which can't be split over "
        f"{world_size} ranks without changing what it means; give "
        f"{'one with __getitem__' if is_stream else 'a batch_size and shuffle=True or False'}, or "
        f"let it have num_replicas and rank and choose for that rank alone"
    )


class Whole(NamedTuple):
    """What `disteval.evaluate` needs of a loader, each of whose samples is evaluated once."""

    samples: Any
    batch_size: int
    collate: Callable[[list[Any]], Any] | None  # to a tuple, of which predict gets the first field
    workers: int
    back: Callable[[Any], Any]  # makes the loader's batch of that field


def whole(loader: Any) -> Whole:
    """Return the parts of a loader for validation; UsageError if it chooses some of the samples.

    Its order, ``drop_last`` and a ``DistributedSampler`` do not count.
    """
    chooser = _chooser(loader)
    is_stream = isinstance(chooser, IterableDataset)
    if not (is_stream or type(chooser) is DistributedSampler or _takes_each_once(chooser)):
        raise UsageError(
            f"the loader chooses its samples by {_name_of(chooser)}; validation takes each sample "
            f"of the data set once, on all ranks together: leave it out, or give a "
            f"torch.utils.data.Subset of the data"
        )
    if (size := loader.batch_size) is None:
        raise UsageError(
            "the loader has batch_size=None, so its data set makes batches, in which no sample has "
            "a number; give a data set of samples and a batch_size for validation"
        )
    check_not_empty(loader)
    is_default = loader.collate_fn is default_collate
    if is_default and type(loader.dataset) is TensorDataset:  # whose rows are taken all at once
        columns = dict(enumerate(loader.dataset.tensors))
        return Whole(columns, size, None, loader.num_workers, lambda batch: [*batch.values()])
    samples = loader.dataset if is_stream else _Samples(loader.dataset)
    return Whole(
        samples, size, partial(_as_field, loader.collate_fn), loader.num_workers,
        lambda batch: list(batch) if is_default and type(batch) is tuple else batch,
    )  # fmt: skip


class _Samples:
    """A data set, of which `disteval.evaluate` takes what its ``__getitem__`` returns.

    It would read the arrays of one that has ``images`` and ``labels``, without any transform.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        if hasattr(dataset, "__getitems__"):
            self.__getitems__ = dataset.__getitems__

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def _as_field(collate: Callable[[list[Any]], Any], samples: list[Any]) -> tuple[Any]:
    batch = collate(samples)
    if collate is default_collate and type(batch) is list and isinstance(samples[0], tuple):
        batch = tuple(batch)  # a list would be taken for one of samples
    return (batch,)


def sampler_with_epoch(loader: Any) -> Any | None:
    """Return the sampler or batch sampler of a loader that has ``set_epoch``, if there is one."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    found = (getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", 0))
    return next((each for each in found if callable(getattr(each, "set_epoch", None))), None)


def check_length(loader: Any, what: str) -> None:
    """Refuse a loader that does not know its number of batches, or gives none."""
    try:
        length = len(loader)
    except TypeError as error:
        raise UsageError(
            f"{what} has no length ({error}); give one with len(), in batches"
        ) from error
    if not length or not hasattr(loader, "__iter__"):
        raise UsageError(f"{what} is a {type(loader).__name__} that gives no batches")


def check_not_empty(loader: DataLoader) -> None:
    """Refuse a loader whose data set is empty."""
    if not isinstance(loader.dataset, IterableDataset) and not len(loader.dataset):
        raise UsageError("the data set is empty; give one with samples")


def _chooser(loader: Any) -> Any:
    """Return the object that decides which samples a loader draws."""
    if not isinstance(loader, DataLoader):
        raise UsageError(f"a torch DataLoader is needed, not {type(loader).__name__}")
    if isinstance(loader.dataset, IterableDataset):
        return loader.dataset
    is_own = loader.batch_size is None and loader.batch_sampler is not None
    return loader.batch_sampler if is_own else loader.sampler


def _takes_each_once(chooser: Any) -> bool:
    """Return whether a loader draws each sample of its data set once, in order or shuffled."""
    return type(chooser) in (RandomSampler, SequentialSampler) and not _draws_otherwise(chooser)


def _draws_otherwise(chooser: Any) -> bool:
    return isinstance(chooser, RandomSampler) and (
        chooser.replacement or chooser.num_samples != len(chooser.data_source)
    )


def _name_of(chooser: Any) -> str:
    how = ", which draws with replacement or only some" if _draws_otherwise(chooser) else ""
    return f"{type(chooser).__name__}{how}"
