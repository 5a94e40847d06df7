"""Perplexity against its formula, torch and torchmetrics: by token, by sequence and by byte."""

import math
from typing import Any

import numpy as np
import pytest
from disteval import UsageError
from disteval.metrics import Perplexity
from hypothesis import given
from hypothesis import strategies as st

from suites.helpers.needs import framework, needs
from suites.metrics.test_exact import mean_of

KEYS = ["cross_entropy", "perplexity", "cross_entropy_by_sequence", "nats_per_sequence"]


def drawn(sequences: int, tokens: int, classes: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """Return logits, labels of which some are -100, a mask, and numbers of bytes."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, 3, (sequences, tokens, classes)).astype(np.float32)
    labels = random.integers(0, classes, (sequences, tokens))
    labels[random.random(labels.shape) < 0.2] = -100
    labels[0, 0] = 0
    mask = np.arange(tokens) < random.integers(1, tokens + 1, (sequences, 1))
    return logits, labels, mask, random.integers(1, 50, sequences)


def by_formula(logits: Any, labels: Any, mask: Any, sizes: Any) -> dict[str, float]:
    losses = [
        [
            math.log(math.fsum(math.exp(s - max(row)) for s in row)) - (row[label] - max(row))
            for row, label, counts in zip(rows, true, some, strict=True)
            if counts and label != -100
        ]
        for rows, true, some in zip(logits.tolist(), labels.tolist(), mask.tolist(), strict=True)
    ]
    losses_of = [each for each in losses if each]
    every = [loss for each in losses_of for loss in each]
    return {
        "cross_entropy": mean_of(every),
        "perplexity": math.exp(mean_of(every)),
        "cross_entropy_by_sequence": mean_of([mean_of(each) for each in losses_of]),
        "perplexity_by_sequence": math.exp(mean_of([mean_of(each) for each in losses_of])),
        "nats_per_sequence": mean_of([math.fsum(each) for each in losses_of]),
        "bits_per_byte": math.fsum(every) / math.log(2) / int(sizes.sum()),
        "perplexity_per_byte": math.exp(math.fsum(every) / int(sizes.sum())),
        "tokens": len(every),
        "sequences": len(losses_of),
    }


SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.integers(0, 1 << 30))


@given(SHAPES)
def test_it_agrees_with_its_formula(shape: tuple[int, int, int, int]) -> None:
    logits, labels, mask, sizes = drawn(*shape)
    metric = Perplexity(dist_backend="non_dist")
    metric.add(logits, labels, mask, byte_counts=sizes)
    assert metric.compute() == pytest.approx(
        by_formula(logits, labels, mask, sizes), rel=1e-12, abs=1e-13
    )


@given(SHAPES)
def test_it_is_the_same_however_far_it_is_filled_up(shape: tuple[int, int, int, int]) -> None:
    logits, labels, mask, sizes = drawn(*shape)
    filled = [np.pad(a, [(0, 0), (0, 3)] + [(0, 0)] * (a.ndim - 2)) for a in (logits, labels, mask)]
    metric = Perplexity(dist_backend="non_dist")
    assert metric(*filled, byte_counts=sizes) == metric(logits, labels, mask, byte_counts=sizes)


def test_large_vocabularies_are_computed_in_parts() -> None:
    logits, labels, _, _ = drawn(1, 5, 1 << 20, 0)
    labels[:] = np.arange(5)
    whole = Perplexity(dist_backend="non_dist")(logits, labels)
    tokens = Perplexity(dist_backend="non_dist")
    for at in range(5):
        tokens.add(logits[:, [at]], labels[:, [at]])
    assert whole["cross_entropy"] == tokens.compute()["cross_entropy"]


@given(SHAPES)
def test_shifted_labels_are_those_of_the_next_place(shape: tuple[int, int, int, int]) -> None:
    logits, labels, mask, sizes = drawn(shape[0], shape[1] + 1, *shape[2:])
    labels[0, 1], mask[0, 1] = 0, True
    shifted = Perplexity(shift=True, dist_backend="non_dist")
    by_hand = Perplexity(dist_backend="non_dist")
    assert shifted(logits, labels, mask, byte_counts=sizes) == by_hand(
        logits[:, :-1], labels[:, 1:], mask[:, 1:], byte_counts=sizes
    )


@pytest.mark.parametrize("length", [0, 1])
def test_a_sequence_without_a_next_token_does_not_count(length: int) -> None:
    shifted = Perplexity(shift=True, dist_backend="non_dist")
    shifted.add(np.zeros((1, length, 3)), np.zeros((1, length), int))
    with pytest.raises(UsageError, match="no token counts"):
        shifted.compute()
    with pytest.raises(UsageError, match=r"shift.*labels"):
        shifted.add(np.zeros((1, 2)))


def test_log_probabilities_of_classes_and_of_labels_give_the_same() -> None:
    logits, labels, mask, _ = drawn(5, 4, 6, 0)
    wide = logits.astype(np.float64)
    logs = wide - np.log(np.exp(wide).sum(axis=2, keepdims=True))
    own = np.take_along_axis(logs, np.maximum(labels, 0)[..., None], axis=2)[..., 0]
    mask &= labels != -100
    whole = Perplexity(dist_backend="non_dist")(logits, labels, mask)
    assert Perplexity(dist_backend="non_dist")(logs, labels, mask) == pytest.approx(whole)
    assert Perplexity(dist_backend="non_dist")(own, None, mask) == pytest.approx(whole)


@needs("torch", "torchmetrics")
def test_it_agrees_with_torch_and_torchmetrics() -> None:
    torch, torchmetrics = framework("torch"), framework("torchmetrics")
    arrays = drawn(8, 6, 11, 0)
    logits, labels = torch.tensor(arrays[0]).double(), torch.tensor(arrays[1])
    found = Perplexity(dist_backend="non_dist")(logits, labels)
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert found["cross_entropy"] == pytest.approx(losses.item(), rel=1e-12)
    oracle = torchmetrics.text.Perplexity(ignore_index=-100).set_dtype(torch.float64)
    assert found["perplexity"] == pytest.approx(oracle(logits, labels).item(), rel=1e-12)


def test_the_two_means_differ_where_lengths_do() -> None:
    found = Perplexity(dist_backend="non_dist")(
        [[-1.0, -1.0, -1.0, math.nan], [-5.0, math.nan, 0.0, 0.0], [0.0] * 4],
        mask=[[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]],
    )
    assert [found[key] for key in KEYS] == [2.0, math.exp(2.0), 3.0, 4.0]
    assert found["perplexity_by_sequence"] == math.exp(3.0)
    assert (found["tokens"], found["sequences"]) == (4, 2)


def test_infinite_losses_are_seen() -> None:
    for log, mean in ((-math.inf, math.inf), (-1e308, 5e307)):
        found = Perplexity(dist_backend="non_dist")([[log, 0.0], [0.0, 0.0]], mask=[[1, 1], [0, 0]])
        assert (found["cross_entropy"], found["perplexity"]) == (mean, math.inf)


def test_what_can_not_be_divided_is_an_error() -> None:
    metric = Perplexity(dist_backend="non_dist")
    metric.add([[-1.0]], mask=[[0]])
    with pytest.raises(UsageError, match="no token counts"):
        metric.compute()
    metric.add([[-1.0]], byte_counts=[3])
    with pytest.raises(UsageError, match="1 of 2"):
        metric.compute()
    metric.reset()
    metric.add([[-1.0]], byte_counts=[0])
    with pytest.raises(UsageError, match="0 bytes"):
        metric.compute()


def test_every_label_may_count() -> None:
    with pytest.raises(UsageError, match=r"row 0 .*-100"):
        Perplexity(ignore_label=None).add(np.zeros((1, 1, 2)), [[-100]])
    found = Perplexity(ignore_label=1, dist_backend="non_dist")(np.zeros((1, 2, 2)), [[0, 1]])
    assert found["tokens"] == 1
