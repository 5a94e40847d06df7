"""Evaluation loops that are wrong in one way each, in plain NumPy over a backend's all-gather.

Each names the kind of finding and the smallest case that the audit must give for it.
"""

from __future__ import annotations

from pathlib import Path
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
    merged,
    padded,
    predicted,
    rights,
    strided,
    write_part,
    wrong,
)


@wrong("counted twice", "N=2,B=1,W=3")
def counts_padding(case: Case) -> Any:
    return {"accuracy": divided(gathered(counted(case, padded(case))))}


@wrong("counted twice", "N=1,B=1,W=2")
def counts_padding_in_a_sum(case: Case) -> Any:
    own = [sample["value"] for batch in batches(case, padded(case)) for sample in batch]
    return {"sum": sum(float(sum(each)) for each in gathered(own))}


@wrong("counted twice", "N=1,B=1,W=2")
def counts_padding_in_count(case: Case) -> Any:
    return {"count": sum(gathered(len(padded(case))))}


@wrong("dropped", "N=1,B=1,W=2")
def drops_the_tail(case: Case) -> Any:
    whole = len(case.dataset) // case.world_size
    own = counted(case, strided(case)[:whole])
    return {"accuracy": divided(gathered(own))}


@wrong("dropped", "N=1,B=2,W=1")
def drops_short_batches(case: Case) -> Any:
    full = [b for b in batches(case, strided(case)) if len(b) == case.batch_size]
    found = [right for batch in full for right in rights(case, batch)]
    return {"accuracy": divided(gathered((sum(found), len(found))))}


@wrong("weighted wrongly", "N=3,B=2,W=1")
def means_of_batches(case: Case) -> Any:
    means = [float(np.mean(rights(case, batch))) for batch in batches(case, strided(case))]
    return {"accuracy": divided(gathered((sum(means), len(means))))}


@wrong("weighted wrongly", "N=3,B=1,W=2")
def means_of_ranks(case: Case) -> Any:
    found = [right / seen for right, seen in gathered(counted(case, strided(case))) if seen]
    return {"accuracy": float(np.mean(found))}


@wrong("ranks disagree", "N=1,B=1,W=2")
def does_not_gather(case: Case) -> Any:
    right, seen = counted(case, strided(case))
    return {"accuracy": right / seen if seen else 0.0, "count": seen}


@wrong("dropped", "N=2,B=1,W=2")
def reports_rank_0_alone(case: Case) -> Any:
    right, seen = counted(case, strided(case))
    return {"accuracy": right / seen} if case.rank == 0 else None


@wrong("dropped", "N=4,B=1,W=3")
def trims_the_wrong_end(case: Case) -> Any:
    parts = gathered(
        [
            (s["id"], right)
            for b in batches(case, padded(case))
            for s, right in zip(b, rights(case, b), strict=True)
        ]
    )
    together = [pair for part in parts for pair in part][: len(case.dataset)]
    return {"ids": [i for i, _ in together], "accuracy": float(np.mean([r for _, r in together]))}


@wrong("outputs in another order", "N=3,B=1,W=2")
def promises_order_but_concatenates(case: Case) -> Any:
    own = [
        int(np.argmax(case.predict(np.stack([s["x"] for s in b])), axis=1)[0])
        for b in batches_of_one(case)
    ]
    return {"outputs": [out for part in gathered(own) for out in part], "ordered": True}


@wrong("outputs of other samples", "N=3,B=1,W=2")
def outputs_and_ids_apart(case: Case) -> Any:
    outputs = [int(case.predict(b[0]["x"][None]).argmax()) for b in batches_of_one(case)]
    parts = [out for part in gathered(outputs) for out in part]
    return {"ids": list(range(len(case.dataset))), "outputs": parts}


@wrong("counted twice", "N=3,B=1,W=3")
def wrong_for_three_ranks_alone(case: Case) -> Any:
    own = strided(case)
    if case.world_size == 3 and case.rank == 2:
        own = own + own[:1]
    return {"count": sum(gathered(counted(case, own)[1]))}


@wrong("counted twice", "N=1,B=1,W=2")
def gathers_twice(case: Case) -> Any:
    pairs = gathered(counted(case, strided(case)))
    return {"count": sum(seen for _, seen in pairs) * (2 if case.world_size > 1 else 1)}


