"""Predictions are read back as they were written, each once, or not at all."""

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import (
    CoverageError,
    DataError,
    LibraryMissingError,
    Predictions,
    RankError,
    UsageError,
    evaluate,
    load_predictions,
    predict_all,
)
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.data import impatient
from suites.helpers.thread_world import assert_each_raised, run_ranks

pytestmark = pytest.mark.usefixtures("without_canary")

IDS = np.arange(6)
BITS = np.array([0, 1, 0x7F800000, 0xFF800000, 0x80000000, 0x3DCCCCCD], np.uint32).view(np.float32)
OUTPUTS: dict[str, Any] = {
    "numbers": BITS,
    "rows": np.arange(24, dtype=np.float64).reshape(6, 2, 2) / 7,
    "whole": np.array([0, 1, -1, 2**63 - 1, -(2**63), 5]),
    "large": np.full((6, 1), 2**64 - 1, np.uint64),
    "half": np.linspace(0, 1, 6, dtype=np.float16),
    "truth": np.arange(6) % 2 == 0,
    "without elements": np.zeros((6, 3, 0), np.float32),
    "a dict": {"label": np.arange(6), "score": BITS},
    "a tuple": (np.arange(6, dtype=np.int8), BITS),
}
LISTS: dict[str, Any] = {
    "text": ["", "a\nb", "\u2028 é", 'quote " \\', "\x00", "🙂"],
    "bytes": [b"", b"\xff\x00", b"a", b"b", b"c", b"d"],
    "objects": [None, {"boxes": [[1, 2.5]], "name": "x"}, [], 3, True, float("inf")],
    "ragged": [np.arange(n, dtype=np.float32) for n in (0, 3, 1, 5, 2, 2)],
    "ragged pictures": [np.ones((n, 2), np.uint8) * n for n in (1, 3, 1, 0, 2, 2)],
    "in a dict": {"text": list("abcdef"), "length": np.arange(6)},
}


def same(one: Any, other: Any) -> bool:
    """Return whether outputs are equal to the last bit, with their types."""
    if isinstance(one, dict | list | tuple):
        if type(one) is not type(other) or len(one) != len(other):
            return False
        if isinstance(one, dict):
            return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
        return all(map(same, one, other))
    if isinstance(one, np.ndarray):
        other_bytes = (other.dtype, other.shape, other.tobytes())
        return (one.dtype, one.shape, one.tobytes()) == other_bytes
    return type(one) is type(other) and one == other


def rows_of(outputs: Any, numbers: list[int]) -> Any:
    """Return some consecutive rows of outputs."""
    if isinstance(outputs, dict):
        return {key: rows_of(part, numbers) for key, part in outputs.items()}
    if isinstance(outputs, tuple):
        return tuple(rows_of(part, numbers) for part in outputs)
    return outputs[numbers[0] : numbers[-1] + 1]


def write_alone(where: Predictions, outputs: Any, batch_size: int = 6) -> None:
    """Write outputs, a row for each sample."""
    rows = len(next(iter(outputs.values())) if isinstance(outputs, dict) else outputs)
    rows = len(outputs[0]) if isinstance(outputs, tuple) else rows
    evaluate(
        lambda x: rows_of(outputs, x.tolist()), np.arange(rows), {}, "non_dist", batch_size,
        predictions=where, fixed_shape=False,
    )  # fmt: skip


CASES = [("jsonl", name) for name in (*OUTPUTS, *LISTS)] + [("npy", name) for name in OUTPUTS]


@pytest.mark.parametrize(("format", "name"), CASES)  # fmt: skip
def test_outputs_come_back_to_the_last_bit(format: Any, name: str, tmp_path: Path) -> None:  # noqa: A002
    outputs = {**OUTPUTS, **LISTS}[name]
    write_alone(Predictions(tmp_path, format), outputs)
    assert same(load_predictions(tmp_path).all(), outputs)
    write_alone(Predictions(tmp_path / "parts", format, rows_per_part=2), outputs, 1)
    again = load_predictions(tmp_path / "parts")
    assert len(again.parts) == 3
    assert same(again.all(), outputs)


def test_a_line_of_json_has_the_id_and_the_fields(tmp_path: Path) -> None:
    write_alone(Predictions(tmp_path), {"label": np.array([4, 3]), "text": ["b", "a"]})
    (path,) = tmp_path.glob("part-*.jsonl")
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"sample_id": 0, "label": 4, "text": "b"},
        {"sample_id": 1, "label": 3, "text": "a"},
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == [".manifest.json", path.name]


class Model:
    """A model of numbers that ends before its time, and the numbers that it was asked for."""

    def __init__(self, last: int = 99) -> None:
        self.last = last
        self.asked: list[int] = []

    def __call__(self, numbers: Any) -> Any:
        if numbers.max() > self.last:
            raise PowerError
        self.asked += numbers.tolist()
        return numbers * 10


class PowerError(Exception):
    """The end of an evaluation before its time."""


