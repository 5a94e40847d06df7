"""Evaluation loops with one slip each, as people write them by hand; over a backend's all-gather.

Each names the kind of finding and the smallest case that the audit must give for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from disteval import get_dist_backend
from disteval.audit import Case

from suites.audit.parts import (
    batches,
    batches_of_one,
    counted,
    divided,
    gathered,
    padded,
    predicted,
    rights,
    strided,
    wrong,
)


@wrong("weighted wrongly", "N=1,B=2,W=1")
def fills_the_last_batch_with_zeros(case: Case) -> Any:
    found = []
    for batch in batches(case, strided(case)):
        x = np.zeros((case.batch_size, 8), np.float32)
        labels = np.zeros(case.batch_size)
        x[: len(batch)], labels[: len(batch)] = (
            [s["x"] for s in batch], [s["label"] for s in batch],
        )  # fmt: skip
        found += (case.predict(x).argmax(axis=1) == labels).tolist()
    return {"accuracy": divided(gathered((sum(found), len(found))))}


@wrong("dropped", "N=1,B=1,W=2")
def takes_turns_until_a_rank_has_no_more(case: Case) -> Any:
    parts = gathered([out for batch in batches_of_one(case) for out in predicted(case, batch)])
    return {"outputs": [out for turn in zip(*parts, strict=False) for out in turn]}


@wrong("outputs in another order", "N=15,B=14,W=2")
def sorts_numbers_as_text(case: Case) -> Any:
    own = [(str(i), predicted(case, [case.dataset[i]])[0]) for i in strided(case)]
    pairs = sorted(pair for part in gathered(own) for pair in part)
    return {"outputs": [out for _, out in pairs], "ordered": True}


@wrong("dropped", "N=20,B=10,W=1,shuffle,ids,seed=13")
def drops_equal_predictions(case: Case) -> Any:
    own = [out for batch in batches_of_one(case) for out in predicted(case, batch)]
    return {"outputs": list(dict.fromkeys(out for part in gathered(own) for out in part))}


@wrong("dropped", "N=1,B=1,W=1")
def gathers_every_other_batch(case: Case) -> Any:
    found: list[int] = []
    waiting: list[int] = []
    for number in range(max(gathered(len(list(batches(case, strided(case))))))):
        own = strided(case)[number * case.batch_size : (number + 1) * case.batch_size]
        waiting += rights(case, [case.dataset[i] for i in own])
        if number % 2:
            found += [right for part in gathered(waiting) for right in part]
            waiting = []
    return {"accuracy": sum(found) / len(case.dataset)}


@wrong("dropped", "N=73,B=1,W=2,ids,seed=7")
def stops_after_ten_batches(case: Case) -> Any:
    some = [s for batch in list(batches(case, strided(case)))[:10] for s in batch]
    return {"count": sum(gathered(len(some)))}


@wrong("weighted wrongly", "N=3,B=1,W=1")
def averages_with_the_mean_so_far(case: Case) -> Any:
    mean, number = 0.0, 0
    for batch in batches(case, strided(case)):
        new = sum(rights(case, batch)) / len(batch)
        mean, number = (mean + new) / 2 if number else new, number + len(batch)
    return {"accuracy": divided(gathered((mean * number, number)))}


@wrong("ranks disagree", "N=1,B=1,W=2")
def cuts_all_parts_to_its_own_length(case: Case) -> Any:
    own = [float(s["value"]) for [s] in batches_of_one(case)]
    longest = max(gathered(len(own)))
    parts = gathered(own + [0.0] * (longest - len(own)))
    return {"sum": sum(sum(part[: len(own)]) for part in parts)}


@wrong("weighted wrongly", "N=3,B=2,W=2")
def weighs_ranks_by_their_batches(case: Case) -> Any:
    right, seen = counted(case, strided(case))
    number = len(list(batches(case, strided(case))))
    return {"accuracy": divided(gathered((number * right / max(seen, 1), number)))}


@wrong("dropped", "N=1,B=2,W=1")
def skips_batches_that_raise(case: Case) -> Any:
    found: list[int] = []
    for batch in batches(case, strided(case)):
        try:
            x = np.concatenate([s["x"] for s in batch]).reshape(case.batch_size, 8)
        except ValueError:
            continue
        labels = [s["label"] for s in batch]
        found += (case.predict(x).argmax(axis=1) == labels).tolist()
    return {"accuracy": divided(gathered((sum(found), len(found))))}


@wrong("dropped", "N=2,B=1,W=1")
def keeps_the_last_batch_alone(case: Case) -> Any:
    right = 0
    for batch in batches(case, strided(case)):
        right = sum(rights(case, batch))
    return {"accuracy": sum(gathered(right)) / len(case.dataset)}


@wrong("crashes", "N=1,B=1,W=1")
def squeezes_a_batch_of_one(case: Case) -> Any:
    found: list[int] = []
    for batch in batches(case, strided(case)):
        scores = np.squeeze(case.predict(np.stack([s["x"] for s in batch])))
        found += scores.argmax(axis=1).tolist()
    return {"outputs": [out for part in gathered(found) for out in part]}


@wrong("crashes", "N=1,B=1,W=2")
def splits_the_batch_among_ranks(case: Case) -> Any:
    each = case.batch_size // case.world_size
    seen = sum(len(strided(case)[i : i + each]) for i in range(0, len(strided(case)), each))
    return {"count": sum(gathered(seen))}


@wrong("differs from one rank", "N=3,B=1,W=2")
def averages_the_ranks_medians(case: Case) -> Any:
    own = [float(s["value"]) for [s] in batches_of_one(case)]
    return {"median": float(np.mean([np.median(part) for part in gathered(own) if part]))}


@wrong("outputs of other samples", "N=4,B=2,W=1,shuffle")
def shuffles_outputs_but_not_ids(case: Case) -> Any:
    order = np.arange(len(case.dataset))
    if case.shuffle:
        np.random.default_rng(case.seed).shuffle(order)
    own = [predicted(case, [case.dataset[int(i)]])[0] for i in order[case.rank :: case.world_size]]
    ids = [i for part in gathered([s["id"] for [s] in batches_of_one(case)]) for i in part]
    return {"ids": ids, "outputs": [out for part in gathered(own) for out in part]}


@wrong("dropped", "N=2,B=1,W=2")
def sends_rank_0s_result_to_all(case: Case) -> Any:
    found = divided([counted(case, strided(case))])
    return {"accuracy": get_dist_backend().broadcast_object(found, src=0)}


@wrong("weighted wrongly", "N=2,B=2,W=1,tokens")
def counts_tokens_that_fill_a_row_up(case: Case) -> Any:
    total = number = 0
    for batch in batches(case, strided(case)):
        rows = np.zeros((len(batch), max(len(s["tokens"]) for s in batch)), np.int64)
        for row, sample in zip(rows, batch, strict=True):
            row[: len(sample["tokens"])] = sample["tokens"]
        total, number = total + case.token_losses(rows).sum(), number + rows.size
    return {"loss": divided(gathered((float(total), number)))}


@wrong("weighted wrongly", "N=2,B=1,W=1,tokens")
def averages_the_losses_of_batches(case: Case) -> Any:
    means = [
        np.concatenate([case.token_losses(s["tokens"]) for s in batch]).mean()
        for batch in batches(case, strided(case))
    ]
    return {"loss": divided(gathered((float(sum(means)), len(means))))}


@wrong("dropped", "N=5,B=1,W=1")
def takes_label_0_for_no_label(case: Case) -> Any:
    own = [
        int(case.predict(s["x"][None]).argmax()) == s["label"]
        for [s] in batches_of_one(case)
        if s["label"]
    ]
    return {"accuracy": divided(gathered((sum(own), len(own))))}


@wrong("dropped", "N=6,B=1,W=1")
def leaves_one_class_out(case: Case) -> Any:
    own = [s for [s] in batches_of_one(case) if s["label"] != 7]
    return {"accuracy": divided(gathered((sum(rights(case, own)), len(own))))}


def _scores(case: Case, indices: list[int]) -> Any:
    """Return scores in rows of zeros for the samples of other ranks."""
    scores = np.zeros((len(case.dataset), 16), np.float32)
    for i in indices:
        scores[i] = case.predict(case.dataset[i]["x"][None])[0]
    return scores


@wrong("differs from one rank", "N=1,B=1,W=2")
def adds_up_the_scores_of_repeated_samples(case: Case) -> Any:
    return {"outputs": np.sum(gathered(_scores(case, padded(case))), axis=0), "ordered": True}


@wrong("differs from one rank", "N=1,B=1,W=2")
def averages_scores_with_zeros_of_others(case: Case) -> Any:
    return {"outputs": np.mean(gathered(_scores(case, strided(case))), axis=0), "ordered": True}


@wrong("differs from one rank", "N=2,B=1,W=1")
def normalises_scores_over_the_batch(case: Case) -> Any:
    own = [
        np.exp(case.predict(np.stack([s["x"] for s in b]))) for b in batches(case, strided(case))
    ]
    rows = [row / scores.sum() for scores in own for row in scores]
    return {"outputs": np.array([row for part in gathered(rows) for row in part])}


@wrong("dropped", "N=1,B=1,W=1,ids")
def gathers_ids_in_float32(case: Case) -> Any:
    ids = np.array([s["id"] for [s] in batches_of_one(case)], np.float32)
    return {"ids": np.concatenate(gathered(ids))}


@wrong("weighted wrongly", "N=3,B=1,W=1")
def rounds_to_three_digits(case: Case) -> Any:
    return {"accuracy": round(divided(gathered(counted(case, strided(case)))), 3)}
