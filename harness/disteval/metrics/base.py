"""The bases of every metric: collect on each rank, and compute over the samples of all ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextvars import copy_context
from functools import reduce, wraps
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from disteval.arguments import check_choice, check_count
from disteval.contract import BaseDistBackend
from disteval.coverage import Certificate, certify, prove
from disteval.default_backend import joining_backend
from disteval.errors import CoverageError, RankError, UsageError, describe_error
from disteval.identity import Check, checking, digest_of, text
from disteval.metrics.naming import naming
from disteval.metrics.state import (
    NO_IDS,
    Bring,
    Column,
    Ids,
    Once,
    add_sums,
    all_have_ids,
    as_array,
    in_order,
    kept_rows,
    merge,
    pack,
    rows_of,
    sendable,
    unpack,
)

Rows = npt.NDArray[Any]

Sums = npt.NDArray[Any]
"""Exact sums: an array of int64, or of Python integers (dtype object) where int64 is too small."""

Steps = Generator[tuple[str, Callable[[], Any]], Sequence[Any], Any]
"""The steps by which ranks compute a metric together. Each yields what this rank does, in words,
and a function that does it and returns what to send; it gets what all ranks have sent, by rank. As
each step follows from what all ranks have sent, all take the same ones, and raise the same errors.
An error of the function itself is raised on every rank as well."""


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
        backend, digest = self.dist_backend, digest_of(self._settings())
        check = checking(backend, digest, self._settings)
        return compute_together(backend, [self], size, digest, check)[0]

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
        """Describe the class and its settings, so that metrics which can't be added up differ."""
        return describe_settings(self, vars(self))

    def _settings(self) -> dict[str, str]:
        return {"the metric": self._describe()}

    def add_numbered(self, ids: Any, *args: Any, **kwargs: Any) -> None:
        """Call an `add` that takes no ids, and give ids to the entries that it has added."""
        before = len(self._results)
        self._ids.are_later = True
        try:
            self.add(*args, **kwargs)
        finally:
            self._ids.are_later = False
        if added := len(self._results) - before:
            self._ids.add(self._ids.check(ids, added, before))

    def _extend(self, entries: Iterable[Any], ids: Any = None) -> None:
        """Add one entry for each row, and the ids that `add` was given."""
        # A copy of an array, because the caller may reuse the memory of which rows are views.
        entries = list(entries.copy() if isinstance(entries, np.ndarray) else entries)
        checked = self._ids.check(ids, len(entries), len(self._results))
        self._results.extend(entries)
        self._ids.add(checked)

    def reset_to_sums(self) -> None:
        """Remove every entry; a metric that can keeps only sums from now on."""
        self.reset()

    def _fresh(self) -> Any:
        """Return an empty container of entries."""
        return []

    def _state(self) -> Any:
        """Return what was added, to be sent."""
        return self._ids.all() if self._ids.samples else None, *pack(self._results)

    def _merged(self, states: Sequence[Any], size: int | None = None, mode: str = "cat") -> Any:
        """Compute over what `_state` returned on ranks or for parts, in this process alone."""
        entries = [unpack(form, packed) for _, form, packed in states]
        ids = [sent for sent, *_ in states]
        if any(sent is not None for sent in ids):
            return self.compute_metric(merge(entries, [sent or NO_IDS for sent in ids], size))
        return self.compute_metric(in_order(entries, mode)[:size])

    def _counted(self) -> tuple[int, Certificate | None]:
        """Return the number of rows, and the proof of their samples; None if these have no ids."""
        return len(self._results), certify(self._ids.all().ids) if self._ids.samples else None

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
    _results: Column

    @abstractmethod
    def sums_of(self, column: Rows) -> Sums:
        """Sum rows exactly into an array of integers that can be added and subtracted.

        The array has one axis or more, and the same shape for any number of rows.
        """

    @abstractmethod
    def from_sums(self, sums: Sums, size: int) -> Any:
        """Turn the sums over all ``size`` rows, 1 or more, into the result; on every rank."""

    def compute_metric(self, results: Any) -> Any:
        """Compute over the rows of all samples."""
        column = np.asarray(results)
        return self.from_sums(self.sums_of(column), len(column))

    def reset_to_sums(self) -> None:
        """Remove every row, and keep only the sums of rows that are added before the next reset.

        Then memory does not grow with the number of samples, but `compute` can't drop any.
        """
        self.reset()
        self._results = Column(keeps_rows=False)

    def _append(self, column: Rows, ids: Any = None) -> None:
        """Add one row for each sample, and the ids that `add` was given."""
        checked = self._ids.check(ids, len(column), len(self._results))
        self._results.append(column, self.sums_of)
        self._ids.add(checked)

    def _append_later(self, length: int, bring: Bring, ids: Any = None) -> None:
        """Add ``length`` rows that a device is still computing, which ``bring`` waits for."""
        checked = self._ids.check(ids, length, len(self._results))
        context = copy_context()  # so that a late error names the samples of its own batch
        self._results.append_later(length, lambda: context.run(bring), self.sums_of)
        self._ids.add(checked)

    def _fresh(self) -> Any:
        return Column()

    def _state(self) -> Any:
        return len(self._results), sendable(self._results.sums(self.sums_of))

    def _merged(self, states: Sequence[Any], size: int | None = None, mode: str = "cat") -> Any:
        lengths, sums = zip(*states, strict=True)
        if sum(lengths) == 0:
            raise no_samples()
        return self.from_sums(as_array(reduce(add_sums, sums)), sum(lengths))

    def _steps(self, backend: BaseDistBackend, size: int | None) -> Steps:
        do, rank = f"sum up {type(self).__name__}", backend.rank

        def some(rows: Any) -> Any:
            number = rows if isinstance(rows, int) else int(np.count_nonzero(rows))
            return number, sendable(self._results.sums(self.sums_of, rows))

        def each_once(mask: Any, repeated: Any) -> Any:
            lengths = self._ids.all().rows
            values = rows_of(self._results.rows(self.sums_of), lengths, repeated)
            return some(np.repeat(mask, lengths)), [rows.tolist() for rows in values]

        sent = yield do, lambda: (self._state(), self._counted())
        states: Sequence[Any] = [state for state, _ in sent]
        lengths, proofs = zip(*(counted for _, counted in sent), strict=True)
        if all_have_ids(lengths, proofs):
            if size is None or not prove([proof for proof in proofs if proof], size):
                once = Once((yield do, lambda: self._ids.all().ids), size)
                sent = yield do, lambda: each_once(*once.of_rank(rank))
                once.compare([*chain.from_iterable(values for _, values in sent)])
                states = [state for state, _ in sent]
        else:
            check_collected(size, sum(lengths))
            if size is not None and size < sum(lengths):
                mode = self.dist_collect_mode
                states = yield do, lambda: some(kept_rows(lengths, rank, mode, size))
        return self._merged(states)


