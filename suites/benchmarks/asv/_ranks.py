"""The functions that ranks run in benchmarks: they warm up, measure, and verify results.

Ranks can't import this module, since asv gives the folder a name of its own; so its functions
travel by value.
"""

from __future__ import annotations

import ctypes
import importlib
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
from disteval import Leases, evaluate, frames, get_dist_backend
from disteval.contract import BaseDistBackend
from disteval.data import ArrayDataset, load_cifar10, load_embedded
from disteval.metrics import Accuracy, Mean
from disteval.models import default_weights
from disteval.world import report_progress

if TYPE_CHECKING:
    from disteval.audit import Case  # older commits, which are measured too, have none

cloudpickle.register_pickle_by_value(sys.modules[__name__])

BATCH_SIZE = 128


def times_of(
    backend: BaseDistBackend,
    operation: Callable[[], Any],
    check: Callable[[Any], None],
    rounds: int,
) -> list[float]:
    """Return the seconds of each of ``rounds`` calls of an operation, after two calls to warm up.

    Ranks meet before each call and after it, so that no clock counts what another rank does in
    between, such as checking what the call returned.
    """
    seconds = []
    for _ in range(rounds + 2):
        backend.all_gather_object(None)
        begin = time.perf_counter()
        result = operation()
        seconds.append(time.perf_counter() - begin)
        backend.all_gather_object(None)
        check(result)
    return seconds[2:]


def gather(backend: BaseDistBackend, work: tuple[int, int]) -> list[float]:
    """Return the seconds of an all-gather of an array from each rank, for each round."""
    size, rounds = work
    mine = np.full(size, backend.rank, dtype=np.uint8)

    def check(arrays: list[Any]) -> None:
        if len(arrays) != backend.world_size:
            raise AssertionError(f"{backend.world_size} ranks sent, {len(arrays)} arrays came")
        for rank, array in enumerate(arrays):
            _check_array(array, size, rank)

    return times_of(backend, lambda: backend.all_gather_object(mine), check, rounds)


def broadcast(backend: BaseDistBackend, work: tuple[int, int]) -> list[float]:
    """Return the seconds of a broadcast of an array from the last rank, for each round."""
    size, rounds = work
    src = backend.world_size - 1
    mine = np.full(size, src, dtype=np.uint8) if backend.rank == src else None
    return times_of(
        backend,
        lambda: backend.broadcast_object(mine, src),
        lambda array: _check_array(array, size, src),
        rounds,
    )


def _check_array(array: Any, size: int, rank: int) -> None:
    if len(array) != size or not (array == rank).all():
        raise AssertionError(f"rank {rank} sent {size} bytes of {rank}, but {array!r} came")


class CountingBackend(BaseDistBackend):
    """A backend that counts the bytes of the frames that this rank sends over another backend.

    Args:
        inner: Moves the objects.
    """

    def __init__(self, inner: BaseDistBackend) -> None:
        self.inner = inner
        self.sent = 0

    @property
    def is_initialized(self) -> bool:
        return self.inner.is_initialized

    @property
    def rank(self) -> int:
        return self.inner.rank

    @property
    def world_size(self) -> int:
        return self.inner.world_size

    def all_gather_object(self, obj: Any) -> list[Any]:
        self.sent += len(frames.encode(obj))
        return self.inner.all_gather_object(obj)

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        if self.rank == src:
            self.sent += len(frames.encode(obj))
        return self.inner.broadcast_object(obj, src)


def compute_seconds(backend: BaseDistBackend, work: tuple[int, int]) -> list[float]:
    """Return the seconds of `Accuracy.compute` for each round."""
    samples, rounds = work
    metric, size, right = _strided_accuracy(backend, samples)
    return times_of(
        backend, lambda: metric.compute(size), lambda found: _check_right(found, right), rounds
    )


def compute_bytes(backend: BaseDistBackend, samples: int) -> int:
    """Return the bytes that this rank sends in one `Accuracy.compute`."""
    counting = CountingBackend(backend)
    metric, size, right = _strided_accuracy(counting, samples)
    _check_right(metric.compute(size), right)
    return counting.sent


