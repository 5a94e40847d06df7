"""The bases of every metric: collect on each rank, and compute over the samples of all ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextvars import copy_context
from copy import copy
from functools import partial, wraps
from itertools import chain
from typing import Any, Literal

import numpy as np

from disteval.arguments import check_choice, check_count
from disteval.contract import BaseDistBackend
from disteval.coverage import Certificate, add_certificates, prove
from disteval.default_backend import joining_backend
from disteval.errors import CoverageError, RankError, UsageError, describe_error
from disteval.identity import check_same, digest_of, text
from disteval.metrics.arrays import Array, naming
from disteval.metrics.state import (
    NO_IDS,
    Ids,
    Once,
    add_sums,
    all_have_ids,
    check_collected,
    in_order,
    merge,
    no_samples,
    pack,
    rows_of,
    sendable,
    unpack,
)

Rows = Array

Sums = Array
"""Exact sums: an array of int64, or of Python integers (dtype object) where int64 is too small."""

Steps = Generator[tuple[str, Callable[[], Any]], Sequence[Any], Any]
"""The steps by which ranks compute a metric together. Each yields what this rank does, in words,
and a function that does it and returns what to send; it gets what all ranks have sent, by rank. As
each step follows from what all ranks have sent, all take the same ones, and raise the same errors.
An error of the function itself is raised on every rank as well."""

_PENDING = 4
"""The most batches whose rows may still be on a device, which bounds the memory they take there."""


class BaseMetric(ABC):
    """A metric that accumulates one entry for each sample and computes over all ranks' entries.

    A subclass defines two methods: `add`, which passes one entry for each sample to `_extend`; and
    `compute_metric`, which turns the entries of all samples, in the order of the data set, into the
    result. Every rank receives all entries, so prefer `SummableMetric` if the result follows from
    sums.

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
        UsageError: ``dist_collect_mode`` is not known, ``dataset_meta`` is not a mapping, or an
            argument of a subclass is of another kind or out of range.

    Attributes:
        uses_ids: Whether `disteval.evaluate` gives ids to each batch: as an argument of `add`, or
            to the entries of an `add` that takes none, of which each sample must have one. A metric
            whose result depends on the order of samples, or on which is which, uses them.
        made_with: The arguments that a metric of one's own was made with, as a text, which ranks
            and later runs compare.
    """

    uses_ids: bool = True
    _begun_by = frozenset[int]()  # the threads that evaluate, see `totals.check_own`
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

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let errors of a class's ``add`` name the metric, and samples by their ids."""
        super().__init_subclass__(**kwargs)
        if (add := vars(cls).get("add")) is not None:

            @wraps(add)
            def named(self: BaseMetric, *args: Any, **kwargs: Any) -> None:
                with naming(type(self).__name__, kwargs.get("ids")):
                    add(self, *args, **kwargs)

            cls.add = named  # type: ignore[method-assign]

    @property
    def dist_backend(self) -> BaseDistBackend:
        """The backend that carries the entries, see `disteval.get_dist_backend` for errors."""
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

        Raises:
            UsageError: A shape does not fit, or a value is not what the metric can count, such as
                NaN or a label that is not a class. Nothing was added.
        """

    @abstractmethod
    def compute_metric(self, results: list[Any]) -> Any:
        """Turn the entries of all samples into the result; runs on rank 0 alone."""

    def reset(self) -> None:
        """Remove every entry."""
        self._results: Any = []
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
        settings = {"the metric": self._describe()}
        return compute_together(self.dist_backend, [self], size, settings)[0]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute over these samples alone; entries that were added before stay as they were.

        Takes the arguments of `add`; every rank must call it.
        """
        alone = copy(self)
        alone.reset()
        alone.add(*args, **kwargs)
        return alone.compute()

    def _describe(self) -> str:
        """Describe the class and its settings, so that metrics which can't be added up differ."""
        inner = [each._describe() for each in vars(self).values() if isinstance(each, BaseMetric)]
        found = [f"{name}={spelled(value)}" for name, value in settings_in(vars(self)).items()]
        return f"{type(self).__qualname__}({', '.join(inner + found)})"

    def add_numbered(self, ids: Any, *args: Any, **kwargs: Any) -> None:
        """Call an `add` that takes no ids, and give ids to the entries that it adds."""
        kept = self._results, self._ids
        self._results, self._ids = [], Ids()
        try:
            self.add(*args, **kwargs)
            added = self._results
        finally:
            self._results, self._ids = kept
        if added:
            self._extend(added, ids)

    def _extend(self, entries: Iterable[Any], ids: Any = None) -> None:
        """Add one entry for each row, and the ids that `add` was given."""
        # A copy of an array, because the caller may reuse the memory of which rows are views.
        entries = list(entries.copy() if isinstance(entries, np.ndarray) else entries)
        checked = self._ids.check(ids, len(entries), len(self._results))
        self._results.extend(entries)
        if checked is not None:
            self._ids.add(checked)

    def _state(self) -> Any:
        """Return what was added, to be sent."""
        return self._ids.all() if self._ids.samples else None, pack(self._results)

    def _merged(self, states: Sequence[Any], size: int | None = None, mode: str = "cat") -> Any:
        """Compute over what `_state` returned on ranks or for parts, in this process alone."""
        entries = [unpack(packed) for _, packed in states]
        ids = [sent for sent, _ in states]
        if any(sent is not None for sent in ids):
            return self.compute_metric(merge(entries, [sent or NO_IDS for sent in ids], size))
        together = [*chain.from_iterable(entries)]
        order = in_order([*map(len, entries)], mode)[:size]
        return self.compute_metric([together[at] for at in order.tolist()])

    def _counted(self) -> tuple[int, Certificate | None]:
        """Return the number of rows, and the proof of their samples; None if these have no ids."""
        return len(self._results), self._ids.certificate()

    def _steps(self, backend: BaseDistBackend, size: int | None) -> Steps:
        name = type(self).__name__

        def compute() -> Any:
            if backend.rank:
                return None, None
            try:
                return self._merged(states, size, self.dist_collect_mode), None
            except (CoverageError, UsageError) as error:
                return None, error

        lengths, proofs = zip(*(yield f"count {name}", self._counted), strict=True)
        if not all_have_ids(lengths, proofs):
            check_collected(size, sum(lengths))
        states = yield f"send {name}", self._state
        (value, error), *_ = yield f"compute {name}", compute
        if error is not None:
            raise error
        return value


