"""Predictions are read back as they were written, each once, or not at all."""

from __future__ import annotations

import json
import logging
import os
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
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.data import PredictionWriter, certify, impatient
from suites.helpers.thread_world import run_ranks, values

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


def reversed_rows(outputs: Any) -> Any:
    """Return outputs whose rows are in the opposite order."""
    if isinstance(outputs, dict):
        return {key: reversed_rows(part) for key, part in outputs.items()}
    return tuple(map(reversed_rows, outputs)) if isinstance(outputs, tuple) else outputs[::-1]


def write(
    backend: ThreadsDist, where: Predictions, batches: list[tuple[Any, Any]], size: int
) -> None:
    """Write batches of one rank as a whole result."""
    writer = PredictionWriter(where, backend, {"size": str(size)})
    for ids, outputs in batches:
        writer.write(np.asarray(ids), outputs)
    mine = np.concatenate([np.zeros(0, np.int64), *(ids for ids, _ in batches)])
    writer.finish(size, backend.all_gather_object(certify(mine.astype(np.int64))))


def write_alone(where: Predictions, outputs: Any, ids: Any = IDS) -> None:
    values(run_ranks(1, lambda backend: write(backend, where, [(ids, outputs)], len(ids))))


CASES = [("jsonl", name) for name in (*OUTPUTS, *LISTS)] + [("npy", name) for name in OUTPUTS]


@pytest.mark.parametrize(("format", "name"), CASES)  # fmt: skip
def test_outputs_come_back_to_the_last_bit(format: Any, name: str, tmp_path: Path) -> None:  # noqa: A002
    outputs = {**OUTPUTS, **LISTS}[name]
    write_alone(Predictions(tmp_path, format), outputs)
    assert same(load_predictions(tmp_path).all(), outputs)

    def interrupted(backend: ThreadsDist) -> Any:
        where = Predictions(tmp_path / "again", format, rows_per_part=2)
        writer = PredictionWriter(where, backend, {"size": "6"})
        writer.write(IDS, outputs)
        writer.close()
        again = PredictionWriter(where, backend, {"size": "6"})
        try:
            return again.stored(IDS[::-1]), again.stored(IDS)
        finally:
            again.close()

    backwards, stored = values(run_ranks(1, interrupted))[0]
    assert same(stored, outputs)
    assert same(backwards, reversed_rows(outputs))


def test_a_line_of_json_has_the_id_and_the_fields(tmp_path: Path) -> None:
    write_alone(Predictions(tmp_path), {"label": np.array([3, 4]), "text": ["a", "b"]}, [1, 0])
    (path,) = tmp_path.glob("part-*.jsonl")
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"sample_id": 0, "label": 4, "text": "b"},
        {"sample_id": 1, "label": 3, "text": "a"},
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == [".manifest.json", path.name]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 40), st.integers(1, 4), st.integers(1, 7), st.integers(1, 5),
    st.sampled_from(["jsonl", "npy"]), st.randoms(use_true_random=False),
)  # fmt: skip
def test_they_are_in_the_order_of_the_data_set(
    tmp_path_factory: pytest.TempPathFactory, size: int, world: int, batch_size: int, rows: int,
    format: Any, random: Any,  # noqa: A002
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("folder")
    order = list(range(size))
    random.shuffle(order)

    def rank(backend: ThreadsDist) -> None:
        mine = np.array(order[backend.rank :: world], np.int64)
        pieces = [mine[at : at + batch_size] for at in range(0, len(mine), batch_size)]
        where = Predictions(folder, format, rows_per_part=rows)
        write(backend, where, [(ids, ids * 2) for ids in pieces], size)

    values(run_ranks(world, rank))
    found = load_predictions(folder)
    assert list(found.items()) == [(number, 2 * number) for number in range(size)]
    assert len(found) == size
    assert list(found.all()) == [2 * number for number in range(size)]


def begun(folder: Path, count: int = 4, **options: Any) -> None:
    """Leave an interrupted run of six samples, of which some are stored one a part."""

    def rank(backend: ThreadsDist) -> None:
        where = Predictions(folder, rows_per_part=1, **options)
        writer = PredictionWriter(where, backend, {"size": "6"})
        writer.write(IDS[:count], IDS[:count] * 10)
        writer.close()

    values(run_ranks(1, rank))


def go_on(folder: Path, world: int = 2, size: int = 6, **options: Any) -> list[Any]:
    """Go on with a run, and return the ids that each rank had to write, or its error."""

    def rank(backend: ThreadsDist) -> list[int]:
        where = Predictions(folder, **options)
        writer = PredictionWriter(where, backend, {"size": str(size)})
        has = set(writer.stored_ids.tolist())
        left = [n for n in range(backend.rank, size, world) if n not in has]
        writer.write(np.array(left, np.int64), np.array(left, np.int64) * 10)
        every = np.arange(backend.rank, size, world)
        writer.finish(size, backend.all_gather_object(certify(every)))
        return left

    return run_ranks(world, rank)


def test_an_interrupted_run_is_no_result_and_goes_on(tmp_path: Path) -> None:
    begun(tmp_path)
    with pytest.raises(DataError, match="not finished"):
        load_predictions(tmp_path)
    assert go_on(tmp_path, 3) == [[], [4], [5]]
    assert list(load_predictions(tmp_path)) == [0, 10, 20, 30, 40, 50]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "removed", "note"])