@wrong("counted twice", "N=1,B=1,W=2")
def every_rank_reads_the_stream(case: Case) -> Any:
    return {"count": sum(gathered(sum(1 for _ in case.stream())))}


@wrong("dropped", "N=3,B=1,W=2")
def shuffles_by_another_seed(case: Case) -> Any:
    order = np.random.default_rng(case.rank).permutation(len(case.dataset))
    own = order[case.rank :: case.world_size].tolist()
    ids = [s["id"] for b in batches(case, own) for s in b]
    return {"ids": [i for part in gathered(ids) for i in part]}


@wrong("differs from one rank", "N=2,B=1,W=2")
def maximum_of_rank_0(case: Case) -> Any:
    values = [float(s["value"]) for b in batches(case, strided(case)) for s in b]
    biggest = max(values, default=0.0)
    return {"largest": get_dist_backend().broadcast_object(biggest, src=0)}


@wrong("crashes", "N=1,B=1,W=2")
def needs_a_sample_on_every_rank(case: Case) -> Any:
    own = [float(s["value"]) for b in batches(case, strided(case)) for s in b]
    largest = gathered(len(own))
    return {"mean": divided([(sum(map(float, own)) / (1 if own else min(largest)), 1)])}


@wrong("weighted wrongly", "N=2,B=1,W=1")
def weighs_the_first_sample_double(case: Case) -> Any:
    values = [
        float(s["value"]) * (1 + (s["id"] == 0)) for b in batches(case, strided(case)) for s in b
    ]
    parts = gathered((sum(values), len(values)))
    total, seen = np.sum(parts, axis=0)
    return {"mean": float(total / (seen + 1))}


