"""The functions that an estimator runs on each rank: they build the runner, keep it and use it.

`disteval.worlds.World.run` runs each of them on all ranks at once.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from disteval.contract import BaseDistBackend
from disteval.errors import CoverageError, UsageError, WeightsError
from disteval.estimator import rng, steps
from disteval.estimator.checkpoint import (
    FORMAT,
    MAX_FILE_BYTES,
    check_plain,
    checkpoints,
    read_checkpoint,
)
from disteval.estimator.creators import Source
from disteval.estimator.distributed import averages_gradients, distribute, inner
from disteval.estimator.hooks import CheckpointHook, EvalHook
from disteval.estimator.loaders import places_of, split
from disteval.estimator.records import Record
from disteval.estimator.runner import BaseRunner
from disteval.estimator.validation import evaluating, validate
from disteval.metrics.base import BaseMetric
from disteval.models.torch_files import read_torch_file
from disteval.worlds import report_progress, send_note

_FIT = "fit"  # the key in a runner's meta


@dataclass(frozen=True)
class Setup:
    """The arguments of an estimator that its ranks need; see `disteval.estimator.Estimator`."""

    runner: Source
    config: dict[str, Any]
    seed: int
    device: str


@dataclass(frozen=True)
class Fit:
    """The arguments of a fit; see `disteval.estimator.Estimator.fit`.

    Attributes:
        sources: The creator of the loader for each entry of the workflow.
        workflow: The workflow.
        max_epochs: The epoch at which training ends, if it is given.
        token: A mark in checkpoints, which distinguishes this fit's from others in their folder.
        records: The number of records that ranks which were lost have sent.
    """

    sources: Sequence[Source]
    workflow: Sequence[tuple[str, int]]
    max_epochs: int | None
    token: str
    records: int = 0


@dataclass
class _Kept:
    """The objects that a rank keeps between calls.

    Attributes:
        setup: The arguments of the estimator.
        runner: The runner, whose model is wrapped for several ranks.
        loaders: This rank's shares, by the creator's key and whether they are for training.
    """

    setup: Setup
    runner: BaseRunner
    loaders: dict[tuple[int, bool], DataLoader] = field(default_factory=dict)

    def loader(self, backend: BaseDistBackend, source: Source, training: bool) -> DataLoader:
        """Return this rank's share of a source, the same object each time."""
        key = (source.key, training)
        if key not in self.loaders:
            made = source.call(self.setup.config)
            try:
                self.loaders[key] = split(made, backend, training, self.setup.seed)
            except UsageError as error:
                raise UsageError(f"{source.name}: {error}") from error
        return self.loaders[key]


_current: _Kept | None = None


def prepare(backend: BaseDistBackend, setup: Setup) -> None:
    """Create the runner, and wrap its model for several ranks.

    Raises:
        UsageError: The creator raised, or its result is not a runner with a torch module.
    """
    global _current
    # All ranks draw the same numbers while the model is initialised, and different ones afterwards.
    rng.derive(setup.seed, 0, 0)
    runner = setup.runner.call(setup.config)
    if not isinstance(runner, BaseRunner):
        raise UsageError(
            f"runner_creator returned a {type(runner).__name__}; it must return an "
            f"EpochBasedRunner or an IterBasedRunner"
        )
    if not isinstance(runner.model, torch.nn.Module):
        raise UsageError(
            f"the runner's model is a {type(runner.model).__name__}; it must be a torch.nn.Module"
        )
    if setup.device == "cuda":
        inner(runner.model).cuda()
    if backend.world_size > 1 and not averages_gradients(runner.model):
        if hasattr(runner.model, "train_step"):
            runner.model = distribute(runner.model)
        elif runner.batch_processor is not None:
            runner.model = DistributedDataParallel(runner.model)
    runner.backend = backend
    runner.on_progress = report_progress
    runner.meta.setdefault("seed", setup.seed)
    for hook in runner.hooks:
        if isinstance(hook, EvalHook) and isinstance(hook.dataloader, DataLoader):
            hook.dataloader = split(hook.dataloader, backend, False, setup.seed)
    _current = _Kept(setup, runner)
    rng.derive(setup.seed, 0, 1 + backend.rank)


def fit(backend: BaseDistBackend, order: Fit) -> None:
    """Run the workflow; rank 0 sends each record as soon as it is made."""
    kept = _prepared()
    phases = [
        (source, mode == "train")
        for source, (mode, _) in zip(order.sources, order.workflow, strict=True)
    ]
    loaders = [kept.loader(backend, source, training) for source, training in phases]
    wanted = {(source.key, training) for source, training in phases}
    kept.loaders = {key: loader for key, loader in kept.loaders.items() if key in wanted}
    sent: dict[str, Any] = {"token": order.token, "records": order.records}
    kept.runner.meta[_FIT] = sent

    def on_record(record: Record) -> None:
        sent["records"] += 1
        if backend.rank == 0:
            send_note(record)

    kept.runner.on_record = on_record
    kept.runner.run(loaders, list(order.workflow), order.max_epochs)


