"""What a worker does: it builds the runner, keeps it, and carries out the estimator's orders.

The public functions are run on every worker by `disteval.worlds.World.run`, all at once.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from disteval.contract import BaseDistBackend
from disteval.errors import CoverageError, UsageError, WeightsError
from disteval.estimator import rng
from disteval.estimator.checkpoint import (
    FORMAT,
    MAX_FILE_BYTES,
    check_plain,
    checkpoints,
    read_checkpoint,
)
from disteval.estimator.creators import Source
from disteval.estimator.distributed import inner
from disteval.estimator.loaders import deal, places_of
from disteval.estimator.records import Record
from disteval.estimator.trainee import Trainee, trainee_of
from disteval.estimator.validation import evaluating
from disteval.metrics.base import BaseMetric
from disteval.models.torch_files import read_torch_file
from disteval.worlds import report_progress, send_note

_FIT = "fit"  # the key in a runner's meta


@dataclass(frozen=True)
class Setup:
    """What a worker begins with; see `disteval.estimator.Estimator`."""

    runner: Source
    config: dict[str, Any]
    seed: int
    on_gpu: bool


@dataclass(frozen=True)
class Fit:
    """What to train; see `disteval.estimator.Estimator.fit`.

    Attributes:
        sources: One for each entry of the workflow.
        workflow: See there.
        max_epochs: See there.
        token: Is written into checkpoints, to tell those of this fit from others in their folder.
        records: How many were told already, by workers that were lost.
    """

    sources: Sequence[Source]
    workflow: Sequence[tuple[str, int]]
    max_epochs: int | None
    token: str
    records: int = 0


@dataclass
class Worker:
    """What a worker keeps between orders.

    Attributes:
        setup: What it began with.
        trainee: The runner.
        loaders: Its shares, by the creator's key and whether they are for training.
    """

    setup: Setup
    trainee: Trainee
    loaders: dict[tuple[int, bool], DataLoader] = field(default_factory=dict)

    def loader(self, backend: BaseDistBackend, source: Source, training: bool) -> DataLoader:
        """Return this worker's share of a source; the same one each time."""
        key = (source.key, training)
        if key not in self.loaders:
            made = source.call(self.setup.config)
            try:
                self.loaders[key] = deal(made, backend, training, self.setup.seed)
            except UsageError as error:
                raise UsageError(f"{source.name}: {error}") from error
        return self.loaders[key]


_worker: Worker | None = None


def prepare(backend: BaseDistBackend, setup: Setup) -> None:
    """Create the runner, and distribute its model.

    Raises:
        UsageError: The creator raised, or returned no runner.
    """
    global _worker
    # Alike on all workers while the model is initialised; different from then on.
    rng.derive(setup.seed, 0, 0)
    runner = setup.runner.call(setup.config)
    if setup.on_gpu and hasattr(runner, "model"):
        inner(runner.model).cuda()
    _worker = Worker(setup, trainee_of(runner, backend, setup.seed))
    rng.derive(setup.seed, 0, 1 + backend.rank)


def fit(backend: BaseDistBackend, order: Fit) -> None:
    """Run the workflow; rank 0 tells each record as soon as it is there."""
    worker = _prepared()
    phases = [
        (source, mode == "train")
        for source, (mode, _) in zip(order.sources, order.workflow, strict=True)
    ]
    loaders = [worker.loader(backend, source, training) for source, training in phases]
    wanted = {(source.key, training) for source, training in phases}
    worker.loaders = {key: loader for key, loader in worker.loaders.items() if key in wanted}
    told: dict[str, Any] = {"token": order.token, "records": order.records}
    worker.trainee.meta[_FIT] = told

    def on_record(record: Record) -> None:
        told["records"] += 1
        if backend.rank == 0:
            send_note(record)

    worker.trainee.on_record = on_record
    worker.trainee.run(loaders, list(order.workflow), order.max_epochs)


