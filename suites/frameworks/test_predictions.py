"""Predictions of every framework come back to the last bit, also from Parquet."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import Predictions, UsageError, evaluate, load_predictions, predict_all
from disteval.metrics import Accuracy
from disteval_backends.threads_dist import ThreadsDist

from suites.data.test_predictions import LISTS, OUTPUTS, same, write_alone
from suites.helpers.needs import each, framework, needs
from suites.helpers.thread_world import run_ranks

pytestmark = needs("pyarrow")

IDS = np.arange(6)


@pytest.fixture
def parquet() -> Any:
    return framework("pyarrow.parquet")


def written(folder: Path, format: Any, outputs: Any) -> Any:  # noqa: A002
    """Return outputs after they were written, as NumPy's arrays."""
    write_alone(Predictions(folder, format), outputs)
    return load_predictions(folder).all()


@pytest.mark.parametrize("name", [*OUTPUTS, *LISTS])
def test_parquet_gives_outputs_back(name: str, parquet: Any, tmp_path: Path) -> None:
    outputs = {**OUTPUTS, **LISTS}[name]
    assert same(written(tmp_path, "parquet", outputs), outputs)


def test_other_programs_read_a_folder_and_a_file(parquet: Any, tmp_path: Path) -> None:
    pandas, datasets = framework("pandas"), framework("datasets")
    folder, file = tmp_path / "folder", tmp_path / "file" / "all.parquet"
    outputs = {"label": np.arange(6), "text": list("abcdef"), "box": np.ones((6, 2, 2))}
    write_alone(Predictions(folder, "parquet", rows_per_part=2), outputs)
    file.parent.mkdir()
    load_predictions(folder).write(file)
    for place in (folder, file):
        rows = parquet.read_table(place).to_pylist()
        assert sorted(pandas.read_parquet(place)["sample_id"]) == list(range(6))
        loaded = datasets.load_dataset(
            "parquet", data_dir=str(folder if place == folder else file.parent),
            cache_dir=str(tmp_path / "cache"), split="train",
        )  # fmt: skip
        assert sorted(loaded["sample_id"]) == list(range(6))
        rows.sort(key=lambda row: row["sample_id"])
        assert rows[3] == {"sample_id": 3, "label": 3, "text": "d", "box": [1.0] * 4}
    assert parquet.read_table(file).column("sample_id").to_pylist() == list(range(6))


def test_text_that_is_no_unicode_is_refused(parquet: Any, tmp_path: Path) -> None:
    for outcome in run_ranks(
        2,
        lambda backend: predict_all(
            lambda x: ["\ud800"] * len(x), IDS, backend, 2, folder=tmp_path, format="parquet"
        ),
    ):
        assert "Unicode" in str(outcome) and "jsonl" in str(outcome)


FORMATS = ["jsonl", "npy", "parquet"]
DTYPES = {
    "torch": ["float32", "bfloat16", "float16", "int64", "bool", "uint8"],
    "jax": ["float32", "bfloat16", "int32"],
    "tensorflow": ["float32", "bfloat16", "int64"],
}


def cast(library: str, numbers: Any, dtype: str) -> Any:
    """Return numbers as an array of a library."""
    if library == "torch":
        torch = framework("torch")
        return torch.as_tensor(numbers).to(getattr(torch, dtype))
    if library == "jax":
        return framework("jax.numpy").asarray(numbers).astype(dtype)
    return framework("tensorflow").cast(numbers, dtype)


@pytest.mark.parametrize("library", each(*DTYPES))
def test_arrays_of_every_framework_come_back(library: str, parquet: Any, tmp_path: Path) -> None:
    for dtype in DTYPES[library]:
        numbers = cast(library, np.arange(18, dtype=np.float32).reshape(6, 3) / 7, dtype)
        plain = "float32" if dtype == "bfloat16" else dtype
        expected = np.asarray(cast(library, numbers, plain))
        for kind in FORMATS:
            outputs = {"scores": numbers, "more": numbers[:, 0]}
            found = written(tmp_path / f"{dtype}-{kind}", kind, outputs)
            for name, array in (("scores", expected), ("more", expected[:, 0])):
                assert (found[name].dtype, found[name].tolist()) == (array.dtype, array.tolist())


@needs("torch")
def test_ragged_tensors_come_back(parquet: Any, tmp_path: Path) -> None:
    torch = framework("torch")
    rows = [torch.arange(n * 2).reshape(n, 2).bfloat16() for n in (1, 3, 2, 1, 0, 4)]
    for kind in ("jsonl", "parquet"):
        found = written(tmp_path / kind, kind, rows)
        assert [row.dtype for row in found] == [np.float32] * 6
        assert all(map(np.array_equal, found, (row.float().numpy() for row in rows)))


@needs("torch")
@pytest.mark.usefixtures("without_canary")
def test_an_interrupted_evaluation_of_tensors_goes_on_in_parquet(
    parquet: Any, tmp_path: Path
) -> None:
    torch = framework("torch")
    samples = {"x": torch.arange(12), "y": torch.arange(12) % 3}
    asked: list[int] = []
    ends: list[int] = [8]

    def update(outputs: Any, batch: Any) -> Any:
        return outputs.softmax(dim=1), batch["y"]  # which only a tensor has

    def once(world: int) -> Any:
        def predict(batch: Any) -> Any:
            if ends and ends[0] in batch["x"].tolist():
                ends.pop()
                raise ValueError("interrupted")
            asked.extend(batch["x"].tolist())
            return torch.nn.functional.one_hot(batch["x"] % 3, 3).bfloat16()

        def rank(backend: ThreadsDist) -> Any:
            where = Predictions(tmp_path, "parquet")
            return evaluate(
                predict, samples, {"accuracy": Accuracy()}, backend, 2, update=update,
                predictions=where, fixed_shape=False, even_calls=False,
            ).metrics  # fmt: skip

        return run_ranks(world, rank)

    once(2)
    assert once(3) == [{"accuracy": {"top1": 1.0}}] * 3
    assert sorted(asked) == list(range(12))


@needs("torch")
def test_predictions_in_memory_are_of_numpy() -> None:
    torch = framework("torch")
    found = predict_all(lambda x: x.bfloat16(), torch.arange(5), "non_dist", 2)
    assert (found.dtype, found.tolist()) == (np.float32, [0, 1, 2, 3, 4])


@needs("torch")
def test_sparse_and_complex_tensors() -> None:
    torch = framework("torch")
    dense = predict_all(lambda x: torch.eye(2).to_sparse(), torch.arange(2), "non_dist", 2)
    assert dense.tolist() == [[1, 0], [0, 1]]
    with pytest.raises(Exception, match="complex64") as caught:
        predict_all(lambda x: x + 1j, torch.arange(2), "non_dist", 2)
    assert isinstance(caught.value.__cause__, UsageError)
