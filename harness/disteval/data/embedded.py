"""The embedded data set: ten classes of small generated pictures.

With it, every command works on a machine without data. A picture shows one figure of its class, of
random place, size and colours, with noise and a bar across it. All arithmetic is on integers from a
bit generator's raw output, which NumPy guarantees, so the bytes are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt

from disteval.arguments import check_choice
from disteval.data.base import ArrayDataset

SIDE = 32
SIZES = {"train": 2_000, "test": 10_000}

_SEEDS = {"train": 1, "test": 2}
_PARAMETERS = 16  # random bytes that determine a picture, apart from its noise
_BLOCK = 2_000  # pictures drawn at a time, to keep intermediate arrays small

# A figure's colour depends on its class, so that even a random network's features are of use.
_COLOURS = (np.arange(10)[:, None] * np.array([73, 151, 211]) % 256).astype(np.int16)

_Grid = npt.NDArray[np.int16]
_Mask = npt.NDArray[np.bool_]


def load_embedded(split: Literal["train", "test"] = "test") -> ArrayDataset:
    """Generate one split; its bytes are the same on every machine and NumPy release.

    Args:
        split: ``train``, which has 2,000 samples, or ``test``, which has 10,000 others.

    Raises:
        UsageError: ``split`` is not known.
    """
    check_choice("split", split, ("train", "test"))
    size = SIZES[split]
    source = np.random.PCG64(_SEEDS[split])
    parameters = _random_bytes(source, size * _PARAMETERS).reshape(size, _PARAMETERS)
    # The last two bytes choose the class: each tenth of their range is one class.
    labels = (parameters[:, -1].astype(np.int64) * 256 + parameters[:, -2]) * 10 >> 16
    images = np.empty((size, 3, SIDE, SIDE), dtype=np.uint8)
    for start in range(0, size, _BLOCK):
        block = slice(start, start + _BLOCK)
        noise = _random_bytes(source, images[block].size).reshape(images[block].shape)
        _draw(images[block], labels[block], parameters[block].astype(np.int16), noise)
    return ArrayDataset(f"embedded/{split}", images, labels, CLASSES)


def _random_bytes(source: np.random.PCG64, count: int) -> npt.NDArray[np.uint8]:
    words: npt.NDArray[np.uint64] = source.random_raw(-(-count // 8))
    return words.astype("<u8").view(np.uint8)[:count]


def _draw(
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.int64],
    parameters: npt.NDArray[np.int16],
    noise: npt.NDArray[np.uint8],
) -> None:
    """Draw figures over backgrounds, then bars, then noise."""
    x, y, radius, phase, bar, bar_width, loudness = (
        column[:, None, None] for column in parameters.T[:7]
    )
    radius = 7 + radius % 7
    grid = np.arange(SIDE, dtype=np.int16)
    dx = grid[None, None, :] - (8 + x % 16)
    dy = grid[None, :, None] - (8 + y % 16)
    figure = np.empty((len(labels), SIDE, SIDE), dtype=bool)
    for label, rule in enumerate(_FIGURES.values()):
        chosen = labels == label
        figure[chosen] = rule(dx[chosen], dy[chosen], radius[chosen], phase[chosen])

    back = 96 + parameters[:, 7:10, None, None] % 64
    front = (_COLOURS[labels][:, :, None, None] + parameters[:, 10:13, None, None] % 64) % 256
    picture = np.where(figure[:, None], front, back)
    hidden = np.abs(grid[None, None, :] - bar % SIDE) < bar_width % 4
    picture = np.where(hidden[:, None], 255 - back, picture)
    grain = (noise.astype(np.int16) - 128) * (16 + loudness % 16)[:, None] >> 7
    np.clip(picture + grain, 0, 255, out=picture)
    images[...] = picture


def _within(dx: _Grid, dy: _Grid, radius: _Grid) -> _Mask:
    return np.maximum(np.abs(dx), np.abs(dy)) <= radius


def _ring(dx: _Grid, dy: _Grid, radius: _Grid) -> _Mask:
    distance, inner = dx * dx + dy * dy, radius - 3
    return (distance <= radius * radius) & (distance >= inner * inner)


def _stripes(along: _Grid, phase: _Grid) -> _Mask:
    stripe: _Mask = (along + SIDE + phase % 8) // 3 % 2 == 0
    return stripe


# The pixels of each class's figure, by their distance from its centre, its radius and its phase.
_FIGURES: dict[str, Callable[[_Grid, _Grid, _Grid, _Grid], _Mask]] = {
    "disc": lambda dx, dy, r, _: dx * dx + dy * dy <= r * r,
    "ring": lambda dx, dy, r, _: _ring(dx, dy, r),
    "square": lambda dx, dy, r, _: _within(dx, dy, r),
    "frame": lambda dx, dy, r, _: _within(dx, dy, r) & ~_within(dx, dy, r - 3),
    "plus": lambda dx, dy, r, _: _within(dx, dy, r) & (np.minimum(np.abs(dx), np.abs(dy)) <= 2),
    "triangle": lambda dx, dy, r, _: (np.abs(dy) <= r) & (2 * np.abs(dx) <= dy + r),
    "rows": lambda dx, dy, r, phase: _within(dx, dy, r) & _stripes(dy, phase),
    "columns": lambda dx, dy, r, phase: _within(dx, dy, r) & _stripes(dx, phase),
    "diagonals": lambda dx, dy, r, phase: _within(dx, dy, r) & _stripes(dx + dy, phase),
    "checkers": lambda dx, dy, r, phase: (
        _within(dx, dy, r) & (_stripes(dx, phase) ^ _stripes(dy, phase))
    ),
}
CLASSES = tuple(_FIGURES)