def test_a_damaged_part_is_named_and_computed_again(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun(tmp_path)
    path = sorted(tmp_path.glob("part-*.jsonl"))[2]
    data = bytearray(path.read_bytes())
    if damage == "removed":
        path.unlink()
    elif damage == "note":
        note = path.with_suffix(".part.json")
        note.write_bytes(note.read_bytes().replace(b"20", b"21"))
        note.write_bytes(b"x" + note.read_bytes()[1:])
    else:
        data[20] ^= 1
        path.write_bytes(data[:-1] if damage == "truncated" else data)
    with caplog.at_level(logging.WARNING):
        assert go_on(tmp_path) == [[2, 4], [5]]
    assert path.stem in caplog.text
    assert "again" in caplog.text
    assert list(load_predictions(tmp_path)) == [0, 10, 20, 30, 40, 50]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "npy"}, "format"),
        ({"size": 7}, "size is 6"),
    ],
)
def test_runs_of_other_settings_are_not_mixed(options: Any, message: str, tmp_path: Path) -> None:
    begun(tmp_path)
    for outcome in go_on(tmp_path, **options):
        assert isinstance(outcome, UsageError)
        assert "interrupted" in str(outcome)
        assert message in str(outcome)
    assert go_on(tmp_path) == [[4], [5]]


def test_a_run_that_was_killed_after_its_manifest_begins_anew(tmp_path: Path) -> None:
    begun(tmp_path)
    unfinished = (tmp_path / "unfinished.json").read_bytes()
    notes = {note: note.read_bytes() for note in tmp_path.glob("*.part.json")}
    go_on(tmp_path)
    (tmp_path / "unfinished.json").write_bytes(unfinished)
    for note, content in notes.items():
        note.write_bytes(content)
    assert go_on(tmp_path, overwrite=True) == [[0, 2, 4], [1, 3, 5]]


def test_a_result_is_replaced_only_on_request_and_only_by_a_whole_one(tmp_path: Path) -> None:
    begun(tmp_path)
    go_on(tmp_path)
    for outcome in go_on(tmp_path):
        assert isinstance(outcome, UsageError)
        assert "6 samples" in str(outcome)
        assert "overwrite=True" in str(outcome)
    begun(tmp_path, overwrite=True, format="npy")
    assert load_predictions(tmp_path).format == "jsonl"
    assert go_on(tmp_path, overwrite=True, format="npy") == [[4], [5]]
    assert load_predictions(tmp_path).format == "npy"
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".npy"}