class SummableMetric(BaseMetric):
    """A metric that keeps a compact column of rows, and whose result follows from sums over it.

    A subclass defines three methods: `add`, which passes one row for each sample, and the ids, to
    `_append`; `sums_of`, which sums rows exactly, so that the sums of parts add up to the sums of
    the whole; and `from_sums`.

    `compute` takes one small collective, which all metrics that are computed together share. It
    takes two if ``size`` drops samples that have no ids. With ids it takes three, of which one
    carries 8 bytes for each sample, unless all ranks together added each sample of ``size`` once.
    """

    uses_ids: bool = False
    # Two underscores, because a metric of one's own may have attributes of these names.
    __keeps_rows = __keeps_sums = True

    @abstractmethod
    def sums_of(self, column: Rows) -> Sums:
        """Sum rows exactly into an array of integers that can be added.

        The array has one axis or more, and the same shape for any number of rows.
        """

    @abstractmethod
    def from_sums(self, sums: Sums, size: int) -> Any:
        """Turn the sums over all ``size`` rows, 1 or more, into the result; on every rank."""

    def compute_metric(self, results: Any) -> Any:
        """Compute over the rows of all samples."""
        column = np.asarray(results)
        return self.from_sums(self.sums_of(column), len(column))

    def reset(self) -> None:
        """Remove every row."""
        super().reset()
        self.__sums: Sums | None = None
        self.__length = 0
        self.__pending: deque[tuple[int, Callable[[], Rows]]] = deque()
        # Sums alone, so that memory does not grow: an evaluation proves that each sample is once.
        self.__keeps_rows = not self._begun_by
        self._ids.are_kept = self.__keeps_rows

    def _append(self, rows: Rows | Callable[[], Rows], ids: Any = None, *, length: int = 0) -> None:
        """Add one row for each sample, and the ids that `add` was given.

        Of rows that a device is still computing, give a function that waits for them, and their
        number as ``length``.
        """
        if callable(rows):  # in a context, so that a late error names the samples of its own batch
            bring = partial(copy_context().run, rows)
        else:
            length, bring = len(rows), partial(np.asarray, rows)
        checked = self._ids.check(ids, length, self.__length)
        self.__settle(_PENDING - 1)
        self.__pending.append((length, bring))
        self.__length += length
        if checked is not None:
            self._ids.add(checked)
        if not callable(rows):
            self.__settle()

    def _rows_of_batch(self, *args: Any, **kwargs: Any) -> tuple[int, Callable[[], Rows], bool]:
        """Return how many rows `add` makes, a function that returns them, and whether it waits."""
        taken = copy(self)
        taken.reset()
        taken.__keeps_sums = False
        taken.add(*args, **kwargs)
        return taken.__length, taken.__rows, bool(taken.__pending)

    def __settle(self, most: int = 0) -> None:
        """Bring pending rows until no more than ``most`` batches are pending."""
        while len(self.__pending) > most:
            length, bring = self.__pending[0]
            rows = bring()
            if len(rows) and self.__keeps_sums:
                self.__sums = add_sums(self.__sums, self.sums_of(rows))
            if len(rows) and self.__keeps_rows:
                self._results.append(np.array(rows))  # a copy: the caller may reuse the memory
            self.__length += len(rows) - length
            # Not before: rows that can't be had must fail again, instead of being forgotten.
            self.__pending.popleft()

    def __rows(self) -> Rows:
        """Return all rows."""
        self.__settle()
        if len(self._results) != 1:
            self._results = [np.concatenate(self._results or [np.zeros(0)])]
        rows: Rows = self._results[0]
        return rows

    def _state(self, kept: Any = None) -> tuple[int, Any]:
        """Return the number of rows and their sums, to be sent: of all, or of those at ``kept``."""
        self.__settle()
        if kept is None:
            return self.__length, sendable(self.__sums)
        rows = self.__rows()[kept]
        return len(rows), sendable(self.sums_of(rows) if len(rows) else None)

    def _merged(self, states: Sequence[Any], size: int | None = None, mode: str = "cat") -> Any:
        lengths, sums = zip(*states, strict=True)
        if sum(lengths) == 0:
            raise no_samples()
        together: Any = None
        for each in sums:
            together = add_sums(together, each)
        return self.from_sums(together, sum(lengths))

    def _counted(self) -> tuple[int, Certificate | None]:
        return self.__length, self._ids.certificate()

    def _steps(self, backend: BaseDistBackend, size: int | None) -> Steps:
        do, rank = f"sum up {type(self).__name__}", backend.rank

        def each_once(mask: Any, repeated: Any) -> Any:
            lengths = self._ids.all().rows
            values = rows_of(self.__rows(), lengths, repeated)
            return self._state(np.repeat(mask, lengths)), [each.tolist() for each in values]

        states: Sequence[Any]
        counted, states = zip(*(yield do, lambda: (self._counted(), self._state())), strict=True)
        lengths, proofs = zip(*counted, strict=True)
        if all_have_ids(lengths, proofs):
            if size is None or not prove(add_certificates([*filter(None, proofs)]), size):
                once = Once((yield do, lambda: self._ids.all().ids), size)
                sent = yield do, lambda: each_once(*once.of_rank(rank))
                states, values = zip(*sent, strict=True)
                once.compare([*chain.from_iterable(values)])
        else:
            check_collected(size, sum(lengths))
            if size is not None and size < sum(lengths):
                kept = in_order(lengths, self.dist_collect_mode)[:size] - sum(lengths[:rank])
                kept = kept[(kept >= 0) & (kept < lengths[rank])]
                states = yield do, lambda: self._state(kept)
        return self._merged(states)