def _strided_accuracy(backend: BaseDistBackend, samples: int) -> tuple[Accuracy, int, int]:
    """Return a filled metric, the size to compute, and the number of right samples.

    Every third sample is wrong, and the last one of the last rank is padding.
    """
    size = samples * backend.world_size - 1
    index = np.arange(samples) * backend.world_size + backend.rank
    labels = np.zeros(samples, dtype=np.int64)
    metric = Accuracy(dist_backend=backend, counts=True)
    metric.add((index % 3 == 0).astype(np.int64), labels)
    return metric, size, size - -(-size // 3)


def _check_right(found: dict[str, Any], right: int) -> None:
    if found["correct_top1"] != right:
        raise AssertionError(f"{right} samples are right, but {found} was computed")


def evaluation_seconds(
    backend: BaseDistBackend, work: tuple[str, str, str | None, int, int]
) -> list[float]:
    """Return the seconds that ResNet-18 takes for a picture in each round.

    ``root`` is a folder with CIFAR-10, or None for the embedded data set, of which the first
    ``size`` pictures are evaluated.
    """
    framework, device, root, size, rounds = work
    dataset = load_embedded() if root is None else load_cifar10(root)
    dataset = replace(dataset, images=dataset.images[:size], labels=dataset.labels[:size])
    model = importlib.import_module(f"disteval.models.resnet18_{framework}")
    predict = model.make_predict(default_weights(), device)
    right = _right_by_hand(predict, dataset)
    seconds = []
    for _ in range(rounds + 1):
        metric = Accuracy(counts=True)
        result = evaluate(
            predict, dataset, {"accuracy": metric}, backend, BATCH_SIZE, progress=report_progress
        )
        _check_right(result.metrics["accuracy"], right)
        seconds.append(1 / result.samples_per_second)
    return seconds[1:]


def schedule_seconds(backend: BaseDistBackend, work: tuple[str, int, int]) -> list[float]:
    """Return the seconds of an evaluation of batches of one sample, in each round."""
    schedule, batches, rounds = work
    leases = Leases() if schedule == "leases" else None
    samples = np.arange(batches, dtype=np.float64)
    seconds = []
    for _ in range(rounds + 1):
        metrics = {"mean": Mean()}
        backend.all_gather_object(None)
        begin = time.perf_counter()
        result = evaluate(
            lambda batch: batch, samples, metrics, backend, 1,
            update=lambda outputs, _: (outputs,), leases=leases,
        )  # fmt: skip
        seconds.append(time.perf_counter() - begin)
        if result.metrics["mean"]["mean"] != (batches - 1) / 2:
            raise AssertionError(f"the mean of 0 to {batches - 1} is not {result.metrics['mean']}")
    return seconds[1:]


def _right_by_hand(predict: Callable[[Any], Any], dataset: ArrayDataset) -> int:
    """Count right predictions without `evaluate`, in batches of the same size."""
    right = 0
    for start in range(0, len(dataset), BATCH_SIZE):
        images = dataset.images[start : start + BATCH_SIZE]
        labels = dataset.labels[start : start + BATCH_SIZE]
        scores = predict(np.resize(images, (BATCH_SIZE, *images.shape[1:])))
        scores = np.asarray(scores.cpu() if hasattr(scores, "cpu") else scores)
        right += int((scores[: len(labels)].argmax(axis=1) == labels).sum())
    return right


def gather_peak_bytes(backend: BaseDistBackend, size: int) -> int:
    """Return the bytes by which one all-gather raises the peak memory of this process."""
    # Libraries allocate for good when they are first used; but the allocator would keep what a
    # large array leaves, and the peak would not show the next one.
    gather(backend, (1, 1))
    mine = np.full(size, backend.rank, dtype=np.uint8)
    backend.all_gather_object(None)
    before = _forget_peak()
    arrays = backend.all_gather_object(mine)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for rank, array in enumerate(arrays):
        _check_array(array, size, rank)
    return peak - before


def count_once(case: Case) -> dict[str, int]:
    """Count each sample of an audit on one rank, and add up the counts of all ranks."""
    mine = len(range(case.rank, len(case.dataset), case.world_size))
    return {"count": sum(get_dist_backend().all_gather_object(mine))}


def _forget_peak() -> int:
    """Reset the peak memory of this process to its present memory (Linux), and return the bytes."""
    # Memory that was freed but not returned would be used again, and no peak would show it.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
