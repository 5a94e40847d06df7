"""What runs a workflow: phases of training and validation, one record each, from any place on."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from disteval.contract import BaseDistBackend
from disteval.errors import UsageError
from disteval.estimator import rng
from disteval.estimator import state as states
from disteval.estimator.checkpoint import (
    load_weights,
    read_checkpoint,
    write_checkpoint,
    write_on_rank_0,
)
from disteval.estimator.distributed import averages_gradients
from disteval.estimator.phases import Phases
from disteval.estimator.records import Record
from disteval.estimator.workflow import Flow, Workflow, agree


class BaseRunner(Phases):
    """Runs phases of training and validation, and calls hooks at their stages.

    The interface follows MMCV 1.x's runners. Averages in records are exact over all batches and
    ranks, validation never changes what training draws, and a state is complete: training that goes
    on from one does what it would have done, to the bit where the hardware does.

    Args:
        model: Has ``train_step(data, optimizer)`` and ``val_step(data, optimizer)``, which return a
            dict with ``loss`` (a tensor; for training), ``log_vars`` (numbers by name) and
            ``num_samples``; and for accuracy ``scores`` (B, classes) and ``labels`` (B,). On
            several ranks wrap it with `disteval.estimator.distributed.distribute`.
        batch_processor: The older way: called as ``batch_processor(model, data, train_mode=…)``
            instead of the model's steps; returns the same. On several ranks wrap a model that it
            calls with DistributedDataParallel.
        optimizer: A torch optimizer, or several by name.
        work_dir: Where hooks write.
        logger: Where log lines go.
        meta: Facts for checkpoints, in plain containers; ``seed`` seeds the generators when
            training goes on at another world size.
        max_iters: Where training ends, for an `IterBasedRunner`.
        max_epochs: Where training ends; see `run`.
        backend: Moves what ranks tell each other; None stands for the one that fits
            torch.distributed's process group, or for one process where there is none.

    Raises:
        UsageError: Both ``max_iters`` and ``max_epochs`` were given.
    """

    limited_by: ClassVar[str]
    """What ends training: ``max_epochs`` or ``max_iters``."""

    def __init__(
        self,
        model: Any,
        batch_processor: Callable[..., Any] | None = None,
        optimizer: Any = None,
        work_dir: str | Path | None = None,
        logger: logging.Logger | None = None,
        meta: Mapping[str, Any] | None = None,
        max_iters: int | None = None,
        max_epochs: int | None = None,
        *,
        backend: BaseDistBackend | None = None,
    ) -> None:
        super().__init__(model, batch_processor, optimizer, work_dir, logger, meta, backend)
        if max_iters is not None and max_epochs is not None:
            raise UsageError("give one of max_iters and max_epochs, not both")
        self.max_epochs = max_epochs
        self.max_iters = max_iters

    def run(
        self, data_loaders: Sequence[Any], workflow: Workflow, max_epochs: int | None = None
    ) -> list[Record]:
        """Run a workflow, turn after turn, until training has come to its end.

        The end is a total: a runner at epoch 2 with ``max_epochs`` 5 trains 3 more epochs, and one
        that is at its end already trains none and returns no records. The turn in which training
        ends is finished, so validation that follows is not left out. A workflow of ``val`` alone is
        run for one turn. Run again, it goes on from ``epoch`` and ``iter``; resumed from a
        checkpoint with the same workflow, it goes on within the turn, and finishes it.

        Args:
            data_loaders: For each entry of the workflow, this rank's batches: any iterable with a
                length. For training all ranks need equally many; for validation some may have none.
            workflow: Pairs of ``train`` or ``val`` and a count, of epochs in an `EpochBasedRunner`
                and of iterations in an `IterBasedRunner`.
            max_epochs: The end from now on, in epochs; None leaves it as it is.

        Returns:
            The records of this run, one a phase.

        Raises:
            UsageError: On every rank, before anything begins, when the arguments can't work.
        """
        self._flows, end = agree(self, data_loaders, workflow, max_epochs)
        self._feeds = []
        trained = [self._feed(flow.loader) for flow in self._flows if flow.mode == "train"]
        pending = self._next
        self._go_to(pending if trained else None)
        if end is not None:
            self._set_end(end)
        first = len(self.records)
        self.call_hook("before_run")
        if trained:
            self._warn_if_not_averaged()
            self._take_generators()
        while self._phase or not trained or self._is_due():
            self._run_turn()
            self._phase = self._done = 0
            if not trained:
                break
        self.call_hook("after_run")
        self._next = self.place() if trained else pending
        return self.records[first:]

    @abstractmethod
    def train(self, data_loader: Any, **kwargs: Any) -> None:
        """Train on a loader, and publish the record."""

    def save_checkpoint(
        self,
        out_dir: str | Path,
        filename_tmpl: str | None = None,
        save_optimizer: bool = True,
        meta: Mapping[str, Any] | None = None,
        create_symlink: bool = True,
    ) -> Path:
        """Write the state to a file; every rank must call it, and rank 0 writes.

        The file appears whole or not at all, and every rank goes on when it is there.

        Args:
            out_dir: The folder, which is made if it is missing.
            filename_tmpl: ``{}`` stands for the number of epochs or iterations that are complete;
                None for ``epoch_{}.pt`` or ``iter_{}.pt``.
            save_optimizer: Whether to keep the optimizers' state.
            meta: Facts that are kept beside the runner's.
            create_symlink: Whether the link ``latest.pt`` shall lead to it.

        Returns:
            The file.

        Raises:
            RankError: On every rank, when it could not be written.
        """
        epoch, iteration = self.trained()
        template = filename_tmpl or ("epoch_{}.pt" if self.by_epoch else "iter_{}.pt")
        path = Path(out_dir) / template.format(epoch if self.by_epoch else iteration)
        state = states.collect(self, optimizer=save_optimizer, meta=meta)
        write_on_rank_0(
            self.backend, path, lambda: write_checkpoint(path, state, link=create_symlink)
        )
        return path

    def load_checkpoint(
        self, filename: str | Path, map_location: Any = "cpu", strict: bool = False
    ) -> dict[str, Any]:
        """Take the weights of a file, and nothing else of it.

        Args:
            filename: A checkpoint, a file with a state dict, or a ``.safetensors`` file.
            map_location: See ``torch.load``.
            strict: Whether names that are missing or unexpected are an error; a warning otherwise.

        Returns:
            What the file holds.

        Raises:
            WeightsError: It is missing or damaged, or does not fit the model.
        """
        found = read_checkpoint(filename, map_location)
        wrong = load_weights(self.model, found["state_dict"], str(filename), strict=strict)
        if wrong:
            self.logger.warning("%s: missing or unexpected: %s", filename, ", ".join(wrong))
        return found

    def resume(
        self,
        checkpoint: str | Path | Mapping[str, Any],
        resume_optimizer: bool = True,
        map_location: Any = "cpu",
    ) -> None:
        """Take the whole state of a checkpoint, so that `run` goes on from there.

        Training resumed with as many ranks does what training not interrupted would have done: the
        shuffling and whatever is drawn included, also in the middle of an epoch. With another
        number of ranks there is no state of each rank's generators; they are seeded from
        ``meta['seed']`` (else the sampler's seed, else 0), the iteration and the rank, and an epoch
        that was interrupted in its middle is begun anew. The record of a phase that was resumed in
        its middle covers what was run since.

        Args:
            checkpoint: A file of `save_checkpoint`, or what `state_dict` returned.
            resume_optimizer: Whether to take the optimizers' state.
            map_location: See ``torch.load``.

        Raises:
            WeightsError: It is missing or damaged, lacks something, or does not fit.
        """
        if isinstance(checkpoint, Mapping):
            state, origin = checkpoint, "the state"
        else:
            state, origin = read_checkpoint(checkpoint, map_location), str(checkpoint)
        self._next = states.put_back(self, state, origin, resume_optimizer)
        states.set_generators(self, state)
        # Whoever makes the loaders may draw from them before the next run begins.
        self._generators = rng.capture()

    def state_dict(self) -> dict[str, Any]:
        """Return the state in plain containers and tensors; every rank must call it.

        It holds ``state_dict`` (the weights, without ``module.``), ``optimizer``, ``epoch``,
        ``iter``, ``hooks``, ``rng`` (of every rank), ``sampler_seed``, ``position`` and ``meta``.
        """
        return states.collect(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` returned; see `resume`."""
        self.resume(state)

    def _warn_if_not_averaged(self) -> None:
        if self.rank == 0 and self.world_size > 1 and not averages_gradients(self.model):
            self.logger.warning(
                "nothing in %s averages gradients over the %d ranks, so each trains a model of its "
                "own, unless a hook or the optimizer averages them; once torch.distributed is "
                "initialised, wrap it with disteval.estimator.distributed.distribute",
                type(self.model).__name__,
                self.world_size,
            )

    @abstractmethod
    def end_of(self, flows: Sequence[Flow], max_epochs: int | None) -> int | None:
        """Return where a run is to end, in the runner's unit; None if nobody said."""

    @abstractmethod
    def _set_end(self, end: int) -> None:
        """Set `max_epochs` and `max_iters` as hooks are to see them."""

    @abstractmethod
    def _is_due(self) -> bool:
        """Whether training has not come to its end."""

    @abstractmethod
    def _run_turn(self) -> None:
        """Run a turn of the workflow, from where it is."""
