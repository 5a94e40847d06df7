"""What a model computes for some samples, as a text that ranks and later runs compare."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import NamedTuple

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


class Outputs(NamedTuple):
    """Outputs, taken apart.

    Attributes:
        ids: The numbers of the samples, with commas; nothing if outputs are not known.
        form: What must be equal, such as a digest of labels, texts and shapes; without a space.
        arrays: The arrays of floats, as float64.
    """

    ids: str = ""
    form: str = ""
    arrays: Sequence[npt.NDArray[np.float64]] = ()

    @classmethod
    def of(cls, text: str) -> Outputs:
        """Return the outputs whose `text` this is."""
        ids, form, *parts = text.split(" ") if text else ("", "")
        return cls(ids, form, [np.frombuffer(base64.b64decode(part), "<f8") for part in parts])

    @property
    def text(self) -> str:
        """The outputs as a text, which is nothing if they are not known."""
        parts = [base64.b64encode(array.astype("<f8").tobytes()).decode() for array in self.arrays]
        return " ".join([self.ids, self.form, *parts]) if self.ids else ""


class Gap(NamedTuple):
    """How far outputs differ.

    Attributes:
        largest: The largest difference between two numbers; None if outputs can't be compared,
            because one is unknown or of other samples. Infinity stands for other labels, texts or
            shapes, and for a number in the place of NaN.
        is_near: Whether they may differ so far.
    """

    largest: float | None
    is_near: bool


def gap(one: Outputs, other: Outputs) -> Gap:
    """Return how far outputs differ."""
    if not one.ids or one.ids != other.ids:
        return Gap(None, False)
    shapes = ([array.shape for array in each.arrays] for each in (one, other))
    if one.form != other.form or next(shapes) != next(shapes):
        return Gap(math.inf, False)
    largest, is_near = 0.0, True
    for a, b in zip(one.arrays, other.arrays, strict=True):
        differs = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        if differs.any():
            found = float(np.abs(a[differs] - b[differs]).max())
            found = math.inf if math.isnan(found) else found
            both = np.abs(np.concatenate([a, b]))
            scale = both[np.isfinite(both)].max(initial=0.0)
            largest = max(largest, found)
            is_near &= bool(found <= RELATIVE * scale + ABSOLUTE)
    return Gap(largest, is_near)


def largest_gap(texts: Sequence[tuple[int, str]]) -> float | None:
    """Return the largest difference between the first rank's outputs and those of the others.

    Args:
        texts: Ranks, and the `Outputs.text` of each.

    Returns:
        The difference; None if outputs can't be compared.

    Raises:
        UsageError: Ranks have different models.
    """
    (first, text), *others = texts
    gaps = {rank: gap(Outputs.of(text), Outputs.of(other)) for rank, other in others}
    known = {rank: each.largest for rank, each in gaps.items() if each.largest is not None}
    if wrong := {rank: largest for rank, largest in known.items() if not gaps[rank].is_near}:
        ranks = ", ".join(map(str, wrong))
        some = Outputs.of(text).ids.replace(",", ", ")
        raise UsageError(
            f"predict returns other outputs on rank{'s' * (len(wrong) > 1)} {ranks} than on rank "
            f"{first} for the samples {some}: {told(max(wrong.values()))}; "
            f"give every rank the same model, with the same weights and settings. Set {SWITCH}=off "
            f"on every rank if they may differ by so much"
        )
    return max(known.values(), default=None) if len(known) == len(gaps) else None


def told(largest: float) -> str:
    """Say how much outputs differ."""
    if math.isinf(largest):
        return "labels, texts, shapes or infinite numbers differ"
    return f"the largest difference is {largest:.6g}"
