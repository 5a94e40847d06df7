"""The base of every metric: collect on each rank, count each sample once, agree on the result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, Literal, TypeVar

from disteval.arguments import check_choice, check_count
from disteval.contract import BaseDistBackend
from disteval.errors import RankError, UsageError
from disteval.metrics.columns import pack, unpack
from disteval.registry import get_dist_backend

T = TypeVar("T")
_ABSENT: Any = object()


class BaseMetric(ABC):
    """Accumulates one entry a sample, and computes over the entries of all ranks.

    A subclass gives `add`, which appends one entry for each sample to ``self._results``, and
    `compute_metric`, which turns the entries of all samples, in data-set order, into the result.
    Entries of one simple type travel as arrays, others as objects; all of them come to every rank,
    so prefer `SummableMetric` where the result follows from sums.

    The interface follows mmeval's ``BaseMetric``. Unlike mmeval 0.2.1, ragged shards lose nothing,
    a ``size`` that can't be met is an error at any world size, and a failure while the metric is
    computed reaches every rank.

    Args:
        dataset_meta: Facts on the data set, such as class names, for subclasses.
        dist_collect_mode: How the ranks' entries are put in data-set order: ``"unzip"`` takes one
            from each rank in turn, for strided shards; ``"cat"`` puts one rank after another, for
            contiguous ones.
        dist_backend: A backend, or the name of one; None stands for the default backend.

    Raises:
        UsageError: ``dist_collect_mode`` is neither of the two.
    """

    def __init__(
        self,
        dataset_meta: Mapping[str, Any] | None = None,
        dist_collect_mode: Literal["unzip", "cat"] = "unzip",
        dist_backend: str | BaseDistBackend | None = None,
    ) -> None:
        check_choice("dist_collect_mode", dist_collect_mode, ("unzip", "cat"))
        self.dataset_meta = dataset_meta
        self.dist_collect_mode = dist_collect_mode
        self._backend = dist_backend
        self._results: Any = self._fresh()

    @property
    def dist_backend(self) -> BaseDistBackend:
        """The backend that moves the entries.

        Raises:
            UnknownBackendError: It was given by a name that is not known.
            BackendUnavailableError: Its library is missing.
        """
        if isinstance(self._backend, BaseDistBackend):
            return self._backend
        return get_dist_backend(self._backend)

    @dist_backend.setter
    def dist_backend(self, backend: str | BaseDistBackend | None) -> None:
        self._backend = backend

    @abstractmethod
    def add(self, *args: Any, **kwargs: Any) -> None:
        """Append one entry for each sample to ``self._results``."""

    @abstractmethod
    def compute_metric(self, results: list[Any]) -> Any:
        """Turn the entries of all samples into the result; runs on rank 0 alone."""

    def reset(self) -> None:
        """Forget every entry."""
        self._results = self._fresh()

    def compute(self, size: int | None = None) -> Any:
        """Compute over every rank's entries; every rank must call it.

        Args:
            size: Samples in the data set. Entries past it are padding that a sampler added, and are
                dropped. None keeps all.

        Returns:
            What `compute_metric` returned on rank 0, on every rank.

        Raises:
            UsageError: On every rank, when ``size`` is negative or more than was collected.
            RankError: On every rank, when a rank's entries can't travel or rank 0 can't compute.
        """
        backend = self.dist_backend
        shards = backend.all_gather_object((size, len(self._results), *pack(self._results)))
        check_sizes([given for given, _, _, _ in shards])
        if size is not None:
            check_collected(size, sum(length for _, length, _, _ in shards))
        return self._compute_on_rank_0(backend, [packed for _, _, *packed in shards], size)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute over these samples alone, whatever was added before, which stays as it was.

        Takes the arguments of `add`; every rank must call it.
        """
        kept = self._results
        self._results = self._fresh()
        try:
            self.add(*args, **kwargs)
            return self.compute()
        finally:
            self._results = kept

    def _fresh(self) -> Any:
        """Return what holds no entries yet."""
        return []

    def _compute_on_rank_0(
        self, backend: BaseDistBackend, shards: list[Any], size: int | None
    ) -> Any:
        outcome: tuple[Any, str | None] = (None, None)
        cause: Exception | None = None
        if backend.rank == 0:
            try:
                entries = [unpack(form, packed) for form, packed in shards]
                results = _in_order(entries, self.dist_collect_mode)[:size]
                outcome = (self.compute_metric(results), None)
            except Exception as error:  # whatever it is, the other ranks wait for word of it
                cause = error
                outcome = (None, f"{type(error).__name__}: {error}")
        value, failure = backend.broadcast_object(outcome, src=0)
        if failure is not None:
            raise RankError(0, f"could not compute {type(self).__name__}: {failure}") from cause
        return value


def check_sizes(sizes: Sequence[int | None]) -> None:
    """Refuse what can't be a size; every rank sees all of them, so every rank raises alike."""
    if any(size != sizes[0] for size in sizes):
        raise UsageError(f"ranks called compute with different sizes: {sizes}, by rank")
    if sizes[0] is not None:
        check_count("size", sizes[0], 0)


def check_collected(size: int, collected: int) -> None:
    """Refuse a size of more samples than there are."""
    if size > collected:
        raise UsageError(
            f"size={size}, but all ranks together added {collected} samples: "
            f"{size - collected} are missing"
        )


def _in_order(shards: Sequence[Sequence[T]], mode: str) -> list[T]:
    if mode == "cat":
        return list(chain.from_iterable(shards))
    rounds = zip_longest(*shards, fillvalue=_ABSENT)
    return [entry for entry in chain.from_iterable(rounds) if entry is not _ABSENT]