def begun(folder: Path, **options: Any) -> None:
    """Leave an interrupted run of six samples, of which four are stored one a part."""
    where = Predictions(folder, rows_per_part=1, **options)
    with pytest.raises(RankError):
        evaluate(Model(3), IDS, {}, "non_dist", 1, predictions=where)


def go_on(folder: Path, world: int = 2, size: int = 6, **options: Any) -> list[Any]:
    """Go on with a run, and return the numbers that each rank had to evaluate, or its error."""

    def rank(backend: ThreadsDist) -> list[int]:
        model, where = Model(), Predictions(folder, **options)
        evaluate(model, np.arange(size), {}, backend, 1, predictions=where, even_calls=False)
        return model.asked

    return run_ranks(world, rank)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "removed"])
def test_a_damaged_part_is_named_and_computed_again(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun(tmp_path)
    path = sorted(tmp_path.glob("part-*.jsonl"))[2]
    data = bytearray(path.read_bytes())
    if damage == "removed":
        path.unlink()
    else:
        data[20] ^= 1
        path.write_bytes(data[:-1] if damage == "truncated" else data)
    with caplog.at_level(logging.WARNING):
        assert go_on(tmp_path) == [[2, 5], [4]]
    assert path.stem in caplog.text
    assert "again" in caplog.text
    assert list(load_predictions(tmp_path)) == [0, 10, 20, 30, 40, 50]


def test_a_run_that_was_killed_after_its_manifest_is_finished(tmp_path: Path) -> None:
    begun(tmp_path)
    logs = {path: path.read_bytes() for path in tmp_path.glob(".ledger-*")}
    go_on(tmp_path)
    for path, content in logs.items():
        path.touch(0o600)
        path.write_bytes(content)
    assert_each_raised(go_on(tmp_path), UsageError, "6 samples")
    assert go_on(tmp_path, overwrite=True) == [[4], [5]]
    assert list(load_predictions(tmp_path)) == [0, 10, 20, 30, 40, 50]


def test_a_result_is_replaced_only_on_request_and_only_by_a_whole_one(tmp_path: Path) -> None:
    begun(tmp_path)
    go_on(tmp_path)
    assert_each_raised(go_on(tmp_path), UsageError, "6 samples", "overwrite=True")
    begun(tmp_path, overwrite=True, format="npy")
    assert load_predictions(tmp_path).format == "jsonl"
    assert go_on(tmp_path, overwrite=True, format="npy") == [[4], [5]]
    assert load_predictions(tmp_path).format == "npy"
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".npy"}


def test_two_jobs_do_not_use_one_folder(tmp_path: Path) -> None:
    found: list[Any] = []

    def predict(batch: Any) -> Any:
        found.extend(go_on(tmp_path, 1))
        return batch

    evaluate(predict, IDS, {}, "non_dist", predictions=tmp_path)
    (outcome,) = found
    assert isinstance(outcome, UsageError)
    assert str(os.getpid()) in str(outcome)


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from disteval.files import FolderLock\n"
        "lock = FolderLock(Path(sys.argv[1]))\n"
        "if os.fork() == 0:\n    os.setsid(); print(os.getpid(), flush=True); os.read(0, 1)\n"
        "else:\n    os.kill(os.getpid(), 9)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 0  # its fork is alive, and ends with its input
        assert process.wait(60) == -9
        assert go_on(tmp_path, 1) == [[0, 1, 2, 3, 4, 5]]


def test_ranks_that_see_different_folders_are_told_before_the_work(tmp_path: Path) -> None:
    model = Model()

    def rank(backend: ThreadsDist) -> None:
        evaluate(model, IDS, {}, backend, predictions=tmp_path / str(backend.rank))

    with impatient(0.1):
        outcomes = run_ranks(3, rank)
    assert_each_raised(outcomes, UsageError, "rank 1: ", str(tmp_path))
    assert not model.asked


def test_a_part_that_rank_0_does_not_see_is_no_result(tmp_path: Path) -> None:
    def rank(backend: ThreadsDist) -> None:
        def predict(batch: Any) -> Any:
            if batch[0] == 3:  # the second one of rank 1
                next(tmp_path.glob("part-*.jsonl")).unlink()
            return batch

        where = Predictions(tmp_path, rows_per_part=1)
        evaluate(predict, np.arange(4), {}, backend, 1, predictions=where)

    assert_each_raised(run_ranks(2, rank), CoverageError, "1 of 4 parts")
    with pytest.raises(DataError, match="not finished"):
        load_predictions(tmp_path)


