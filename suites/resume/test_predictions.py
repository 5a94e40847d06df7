"""Predictions of leases are those of a static evaluation, whoever evaluated which lease."""

import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import Leases, RankError, UsageError, evaluate, load_predictions
from disteval.data import Predictions
from disteval.errors import HarnessError
from disteval.metrics import Accuracy

from suites.helpers.thread_world import assert_each_raised, run_ranks, values
from suites.properties.cases import OF_ROWS

pytestmark = pytest.mark.usefixtures("without_canary")

KINDS = ["columns", "rows", "shards"]


def samples_of(kind: str, size: int) -> Any:
    if kind == "columns":
        return {"x": np.arange(size), "y": np.arange(size) % 3}
    return OF_ROWS[kind]([{"x": x, "y": x % 3} for x in range(size)])


def scores(batch: Any) -> Any:
    x = np.asarray(batch["x"])
    # The result depends on the batch, and so shows which batches there were.
    return np.eye(3)[np.where(x % 5 == 0, (x + 1) % 3, x % 3)] + (len(x) + x.max()) / 1e3


class Machine:
    """A model on a machine that can be taken away, and the samples that it was asked for."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.asked: list[int] = []

    def predict(self, batch: Any) -> Any:
        self.asked.extend(np.asarray(batch["x"]).tolist())
        if max(self.asked) > self.last:
            raise ValueError("the machine is taken away")
        return scores(batch)

    def give_back(self) -> None:
        self.last = 999
        self.asked.clear()


def update(outputs: Any, batch: Any) -> Any:
    return outputs, np.asarray(batch["y"])


def run(
    world: int,
    kind: str,
    size: int,
    folder: Path | Predictions,
    leases: Any,
    predict: Any = scores,
    **more: Any,
) -> list[Any]:
    """Evaluate on threads; return each rank's results, or its exception."""

    def rank(backend: Any) -> Any:
        found = evaluate(
            predict,
            samples_of(kind, size), {"a": Accuracy(counts=True)}, backend, 4, update=update,
            predictions=folder, leases=leases, **more,
        )  # fmt: skip
        return found.metrics, found.size, found.padded

    return run_ranks(world, rank)


def read(folder: Path) -> list[Any]:
    return [(number, row.tolist()) for number, row in load_predictions(folder).items()]


def manifest_of_all_there_is(folder: Path) -> Any:
    """Return what the manifest says, which names each file of the folder."""
    manifest = json.loads((folder / ".manifest.json").read_text().splitlines()[0])
    parts = {part["name"] + suffix for part in manifest.pop("parts") for suffix in part["files"]}
    assert {path.name for path in folder.iterdir()} == parts | {".manifest.json"}
    return manifest


def test_another_folder_is_another_evaluation_for_a_ledger(tmp_path: Path) -> None:
    values(run(1, "rows", 9, tmp_path / "one", Leases(), ledger=tmp_path / "ledger"))
    assert_each_raised(
        run(1, "rows", 9, tmp_path / "two", Leases(), ledger=tmp_path / "ledger"),
        UsageError,
        str(tmp_path / "one"),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_rank_that_fails_do_not_count_and_are_removed(kind: str, tmp_path: Path) -> None:
    failed: list[int] = []

    def fails_once(batch: Any) -> Any:
        if not failed and 50 in batch["x"]:
            failed.append(50)
            raise ValueError("once")
        return scores(batch)

    values(run(1, kind, 60, tmp_path / "static", None))
    values(run(3, kind, 60, tmp_path / "leased", Leases(), predict=fails_once))
    assert failed
    assert read(tmp_path / "leased") == read(tmp_path / "static")
    assert manifest_of_all_there_is(tmp_path / "leased")


def test_an_interrupt_while_a_batch_is_added_loses_no_batch(tmp_path: Path) -> None:
    """It comes when all metrics and the predictions have the batch."""
    moments = iter([False, False, True] + [False] * 99)

    def update_interrupted(outputs: Any, batch: Any) -> Any:
        if next(moments):
            signal.raise_signal(signal.SIGINT)
        return update(outputs, batch)

    def once() -> Any:
        return evaluate(
            scores, samples_of("columns", 60), {"a": Accuracy(), "b": Accuracy()}, "non_dist", 4,
            update=update_interrupted, predictions=tmp_path,
        )  # fmt: skip

    with pytest.raises(KeyboardInterrupt):
        once()
    assert once().stored == 12
    assert [number for number, _ in read(tmp_path)] == [*range(60)]


@pytest.mark.parametrize("name", ["ledger", "predictions"])
def test_a_run_that_is_killed_in_its_first_seconds_leaves_what_it_had_done(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def predict(batch: Any) -> Any:
        calls.append(batch)
        if len(calls) == 4:
            shutil.copytree(tmp_path / "alive", tmp_path / "killed")
        return scores(batch)

    def once(folder: str) -> Any:
        return evaluate(
            predict, samples_of("columns", 60), {"a": Accuracy()}, "non_dist", 4, update=update,
            **{name: tmp_path / folder},
        )  # fmt: skip

    monkeypatch.setattr(time, "monotonic", lambda: 2.0 * len(calls))  # 2 s a batch
    once("alive")
    assert once("killed").stored >= 4


@pytest.mark.parametrize("damage", ["flipped", "gone", "manifest", "folder"])
@pytest.mark.parametrize("is_finished", [False, True])
def test_committed_predictions_that_are_damaged_are_evaluated_again(
    tmp_path: Path, damage: str, is_finished: bool
) -> None:
    machine = Machine(last=999 if is_finished else 49)
    where, given = tmp_path / "leased", {"ledger": tmp_path / "ledger", "predict": machine.predict}
    (first,) = run(1, "columns", 60, where, Leases(), **given)
    assert is_finished or isinstance(first, RankError)
    part = min(path for path in where.iterdir() if path.suffix == ".jsonl")
    lost = {json.loads(line)["sample_id"] for line in part.read_text().splitlines()}
    if damage == "gone":
        part.unlink()
    elif damage == "manifest":
        (where / ".manifest.json").unlink(missing_ok=True)
        lost = set()
    elif damage == "folder":
        shutil.rmtree(where)
    else:
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 1
        part.write_bytes(data)
    machine.give_back()
    if is_finished and damage in ("flipped", "gone"):  # the result is replaced only on request
        (outcome,) = run(1, "columns", 60, where, Leases(), **given)
        assert isinstance(outcome, HarnessError)
        assert str(where) in str(outcome)
        machine.give_back()
    again = Predictions(where, overwrite=True)
    values(run(1, "columns", 60, again, Leases(), **given))
    if damage == "folder":
        lost = {*range(60)}
    assert lost <= {*machine.asked}
    values(run(1, "columns", 60, tmp_path / "static", None))
    assert read(where) == read(tmp_path / "static")
