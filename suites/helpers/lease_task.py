"""A cheap task for ranks that are lost while they hold leases, by themselves and on demand.

``DISTEVAL_LEASE_FAULTS`` is JSON: for some ranks how they end, and at which of their batches.
``DISTEVAL_LEASE_SECONDS`` is how long a batch takes on average.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from disteval import Task, get_dist_backend, load_predictions
from disteval.contract import BaseDistBackend
from disteval.metrics import Accuracy, BaseMetric, ConfusionMatrix

SAMPLES, CLASSES, BATCH = 240, 5, 2
FAULTS, SECONDS = "DISTEVAL_LEASE_FAULTS", "DISTEVAL_LEASE_SECONDS"
TASK = "suites.helpers.lease_task:task"


class Counts(BaseMetric):
    """How often each sample was counted, by the samples' own numbers."""

    def add(self, outputs: Any, _labels: Any, ids: Any = None) -> None:
        """Add the numbers of a batch, which `predict` has put beside its scores."""
        self._extend(np.asarray(outputs)[:, -1].astype(np.int64).tolist(), ids)

    def compute_metric(self, results: Any) -> Any:
        """Return how often each number occurs."""
        return np.bincount(results, minlength=SAMPLES).tolist()


class Outputs(BaseMetric):
    """All outputs in the order of samples: a metric that does not follow from sums."""

    def add(self, outputs: Any, _labels: Any, ids: Any = None) -> None:
        """Add the first score of each sample."""
        self._extend(np.asarray(outputs)[:, 0].tolist(), ids)

    def compute_metric(self, results: Any) -> Any:
        """Return the scores."""
        return [float(score).hex() for score in results]


def samples() -> tuple[Any, Any]:
    """Return scores, with each sample's number beside them, and labels."""
    rng = np.random.default_rng(19)
    scores = rng.random((SAMPLES, CLASSES))
    numbered = np.concatenate([scores, np.arange(SAMPLES)[:, None]], axis=1)
    return numbered, rng.integers(0, CLASSES, SAMPLES)


def task(backend: BaseDistBackend) -> Task:
    """Return the task; its metrics are integers, and floats to the last bit."""
    # In an object, because a run that goes on with another fault is the same evaluation.
    this = SimpleNamespace(seconds=float(os.environ.get(SECONDS, "0")))
    this.how, this.at = json.loads(os.environ.get(FAULTS, "{}")).get(str(backend.rank), ("", -1))
    calls = 0

    def predict(batch: Any) -> Any:
        nonlocal calls
        if calls == this.at:
            _end(this.how)
        calls += 1
        # By the samples, so that it is the same on every rank: from 0 to twice the average.
        time.sleep(this.seconds * 2 * float(batch[0, 0]))
        return batch

    def scores_of(outputs: Any, batch: Any) -> tuple[Any, Any]:
        return outputs[:, :CLASSES], batch[1]

    def all_of(outputs: Any, batch: Any) -> tuple[Any, Any]:
        return outputs, batch[1]

    return Task(
        samples=samples(),
        predict=predict,
        metrics={
            "accuracy": Accuracy(topk=(1, 2), counts=True),
            "confusion": ConfusionMatrix(CLASSES),
            "counts": Counts(),
            "outputs": Outputs(),
        },
        update={"accuracy": scores_of, "confusion": scores_of, "counts": all_of, "outputs": all_of},
        batch_size=BATCH,
    )


def spanning(backend: Any) -> Task:
    """Return the same task, with a model of which each rank of a group has some classes."""
    whole, group = task(backend), backend.group
    calls = 0

    def predict(batch: Any) -> Any:
        nonlocal calls
        whole.predict(batch)
        own, calls = batch[:, group.rank :: group.size], calls + 1
        draft = group.path / f"{group.rank}.npy"
        np.save(draft, own)
        draft.rename(group.path / f"{calls}-{group.rank}.npy")
        outputs = np.empty_like(batch)
        for rank in range(group.size):
            part = group.path / f"{calls}-{rank}.npy"
            deadline = time.monotonic() + 5
            while not part.exists() and time.monotonic() < deadline:
                time.sleep(0.001)
            outputs[:, rank :: group.size] = np.load(part)
        return outputs

    return replace(whole, predict=predict)


def _end(how: str) -> None:
    if how == "exit":
        os._exit(3)
    if how == "exception":
        raise ValueError("this rank was told to fail")
    os.kill(os.getpid(), getattr(signal, how))


def right() -> dict[str, Any]:
    """Return the results of one rank."""
    backend = get_dist_backend("non_dist")
    found = task(backend).evaluate(backend).metrics
    assert found["counts"] == [1] * SAMPLES
    plain: dict[str, Any] = json.loads(json.dumps(found, default=lambda array: array.tolist()))
    return plain


def command(folder: Path, world_size: int, *options: str, task: str = TASK) -> list[str]:
    """Return the words of an evaluation that writes report.json and predictions into a folder."""
    return [
        sys.executable, "-m", "disteval.cli", "eval", task, "--world-size", str(world_size),
        "--elastic", "--quiet", "--json", str(folder / "report.json"),
        "--predictions", str(folder / "predictions"), *options,
    ]  # fmt: skip


def start(words: list[str], faults: dict[int, Any], seconds: float) -> subprocess.Popen[str]:
    """Start a command whose batches take so many seconds on average, in a session of its own."""
    environment = os.environ | {
        FAULTS: json.dumps(faults),
        SECONDS: str(seconds),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        words, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def judge(report: dict[str, Any], expected: dict[str, Any]) -> str:
    """Return what is wrong with a report; nothing where it is right."""
    for name, value in expected.items():
        if report["metrics"][name] != value:
            return f"the metric {name} is {report['metrics'][name]!r:.200}, not {value!r:.200}"
    if report["size"] != SAMPLES or report["coverage"] != "exact":
        return f"{report['size']} samples, coverage {report['coverage']}"
    return ""


def judge_predictions(folder: Path) -> None:
    """Check that each prediction is there once, to the last bit, and no other file."""
    found = load_predictions(folder)
    assert [row.tolist() for row in found] == samples()[0].tolist()
    named = {part.name + suffix for part in found.parts for suffix in part.files}
    assert {path.name for path in folder.iterdir()} == named | {".manifest.json"}
