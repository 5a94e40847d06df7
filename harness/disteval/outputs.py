"""What a model computes for some samples, as a text that ranks and later runs compare."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.errors import UsageError

OUTPUTS = "the outputs of predict for some samples"
"""The name of the text among the settings that ranks and earlier runs share."""

SWITCH = "DISTEVAL_CANARY"

RELATIVE, ABSOLUTE = 1e-2, 1e-6
"""Outputs may differ by this much of the largest number of their array, and by this much.

A product in TensorFloat-32 has a relative error of 2**-11, in bfloat16 of 2**-9, where float32 has
2**-24; through the layers of a network the largest logit's error grows to about 1e-3 and 1e-2.
"""


def text_of(ids: Sequence[int], form: str, arrays: Sequence[npt.NDArray[Any]]) -> str:
    """Return the text of outputs.

    Args:
        ids: The numbers of the samples.
        form: What must be equal, such as a digest of labels, texts and shapes; without a space.
        arrays: The arrays of floats.
    """
    parts = [base64.b64encode(array.astype("<f8").tobytes()).decode() for array in arrays]
    return " ".join([",".join(map(str, ids)), form, *parts])


def gap(one: str, other: str) -> tuple[float, bool] | None:
    """Return the largest difference between two texts' numbers, and whether it may be.

    None stands for texts that can't be compared, because one is empty or of other samples.
    Infinity stands for other labels, texts or shapes, and for a number in the place of NaN.
    """
    (ids, form, *arrays), (other_ids, other_form, *other_arrays) = (
        (text or " ").split(" ") for text in (one, other)
    )
    if not ids or ids != other_ids:
        return None
    if form != other_form or len(arrays) != len(other_arrays):
        return math.inf, False
    largest, is_near = 0.0, True
    for a, b in zip(map(_numbers, arrays), map(_numbers, other_arrays), strict=True):
        if a.shape != b.shape:
            return math.inf, False
        differs = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        if differs.any():
            found = float(np.abs(a[differs] - b[differs]).max())
            found = math.inf if math.isnan(found) else found
            both = np.abs(np.concatenate([a, b]))
            scale = both[np.isfinite(both)].max(initial=0.0)
            largest = max(largest, found)
            is_near &= bool(found <= RELATIVE * scale + ABSOLUTE)
    return largest, is_near


def largest_gap(texts: Sequence[tuple[int, str]]) -> float | None:
    """Return the largest difference between the first rank's outputs and those of the others.

    Args:
        texts: Ranks, and their outputs.

    Returns:
        The difference; None if outputs can't be compared.

    Raises:
        UsageError: Ranks have different models.
    """
    (first, text), *others = texts
    found = {rank: gap(text, other) for rank, other in others}
    known = {rank: each for rank, each in found.items() if each is not None}
    if wrong := {rank: value for rank, (value, is_near) in known.items() if not is_near}:
        ranks = ", ".join(map(str, wrong))
        some = text.partition(" ")[0].replace(",", ", ")
        raise UsageError(
            f"predict returns other outputs on rank{'s' * (len(wrong) > 1)} {ranks} than on rank "
            f"{first} for the samples {some}: {told(max(wrong.values()))}; "
            f"give every rank the same model, with the same weights and settings. Set {SWITCH}=off "
            f"on every rank if they may differ by so much"
        )
    if len(known) < len(found):
        return None
    return max((value for value, _ in known.values()), default=None)


def told(largest: float) -> str:
    """Say how much outputs differ."""
    if math.isinf(largest):
        return "labels, texts, shapes or infinite numbers differ"
    return f"the largest difference is {largest:.6g}"


def _numbers(part: str) -> npt.NDArray[np.float64]:
    return np.frombuffer(base64.b64decode(part), "<f8")
