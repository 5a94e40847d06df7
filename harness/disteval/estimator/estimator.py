"""The estimator, which trains, evaluates and predicts on several ranks."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tqdm import tqdm

from disteval import arguments
from disteval.errors import RankError, UsageError, WeightsError, WorldError
from disteval.estimator import rank
from disteval.estimator.checkpoint import Checkpoints, chosen, read_checkpoint
from disteval.estimator.rank import Creator, SentCreator, loader_sources
from disteval.estimator.records import Record, line_of
from disteval.estimator.runner import check_workflow
from disteval.files import write_atomically
from disteval.metrics.base import BaseMetric
from disteval.traces.folder import Trace, as_folder
from disteval.world import START_SECONDS, LocalLauncher, RayLauncher, World
from disteval.world.world import ONE_PROCESS, refuse_worlds_of_each

_log = logging.getLogger("disteval.estimator")
_PRELOAD = ("torch.distributed", "torch._dynamo")  # the first optimizer imports the latter


class Display:
    """Shows records and, on a terminal, a progress bar, which would only clutter a log file."""

    def __init__(
        self, shown: bool, on_record: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        self._shown = shown
        self._on_record = on_record
        self._bar = tqdm(unit="batch", leave=False, disable=None if shown else True)
        self._done: dict[int, tuple[int, int]] = {}

    def on_progress(self, rank: int, done: int, total: int) -> None:
        """Take the number of batches of its phase that a rank has done."""
        self._done[rank] = done, total
        finished, self._bar.total = map(sum, zip(*self._done.values(), strict=True))
        self._bar.update(finished - self._bar.n)

    def on_note(self, _rank: int, record: dict[str, Any] | tuple[int, str]) -> None:
        """Take a log line and its level, or the record of a phase that has ended."""
        if isinstance(record, tuple):
            level, line = record
            if level >= logging.WARNING:
                _log.log(level, "%s", line)
            elif self._shown:
                tqdm.write(line)
            return
        if self._on_record is not None:
            self._on_record(record)
        if self._shown:
            tqdm.write(line_of(record))
        self._done.clear()
        self._bar.reset()

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()


class Estimator:
    """Trains and evaluates the runner that ``runner_creator`` returns, on several ranks.

    Ranks are processes of this machine, or actors of a Ray cluster. They start at once, and keep
    the runner, its model and its loaders until `shutdown`; use an estimator as a context manager.
    Creators are pickled with cloudpickle and called on every rank with a copy of ``config``, when
    the process group of torch.distributed is initialised.

    Args:
        runner_creator: Called as ``runner_creator(config)``; returns an `EpochBasedRunner` or an
            `IterBasedRunner`. On several ranks its model is wrapped by `distribute`, unless it or a
            part of it is wrapped.
        config: The argument of creators.
        launcher: Where ranks run: ``local`` for processes of this machine, or ``ray``.
        world_size: The number of ranks.
        device: ``cpu``, or ``cuda`` to move each rank's model to a GPU of its own and to average
            gradients over NCCL.
        cpus_per_worker: CPUs that each rank reserves from Ray, and its threads; None shares all.
        gpus_per_worker: GPUs that each rank reserves from Ray; None stands for one with ``cuda``.
        max_failures: How often a `fit` may lose ranks and continue with fresh ones.
        address: ``auto`` or ``host:port`` of a Ray cluster; None starts Ray here, `RayLauncher`.
        timeout: Seconds without a finished batch after which the ranks have failed.
        trace: A new folder for a trace, as for `disteval.world.World`.
        seed: Decides the model's first weights and the order of training samples.
        progress: Whether `fit` shows a bar and prints records and rank 0's log, beside warnings.

    Raises:
        UsageError: An argument can't work, or ``runner_creator`` raised or returned no runner.
        WorldError: The ranks could not start; says what each was doing.
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
        trace: Trace = None,
    ) -> None:
        creator = SentCreator.of("runner_creator", runner_creator)
        arguments.check_choice("launcher", launcher, ("local", "ray"))
        arguments.check_choice("device", device, ("cpu", "cuda"))
        for name, value in (("address", address), ("gpus_per_worker", gpus_per_worker)):
            if launcher == "local" and value is not None:
                raise UsageError(
                    f"{name}={value!r} is for a Ray cluster; use it with launcher='ray', "
                    f"or leave it out; device='cuda' alone takes GPUs of this machine"
                )
        if config is not None and not isinstance(config, Mapping):
            raise UsageError(f"config must be a dict, not {arguments.found_value(config)}")
        arguments.check_count("seed", seed, 0, 1 << 62)  # torch adds the epoch
        arguments.check_flag("progress", progress)
        if cpus_per_worker is not None:
            arguments.check_positive("cpus_per_worker", cpus_per_worker)
        self.world_size = world_size
        self.max_failures = arguments.check_count("max_failures", max_failures, least=0)
        self._setup = (creator, dict(config or {}), seed, device)
        threads = None if cpus_per_worker is None else max(1, int(cpus_per_worker))
        self._backend = f"torch_{device}"
        folder = as_folder(trace)  # of all worlds, where lost ranks are replaced
        self._options: dict[str, Any] = {"timeout": timeout, "threads": threads, "trace": folder}
        if launcher == "ray":
            self._options["launcher"] = RayLauncher(
                address, cpus_per_worker=cpus_per_worker, gpus_per_worker=gpus_per_worker
            )
        self._timeout, self._progress = timeout, progress
        self._start()

    def fit(
        self,
        data_loaders: Sequence[Creator],
        workflow: Sequence[tuple[str, int]],
        max_epochs: int | None = None,
    ) -> list[Record]:
        """Train by a workflow such as ``[('train', 1), ('val', 1)]``.

        A second call continues with the weights, optimizer, epoch and iteration of the first.

        Args:
            data_loaders: For each entry of the workflow, a creator of its loader: called as
                ``creator(config)``, it returns a torch ``DataLoader`` over the whole data set,
                whose ``batch_size`` is that of each rank. `disteval.estimator.with_sampler`
                says how each rank gets its share.
            workflow: See `BaseRunner.run`.
            max_epochs: The epoch at which training ends, counted from the first `fit`; None leaves
                it to the runner.

        Returns:
            One record for each epoch and phase, see `disteval.estimator.records`.

        Raises:
            UsageError: An argument can't work, or a creator raised or returned no loader.
            WorldError: A rank raised, was lost or made no progress, once more than
                ``max_failures``; with the traceback of the rank that failed.
        """
        entries = check_workflow(workflow)
        sources = loader_sources(data_loaders)
        if len(sources) != len(entries):
            raise UsageError(
                f"data_loaders has {len(sources)} creators; it needs one for each entry of the "
                f"workflow {workflow}"
            )
        token = secrets.token_hex(8)
        beginning = self._order("save")[0] if self.max_failures else b""
        records: list[Record] = []
        lost: list[WorldError] = []
        while True:
            try:
                if lost:
                    self._go_back(token, beginning, records, lost[-1])
                order = (sources, entries, max_epochs, token, len(records))
                with closing(Display(self._progress, records.append)) as display:
                    self._order("fit", *order, display=display)
                return records
            except WorldError as error:
                lost.append(error)
                if len(lost) > self.max_failures:
                    raise

    def evaluate(
        self, data_loader_creator: Creator, metrics: Mapping[str, BaseMetric] | None = None
    ) -> Record:
        """Evaluate the model as it is, counting every sample of the loader's data set once.

        Args:
            data_loader_creator: As for `fit`.
            metrics: Metrics by name, which get ``add(scores, labels)`` with the scores and labels
                that the model's ``val_step`` returns; None stands for those of the runner.

        Returns:
            The record of the evaluation: see `disteval.estimator.records`.
        """
        [source] = loader_sources([data_loader_creator])
        with closing(Display(self._progress)) as display:
            return self._order("evaluate", source, metrics, display=display)[0]  # type: ignore[no-any-return]

    def predict(self, data_loader_creator: Creator) -> Any:
        """Compute the model's output for every sample of the loader's data set.

        The output is the result of the model's ``predict_step(data)``, with an entry for each
        sample of the batch; without that method, the ``scores`` of its ``val_step``.

        Returns:
            An array whose row i belongs to sample i, or a list; or a tuple or dict of these, as the
            model returns them.
        """
        [source] = loader_sources([data_loader_creator])
        with closing(Display(self._progress)) as display:
            return self._order("predict", source, display=display)[0]

    def save(self, path: str | Path) -> None:
        """Write the whole state of training to one file on this machine, atomically.

        It holds weights, optimizer, epoch, iteration, hooks, sampler and random generators, up to
        1 GiB; a larger state needs a checkpoint hook, which writes on the ranks' own machines.
        """
        path = arguments.check_path("path", path)
        path.parent.mkdir(parents=True, exist_ok=True)
        arguments.check_output_file("path", path)
        data = self._order("save")[0]
        write_atomically(path, lambda file: file.write(data))
        Checkpoints(path.parent).renew(path.name)

    def load(self, path: str | Path) -> None:
        """Take the state that `save` or a checkpoint hook wrote, at any world size.

        Of a folder, the newest checkpoint is taken that is whole, with a warning for each newer one
        that is damaged. Fresh ranks are started if ranks were lost.

        Raises:
            UsageError: The folder has no checkpoints, or those of several trainings.
            WeightsError: The file is missing or damaged, holds weights alone, or does not fit the
                runner; or the folder has no whole checkpoint.
        """
        path = chosen(arguments.check_path("path", path), _log.warning)
        if "rng" not in read_checkpoint(path):
            raise WeightsError(
                f"{path} holds weights alone, so training can't be resumed from it; give a file of "
                f"save() or of a checkpoint hook, or load the weights in runner_creator"
            )
        if not self._world.is_open:
            self._start()
        self._order("load", path.read_bytes())

    def get_model(self) -> Any:
        """Return a copy of the trained model, on the CPU and ready to evaluate."""
        return self._order("get_model")[0]

    def shutdown(self) -> None:
        """End the ranks; a second call does nothing."""
        self._world.close()

    def __enter__(self) -> Estimator:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _start(self) -> None:
        options = self._options
        if "launcher" not in options:
            refuse_worlds_of_each(ONE_PROCESS)
            options = options | {"launcher": LocalLauncher(preload=_PRELOAD)}
        self._world = World(self._backend, self.world_size, **options)
        try:
            setups = [self._setup] * self.world_size
            self._run(rank.prepare, *setups, timeout=max(self._timeout, START_SECONDS))
        except BaseException:
            self._world.close()
            raise

    def _order(self, name: str, *arguments: Any, display: Display | None = None) -> list[Any]:
        """Call a method of `disteval.estimator.rank.Trainer` on every rank."""
        if not self._world.is_open:
            raise WorldError(
                "the ranks of this estimator have ended, and their training since the last save "
                "is lost; load() a checkpoint, or make another estimator"
            )
        heard = {"on_progress": display.on_progress, "on_note": display.on_note} if display else {}
        return self._run(rank.TrainerCall(name, arguments), timeout=self._timeout, **heard)

    def _run(self, function: Any, *arguments: Any, **options: Any) -> list[Any]:
        """Run a function on every rank; an error that all ranks raise alike is raised as it is."""
        try:
            return self._world.run(function, *arguments, **options)
        except WorldError as error:
            if error.common is None or isinstance(error.common, RankError):
                raise
            raise error.common from error

    def _go_back(
        self, token: str, beginning: bytes, records: list[Record], error: WorldError
    ) -> None:
        """Start fresh ranks at the last checkpoint, and drop records that will be made again."""
        self._world.close()
        self._start()
        with closing(Display(shown=False)) as display:  # which passes warnings on
            kept, name = self._order("restore", token, beginning, display=display)[0]
        del records[kept:]
        place = name or "the beginning of this fit, which has no checkpoint to continue from"
        _log.warning("%s; continuing from %s", str(error).partition("\n")[0], place)
