"""Measure `evaluate` on texts of many lengths beside a loop that is written by hand.

python -m suites.benchmarks.texts [--texts 1000] [--rounds 7]

A small transformer classifies texts of 16 to 160 tokens, padded to the longest of their batch, on
one gloo rank and on two. The loops take turns in the same processes, round after round; every one
returns how many texts it put into their class, and all must agree. Then one rank evaluates a
million samples of three numbers, and the bare loop does the user's own work alone: it reads the
samples and calls the model.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from disteval import evaluate
from disteval.contract import BaseDistBackend
from disteval.metrics import Accuracy, Mean
from disteval.worlds import World

BATCH_SIZE = 32
SHORTEST, LONGEST = 16, 160
MAX_TOKENS = BATCH_SIZE * LONGEST
WORDS, CLASSES, WIDTH = 1000, 8, 64
TINY = 1_000_000
TINY_BATCH = 1000

Sample = dict[str, Any]
Contestant = Callable[[], int]


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before\n")
    for line in tables(options.texts, options.rounds):
        print(line, flush=True)


def tables(texts: int, rounds: int) -> Iterator[str]:
    """Measure on ranks that are started here, and yield the tables as Markdown."""
    compared = "to the loop by hand | to whole batches"
    yield f"| transformer, {texts} texts | ranks | texts/s (median) | min | max | {compared} |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for world_size in (1, 2):
        with World("torch_cpu", world_size) as world:
            ranks = world.run(race_texts, *[(texts, rounds)] * world_size, timeout=600)
        speeds = {
            name: [
                texts / max(times) for times in zip(*(rank[name] for rank in ranks), strict=True)
            ]
            for name in ranks[0]
        }
        by_hand, whole, *_ = speeds.values()
        for name, found in speeds.items():
            middle = statistics.median(found)
            figures = f"{middle:.0f} | {min(found):.0f} | {max(found):.0f}"
            ratios = f"{ratio(found, by_hand):.2f} | {ratio(found, whole):.2f}"
            yield f"| {name} | {world_size} | {figures} | {ratios} |"
    yield ""
    yield f"| {TINY} samples of three numbers | µs a sample (median) | min | max |"
    yield "|---|---:|---:|---:|"
    for name, seconds in race_tiny(rounds).items():
        figures = [1e6 * one / TINY for one in seconds]
        spread = f"{min(figures):.2f} | {max(figures):.2f}"
        yield f"| {name} | {statistics.median(figures):.2f} | {spread} |"


def ratio(speeds: list[float], others: list[float]) -> float:
    """Return the median ratio of two loops in one round, which a busy machine changes least."""
    return statistics.median(one / other for one, other in zip(speeds, others, strict=True))


def made_texts(count: int) -> list[Sample]:
    """Return texts whose lengths are spread evenly over a factor of ten."""
    random = np.random.default_rng(0)
    lengths = random.integers(SHORTEST, LONGEST + 1, count)
    return [
        {"tokens": random.integers(1, WORDS, length), "label": number % CLASSES}
        for number, length in enumerate(lengths)
    ]


def collate(texts: list[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad texts to the longest of them."""
    rows = [torch.from_numpy(text["tokens"]) for text in texts]
    labels = torch.tensor([text["label"] for text in texts])
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), labels


def made_model() -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a transformer of two layers that pays no attention to padding."""
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(WORDS, WIDTH)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    head = torch.nn.Linear(WIDTH, CLASSES)

    @torch.inference_mode()
    def predict(tokens: torch.Tensor) -> torch.Tensor:
        padding = tokens == 0
        hidden = encoder(embedding(tokens), src_key_padding_mask=padding)
        kept = ~padding[:, :, None]
        return head((hidden * kept).sum(dim=1) / kept.sum(dim=1))

    return predict


def by_hand(
    backend: BaseDistBackend, predict: Callable[[Any], Any], texts: list[Sample]
) -> Contestant:
    """Take whole batches in turn, count the right texts, and add up the ranks' counts."""

    def run() -> int:
        right = torch.zeros((), dtype=torch.int64)
        step = backend.world_size * BATCH_SIZE
        for start in range(backend.rank * BATCH_SIZE, len(texts), step):
            tokens, labels = collate(texts[start : start + BATCH_SIZE])
            right += (predict(tokens).argmax(dim=1) == labels).sum()
        torch.distributed.all_reduce(right)
        return int(right)

    return run


def ours(
    backend: BaseDistBackend, predict: Callable[[Any], Any], texts: list[Sample], **settings: Any
) -> Contestant:
    """Evaluate with `disteval.evaluate`."""

    def run() -> int:
        metrics = {"accuracy": Accuracy(counts=True)}
        found = evaluate(predict, texts, metrics, backend, collate=collate, **settings)
        return int(found.metrics["accuracy"]["correct_top1"])

    return run


def race_texts(backend: BaseDistBackend, work: tuple[int, int]) -> dict[str, list[float]]:
    """Return this rank's seconds of each loop in each round, after one round to warm up."""
    count, rounds = work
    texts, predict = made_texts(count), made_model()
    budget = {"max_tokens": MAX_TOKENS, "batch_size": count}
    loops = {
        "loop by hand": by_hand(backend, predict, texts),
        "disteval, whole batches": ours(
            backend, predict, texts, batch_size=BATCH_SIZE, mode="batches",
            pad=False, fixed_shape=False,
        ),
        "disteval, sorted by length": ours(
            backend, predict, texts, batch_size=BATCH_SIZE, sort_by_length=True
        ),
        f"disteval, sorted, {MAX_TOKENS} tokens a batch": ours(
            backend, predict, texts, sort_by_length=True, **budget
        ),
        f"disteval, {MAX_TOKENS} tokens a batch": ours(backend, predict, texts, **budget),
    }  # fmt: skip
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    answers = {name: run() for name, run in loops.items()}
    if len(set(answers.values())) > 1:
        raise SystemExit(f"the loops do not agree on the texts that are right: {answers}")
    for _ in range(rounds):
        for name, run in loops.items():
            backend.all_gather_object(None)
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


class Tiny:
    """Samples that cost nothing to read."""

    def __len__(self) -> int:
        return TINY

    def __getitem__(self, index: int) -> dict[str, float]:
        return {"x": float(index), "y": 1.0, "weight": 0.5}


def race_tiny(rounds: int) -> dict[str, list[float]]:
    """Return the seconds of reading tiny samples, and of evaluating them, in each round."""
    samples = Tiny()

    def predict(batch: Any) -> Any:
        return batch["x"]

    def read() -> None:
        for start in range(0, TINY, TINY_BATCH):
            found = [samples[index] for index in range(start, start + TINY_BATCH)]
            predict({"x": found})

    def evaluated() -> None:
        update = lambda outputs, batch: (outputs,)  # noqa: E731
        metrics = {"mean": Mean()}
        found = evaluate(predict, samples, metrics, "non_dist", TINY_BATCH, update=update)
        if found.evaluated != TINY:
            raise SystemExit(f"{found.evaluated} samples were evaluated")

    loops: dict[str, Callable[[], None]] = {"samples and model alone": read, "disteval": evaluated}
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(rounds):
        for name, run in loops.items():
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    seconds["disteval without them"] = [
        ours - own for own, ours in zip(*seconds.values(), strict=True)
    ]
    return seconds


if __name__ == "__main__":
    main()