def compute_together(
    backend: BaseDistBackend,
    metrics: Sequence[BaseMetric],
    size: int | None,
    settings: Mapping[str, str],
) -> list[Any]:
    """Compute several metrics in shared collectives, with the errors of `BaseMetric.compute`.

    Args:
        backend: The backend that carries sums and entries.
        metrics: The metrics, the same ones on every rank.
        size: The samples in the data set, see `BaseMetric.compute`.
        settings: What must be the same on every rank; its digest is sent along with the first sums.

    Returns:
        The results, in the order of ``metrics``.
    """
    running = [_begin(backend, size, settings), *(each._steps(backend, size) for each in metrics)]
    todo = {at: next(steps) for at, steps in enumerate(running)}
    ended: dict[int, Any] = {}
    while todo:
        own: dict[int, Exception] = {}
        mine: list[tuple[str | None, Any]] = []
        for at, (_, do) in todo.items():
            try:
                mine.append((None, do()))
            except Exception as error:  # the other ranks wait in the collective
                mine.append((describe_error(error), None))
                own[at] = error
        sent = backend.all_gather_object(mine)
        for place, (at, (what, _)) in enumerate([*todo.items()]):
            told = [each[place] for each in sent]
            for rank, (failure, _) in enumerate(told):
                if failure is not None:
                    raise RankError(rank, f"could not {what}: {failure}") from own.get(at)
            try:
                todo[at] = running[at].send([value for _, value in told])
            except StopIteration as end:
                ended[at] = end.value
                del todo[at]
    return [ended[at] for at in range(1, len(running))]


def _begin(backend: BaseDistBackend, size: int | None, settings: Mapping[str, str]) -> Steps:
    sent = yield "begin", lambda: (size, digest_of(settings))
    sizes, digests = zip(*sent, strict=True)
    if len({*digests}) > 1:
        check_same(backend.all_gather_object(dict(settings)))
    if sizes.count(sizes[0]) != len(sizes):
        raise UsageError(f"ranks called compute with different sizes: {[*sizes]}, by rank")
    if size is not None:
        check_count("size", size, 0)


def settings_in(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the public attributes with plain values or arrays."""
    return {
        name: value
        for name, value in attributes.items()
        if name[0] != "_" and name != "dataset_meta"
        if isinstance(value, bool | int | float | str | tuple | list | dict | set | None)
        or (hasattr(value, "dtype") and not isinstance(value, type))
    }


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
