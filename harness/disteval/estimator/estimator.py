"""The estimator: a runner trained, evaluated and asked for predictions on several workers."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from disteval.arguments import check_count
from disteval.errors import UsageError, WeightsError, WorldError
from disteval.estimator import worker
from disteval.estimator.checkpoint import read_checkpoint, write_atomically
from disteval.estimator.creators import Creator, LoaderSources, Source
from disteval.estimator.progress import Display
from disteval.estimator.records import Record
from disteval.estimator.worker import Fit, Setup
from disteval.metrics.base import BaseMetric
from disteval.worlds import START_SECONDS, RayLauncher, World

LAUNCHERS = ("local", "ray")
DEVICES = ("cpu", "cuda")
_log = logging.getLogger("disteval.estimator")


class Estimator:
    """Trains and evaluates what ``runner_creator`` returns, on several workers.

    Workers are processes: on this machine, or actors of a Ray cluster. They start at once, and keep
    the runner, its model and its loaders until `shutdown`; use it as a context manager. Creators
    are pickled with cloudpickle and called on every worker, in an initialised process group of
    torch.distributed; each gets a copy of ``config``.

    Args:
        runner_creator: Called as ``runner_creator(config)``; returns an `EpochBasedRunner` or an
            `IterBasedRunner`. On several workers its model is wrapped here, unless it or a part of
            it is: by `distribute`, or without steps of its own by DistributedDataParallel.
        config: What creators are given.
        launcher: Where ranks run: ``local`` for processes of this machine, or ``ray``.
        world_size: The number of ranks.
        device: ``cpu``, or ``cuda`` to move each rank's model to a GPU of its own and to average
            gradients over NCCL.
        cpus_per_worker: CPUs that each rank reserves from Ray, and its computing threads; None
            shares the host's cores.
        gpus_per_worker: GPUs that each rank reserves from Ray; None stands for one with ``cuda``.
        max_failures: How often a `fit` may lose its workers and go on with fresh ones.
        address: ``auto`` or ``host:port`` of a Ray cluster; None starts one here, see
            `disteval.worlds.RayLauncher`.
        timeout: Seconds without a finished batch after which the workers have failed.
        seed: Decides the model's first weights and the order of training samples.
        progress: Whether `fit` shows a bar and prints a line for each record.

    Raises:
        UsageError: An argument can't work, or the runner's creator raised or returned no runner.
        WorldError: The workers could not start; says what each was doing.
    """

    def __init__(
        self,
        runner_creator: Creator,
        config: Mapping[str, Any] | None = None,
        launcher: str = "local",
        world_size: int = 2,
        *,
        device: str = "cpu",
        cpus_per_worker: float | None = None,
        gpus_per_worker: float | None = None,
        max_failures: int = 0,
        address: str | None = None,
        timeout: float = 120.0,
        seed: int = 0,
        progress: bool = True,
    ) -> None:
        runner = Source("runner_creator", runner_creator)
        if launcher not in LAUNCHERS:
            raise UsageError(f"launcher {launcher!r} is not known; use 'local' or 'ray'")
        if device not in DEVICES:
            raise UsageError(f"device {device!r} is not known; use 'cpu' or 'cuda'")
        if launcher == "local" and address is not None:
            raise UsageError(
                f"address={address!r} is the address of a Ray cluster; use it with launcher='ray'"
            )
        self.world_size = world_size
        self.max_failures = check_count("max_failures", max_failures, least=0)
        self._setup = Setup(runner, dict(config or {}), seed, device == "cuda")
        self._launcher = launcher
        self._device = device
        self._cpus = cpus_per_worker
        self._gpus = gpus_per_worker
        self._address = address
        self._timeout = timeout
        self._progress = progress
        self._loaders = LoaderSources()
        self._world: World | None = None
        self._start()

    def fit(
        self,
        data_loaders: Sequence[Creator],
        workflow: Sequence[tuple[str, int]],
        max_epochs: int | None = None,
    ) -> list[Record]:
        """Train, by a workflow such as ``[('train', 1), ('val', 1)]``.

        Called again it goes on: weights, optimizer, epoch and iteration are as they were left.

        Args:
            data_loaders: For each entry of the workflow, a creator of its loader: called as
                ``creator(config)``, it returns a torch ``DataLoader`` over the whole data set,
                whose ``batch_size`` is that of each worker; see
                `disteval.estimator.loaders.with_sampler` for what becomes of it.
            workflow: See `EpochBasedRunner.run`.
            max_epochs: When training ends, counted from the first `fit` on; None leaves it to the
                runner.

        Returns:
            One record for each epoch and phase, see `disteval.estimator.records`.

        Raises:
            UsageError: An argument can't work, or a creator raised or returned no loader.
            WorldError: A worker raised, was lost or made no progress, once more than
                ``max_failures``; with the guilty worker's traceback.
        """
        sources = self._loaders.of(data_loaders)
        if not isinstance(workflow, Sequence) or len(sources) != len(workflow):
            raise UsageError(
                f"data_loaders has {len(sources)} creators; it needs one for each entry of the "
                f"workflow {workflow}"
            )
        order = Fit(sources, list(workflow), max_epochs, secrets.token_hex(8))
        beginning = self._state() if self.max_failures else b""
        records: list[Record] = []
        failures = 0
        lost: WorldError | None = None
        while True:
            try:
                if lost is not None:
                    self._go_back(order.token, beginning, records, lost)
                with Display(self._progress, records.append) as display:
                    self._order(worker.fit, replace(order, records=len(records)), display=display)
                return records
            except WorldError as error:
                failures += 1
                if failures > self.max_failures:
                    raise
                lost = error

    def evaluate(
        self, data_loader_creator: Creator, metrics: Mapping[str, BaseMetric] | None = None
    ) -> Record:
        """Evaluate the model as it is, counting every sample of the loader's data set once.

        Args:
            data_loader_creator: As for `fit`.
            metrics: Metrics by name, which get ``add(scores, labels)`` of what the model's
                ``val_step`` returns; None stands for accuracy.

        Returns:
            The record of the evaluation: see `disteval.estimator.records`. A metric's result stands
            under the metric's name; one with several values, under the name, ``_`` and the key.

        Raises:
            UsageError: A creator or the model's steps can't be used.
            CoverageError: The model's steps told of more or fewer samples than there are.
            WorldError: As for `fit`.
        """
        [source] = self._loaders.of([data_loader_creator])
        with Display(self._progress) as display:
            found = self._order(worker.evaluate, (source, metrics), display=display)
        record: Record = found[0]
        return record

    def predict(self, data_loader_creator: Creator) -> Any:
        """Compute the model's output for every sample of the loader's data set.

        The output is what the model's ``predict_step(data)`` returns, with an entry for each sample
        of the batch; without that method, the ``scores`` of its ``val_step``.

        Args:
            data_loader_creator: As for `fit`.

        Returns:
            An array whose row i belongs to sample i; a list, where the model returns no tensors.

        Raises:
            UsageError: A creator or the model's steps can't be used.
            WorldError: As for `fit`.
        """
        [source] = self._loaders.of([data_loader_creator])
        with Display(self._progress) as display:
            shares = self._order(worker.predict, source, display=display)
        shares = [(places, rows) for places, rows in shares if len(places)]
        order = np.argsort(np.concatenate([places for places, _ in shares]))
        if all(isinstance(rows, np.ndarray) for _, rows in shares):
            return np.concatenate([rows for _, rows in shares])[order]
        flat = [row for _, rows in shares for row in rows]
        return [flat[at] for at in order]

    def save(self, path: str | Path) -> None:
        """Write all that training goes on from to one file, on this machine, whole or not at all.

        That is weights, optimizer, epoch, iteration, hooks, sampler and random generators. Up to
        1 GiB; a larger state is for a checkpoint hook, which writes where the workers are.
        """
        data = self._state()
        write_atomically(Path(path), lambda file: file.write(data))

    def load(self, path: str | Path) -> None:
        """Go on from what `save` or a checkpoint hook wrote, on any number of workers.

        Where workers were lost, fresh ones are started.

        Raises:
            WeightsError: The file is missing or damaged, holds weights alone, or does not fit the
                runner.
        """
        if "rng" not in read_checkpoint(path):
            raise WeightsError(
                f"{path} holds weights alone, so training can't go on from it; give what save() or "
                f"a checkpoint hook wrote, or have runner_creator load the weights"
            )
        data = Path(path).read_bytes()
        if self._world is None or not self._world.is_open:
            self._start()
        self._order(worker.load, data)

    def get_model(self) -> Any:
        """Return a copy of the trained model, on the CPU and ready to evaluate."""
        return self._order(worker.get_model)[0]

    def shutdown(self) -> None:
        """End the workers; a second time does nothing."""
        if self._world is not None:
            self._world.close()

    def __enter__(self) -> Estimator:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _start(self) -> None:
        launcher = None
        if self._launcher == "ray":
            launcher = RayLauncher(
                self._address, cpus_per_worker=self._cpus, gpus_per_worker=self._gpus
            )
        threads = None if self._cpus is None else max(1, int(self._cpus))
        self._world = World(
            "torch_cuda" if self._device == "cuda" else "torch_cpu",
            self.world_size,
            launcher=launcher,
            timeout=self._timeout,
            threads=threads,
        )
        try:
            self._order(worker.prepare, self._setup, seconds=START_SECONDS)
        except BaseException:
            self._world.close()
            raise

    def _order(
        self,
        function: Any,
        *argument: Any,
        display: Display | None = None,
        seconds: float = 0.0,
    ) -> list[Any]:
        """Have every worker run a function; what all of them refuse alike is raised as it is."""
        if self._world is None or not self._world.is_open:
            raise WorldError(
                "the workers of this estimator have ended, and with them what they trained since "
                "it was saved last; load() a checkpoint, or make another estimator"
            )
        try:
            return self._world.run(
                function,
                *[argument[0]] * self.world_size if argument else (),
                timeout=max(self._timeout, seconds),
                on_progress=display.on_progress if display else None,
                on_note=display.on_note if display else None,
            )
        except WorldError as error:
            if error.common is not None:
                raise error.common from error
            raise

    def _state(self) -> bytes:
        data: bytes = self._order(worker.save)[0]
        return data

    def _go_back(
        self, token: str, beginning: bytes, records: list[Record], error: WorldError
    ) -> None:
        """Start fresh workers where a fit can go on, and forget the records of what is redone."""
        if self._world is not None:
            self._world.close()
        self._start()
        kept, name = self._order(worker.restore, (token, beginning))[0]
        del records[kept:]
        _log.warning(
            "%s; going on from %s",
            str(error).partition("\n")[0],
            name or "the beginning of this fit, which had written no checkpoint yet",
        )