def evaluate(
    backend: BaseDistBackend, order: tuple[Source, Mapping[str, BaseMetric] | None]
) -> Record:
    """Evaluate, and see to it that every sample was counted.

    Raises:
        CoverageError: On every rank, when steps told of more or fewer samples than there are.
    """
    worker, (source, metrics) = _prepared(), order
    loader = worker.loader(backend, source, training=False)
    record = worker.trainee.evaluate(_Beating(loader), metrics)
    size = len(loader.dataset) if hasattr(loader.dataset, "__len__") else record["num_samples"]
    if record["num_samples"] != size:
        raise CoverageError(
            f"{source.name} has {size} samples, but the model's steps counted "
            f"{record['num_samples']}; look at the num_samples that val_step returns"
        )
    return record


def predict(backend: BaseDistBackend, source: Source) -> tuple[list[int], Any]:
    """Compute the model's output for this worker's share.

    Returns:
        The place of each sample in the data set; and an array, or a list where the model's steps
        return something else, with an entry for each.

    Raises:
        UsageError: Steps return no output, or not as many rows as there are samples.
    """
    worker = _prepared()
    loader = worker.loader(backend, source, training=False)
    model = worker.trainee.model
    with evaluating(model, backend):
        batches = [_on_host(worker.trainee.outputs(batch)) for batch in _Beating(loader)]
    rows: Any = [row for batch in batches for row in batch]
    if batches and all(isinstance(batch, np.ndarray) for batch in batches):
        rows = np.concatenate(batches)
    places = places_of(loader)
    if places is None:
        places = list(range(len(rows)))
    if len(places) != len(rows):
        raise UsageError(
            f"{type(model).__name__} returned {len(rows)} rows for {len(places)} samples; its "
            f"predict_step, or the scores of its val_step, must have one for each"
        )
    return places, rows


def save(backend: BaseDistBackend) -> bytes | None:
    """Pack all that training goes on from; on rank 0."""
    state = _prepared().trainee.state_dict()
    if backend.rank > 0:
        return None
    check_plain(state, "the runner's state")
    file = io.BytesIO()
    torch.save({"format": FORMAT, **state}, file)
    return file.getvalue()


def load(backend: BaseDistBackend, data: bytes) -> None:
    """Take what `save` packed, on any number of workers."""
    state = read_torch_file(io.BytesIO(data), "the saved state", MAX_FILE_BYTES, "save it again")
    _prepared().trainee.resume(state)


def restore(backend: BaseDistBackend, order: tuple[str, bytes]) -> tuple[int, str]:
    """Go back to where a fit can go on, after its workers were lost.

    Args:
        backend: The workers'.
        order: The fit's token, and what `save` packed before it began.

    Returns:
        How many records were told when the checkpoint was written; and its name, empty for the
        fit's beginning.
    """
    token, beginning = order
    found: tuple[str, int, bytes] | None = None
    if backend.rank == 0:  # the folder may be on this worker's disk alone
        found = _last_checkpoint(_prepared().trainee, token)
    name, records, data = backend.broadcast_object(found) or ("", 0, beginning)
    load(backend, data)
    return records, name


def get_model(backend: BaseDistBackend) -> torch.nn.Module | None:
    """Return a copy of the model, on the CPU and ready to evaluate; on rank 0."""
    if backend.rank > 0:
        return None
    return copy.deepcopy(_prepared().trainee.model).cpu().eval()


class _Beating:
    """A loader that tells the estimator of each batch."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self.dataset = loader.dataset

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        total = len(self._loader)
        for done, batch in enumerate(self._loader, start=1):
            yield batch
            report_progress(done, total)


def _prepared() -> Worker:
    assert _worker is not None, "the estimator prepares its workers before anything else"
    return _worker


def _last_checkpoint(trainee: Trainee, token: str) -> tuple[str, int, bytes] | None:
    """Find the last whole checkpoint of one fit: its name, its count of records, and itself."""
    for path in (path for folder in trainee.folders() for path in reversed(checkpoints(folder))):
        try:
            told = read_checkpoint(path).get("meta", {}).get(_FIT, {})
        except WeightsError:  # damaged since it was written; the one before will do
            continue
        if told.get("token") == token:
            return path.name, told["records"], path.read_bytes()
    return None


def _on_host(outputs: Any) -> Any:
    return outputs.cpu().numpy() if isinstance(outputs, torch.Tensor) else outputs