class Opaque:
    """An object that JSON can't hold."""


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([Opaque(), 1], "Opaque.*'prediction'"),
        ([{1: 2}, 1], "type dict"),
        (np.zeros(2, complex), "complex128"),
        (np.zeros(2, np.longdouble), "float128"),
        (np.zeros(3), "2 samples.* 3 "),
        ({"sample_id": np.zeros(2)}, "'sample_id'"),
        ({"a": {"b": np.zeros(2)}}, "'a'.*dict"),
        ((), "an empty tuple"),
        (3.0, "of type float"),
    ],
)
def test_outputs_that_can_not_be_stored_are_refused(
    outputs: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(RankError, match=message):
        predict_all(
            lambda x: x, np.arange(2), "non_dist", 2, folder=tmp_path,
            record=lambda found, batch: outputs,
        )  # fmt: skip


def test_npy_refuses_what_is_no_array_on_every_rank(tmp_path: Path) -> None:
    def rank(backend: ThreadsDist) -> None:
        predict_all(
            lambda x: ["a"] if x[0] == 1 else np.zeros(1), np.arange(3), backend, 1,
            folder=tmp_path, format="npy",
        )  # fmt: skip

    assert_each_raised(run_ranks(3, rank), RankError, "rank 1 ", "format='jsonl'")


def test_a_field_that_would_replace_the_shapes_of_another_is_refused(tmp_path: Path) -> None:
    outputs = {"x": [np.zeros((0, 3)), np.zeros((2, 3))], "x.shape": ["a", "b"]}
    with pytest.raises(RankError, match=r"'x\.shape'"):
        write_alone(Predictions(tmp_path), outputs)


def test_a_rank_that_cannot_write_fails_on_every_rank(tmp_path: Path) -> None:
    folder = tmp_path / "folder"

    def rank(backend: ThreadsDist) -> None:
        def predict(batch: Any) -> Any:
            if batch[0] == 1:  # the part of rank 1 can't be made
                shutil.rmtree(folder)
                folder.touch()
            return batch

        evaluate(predict, np.arange(2), {}, backend, 1, predictions=folder)

    assert_each_raised(run_ranks(2, rank), RankError, str(folder))


def test_a_folder_that_can_not_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert_each_raised(go_on(tmp_path / "file" / "folder", 2), UsageError, "file/folder")


class Somewhere(os.PathLike[str]):
    """A path of another library."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return str(self._path)


def test_a_folder_may_be_any_object_that_is_a_path(tmp_path: Path) -> None:
    folder = Somewhere(tmp_path / "squares")
    found = predict_all(lambda x: x**2, np.arange(3), "non_dist", folder=folder)
    assert found.all().tolist() == load_predictions(folder).all().tolist() == [0, 1, 4]
    assert evaluate(
        lambda x: x, np.arange(3), {}, "non_dist", predictions=Somewhere(tmp_path / "same")
    ).size == len(load_predictions(tmp_path / "same"))


@pytest.mark.parametrize("damage", ["truncated", "flipped", "removed", "manifest"])
def test_a_reader_verifies_the_manifest(damage: str, tmp_path: Path) -> None:
    write_alone(Predictions(tmp_path), IDS)
    pattern = ".manifest.json" if damage == "manifest" else "part-*.jsonl"
    (path,) = tmp_path.glob(pattern)
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data[:-1] if damage == "truncated" else data)
    if damage == "removed":
        path.unlink()
    with pytest.raises(DataError, match=path.name):
        load_predictions(tmp_path)
    if damage in ("truncated", "removed"):
        with pytest.raises(DataError, match=path.name):
            load_predictions(tmp_path, verify=False)


def test_an_iterator_proves_again_that_each_sample_is_there_once(tmp_path: Path) -> None:
    write_alone(Predictions(tmp_path), IDS)
    (path,) = tmp_path.glob("part-*.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"sample_id": 3', b'"sample_id": 2'))
    with pytest.raises(CoverageError, match="sample 2"):
        list(load_predictions(tmp_path, verify=False))
    path.write_bytes(path.read_bytes().replace(b'"sample_id": 2', b'"sample_id": 7'))
    with pytest.raises(CoverageError, match="sample 7"):
        list(load_predictions(tmp_path, verify=False))


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    for name in ("part-1.jsonl", "notes.txt", "part-of-it.part.json"):
        (tmp_path / name).write_text("theirs")
    begun(tmp_path)
    go_on(tmp_path)
    assert (tmp_path / "part-of-it.part.json").read_text() == "theirs"
    assert (tmp_path / "part-1.jsonl").read_text() == (tmp_path / "notes.txt").read_text()


def test_parquet_without_pyarrow_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(LibraryMissingError, match=r"\[parquet\]"):
        Predictions(tmp_path, "parquet")

    def rank(backend: ThreadsDist) -> Any:
        return predict_all(np.sqrt, np.arange(3), backend, folder=tmp_path, format="parquet")

    assert [type(outcome) for outcome in run_ranks(2, rank)] == [LibraryMissingError] * 2


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_ragged_arrays_of_batches_with_other_dtypes_lose_no_digit(
    tmp_path: Path, kind: Any
) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    rows = [np.array([2**60 + 1]), np.zeros(0, np.int64), np.array([0.25, -1.5]), np.zeros(0)]
    predict_all(
        lambda b: [rows[i] for i in b], IDS[:4], "non_dist", 2, folder=tmp_path, format=kind
    )
    assert [list(row) for row in load_predictions(tmp_path)] == [[2**60 + 1], [], [0.25, -1.5], []]