def test_two_jobs_do_not_use_one_folder(tmp_path: Path) -> None:
    def rank(backend: ThreadsDist) -> Any:
        writer = PredictionWriter(Predictions(tmp_path), backend, {"size": "6"})
        (outcome,) = go_on(tmp_path, 1)
        writer.close()
        return outcome

    (outcome,) = run_ranks(1, rank)
    assert isinstance(outcome, UsageError)
    assert str(os.getpid()) in str(outcome)
    assert go_on(tmp_path, 1) == [[0, 1, 2, 3, 4, 5]]


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
    def rank(backend: ThreadsDist) -> None:
        PredictionWriter(Predictions(tmp_path / str(backend.rank)), backend, {"size": "6"})

    with impatient(0.1):
        outcomes = run_ranks(3, rank)
    for outcome in outcomes:
        assert isinstance(outcome, UsageError)
        assert "rank 1: " in str(outcome)
        assert str(tmp_path / "1") in str(outcome)


def test_a_part_that_rank_0_does_not_see_is_no_result(tmp_path: Path) -> None:
    def rank(backend: ThreadsDist) -> None:
        writer = PredictionWriter(Predictions(tmp_path, rows_per_part=1), backend, {"size": "2"})
        writer.write(np.array([backend.rank]), np.zeros(1))
        if backend.rank == 1:
            next(tmp_path.glob("part-*-00001-*.jsonl")).unlink()
        writer.finish(2, backend.all_gather_object(certify(np.array([backend.rank]))))

    for outcome in run_ranks(2, rank):
        assert isinstance(outcome, CoverageError)
        assert "1 of 2 parts" in str(outcome)
    with pytest.raises(DataError, match="not finished"):
        load_predictions(tmp_path)


def test_parts_of_other_samples_than_were_proved_are_no_result(tmp_path: Path) -> None:
    def rank(backend: ThreadsDist) -> None:
        writer = PredictionWriter(Predictions(tmp_path), backend, {"size": "2"})
        writer.write(np.array([0, 0]), np.zeros(2))
        writer.finish(2, [certify(np.arange(2))])

    (outcome,) = run_ranks(1, rank)
    assert isinstance(outcome, CoverageError)
    assert "the 2 samples" in str(outcome)


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
    def rank(backend: ThreadsDist) -> None:
        with pytest.raises(UsageError, match=message):
            PredictionWriter(Predictions(tmp_path), backend, {"size": "2"}).write(
                np.arange(2), outputs
            )

    values(run_ranks(1, rank))


def test_npy_refuses_what_is_no_array_on_every_rank(tmp_path: Path) -> None:
    def rank(backend: ThreadsDist) -> None:
        texts = ["a"] if backend.rank == 1 else np.zeros(1)
        write(backend, Predictions(tmp_path, "npy"), [([backend.rank], texts)], 3)

    for outcome in run_ranks(3, rank):
        assert isinstance(outcome, RankError)
        assert "rank 1 " in str(outcome)
        assert "format='jsonl'" in str(outcome)


def test_a_field_that_would_replace_the_shapes_of_another_is_refused(tmp_path: Path) -> None:
    outputs = {"x": [np.zeros((0, 3)), np.zeros((2, 3))], "x.shape": ["a", "b"]}

    def rank(backend: ThreadsDist) -> None:
        write(backend, Predictions(tmp_path), [([0, 1], outputs)], 2)

    [outcome] = run_ranks(1, rank)
    assert "'x.shape'" in str(outcome)


def test_a_rank_that_cannot_write_fails_on_every_rank(tmp_path: Path) -> None:
    def rank(backend: ThreadsDist) -> None:
        writer = PredictionWriter(Predictions(tmp_path), backend, {"size": "2"})
        if backend.rank == 1:  # its next draft can't be made
            begun, _ = (tmp_path / "unfinished.json").read_text().splitlines()
            name = f".part-{json.loads(begun)['run']}-1-00001-000000.jsonl.part"
            (tmp_path / name).mkdir()
        backend.all_gather_object(None)
        writer.write(np.array([backend.rank]), np.zeros(1))
        writer.finish(2, backend.all_gather_object(certify(np.array([backend.rank]))))

    for outcome in run_ranks(2, rank):
        assert isinstance(outcome, RankError)
        assert outcome.rank == 1


def test_a_folder_that_can_not_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for outcome in go_on(tmp_path / "file" / "folder", 2):
        assert isinstance(outcome, UsageError)
        assert "file/folder" in str(outcome)


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
