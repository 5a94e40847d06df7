"""Evaluation loops with the text metrics of torchmetrics, as its users write them."""

from __future__ import annotations

from typing import Any

from disteval.audit import Case

from suites.evalbugs.parts import computed, own_loader
from suites.evalbugs.table import sound, wrong

_WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "the", "dog"]


def _predicted(batch: Any) -> list[str]:
    return [" ".join(_WORDS[: 3 + int(label)]) for label in batch["label"] % 8]


def _wanted(batch: Any) -> list[str]:
    return [" ".join(_WORDS[int(value) : 8]) for value in batch["value"] % 5]


def _references(batch: Any) -> list[list[str]]:
    return [[text] for text in _wanted(batch)]


@sound("torchmetrics")
def bleu(case: Case) -> Any:
    """``BLEUScore``, whose states are counts, where a rank may have no samples."""
    from torchmetrics.text import BLEUScore

    return {"bleu": computed(BLEUScore(n_gram=2), own_loader(case), _predicted, _references)}


@sound("torchmetrics")
def chrf(case: Case) -> Any:
    """``CHRFScore`` of the corpus, where a rank may have no samples."""
    from torchmetrics.text import CHRFScore

    return {"chrf": computed(CHRFScore(), own_loader(case), _predicted, _references)}


@wrong("torchmetrics", "crashes", "N=1,B=1,W=2")
def chrf_of_sentences(case: Case) -> Any:
    """``CHRFScore`` of the corpus and of each sentence."""
    from torchmetrics.text import CHRFScore

    # A process that runs alone has no group, in which this would fail, too.
    alone = {"distributed_available_fn": lambda: case.world_size > 1}
    metric = CHRFScore(return_sentence_level_score=True, **alone)
    corpus, sentences = computed(metric, own_loader(case), _predicted, _references)
    return {"chrf": corpus, "best": sentences.max(), "sentences": sentences.numel()}


@wrong("torchmetrics", "crashes", "N=3,B=1,W=2", assumes=("nonempty",))
def extended_edit_distance(case: Case) -> Any:
    """``ExtendedEditDistance`` where one rank has one sentence and another has several."""
    from torchmetrics.text import ExtendedEditDistance

    return {"eed": computed(ExtendedEditDistance(), own_loader(case), _predicted, _wanted)}


@wrong("torchmetrics", "hangs", "N=3,B=1,W=2", assumes=("nonempty",))
def rouge(case: Case) -> Any:
    """``ROUGEScore``, whose states are lists, where ranks have unequally many sentences."""
    from torchmetrics.text import ROUGEScore

    found = computed(ROUGEScore(rouge_keys="rouge1"), own_loader(case), _predicted, _wanted)
    return {"rouge1": found["rouge1_fmeasure"]}
