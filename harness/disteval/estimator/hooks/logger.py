"""The hook that reports on a training: log lines, and a JSON log."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from disteval.arguments import check_count
from disteval.errors import UsageError
from disteval.estimator.hooks.hook import Hook
from disteval.estimator.records import line_of
from disteval.files import write_atomically

if TYPE_CHECKING:
    from disteval.estimator.runner import BaseRunner

JSON_LOG = "log.jsonl"
_TRAINING = "training"


class TextLoggerHook(Hook):
    """Writes log lines by the runner's logger, and records to ``work_dir/log.jsonl``, one a line.

    Each line of the file also says to which training it belongs. When a training continues from a
    checkpoint, its lines from after that checkpoint are removed, since their records will be made
    again. NaN and infinities, which JSON lacks, are written as null. If nothing in the program
    handles the logger's lines, they are printed; an estimator prints those of rank 0, unless
    ``progress`` is False.

    Args:
        interval: Training iterations of an epoch between two log lines, which have the averages of
            these on rank 0.
    """

    def __init__(self, interval: int = 10) -> None:
        self.interval = check_count("TextLoggerHook: interval", interval)
        self._lines = 0  # of this training, in the log
        self._resumed = False  # whether that number is from a checkpoint

    def before_run(self, runner: BaseRunner) -> None:
        """Let the lines be seen."""
        if runner.work_dir is not None and runner.rank == 0:
            self._drop_later_lines(runner)
        if runner.rank == 0 and not runner.logger.hasHandlers():
            handler = logging.StreamHandler(sys.stdout)
            handler.setFormatter(logging.Formatter("%(message)s"))
            runner.logger.addHandler(handler)
            if runner.logger.level == logging.NOTSET:
                runner.logger.setLevel(logging.INFO)

    def after_train_iter(self, runner: BaseRunner) -> None:
        """Log one line, if it is due."""
        if runner.rank == 0 and self.every_n_inner_iters(runner, self.interval):
            values = runner.log_buffer.average(self.interval)
            if rates := runner.current_lr():
                values = {"lr": rates[0]} | values
            runner.logger.info(
                "epoch %d [%d/%d] %s", runner.epoch + 1, runner.inner_iter + 1,
                len(runner.data_loader), ", ".join(f"{k}: {v:.4g}" for k, v in values.items()),
            )  # fmt: skip

    def after_record(self, runner: BaseRunner, record: dict[str, Any]) -> None:
        """Log one line, unless an estimator shows records; and write a line of JSON."""
        if runner.rank > 0:
            return
        if runner.on_record is None:
            runner.logger.info("%s", line_of(record))
        if runner.work_dir is not None:
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

    def _drop_later_lines(self, runner: BaseRunner) -> None:
        """Remove the lines of this training that follow its checkpoint, and one without an end."""
        assert runner.work_dir is not None
        log = runner.work_dir / JSON_LOG
        if log.is_symlink():  # to a file that a stranger may have chosen
            raise UsageError(f"{log} is a symbolic link, and must be a file; remove it")
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


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
