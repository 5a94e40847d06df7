"""Classify the lines of files, which are read as a stream: does a line hold code or prose?

python examples/classify_stream.py
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from disteval import Task, get_dist_backend
from disteval.metrics import ConfusionMatrix

ROOT = Path(__file__).parents[1]
CLASSES = ("prose", "code")


def lines_of(pages: Iterable[Path]) -> Iterator[tuple[str, int]]:
    """Yield each line that is not empty, and whether it is inside a block of code."""
    for page in sorted(pages):
        inside = False
        with page.open(encoding="utf-8") as file:
            for line in file:
                if line.startswith("```"):
                    inside = not inside
                elif line.strip():
                    yield line.rstrip(), int(inside)


def trigrams(line: str) -> list[str]:
    """Return the pieces of three characters of a line."""
    return [line[i : i + 3] for i in range(len(line) - 2)]


def task() -> Task:
    """Return the task: a naive Bayes classifier, which has learned from the pages of docs/."""
    counts = (Counter[str](), Counter[str]())
    for line, label in lines_of((ROOT / "docs").glob("*.md")):
        counts[label].update(trigrams(line))
    totals = np.log([sum(count.values()) for count in counts])

    def predict(lines: list[str]) -> np.ndarray:
        pieces = [trigrams(line) for line in lines]
        seen = [[sum(np.log(count[t] + 0.5) for t in line) for count in counts] for line in pieces]
        return np.array(seen) - totals * np.array([[len(line)] for line in pieces])

    return Task(
        samples=lambda: lines_of(ROOT.glob("*.md")),  # a fresh stream, whose length is not known
        predict=predict,
        metrics={"code or prose": ConfusionMatrix(len(CLASSES))},
        batch_size=64,
    )


if __name__ == "__main__":
    print(task().evaluate(get_dist_backend()).metrics)