def compute_together(
    backend: BaseDistBackend,
    metrics: Sequence[BaseMetric],
    size: int | None,
    digest: bytes,
    check: Check,
) -> list[Any]:
    """Compute several metrics in shared collectives, with the errors of `BaseMetric.compute`.

    Args:
        backend: The backend that carries sums and entries.
        metrics: The metrics, the same ones on every rank.
        size: The samples in the data set, see `BaseMetric.compute`.
        digest: What must be the same on every rank, and is sent along with the first sums.
        check: Gets every rank's digest, before anything else is sent or computed.

    Returns:
        The results, in the order of ``metrics``.
    """
    running = [_begin(size, digest, check), *(metric._steps(backend, size) for metric in metrics)]
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


def _begin(size: int | None, digest: bytes, check: Check) -> Steps:
    sent = yield "begin", lambda: (size, digest)
    sizes, digests = zip(*sent, strict=True)
    check(digests)
    if sizes.count(sizes[0]) != len(sizes):
        raise UsageError(f"ranks called compute with different sizes: {[*sizes]}, by rank")
    if size is not None:
        check_count("size", size, 0)


def _naming_samples(add: Callable[..., None]) -> Callable[..., None]:
    @wraps(add)
    def named(metric: BaseMetric, *args: Any, **kwargs: Any) -> None:
        with naming(type(metric).__name__, kwargs.get("ids")):
            add(metric, *args, **kwargs)

    return named


def check_collected(size: int | None, collected: int) -> None:
    """Raise UsageError if all ranks together added fewer samples than ``size``."""
    if size is not None and size > collected:
        raise UsageError(
            f"size={size}, but all ranks together added {collected} samples: "
            f"{size - collected} are missing"
        )


def describe_settings(metric: object, attributes: Mapping[str, Any]) -> str:
    """Return the class of a metric and its settings, equal for metrics that can be added up.

    Settings are public attributes with plain values, arrays or metrics.
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
