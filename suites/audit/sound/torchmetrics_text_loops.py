"""Evaluation loops with the text metrics of torchmetrics, as its users write them."""

from __future__ import annotations

from typing import Any

from disteval.audit import Case

from suites.audit.sound import sound
from suites.audit.sound.parts import computed, own_loader

_WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "the", "dog"]


def predicted(batch: Any) -> list[str]:
    """Return a sentence for each label."""
    return [" ".join(_WORDS[: 3 + int(label)]) for label in batch["label"] % 8]


def wanted(batch: Any) -> list[str]:
    """Return a sentence for each value."""
    return [" ".join(_WORDS[int(value) : 8]) for value in batch["value"] % 5]


def references(batch: Any) -> list[list[str]]:
    """Return the wanted sentences as lists of references."""
    return [[text] for text in wanted(batch)]


@sound("torchmetrics")
def bleu(case: Case) -> Any:
    """``BLEUScore``, whose states are counts, where a rank may have no samples."""
    from torchmetrics.text import BLEUScore

    return {"bleu": computed(BLEUScore(n_gram=2), own_loader(case), predicted, references)}


@sound("torchmetrics")
def chrf(case: Case) -> Any:
    """``CHRFScore`` of the corpus, where a rank may have no samples."""
    from torchmetrics.text import CHRFScore

    return {"chrf": computed(CHRFScore(), own_loader(case), predicted, references)}
