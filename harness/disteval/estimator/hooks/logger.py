"""Hooks that report on a training: log lines, a JSON log, TensorBoard."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from disteval.arguments import check_count, check_output_folder, check_path
from disteval.errors import LibraryMissingError, UsageError
from disteval.estimator.context import Context
from disteval.estimator.hooks.hook import Hook
from disteval.files import write_atomically

JSON_LOG = "log.jsonl"
_TRAINING = "training"


class LoggerHook(Hook):
    """Calls `log_iter` every few iterations and `log_record` for each record, on rank 0 alone.

    Args:
        interval: Training iterations of an epoch between two log lines.
    """

    def __init__(self, interval: int = 10) -> None:
        self.interval = check_count(f"{type(self).__name__}: interval", interval)

    def after_train_iter(self, runner: Context) -> None:
        """Log the averages of the last iterations, which are this rank's own."""
        if runner.rank == 0 and self.every_n_inner_iters(runner, self.interval):
            runner.log_buffer.average(self.interval)
            self.log_iter(runner, runner.log_buffer.output)

    def after_record(self, runner: Context, record: dict[str, Any]) -> None:
        """Log a record."""
        if runner.rank == 0:
            self.log_record(runner, record)

    def log_iter(self, runner: Context, averages: dict[str, float]) -> None:
        """Log averages of the last ``interval`` iterations of rank 0."""

    def log_record(self, runner: Context, record: dict[str, Any]) -> None:
        """Log a phase's record."""


class TextLoggerHook(LoggerHook):
    """Writes log lines by the runner's logger, and records to ``work_dir/log.jsonl``, one a line.

    Each line also says to which training it belongs. When a training continues from a checkpoint,
    its lines from after that checkpoint are removed, since their records will be made again. NaN
    and infinities, which JSON lacks, are written as null. If nothing in the program handles the
    logger's lines, they are printed; an estimator prints those of rank 0, unless ``progress`` is
    False.

    Args:
        interval: See `LoggerHook`.
    """

    def __init__(self, interval: int = 10) -> None:
        super().__init__(interval)
        self._lines = 0  # of this training, in the log
        self._resumed = False  # whether that number is from a checkpoint

    def before_run(self, runner: Context) -> None:
        """Let the lines be seen, and refuse a folder that can't be written or is in use."""
        if runner.rank == 0 and runner.work_dir is not None:
            check_output_folder("work_dir", runner.work_dir)
            runner.locks.take(runner.work_dir)
            self._drop_later_lines(runner)
        if runner.rank == 0 and not runner.logger.hasHandlers():
            handler = logging.StreamHandler(sys.stdout)
            handler.setFormatter(logging.Formatter("%(message)s"))
            runner.logger.addHandler(handler)
            if runner.logger.level == logging.NOTSET:
                runner.logger.setLevel(logging.INFO)

    def log_iter(self, runner: Context, averages: dict[str, float]) -> None:
        """Log one line."""
        runner.logger.info(
            "epoch %d [%d/%d] %s", runner.epoch + 1, runner.inner_iter + 1,
            len(runner.data_loader), _text({"lr": runner.first_lr()} | averages),
        )  # fmt: skip

    def log_record(self, runner: Context, record: dict[str, Any]) -> None:
        """Log one line, unless an estimator shows records; and write a line of JSON."""
        if runner.on_record is None:
            runner.logger.info("%s", _text(record))
        if runner.work_dir is not None:
            runner.work_dir.mkdir(parents=True, exist_ok=True)
            plain = {key: _plain(value) for key, value in record.items()}
            with (runner.work_dir / JSON_LOG).open("a", encoding="utf-8") as file:
                file.write(json.dumps({**plain, _TRAINING: runner.training}) + "\n")
        self._lines += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the number of this training's records so far."""
        return {"lines": self._lines}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the result of `state_dict`."""
        self._lines, self._resumed = state["lines"], True

    def _drop_later_lines(self, runner: Context) -> None:
        """Remove the lines of this training that follow its checkpoint, and one without an end."""
        assert runner.work_dir is not None
        log = runner.work_dir / JSON_LOG
        if not log.exists():
            return
        lines = log.read_bytes().splitlines(keepends=True)
        mark, kept, own = f'"{_TRAINING}": "{runner.training}"}}\n'.encode(), [], 0
        # A checkpoint that was written without this hook does not know how many lines precede it.
        known = self._resumed or runner.iter == 0
        for line in lines:
            own += line.endswith(mark)
            later = known and line.endswith(mark) and own > self._lines
            if line.endswith(b"\n") and not later:
                kept.append(line)
        if not known:
            self._lines, self._resumed = own, True
        if kept != lines:
            write_atomically(log, lambda file: file.writelines(kept))


class TensorboardLoggerHook(LoggerHook):
    """Writes scalars for TensorBoard: ``iter/…`` from log lines, ``train/…`` and ``val/…``.

    Args:
        log_dir: The folder; None for ``tensorboard`` in the runner's ``work_dir``.
        interval: See `LoggerHook`.

    Raises:
        LibraryMissingError: TensorBoard is not installed.
    """

    def __init__(self, log_dir: str | Path | None = None, interval: int = 10) -> None:
        super().__init__(interval)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise LibraryMissingError(
                f"TensorboardLoggerHook needs the package tensorboard ({error}); "
                f"install it: pip install tensorboard"
            ) from error
        self.log_dir = None if log_dir is None else check_path("log_dir", log_dir)
        self._open = SummaryWriter
        self._writer: Any = None

    def before_run(self, runner: Context) -> None:
        """Open the log."""
        if self.log_dir is None:
            if runner.work_dir is None:
                raise UsageError("TensorboardLoggerHook has no folder: give log_dir, or a work_dir")
            self.log_dir = runner.work_dir / "tensorboard"
        if runner.rank == 0:
            check_output_folder("TensorboardLoggerHook: log_dir", self.log_dir)
            self._writer = self._open(str(self.log_dir))

    def after_run(self, runner: Context) -> None:
        """Close the log."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def log_iter(self, runner: Context, averages: dict[str, float]) -> None:
        """Add the averages."""
        self._add(runner, "iter", averages, runner.iter + 1)

    def log_record(self, runner: Context, record: dict[str, Any]) -> None:
        """Add the record's numbers."""
        values = {k: v for k, v in record.items() if k not in ("epoch", "iter", "mode")}
        self._add(runner, record["mode"], values, record["iter"])

    def _add(self, runner: Context, group: str, values: dict[str, Any], step: int) -> None:
        for name, value in values.items():
            if self._writer is not None and isinstance(value, (int, float)):
                self._writer.add_scalar(f"{group}/{name}", value, step)


def _text(values: dict[str, Any]) -> str:
    parts = [
        f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}"
        for name, value in values.items()
    ]
    return ", ".join(parts)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
