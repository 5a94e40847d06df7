"""Whole batches give the same bits at any world size, also of models that pad to the longest."""

from collections import UserDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from disteval import ByLength, UsageError, evaluate
from disteval.metrics import Mean
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.needs import framework, needs
from suites.helpers.thread_world import run_ranks, values
from suites.properties.cases import Entries

pytestmark = needs("torch")

torch: Any = framework("torch")

RAGGED = [
    {"tokens": np.random.default_rng(n).integers(1, 50, 1 + n * 37 % 40), "label": n}
    for n in range(101)
]


def padded(samples: list[dict[str, Any]]) -> tuple[Any, Any]:
    """Pad to the longest sample with zeros, as tokenizers do."""
    rows = [torch.from_numpy(sample["tokens"]) for sample in samples]
    labels = np.array([sample["label"] for sample in samples])
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), labels


@pytest.fixture(scope="module")
def predict() -> Callable[[Any], Any]:
    """A model whose output for a sample depends on how far its batch is padded."""
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(50, 16)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).eval()

    def call(tokens: Any) -> Any:
        with torch.no_grad():
            return layer(embedding(tokens)).mean(dim=(1, 2)).double()

    return call


def evaluated(predict: Any, samples: Any, world: int, **settings: Any) -> Any:
    def rank(backend: ThreadsDist) -> Any:
        metrics = {"rows": Entries(), "mean": Mean()}
        update = {"rows": lambda out, batch: (out, batch[1]), "mean": lambda out, batch: (out,)}
        found = evaluate(
            predict, samples, metrics, backend, 8, collate=padded, update=update, **settings
        )
        return found.metrics["rows"], found.metrics["mean"]

    first, *others = values(run_ranks(world, rank))
    assert all(other == first for other in others)
    return first


SETTINGS = [
    {},
    {"by_length": ByLength()},
    {"by_length": ByLength(max_tokens=120, sort=False)},
    {"by_length": ByLength(max_tokens=120)},
    {"by_length": ByLength("label"), "even_calls": False, "fixed_shape": False},
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("settings", SETTINGS)
def test_results_are_the_same_bits_at_any_world_size(
    predict: Any, settings: dict[str, Any], stream: bool
) -> None:
    samples: Any = (lambda: iter(RAGGED)) if stream else RAGGED
    alone = evaluated(predict, samples, 1, **settings)
    assert [label for _, label in alone[0]] == list(range(101))
    for world in (2, 3):
        assert evaluated(predict, samples, world, **settings) == alone


def test_the_model_is_one_whose_result_depends_on_the_other_samples_of_a_batch(
    predict: Any,
) -> None:
    in_order, by_length = (
        evaluated(predict, RAGGED, 1, by_length=way) for way in (None, ByLength())
    )
    assert in_order[0] != by_length[0]


def test_other_libraries_functions_make_batches() -> None:
    class Encoding(UserDict):  # type: ignore[type-arg]
        """A batch as tokenizers of Hugging Face return it."""

    def encoded(samples: list[Any]) -> Any:
        return Encoding(torch.utils.data.default_collate(samples))

    samples = [{"x": torch.full((2,), float(n)), "label": n} for n in range(11)]
    for collate in (torch.utils.data.default_collate, encoded):

        def rank(backend: ThreadsDist, collate: Any = collate) -> Any:
            return evaluate(
                lambda batch: batch["x"][:, 0], samples, {"rows": Entries()}, backend, 4,
                collate=collate,
            ).metrics["rows"]  # fmt: skip

        assert values(run_ranks(2, rank)) == [[(n, n) for n in range(11)]] * 2


def test_the_default_of_torch_makes_a_tuple_of_the_fields_of_tuples() -> None:
    samples = [(torch.full((2,), float(n)), n) for n in range(11)]
    collate = torch.utils.data.default_collate
    metrics = {"rows": Entries()}
    found = evaluate(lambda x: x[:, 0], samples, metrics, "non_dist", 4, collate=collate)
    assert found.metrics["rows"] == [(n, n) for n in range(11)]


def test_a_module_in_training_mode_is_refused() -> None:
    def mean(predict: Any) -> Any:
        metrics = {"mean": Mean()}
        given = {"update": lambda outputs, batch: (outputs.sum(dim=1).detach(),)}
        return evaluate(predict, torch.ones(40, 2), metrics, "non_dist", 8, **given).metrics["mean"]

    module = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Dropout(0.5))
    with pytest.raises(UsageError, match=r"Sequential.*eval"):
        mean(module)
    assert mean(lambda batch: module(batch) * 0) == {"mean": 0}, "a function is taken as it is"
    assert mean(module.eval()) == {"mean": 2}
    wrapper = torch.nn.DataParallel(module)  # which is in training mode itself, without effect
    assert wrapper.training
    assert mean(wrapper) == {"mean": 2}
    exported = torch.export.export(module, (torch.ones(8, 2),)).module()
    assert exported.training, "it has no other mode, and computes as it was traced"
    assert mean(exported) == {"mean": 2}