@wrong("dropped", "N=2,B=1,W=1")
def integer_division(case: Case) -> Any:
    pairs = gathered(counted(case, strided(case)))
    return {"accuracy": sum(r for r, _ in pairs) // sum(n for _, n in pairs)}


@wrong("weighted wrongly", "N=299,B=24,W=1")
def sums_in_eight_bits_of_mantissa(case: Case) -> Any:
    right, seen = np.sum(gathered(counted(case, strided(case))), axis=0)
    return {"accuracy": bfloat16(right) / bfloat16(seen)}


def bfloat16(value: float) -> float:
    return float((np.float32(value).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32))


@wrong("dropped", "N=299,B=24,W=1")
def counts_in_eight_bits(case: Case) -> Any:
    own = np.array(len(strided(case))).astype(np.uint8)
    return {"count": int(np.sum(gathered(own), dtype=np.uint8))}


@wrong("counted twice", "N=5,B=2,W=2,workers=2,shuffle,seed=1")
def pads_with_workers_and_shuffling_alone(case: Case) -> Any:
    own = padded(case) if case.shuffle and case.num_workers else strided(case)
    return {"accuracy": divided(gathered(counted(case, own)))}


@wrong("dropped", "N=1,B=1,W=1")
def is_never_a_number(case: Case) -> Any:
    right, _ = counted(case, strided(case))
    return {"accuracy": right * float("nan")}


@wrong("outputs in another order", "N=2,B=1,W=1,ids")
def puts_in_order_by_id(case: Case) -> Any:
    own = [(s["id"], int(case.predict(s["x"][None]).argmax())) for [s] in batches_of_one(case)]
    together = sorted(pair for part in gathered(own) for pair in part)
    return {"outputs": [output for _, output in together], "ordered": True}


@wrong("dropped", "N=1,B=1,W=1,ids")
def returns_positions_as_ids(case: Case) -> Any:
    own = [case.dataset[i] for i in strided(case)]
    return {"ids": list(range(sum(gathered(len(own)))))}


@wrong("crashes", "N=1,B=1,W=1,ids")
def looks_labels_up_by_id(case: Case) -> Any:
    own = [case.dataset[i] for i in strided(case)]
    labels = [case.dataset[s["id"]]["label"] for s in own]
    found = [int(case.predict(s["x"][None]).argmax()) for s in own]
    right = [int(a == b) for a, b in zip(found, labels, strict=True)]
    return {"accuracy": divided(gathered((sum(right), len(right))))}


_calls = [0]


@wrong("differs from call to call", "N=1,B=1,W=2")
def miscounts_every_fifth_call(case: Case) -> Any:
    _calls[0] += case.rank == 0
    extra = get_dist_backend().broadcast_object(_calls[0] % 5 == 4, src=0)
    return {"count": len(case.dataset) + extra}


_kept: dict[tuple[int, ...], int] = {}


@wrong("dropped", "N=2,B=1,W=1")
def keeps_predictions_by_id(case: Case) -> Any:
    found = []
    for [sample] in batches_of_one(case):
        key = (len(case.dataset), case.batch_size, case.world_size, case.rank, sample["id"])
        found_before = _kept.setdefault(key, int(case.predict(sample["x"][None]).argmax()))
        found.append(found_before == sample["label"])
    return {"accuracy": divided(gathered((sum(found), len(found))))}


@wrong("counted alone", "N=2,B=1,W=2")
def counts_everything_on_every_rank(case: Case) -> Any:
    return {"accuracy": divided([counted(case, range(len(case.dataset)))])}


@wrong("counted alone", "N=2,B=1,W=2")
def returns_its_own_ids(case: Case) -> Any:
    return {"ids": [sample["id"] for sample in case.dataset]}


@wrong("counted alone", "N=2,B=1,W=2")
def takes_the_largest_of_all_on_every_rank(case: Case) -> Any:
    return {"largest": max(float(sample["value"]) for sample in case.samples())}


@wrong("counted alone", "N=2,B=1,W=2")
def returns_what_rank_0_has_of_all(case: Case) -> Any:
    found = {"mean": float(np.mean([sample["value"] for sample in case.dataset]))}
    return found if case.rank == 0 else None


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


@wrong("outputs of other samples", "N=4,B=2,W=1,shuffle")
def shuffles_outputs_but_not_ids(case: Case) -> Any:
    order = np.arange(len(case.dataset))
    if case.shuffle:
        np.random.default_rng(case.seed).shuffle(order)
    own = [predicted(case, [case.dataset[int(i)]])[0] for i in order[case.rank :: case.world_size]]
    ids = [i for part in gathered([s["id"] for [s] in batches_of_one(case)]) for i in part]
    return {"ids": ids, "outputs": [out for part in gathered(own) for out in part]}


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


@wrong("dropped", "N=6,B=1,W=1")
def leaves_one_class_out(case: Case) -> Any:
    own = [s for [s] in batches_of_one(case) if s["label"] != 7]
    return {"accuracy": divided(gathered((sum(rights(case, own)), len(own))))}


@wrong("differs from one rank", "N=1,B=1,W=2")
def adds_up_the_scores_of_repeated_samples(case: Case) -> Any:
    scores = np.zeros((len(case.dataset), 16), np.float32)
    for i in padded(case):
        scores[i] = case.predict(case.dataset[i]["x"][None])[0]
    return {"outputs": np.sum(gathered(scores), axis=0), "ordered": True}


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


@wrong("weighted wrongly", "N=1,B=1,W=2")
def sums_the_mean_over_ranks(case: Case) -> Any:
    total, count = map(sum, zip(*gathered(counted(case, strided(case))), strict=True))
    return {"accuracy": total / count * case.world_size}


@wrong("weighted wrongly", "N=2,B=1,W=1")
def divides_a_sum_by_nothing(case: Case) -> Any:
    return {"accuracy": float(sum(right for right, _ in gathered(counted(case, strided(case)))))}


@wrong("weighted wrongly", "N=1,B=1,W=2")
def divides_by_the_size_with_padding(case: Case) -> Any:
    right = sum(right for right, _ in gathered(counted(case, strided(case))))
    return {"accuracy": right / (len(padded(case)) * case.world_size)}


@wrong("counted twice", "N=2,B=1,W=3")
def pads_and_averages_batches(case: Case) -> Any:
    """Makes two mistakes."""
    own = [float(np.mean(rights(case, batch))) for batch in batches(case, padded(case))]
    means = [mean for part in gathered(own) for mean in part]
    return {"accuracy": float(np.mean(means))}


@wrong("dropped", "N=1025,B=1,W=1")
def stops_after_fifty_batches(case: Case) -> Any:
    own = strided(case)[: 50 * case.batch_size]
    return {"accuracy": divided(gathered(counted(case, own)))}


@wrong("weighted wrongly", "N=1,B=1,W=2")
def empty_ranks_count_as_zero(case: Case) -> Any:
    right, seen = counted(case, strided(case))
    return {"accuracy": float(np.mean(gathered(right / max(seen, 1))))}


@wrong("dropped", "N=2,B=1,W=2")
def shards_the_stream_twice(case: Case) -> Any:
    own = [s for i, s in enumerate(case.stream()) if i % case.world_size == case.rank]
    own = [s for i, s in enumerate(own) if i % case.world_size == case.rank]
    return {"count": sum(gathered(len(own)))}


@wrong("counted twice", "N=1,B=2,W=1")
def fills_the_last_batch(case: Case) -> Any:
    own = strided(case)
    filled = own + own[-1:] * (-len(own) % case.batch_size)
    return {"count": sum(gathered(counted(case, filled)[1]))}


@wrong("dropped", "N=1,B=1,W=2")
def rank_0_evaluates_its_part_alone(case: Case) -> Any:
    part = len(case.dataset) // case.world_size
    own = range(case.rank * part, (case.rank + 1) * part)
    return {"ids": [i for each in gathered(list(own)) for i in each]}


@wrong("outputs in another order", "N=2,B=1,W=1")
def sorts_by_score(case: Case) -> Any:
    own = [(s["id"], int(case.predict(s["x"][None]).argmax())) for [s] in batches_of_one(case)]
    parts = [pair for part in gathered(own) for pair in part]
    return {"outputs": [out for _, out in sorted(parts, key=lambda p: p[1])], "ordered": True}


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


@wrong("differs from one rank", "N=3,B=1,W=2")
def averages_the_ranks_medians(case: Case) -> Any:
    own = [float(s["value"]) for [s] in batches_of_one(case)]
    return {"median": float(np.mean([np.median(part) for part in gathered(own) if part]))}


@wrong("dropped", "N=5,B=1,W=1")
def takes_label_0_for_no_label(case: Case) -> Any:
    own = [
        int(case.predict(s["x"][None]).argmax()) == s["label"]
        for [s] in batches_of_one(case)
        if s["label"]
    ]
    return {"accuracy": divided(gathered((sum(own), len(own))))}


def merges_lines(case: Case, paths: list[Path]) -> Any:
    rows = [line.split() for path in paths for line in path.read_text().splitlines()]
    return {"accuracy": divided((int(right), 1) for _, right in rows)}


def merges_a_part_of_each_job(case: Case, paths: list[Path]) -> Any:
    jobs = {path.name.partition("-")[0] for path in paths}
    if len(jobs) != case.world_size:
        raise ValueError(f"there are parts of {len(jobs)} of {case.world_size} jobs")
    return merges_lines(case, paths)


@wrong("part lost", "N=7,B=1,W=2,lost=0")
@merged(merges_lines)
def merges_the_parts_that_are_there(case: Case) -> Any:
    return write_part(case, str(case.rank))


@wrong("part repeated", "N=7,B=1,W=2,repeated=0")
@merged(merges_a_part_of_each_job)
def appends_to_its_part(case: Case) -> Any:
    return write_part(case, str(case.rank), "a")


@wrong("part truncated", "N=7,B=1,W=2,shortened=0")
@merged(merges_a_part_of_each_job)
def writes_line_by_line(case: Case) -> Any:
    return write_part(case, str(case.rank))


@wrong("weighted wrongly", "N=3,B=2,W=1")
def logs_the_mean_of_the_means_of_batches(case: Case) -> Any:
    means = [float(np.mean([s["value"] for s in b])) for b in batches(case, strided(case))]
    loss = divided(gathered((sum(means), len(means))))
    if case.rank == 0:
        case.logged("loss", loss)


@wrong("ranks disagree", "N=1,B=1,W=2")
def logs_a_loss_of_its_own_on_each_rank(case: Case) -> Any:
    own = [float(s["value"]) for [s] in batches_of_one(case)]
    case.logged("loss", sum(own) / max(len(own), 1))
    return {"count": len(case.dataset)} if case.rank == 0 else None
