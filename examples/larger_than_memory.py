"""Evaluate a file that is larger than the memory: NumPy maps it, and a rank reads its own rows.

python examples/larger_than_memory.py
"""

import os
import tempfile
from pathlib import Path

import numpy as np
from disteval import Task, get_dist_backend
from disteval.metrics import Regression

ROWS, COLUMNS = 1 << 16, 1 << 11  # 512 MiB of float32
EVERY = 1 << 10


def write(folder: Path) -> None:
    """Write inputs and labels, which are 0 but for every 1024th row.

    A file system keeps no place for rows that were never written.
    """
    inputs = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (ROWS, COLUMNS))
    labels = np.zeros(ROWS)
    inputs[::EVERY] = np.arange(0, ROWS, EVERY)[:, None]
    labels[::EVERY] = np.arange(0, ROWS, EVERY) + 0.5
    np.save(folder / "y.npy", labels)


def task(folder: Path | None = None) -> Task:
    """Return the task over the files in a folder."""
    folder = folder or Path(os.environ["DATA_FOLDER"])
    inputs = np.load(folder / "x.npy", mmap_mode="r")
    return Task(
        samples=(inputs, np.load(folder / "y.npy")),
        predict=lambda rows: rows.mean(axis=1),
        metrics={"regression": Regression()},
        batch_size=256,
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        write(Path(made))
        print(task(Path(made)).evaluate(get_dist_backend()).metrics)
