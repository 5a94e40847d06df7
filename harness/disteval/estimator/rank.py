"""The runner on each rank, and the calls of an estimator that it carries out.

`disteval.world.World.run` calls `prepare`, and then each `TrainerCall`, on all ranks at once.
"""

from __future__ import annotations

import copy
import io
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import torch

from disteval import by_value
from disteval.contract import BaseDistBackend
from disteval.errors import HarnessError, UsageError
from disteval.estimator import rng
from disteval.estimator.checkpoint import Checkpoints, read_checkpoint, read_state, save_state
from disteval.estimator.distributed import averages_gradients, distribute, inner
from disteval.estimator.loaders import whole, with_sampler
from disteval.estimator.records import Record
from disteval.estimator.runner import BaseRunner
from disteval.estimator.validation import predict, validate
from disteval.metrics.base import BaseMetric
from disteval.world import report_progress, send_note

_FIT = "fit"  # the key in a runner's meta

Creator = Callable[[dict[str, Any]], Any]
"""A function that makes a runner or a loader from the estimator's ``config``."""


class SentCreator(NamedTuple):
    """A creator as it travels to the ranks, and its name in messages."""

    name: str
    pickled: bytes

    @classmethod
    def of(cls, name: str, creator: Any) -> SentCreator:
        """Pickle a creator; UsageError if it can't be pickled, or can't be called."""
        if not callable(creator):
            raise UsageError(f"{name} must be a function of a config, not {creator!r}")
        try:
            return cls(name, by_value.dumps(creator))
        except Exception as error:  # pickling runs code of the objects that the creator holds
            raise UsageError(
                f"{name} can't be sent to ranks ({type(error).__name__}: {error}); have it "
                f"create its objects from the config, when it is called"
            ) from error

    def call(self, config: dict[str, Any]) -> Any:
        """Return the creator's result for a copy of the config; UsageError if it has none."""
        try:
            made = cloudpickle.loads(self.pickled)(dict(config))
        except HarnessError:
            raise
        except Exception as error:  # the creator is the user's code
            raise UsageError(f"{self.name} raised {type(error).__name__}: {error}") from error
        if made is None:
            raise UsageError(f"{self.name} returned None; does it lack a return statement?")
        return made


def loader_sources(creators: Any) -> list[SentCreator]:
    """Return a source for each creator of a loader."""
    if not isinstance(creators, Sequence):
        raise UsageError(f"loader creators are given as a list, not as {creators!r}")
    names = [getattr(each, "__name__", "without a name") for each in creators]
    return [
        SentCreator.of(f"loader creator {at} ({name})", each)
        for at, (name, each) in enumerate(zip(names, creators, strict=True))
    ]


class _Lines(logging.Handler):
    """Sends log lines to the estimator, which shows them."""

    def emit(self, record: logging.LogRecord) -> None:
        send_note((record.levelno, record.getMessage()))


class Trainer:
    """The runner of a rank and the loaders that were made for it.

    Each public method carries out a call of the estimator, on all ranks at once.
    """

    def __init__(
        self, backend: BaseDistBackend, creator: SentCreator, config: dict[str, Any], seed: int,
        device: str,
    ) -> None:  # fmt: skip
        self._backend, self._config, self._seed = backend, config, seed
        self._loaders: dict[tuple[bytes, bool], Any] = {}
        # All ranks draw the same numbers while the model is initialised, and others afterwards.
        rng.derive(seed, 0, 0)
        self._runner = runner = creator.call(config)
        if not isinstance(runner, BaseRunner) or not isinstance(runner.model, torch.nn.Module):
            found = runner.model if isinstance(runner, BaseRunner) else runner
            raise UsageError(
                f"runner_creator returned a {type(found).__name__}; it must return an "
                f"EpochBasedRunner or an IterBasedRunner, whose model is a torch.nn.Module"
            )
        model = runner.model
        if device == "cuda":
            inner(model).cuda()
        if backend.world_size > 1 and not averages_gradients(model):
            runner.model = distribute(model) if hasattr(model, "train_step") else model
        runner.backend = backend
        runner.on_progress = report_progress
        runner.meta.setdefault("seed", seed)
        if backend.rank == 0 and not runner.logger.handlers:
            runner.logger.addHandler(_Lines())
            runner.logger.setLevel(runner.logger.level or logging.INFO)
        rng.derive(seed, 0, 1 + backend.rank)

    def fit(
        self, sources: Sequence[SentCreator], workflow: list[tuple[str, int]],
        max_epochs: int | None, token: str, records: int,
    ) -> None:  # fmt: skip
        """Run the workflow; rank 0 sends each record as soon as it is made.

        Checkpoints get the fit's ``token``, and count the ``records`` from those that were sent by
        ranks which were lost.
        """
        phases = zip(sources, workflow, strict=True)
        loaders = [self._loader(source, mode == "train") for source, (mode, _) in phases]
        self._loaders = {key: each for key, each in self._loaders.items() if each in loaders}
        sent: dict[str, Any] = {"token": token, "records": records}
        self._runner.meta[_FIT] = sent

        def on_record(record: Record) -> None:
            sent["records"] += 1
            if self._backend.rank == 0:
                send_note(record)

        self._runner.on_record = on_record
        self._runner.run(loaders, workflow, max_epochs)

    def evaluate(self, source: SentCreator, metrics: Mapping[str, BaseMetric] | None) -> Record:
        """Return the record of a validation."""
        return validate(self._runner, self._loader(source, training=False), metrics)

    def predict(self, source: SentCreator) -> Any:
        """Return the model's output for each sample on rank 0."""
        return predict(self._runner, self._loader(source, training=False))

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
        self._runner.resume(read_state(io.BytesIO(data), "the saved state"))

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

    def _loader(self, source: SentCreator, training: bool) -> Any:
        """Return a source's loader, for training this rank's share, the same object each time."""
        key = (source.pickled, training)
        if key not in self._loaders:
            made = source.call(self._config)
            rank, world_size = self._backend.rank, self._backend.world_size
            try:
                if training:
                    made = with_sampler(made, rank, world_size, self._seed)
                else:
                    whole(made)
            except UsageError as error:
                raise UsageError(f"{source.name}: {error}") from error
            self._loaders[key] = made
        return self._loaders[key]

    def _last_checkpoint(self, token: str) -> tuple[str, int, bytes] | None:
        """Return the name, the number of records and the bytes of a fit's last checkpoint."""
        runner = self._runner
        if runner.work_dir is None:
            return None
        kept: dict[str, Any] = {}

        def is_of_fit(path: Path) -> bool:
            meta = read_checkpoint(path).get("meta", {})
            kept.update(meta.get(_FIT, {}))
            return meta.get("training") == runner.training and kept.get("token") == token

        path = Checkpoints(runner.work_dir).newest(runner.logger.warning, is_of_fit)
        return None if path is None else (path.name, kept["records"], path.read_bytes())


_current: Trainer | None = None


def prepare(backend: BaseDistBackend, arguments: tuple[Any, ...]) -> None:
    """Create the rank's `Trainer`."""
    global _current
    _current = Trainer(backend, *arguments)


class TrainerCall:
    """A call of a method of the rank's `Trainer`, under the method's name in reports."""

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.__name__ = name
        self._arguments = arguments

    def __call__(self, _backend: BaseDistBackend) -> Any:
        """Call the method."""
        return getattr(_current, self.__name__)(*self._arguments)