def evaluate(
    backend: BaseDistBackend, order: tuple[Source, Mapping[str, BaseMetric] | None]
) -> Record:
    """Evaluate, and check that every sample was counted.

    Raises:
        CoverageError: On every rank, when steps counted more or fewer samples than there are.
    """
    kept, (source, metrics) = _prepared(), order
    loader = kept.loader(backend, source, training=False)
    record = validate(kept.runner, loader, metrics)
    size = len(loader.dataset) if hasattr(loader.dataset, "__len__") else record["num_samples"]
    if record["num_samples"] != size:
        raise CoverageError(
            f"{source.name} has {size} samples, but the model's steps counted "
            f"{record['num_samples']}; look at the num_samples that val_step returns"
        )
    return record


def predict(backend: BaseDistBackend, source: Source) -> tuple[list[int], Any]:
    """Compute the model's output for this rank's share.

    Returns:
        The place of each sample in the data set; and an array with a row for each, or a list where
        the model's steps do not return tensors.

    Raises:
        UsageError: Steps return no output, or not as many rows as there are samples.
    """
    kept = _prepared()
    loader = kept.loader(backend, source, training=False)
    model = inner(kept.runner.model)
    with evaluating(model, backend):
        batches = [_on_host(_outputs(kept.runner, batch)) for batch in _reporting(loader)]
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
    """Return the whole state as bytes on rank 0; every rank must call this."""
    state = _prepared().runner.state_dict()
    if backend.rank > 0:
        return None
    check_plain(state, "the runner's state")
    file = io.BytesIO()
    torch.save({"format": FORMAT, **state}, file)
    return file.getvalue()


def load(backend: BaseDistBackend, data: bytes) -> None:
    """Take the result of `save`, on any number of ranks."""
    state = read_torch_file(io.BytesIO(data), "the saved state", MAX_FILE_BYTES, "save it again")
    _prepared().runner.resume(state)


def restore(backend: BaseDistBackend, order: tuple[str, bytes]) -> tuple[int, str]:
    """Go back to the last checkpoint of a fit, after its ranks were lost.

    Args:
        backend: The backend of the new ranks.
        order: The fit's token, and the result of `save` before it began.

    Returns:
        The number of records that had been sent when the checkpoint was written; and its name, an
        empty one for the fit's beginning.
    """
    token, beginning = order
    found: tuple[str, int, bytes] | None = None
    if backend.rank == 0:  # the folder may be on this rank's disk alone
        found = _last_checkpoint(_prepared().runner, token)
    name, records, data = backend.broadcast_object(found) or ("", 0, beginning)
    load(backend, data)
    return records, name


def get_model(backend: BaseDistBackend) -> torch.nn.Module | None:
    """Return a copy of the model on rank 0, on the CPU and ready to evaluate."""
    if backend.rank > 0:
        return None
    return copy.deepcopy(inner(_prepared().runner.model)).cpu().eval()


def _prepared() -> _Kept:
    assert _current is not None, "the estimator calls prepare() on its ranks before anything else"
    return _current


def _outputs(runner: BaseRunner, batch: Any) -> Any:
    """Return the result of the model's ``predict_step``, else the scores of its ``val_step``."""
    model = inner(runner.model)
    if hasattr(model, "predict_step"):
        return model.predict_step(batch)
    stepped = steps.val_step(runner, batch)
    if "scores" not in stepped:
        raise UsageError(
            f"{type(model).__name__} has no predict_step(data), and its val_step returned no "
            f"scores; add one of them"
        )
    return stepped["scores"]


def _reporting(loader: DataLoader) -> Iterator[Any]:
    """Yield batches, and report each one to the estimator."""
    for done, batch in enumerate(loader, start=1):
        yield batch
        report_progress(done, len(loader))


def _last_checkpoint(runner: BaseRunner, token: str) -> tuple[str, int, bytes] | None:
    """Return the name, the number of records and the bytes of a fit's last whole checkpoint."""
    hooks = [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]
    folders = dict.fromkeys(hook.out_dir or runner.work_dir for hook in hooks)
    for folder in (Path(folder) for folder in folders if folder is not None):
        for path in reversed(checkpoints(folder)):
            try:
                kept = read_checkpoint(path).get("meta", {}).get(_FIT, {})
            except WeightsError:  # damaged since it was written; an earlier one will do
                continue
            if kept.get("token") == token:
                return path.name, kept["records"], path.read_bytes()
    return None


def _on_host(outputs: Any) -> Any:
    return outputs.cpu().numpy() if isinstance(outputs, torch.Tensor) else outputs
