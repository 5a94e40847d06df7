"""The runner on each rank, and the orders of an estimator that it carries out.

`disteval.world.World.run` calls `prepare`, and then each `Order`, on all ranks at once.
"""

from __future__ import annotations

import copy
import io
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from disteval.contract import BaseDistBackend
from disteval.errors import CoverageError, UsageError
from disteval.estimator import rng, steps
from disteval.estimator.checkpoint import read_checkpoint, read_state, save_state
from disteval.estimator.creators import Source
from disteval.estimator.distributed import averages_gradients, distribute, inner
from disteval.estimator.folder import entries, set_aside
from disteval.estimator.hooks import CheckpointHook, EvalHook
from disteval.estimator.loaders import places_of, split
from disteval.estimator.records import Record
from disteval.estimator.runner import BaseRunner
from disteval.metrics.base import BaseMetric
from disteval.world import report_progress, send_note

_FIT = "fit"  # the key in a runner's meta


class _Lines(logging.Handler):
    """Sends log lines to the estimator, which shows them."""

    def emit(self, record: logging.LogRecord) -> None:
        send_note((record.levelno, record.getMessage()))


class Trainee:
    """The runner of a rank and the loaders that were made for it.

    Each public method carries out an order of the estimator, on all ranks at once.

    Raises:
        UsageError: The creator raised, or its result is not a runner with a torch module.
    """

    def __init__(
        self,
        backend: BaseDistBackend,
        creator: Source,
        config: dict[str, Any],
        seed: int,
        device: str,
    ) -> None:
        self._backend = backend
        self._config = config
        self._seed = seed
        self._loaders: dict[tuple[int, bool], DataLoader] = {}
        # All ranks draw the same numbers while the model is initialised, and others afterwards.
        rng.derive(seed, 0, 0)
        self._runner = runner = creator.call(config)
        if not isinstance(runner, BaseRunner):
            raise UsageError(
                f"runner_creator returned a {type(runner).__name__}; it must return an "
                f"EpochBasedRunner or an IterBasedRunner"
            )
        model = runner.model
        if not isinstance(model, torch.nn.Module):
            raise UsageError(
                f"the runner's model is a {type(model).__name__}; it must be a torch.nn.Module"
            )
        if device == "cuda":
            inner(model).cuda()
        if backend.world_size > 1 and not averages_gradients(model):
            if hasattr(model, "train_step"):
                runner.model = distribute(model)
            elif runner.batch_processor is not None:
                runner.model = DistributedDataParallel(model)
        runner.backend = backend
        runner.on_progress = report_progress
        runner.meta.setdefault("seed", seed)
        if backend.rank == 0 and not runner.logger.handlers:
            runner.logger.addHandler(_Lines())
            runner.logger.setLevel(runner.logger.level or logging.INFO)
        for hook in runner.hooks:
            if isinstance(hook, EvalHook) and isinstance(hook.dataloader, DataLoader):
                hook.dataloader = split(hook.dataloader, backend, False, seed)
        rng.derive(seed, 0, 1 + backend.rank)

    def fit(
        self,
        sources: Sequence[Source],
        workflow: list[tuple[str, int]],
        max_epochs: int | None,
        token: str,
        records: int,
    ) -> None:
        """Run the workflow; rank 0 sends each record as soon as it is made.

        Checkpoints get the fit's ``token``, and count the ``records`` from those that were sent by
        ranks which were lost.
        """
        modes = [mode == "train" for mode, _ in workflow]
        phases = list(zip(sources, modes, strict=True))
        loaders = [self._loader(source, training) for source, training in phases]
        wanted = {(source.key, training) for source, training in phases}
        self._loaders = {key: self._loaders[key] for key in wanted}
        sent: dict[str, Any] = {"token": token, "records": records}
        self._runner.meta[_FIT] = sent

        def on_record(record: Record) -> None:
            sent["records"] += 1
            if self._backend.rank == 0:
                send_note(record)

        self._runner.on_record = on_record
        self._runner.run(loaders, workflow, max_epochs)

    def evaluate(self, source: Source, metrics: Mapping[str, BaseMetric] | None) -> Record:
        """Evaluate, and raise CoverageError unless every sample was counted once."""
        loader = self._loader(source, training=False)
        record = steps.validate(self._runner, loader, metrics)
        counted = record["num_samples"]
        size = len(loader.dataset) if hasattr(loader.dataset, "__len__") else counted
        if counted != size:
            raise CoverageError(
                f"{source.name} has {size} samples, but the model's steps counted {counted}; look "
                f"at the num_samples that val_step returns"
            )
        return record

    def predict(self, source: Source) -> tuple[list[int], Any]:
        """Compute the model's output for this rank's share.

        Returns:
            The place of each sample in the data set; and an array with a row for each, or a list
            where the model's steps do not return tensors.
        """
        loader = self._loader(source, training=False)
        model = inner(self._runner.model)
        if self._backend.world_size > 1 and isinstance(loader.dataset, IterableDataset):
            raise UsageError(
                f"{source.name} has an iterable data set, and nothing says which of its places "
                f"belong to each of {self._backend.world_size} ranks; give a data set with "
                f"__getitem__, or predict with world_size=1"
            )
        batches: list[Any] = []
        with steps.evaluating(model, self._backend):
            for done, batch in enumerate(loader, start=1):
                batches.append(_rows(model, self._output(model, batch)))
                report_progress(done, len(loader))
        rows: Any = [row for batch in batches for row in batch]
        places = places_of(loader, len(rows))
        if len(places) != len(rows):
            raise UsageError(
                f"{type(model).__name__} returned {len(rows)} rows for {len(places)} samples; its "
                f"predict_step, or the scores of its val_step, must have one for each"
            )
        if batches and all(isinstance(batch, np.ndarray) for batch in batches):
            rows = joined(batches)
        return places, rows

    def save(self) -> bytes | None:
        """Return the whole state as bytes on rank 0."""
        state = self._runner.state_dict()
        if self._backend.rank > 0:
            return None
        file = io.BytesIO()
        save_state(state, file)
        return file.getvalue()

    def load(self, data: bytes) -> None:
        """Take the result of `save`, on any number of ranks."""
        self._runner.resume(read_state(io.BytesIO(data), "the saved state", "save it again"))

    def restore(self, token: str, beginning: bytes) -> tuple[int, str]:
        """Go back to the last checkpoint of a fit, or to its beginning, after ranks were lost.

        Returns:
            The number of records that had been sent when the checkpoint was written; and its name,
            an empty one for the fit's beginning.
        """
        self.load(beginning)
        found: tuple[str, int, bytes] | None = None
        if self._backend.rank == 0:  # the folder may be on this rank's disk alone
            found = self._last_checkpoint(token)
        name, records, data = self._backend.broadcast_object(found) or ("", 0, None)
        if data is not None:
            self.load(data)
        return records, name

    def get_model(self) -> torch.nn.Module | None:
        """Return a copy of the model on rank 0, on the CPU and ready to evaluate."""
        if self._backend.rank > 0:
            return None
        return copy.deepcopy(inner(self._runner.model)).cpu().eval()

    def _loader(self, source: Source, training: bool) -> DataLoader:
        """Return this rank's share of a source, the same object each time."""
        key = (source.key, training)
        if key not in self._loaders:
            made = source.call(self._config)
            try:
                self._loaders[key] = split(made, self._backend, training, self._seed)
            except UsageError as error:
                raise UsageError(f"{source.name}: {error}") from error
        return self._loaders[key]

    def _output(self, model: Any, batch: Any) -> Any:
        if hasattr(model, "predict_step"):
            return model.predict_step(batch)
        outputs = steps.step(self._runner, batch, train=False)
        if "scores" not in outputs:
            raise UsageError(
                f"{type(model).__name__} has no predict_step(data), and its val_step returned no "
                f"scores; add one of them"
            )
        return outputs["scores"]

    def _last_checkpoint(self, token: str) -> tuple[str, int, bytes] | None:
        """Return the name, the number of records and the bytes of a fit's last checkpoint.

        Newer files of its training that are damaged are set aside.
        """
        runner = self._runner
        hooks = [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]
        folders = dict.fromkeys(hook.out_dir or runner.work_dir for hook in hooks)
        for folder in (Path(folder) for folder in folders if folder is not None):
            damaged: dict[Path, str] = {}
            for entry in entries(folder):
                if entry.training not in (None, runner.training):
                    continue
                if (problem := entry.problem()) is not None:
                    damaged[entry.path] = problem
                    continue
                kept = read_checkpoint(entry.path).get("meta", {}).get(_FIT, {})
                if kept.get("token") == token:
                    set_aside(damaged, entry.path, runner.logger.warning)
                    return entry.path.name, kept["records"], entry.path.read_bytes()
            set_aside(damaged, None, runner.logger.warning)
        return None


