"""A user's loader, split over the ranks: shuffled for training, exactly once for validation."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from disteval.contract import BaseDistBackend
from disteval.errors import UsageError
from disteval.sharding import ShardPlan


def with_sampler(
    loader: DataLoader, rank: int, world_size: int, training: bool, seed: int = 0
) -> DataLoader:
    """Return a loader of this rank's share; everything but the choice of samples is as it was.

    For training, ``shuffle=True`` becomes a ``DistributedSampler`` that shuffles and has
    ``set_epoch``; a loader that does not shuffle keeps its order. The ranks get equally many
    samples, so up to ``world_size - 1`` of them are drawn twice an epoch, or, with ``drop_last``,
    left out. For validation every sample is drawn once over all ranks, in the data set's order; the
    loader's ``shuffle`` and ``drop_last`` are ignored, and a ``DistributedSampler`` is replaced. A
    list of this rank's samples is accepted as a `ShardPlan` gives it.

    Another sampler, batch sampler or iterable data set stays as it is for training on one rank, or
    if its ``num_replicas`` and ``rank`` are those of this rank; otherwise it is refused.

    Args:
        loader: The user's loader. Its ``batch_size`` is that of each rank.
        rank: The rank whose share is returned.
        world_size: The number of ranks that share the data set.
        training: Whether the loader is for training, or else for validation.
        seed: Decides, with the epoch, the order of a shuffled training loader.

    Raises:
        UsageError: The argument is not a ``DataLoader``, or can't be split without a guess; says
            which loader can.
    """
    if not isinstance(loader, DataLoader):
        raise UsageError(f"a torch DataLoader is needed, not {type(loader).__name__}")
    chooser = _chooser(loader)
    replaced = [RandomSampler, SequentialSampler, *([] if training else [DistributedSampler])]
    places: list[int] = []
    if not training and not isinstance(chooser, IterableDataset):
        places = ShardPlan(len(loader.dataset), world_size, rank).indices.tolist()
        if isinstance(chooser, (list, np.ndarray)) and list(chooser) == places:
            replaced.append(type(chooser))
    if type(chooser) not in replaced or _draws_otherwise(chooser):
        own = getattr(chooser, "rank", None), getattr(chooser, "num_replicas", None)
        stays = training or isinstance(chooser, IterableDataset)
        if stays and (world_size == 1 or own == (rank, world_size)):
            return loader
        raise UsageError(_refusal(chooser, world_size, training))
    if not training:
        return _choosing(loader, places, drop_last=False)
    batches = loader.batch_sampler
    drop_last = loader.drop_last if batches is None else batches.drop_last
    shuffle = isinstance(chooser, RandomSampler)
    sampler = DistributedSampler(loader.dataset, world_size, rank, shuffle, seed, drop_last)
    return _choosing(loader, sampler, drop_last)


def split(loader: Any, backend: BaseDistBackend, training: bool, seed: int) -> DataLoader:
    """Return this rank's share of a user's loader, see `with_sampler`; refuse an empty one."""
    share = with_sampler(loader, backend.rank, backend.world_size, training, seed)
    check_length(share, "the loader")
    if hasattr(share.dataset, "__len__") and not len(share.dataset):
        raise UsageError("the data set is empty; give one with samples")
    if training and len(share) == 0:
        raise UsageError(
            f"each of {backend.world_size} ranks gets {len(share.sampler)} samples, and with "
            f"drop_last no batch of {share.batch_size}; make batches smaller"
        )
    return share


def places_of(loader: DataLoader, size: int) -> list[int]:
    """Return the places in the data set of the samples that a rank's validation loader draws."""
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    return sampler if isinstance(sampler, list) else list(range(size))


def sampler_with_epoch(loader: Any) -> Any | None:
    """Return the object that shuffles a loader by epoch; None if nothing has ``set_epoch``.

    It is the loader's ``sampler``, its ``batch_sampler``, or the latter's ``sampler``.
    """
    batch_sampler = getattr(loader, "batch_sampler", None)
    found = (getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", 0))
    return next((each for each in found if callable(getattr(each, "set_epoch", None))), None)


def check_exact(loader: Any) -> None:
    """Refuse a validation loader whose ``DistributedSampler`` repeats or leaves out samples."""
    sampler = sampler_with_epoch(loader)
    if not isinstance(sampler, DistributedSampler):
        return
    surplus = int(sampler.total_size - len(sampler.dataset))
    if surplus:
        what = (
            f"counts {surplus} samples twice" if surplus > 0 else f"leaves out {-surplus} samples"
        )
        raise UsageError(
            f"the validation loader's DistributedSampler {what}; to count each sample once, give "
            f"sampler=ShardPlan(size, world_size, rank, pad=False).indices.tolist()"
        )


def check_length(loader: Any, what: str) -> None:
    """Refuse a loader that does not know its number of batches, or gives none."""
    try:
        length = len(loader)
    except TypeError as error:
        raise UsageError(
            f"{what} has no length ({error}); give one with len(), in batches"
        ) from error
    if length and not hasattr(loader, "__iter__"):
        raise UsageError(f"{what} is a {type(loader).__name__}, which gives no batches")


def _chooser(loader: DataLoader) -> Any:
    """Return the object that decides which samples a loader draws."""
    if isinstance(loader.dataset, IterableDataset):
        return loader.dataset
    if loader.batch_sampler is None:
        return loader.sampler
    own = type(loader.batch_sampler) is not BatchSampler
    return loader.batch_sampler if own else loader.batch_sampler.sampler


def _draws_otherwise(sampler: Any) -> bool:
    """Return whether a random sampler does not draw each sample of its data set once."""
    return isinstance(sampler, RandomSampler) and (
        sampler.replacement or sampler.num_samples != len(sampler.data_source)
    )


def _refusal(chooser: Any, world_size: int, training: bool) -> str:
    how = ", which draws with replacement or only some" if _draws_otherwise(chooser) else ""
    found = f"the loader chooses its samples by {type(chooser).__name__}{how}"
    if not training and not isinstance(chooser, IterableDataset):
        return (
            f"{found}; validation takes each sample of the data set once: leave it out, or give a "
            f"torch.utils.data.Subset of the data"
        )
    remedy = "shuffle=True or False"
    if isinstance(chooser, IterableDataset):
        remedy = "one with __getitem__"
    return (
        f"{found}, which can't be split over {world_size} ranks without changing what it means; "
        f"give {remedy}, or let it have num_replicas and rank and choose for that rank alone"
    )


def _choosing(loader: DataLoader, sampler: Any, drop_last: bool) -> DataLoader:
    """Copy a loader, with its class and every option, so that ``sampler`` chooses its samples."""
    clone = copy.copy(loader)
    fields: dict[str, Any] = {"sampler": sampler, "_iterator": None}
    if loader.batch_sampler is not None:
        size = loader.batch_sampler.batch_size
        fields["batch_sampler"] = BatchSampler(sampler, size, drop_last)
        if loader.batch_size is not None:
            fields["drop_last"] = drop_last
    # DataLoader refuses to set these attributes, because of iterators that it may have.
    clone.__dict__.update(fields)
    return clone
