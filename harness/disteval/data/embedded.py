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
CLASSES = (
    "disc", "ring", "square", "frame", "plus", "triangle",
    "rows", "columns", "diagonals", "checkers",
)  # fmt: skip

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
    for label, rule in enumerate(_FIGURES):
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


def _distance(dx: _Grid, dy: _Grid) -> _Grid:
    return dx * dx + dy * dy


def _disc(dx: _Grid, dy: _Grid, radius: _Grid, phase: _Grid) -> _Mask:
    return _distance(dx, dy) <= radius * radius


def _ring(dx: _Grid, dy: _Grid, radius: _Grid, phase: _Grid) -> _Mask:
    distance, inner = _distance(dx, dy), radius - 3
    return (distance <= radius * radius) & (distance >= inner * inner)


def _square(dx: _Grid, dy: _Grid, radius: _Grid, phase: _Grid) -> _Mask:
    return _within(dx, dy, radius)


def _frame(dx: _Grid, dy: _Grid, radius: _Grid, phase: _Grid) -> _Mask:
    return _within(dx, dy, radius) & ~_within(dx, dy, radius - 3)


def _plus(dx: _Grid, dy: _Grid, radius: _Grid, phase: _Grid) -> _Mask:
    return _within(dx, dy, radius) & (np.minimum(np.abs(dx), np.abs(dy)) <= 2)


def _triangle(dx: _Grid, dy: _Grid, radius: _Grid, phase: _Grid) -> _Mask:
    return (np.abs(dy) <= radius) & (2 * np.abs(dx) <= dy + radius)


def _stripes(along: _Grid, phase: _Grid) -> _Mask:
    stripe: _Mask = (along + SIDE + phase % 8) // 3 % 2 == 0
    return stripe


def _rows(dx: _Grid, dy: _Grid, radius: _Grid, phase: _Grid) -> _Mask:
    return _within(dx, dy, radius) & _stripes(dy, phase)


def _columns(dx: _Grid, dy: _Grid, radius: _Grid, phase: _Grid) -> _Mask:
    return _within(dx, dy, radius) & _stripes(dx, phase)


def _diagonals(dx: _Grid, dy: _Grid, radius: _Grid, phase: _Grid) -> _Mask:
    return _within(dx, dy, radius) & _stripes(dx + dy, phase)


def _checkers(dx: _Grid, dy: _Grid, radius: _Grid, phase: _Grid) -> _Mask:
    return _within(dx, dy, radius) & (_stripes(dx, phase) ^ _stripes(dy, phase))


# In the order of CLASSES.
_FIGURES: tuple[Callable[[_Grid, _Grid, _Grid, _Grid], _Mask], ...] = (
    _disc, _ring, _square, _frame, _plus, _triangle, _rows, _columns, _diagonals, _checkers,
)  # fmt: skip