def _rows(model: Any, output: Any) -> Any:
    """Return a batch's output as an array or a list; UsageError if it has no rows."""
    if torch.is_tensor(output):
        output = (output.float() if output.dtype == torch.bfloat16 else output).cpu().numpy()
    if isinstance(output, list) or (isinstance(output, np.ndarray) and output.ndim):
        return output
    what = "a single number" if isinstance(output, np.ndarray) else type(output).__name__
    raise UsageError(
        f"{type(model).__name__} returned {what} for a batch; its predict_step, or the scores of "
        f"its val_step, must be a tensor or a list with a row for each sample"
    )


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return arrays of rows as one array; UsageError if their rows have different shapes."""
    shapes = sorted({part.shape[1:] for part in parts})
    if len(shapes) > 1:
        raise UsageError(
            f"predictions have rows of different shapes, such as {shapes[0]} and {shapes[-1]}; let "
            f"predict_step return rows of one shape, or a list of rows"
        )
    return np.concatenate(parts)


_current: Trainee | None = None


def prepare(backend: BaseDistBackend, arguments: tuple[Any, ...]) -> None:
    """Create the rank's `Trainee`."""
    global _current
    _current = Trainee(backend, *arguments)


class Order:
    """A call of a method of the rank's `Trainee`, under the method's name in reports."""

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.__name__ = name
        self._arguments = arguments

    def __call__(self, _backend: BaseDistBackend) -> Any:
        """Call the method."""
        return getattr(_current, self.__name__)(*self._arguments)
