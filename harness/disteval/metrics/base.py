"""The base of every metric: collect on each rank, and compute over the samples of all ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from disteval.arguments import check_choice, check_count
from disteval.contract import BaseDistBackend
from disteval.default_backend import joining_backend
from disteval.errors import CoverageError, RankError, UsageError, describe_error
from disteval.identity import Check, checking, digest_of, text
from disteval.metrics.columns import pack, unpack
from disteval.metrics.ids import Ids, SampleRows, check_all_or_none, merge
from disteval.metrics.naming import naming

T = TypeVar("T")
_ABSENT: Any = object()


class BaseMetric(ABC):
    """A metric that accumulates one entry for each sample and computes over all ranks' entries.

    A subclass defines two methods: `add`, which passes one entry for each sample to `_extend`; and
    `compute_metric`, which turns the entries of all samples, in the order of the data set, into the
    result. Entries of one simple type travel as arrays, others as objects. Every rank receives all
    entries, so prefer `SummableMetric` if the result follows from sums.

    The interface follows mmeval's ``BaseMetric``. Unlike in mmeval 0.2.1, shards of unequal length
    lose no samples, a ``size`` of more samples than were added is an error at any world size, and
    an error while the metric is computed is raised on every rank.

    Args:
        dataset_meta: Facts about the data set, such as class names, for subclasses.
        dist_collect_mode: How the ranks' entries without ids are put in the order of the data set.
            ``"unzip"`` takes one entry from each rank in turn, for strided shards; ``"cat"`` puts
            one rank after another, for contiguous shards.
        dist_backend: A backend, or the name of one. None stands for the default, which is found
            when results are computed, see `disteval.get_dist_backend`.

    Raises:
        UsageError: ``dist_collect_mode`` is not known, or ``dataset_meta`` is not a mapping.

    Attributes:
        uses_ids: Whether `disteval.evaluate` gives ids to each batch: as an argument of `add`, or
            to the entries of an `add` that takes none, of which each sample must have one. A metric
            whose result depends on the order of samples, or on which is which, uses them.
        made_with: The arguments that a metric of one's own was made with, as a text, which ranks
            and later runs compare.
    """

    uses_ids: bool = True
    _reset_by: int | None = None
    made_with: str

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Note the arguments of a class of one's own, which may keep them under any name."""
        metric = super().__new__(cls)
        if not cls.__module__.startswith("disteval.") and (args or kwargs):
            kwargs.pop("dist_backend", None)
            metric.made_with = f"{spelled(args)} {spelled(kwargs)}"
        return metric

    def __init__(
        self,
        dataset_meta: Mapping[str, Any] | None = None,
        dist_collect_mode: Literal["unzip", "cat"] = "unzip",
        dist_backend: str | BaseDistBackend | None = None,
    ) -> None:
        check_choice("dist_collect_mode", dist_collect_mode, ("unzip", "cat"))
        if not isinstance(dataset_meta, Mapping | None):
            raise UsageError(
                f"dataset_meta must be a dict of facts about the data set, not {dataset_meta!r}"
            )
        self.dataset_meta = dict(dataset_meta or {})
        self.dist_collect_mode = dist_collect_mode
        self._backend = dist_backend
        self.reset()

    if not TYPE_CHECKING:  # or every attribute would seem to exist

        def __getattr__(self, name: str) -> Any:
            if name in ("_backend", "_results", "_ids", "dist_collect_mode", "dataset_meta"):
                raise UsageError(
                    f"{type(self).__name__} has no {name} yet; call super().__init__() in its "
                    f"__init__, before anything is added"
                )
            return super().__getattribute__(name)  # raises AttributeError as always

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let errors of a class's ``add`` name the metric, and samples by their ids."""
        super().__init_subclass__(**kwargs)
        if "add" in vars(cls):
            cls.add = _naming_samples(cls.add)  # type: ignore[method-assign]

    @property
    def dist_backend(self) -> BaseDistBackend:
        """The backend that carries the entries.

        Raises:
            UnknownBackendError: The backend was given by a name that is not known.
            BackendUnavailableError: The backend's library is missing.
            UsageError: This is one of several processes, and no backend joins them.
        """
        return joining_backend(self._backend)

    @dist_backend.setter
    def dist_backend(self, backend: str | BaseDistBackend | None) -> None:
        self._backend = backend

    @abstractmethod
    def add(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch.

        Every metric of this package takes ``ids``, the global numbers of the samples: an integer
        from 0 up for each row, as an array of any framework; or `SampleRows`, if a sample has
        several rows. With ids, `compute` counts each sample once, wherever and however often it was
        added. Each id takes 16 bytes of memory. Ids are given for every batch on every rank, or for
        none.
        """

    @abstractmethod
    def compute_metric(self, results: list[Any]) -> Any:
        """Turn the entries of all samples into the result; runs on rank 0 alone."""

    def reset(self) -> None:
        """Remove every entry."""
        self._results = self._fresh()
        self._ids = Ids()

    def compute(self, size: int | None = None) -> Any:
        """Compute over every rank's entries; every rank must call it.

        With ids, each id counts once: repeated samples are dropped, and entries are put in the
        order of their ids.

        Args:
            size: The number of samples in the data set. With ids, it is proved that all ranks
                together added each id from 0 to ``size - 1``. Without ids, only the number of
                entries is known: those beyond ``size`` are dropped, which is right if a sampler
                put padding at the end. None keeps all entries, or every id.

        Returns:
            The value that `compute_metric` returned on rank 0, on every rank.

        Raises:
            UsageError: On every rank, when ``size`` is negative, fewer entries were added without
                ids, only some ranks gave ids, settings differ, or the metric refuses the entries.
            CoverageError: On every rank, when a sample is missing, an id is not in the data set, or
                samples with equal ids have different entries.
            RankError: On every rank, when a rank's entries can't be sent or rank 0 can't compute.
        """
        backend = self.dist_backend
        mine = len(self._results), self._ids.sent(), *pack(self._results)
        shards = self._gather_alike(backend, size, mine)
        lengths = [length for length, *_ in shards]
        ids = [sent for _, sent, *_ in shards]
        if not check_all_or_none(lengths, ids):
            check_collected(size, sum(lengths))
            ids = []
        return self._compute_on_rank_0(backend, [packed for _, _, *packed in shards], ids, size)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute over these samples alone; entries that were added before stay as they were.

        Takes the arguments of `add`; every rank must call it.
        """
        kept = self._results, self._ids
        self._results, self._ids = self._fresh(), Ids()
        try:
            self.add(*args, **kwargs)
            return self.compute()
        finally:
            self._results, self._ids = kept

    def _describe(self) -> str:
        """Describe the class and its settings, so that metrics which can't be added up differ.

        A setting is a public attribute; an argument of a class of one's own is one, too.
        """
        return describe_settings(self, vars(self))

    def _settings(self) -> dict[str, str]:
        return {"the metric": self._describe()}

    def _agreement(self, backend: BaseDistBackend) -> tuple[bytes, Check]:
        """Return a digest to send along, and the function that compares all ranks' metrics."""
        digest = digest_of(self._settings())
        return digest, checking(backend, digest, self._settings)

    def _gather_alike(self, backend: BaseDistBackend, size: int | None, mine: Any) -> Sequence[Any]:
        """Return what each rank sends, by rank, if all compute the same metric with one size."""
        digest, check = self._agreement(backend)
        sent = backend.all_gather_object((size, digest, mine))
        sizes, digests, shards = zip(*sent, strict=True)
        check(digests)
        check_sizes(sizes)
        return shards

    def add_numbered(self, ids: Any, *args: Any, **kwargs: Any) -> None:
        """Call an `add` that takes no ids, and give ids to the entries that it has added."""
        self._ids.are_later = True
        try:
            self.add(*args, **kwargs)
        finally:
            self._ids.are_later = False
        if added := len(self._results) - self._ids.rows:
            self._ids.add(self._ids.check(ids, added, self._ids.rows))

    def _extend(self, entries: Iterable[Any], ids: Any = None) -> None:
        """Add one entry for each row, and the ids that `add` was given."""
        # A copy of an array, because the caller may reuse the memory of which rows are views.
        entries = list(entries.copy() if isinstance(entries, np.ndarray) else entries)
        checked = self._ids.check(ids, len(entries), len(self._results))
        self._results.extend(entries)
        self._ids.add(checked)

    def _fresh(self) -> Any:
        """Return an empty container of entries."""
        return []

    def _state(self) -> Any:
        """Return what was added, to be sent; a class that defines `compute` defines this, too."""
        return self._ids.sent(), *pack(self._results)

    def _compute_states(self, states: Sequence[Any]) -> Any:
        """Compute over what `_state` returned, in the order of the data set, in this process."""
        self.reset()
        for sent, form, packed in states:
            self._results.extend(unpack(form, packed))
            self._ids.add(sent and SampleRows(*sent))
        return self.compute()

    def _compute_on_rank_0(
        self, backend: BaseDistBackend, shards: list[Any], ids: list[Any], size: int | None
    ) -> Any:
        outcome: tuple[Any, str | CoverageError | UsageError | None] = (None, None)
        cause: Exception | None = None
        if backend.rank == 0:
            try:
                entries = [unpack(form, packed) for form, packed in shards]
                if ids:
                    results = merge(entries, ids, size)
                else:
                    results = _in_order(entries, self.dist_collect_mode)[:size]
                outcome = (self.compute_metric(results), None)
            except (CoverageError, UsageError) as error:
                outcome = (None, error)
            except Exception as error:  # the other ranks wait for the broadcast
                cause = error
                outcome = (None, describe_error(error))
        value, failure = backend.broadcast_object(outcome, src=0)
        if isinstance(failure, Exception):
            raise failure
        if failure is not None:
            raise RankError(0, f"could not compute {type(self).__name__}: {failure}") from cause
        return value


def _naming_samples(add: Callable[..., None]) -> Callable[..., None]:
    @wraps(add)
    def named(metric: BaseMetric, *args: Any, **kwargs: Any) -> None:
        with naming(type(metric).__name__, kwargs.get("ids")):
            add(metric, *args, **kwargs)

    return named


def check_sizes(sizes: Sequence[int | None]) -> None:
    """Check the sizes that all ranks gave to ``compute``; every rank raises the same error."""
    if sizes.count(sizes[0]) != len(sizes):
        raise UsageError(f"ranks called compute with different sizes: {[*sizes]}, by rank")
    if sizes[0] is not None:
        check_count("size", sizes[0], 0)


def check_collected(size: int | None, collected: int) -> None:
    """Raise UsageError if all ranks together added fewer samples than ``size``."""
    if size is not None and size > collected:
        raise UsageError(
            f"size={size}, but all ranks together added {collected} samples: "
            f"{size - collected} are missing"
        )


def describe_settings(metric: object, attributes: Mapping[str, Any]) -> str:
    """Return the class of a metric and its settings, equal for metrics that can be added up.

    Args:
        metric: The metric.
        attributes: Its attributes, of which public ones with plain values or arrays are settings.
    """
    found: list[str] = []
    for name, value in attributes.items():
        is_plain = isinstance(value, bool | int | float | str | tuple | list | dict | set | None)
        if isinstance(value, BaseMetric):
            found.insert(0, value._describe())
        elif name[0] != "_" and name != "dataset_meta" and (is_plain or hasattr(value, "dtype")):
            found.append(f"{name}={spelled(value)}")
    return f"{type(metric).__qualname__}({', '.join(found)})"


def spelled(value: Any) -> str:
    """Return a text that is equal for equal settings on any rank; of objects, only their class."""
    if isinstance(value, BaseMetric):
        return value._describe()
    if isinstance(value, str):  # which `text` would cut
        return repr(value)
    found = text(value)
    if found is None and isinstance(value, tuple | list):
        return f"({', '.join(map(spelled, value))})"
    if found is None and isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {spelled(part)}' for key, part in value.items())}}}"
    return found or str(getattr(value, "__qualname__", type(value).__qualname__))


def no_samples() -> UsageError:
    """Return the error of a metric that is computed before any rank added a sample."""
    return UsageError(
        "no samples: add() was not called on any rank, or with empty batches, as of an empty data "
        "set or with limit=0; give one sample or more"
    )


def _in_order(shards: Sequence[Sequence[T]], mode: str) -> list[T]:
    if mode == "cat":
        return list(chain.from_iterable(shards))
    rounds = zip_longest(*shards, fillvalue=_ABSENT)
    return [entry for entry in chain.from_iterable(rounds) if entry is not _ABSENT]
