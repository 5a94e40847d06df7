"""lm-eval's ``samples_*.jsonl``, with the ``results_*.json`` of the same run.

The formats are those that ``EvaluationTracker`` of lm_eval 0.4.13 writes, and since 0.4.9.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from disteval.errors import UsageError
from disteval.records import table
from disteval.records.table import Choice, Records

_AGGREGATES = {
    "mean": "mean", "nanmean": "mean", "perplexity": "perplexity", "bits_per_byte": "bits",
    "weighted_perplexity": "perplexity",
}  # fmt: skip
"""lm-eval's names of aggregations."""

_USUAL = dict.fromkeys(
    ("acc", "acc_norm", "acc_bytes", "acc_mutual_info", "exact_match", "likelihood"), "mean"
) | {"perplexity": "perplexity", "word_perplexity": "perplexity", "byte_perplexity": "perplexity",
     "bits_per_byte": "bits"}  # fmt: skip
"""How lm-eval's own metrics are aggregated, unless the task says another way."""

_SETTINGS = ("chat_template_sha", "system_instruction_sha", "fewshot_as_multiturn")


def read(files: Sequence[Path], choice: Choice) -> Records:
    """Read one metric of one task, from the files of one or several jobs."""
    hint = "run lm_eval with --log_samples, and give the files samples_*.jsonl as well"
    task, samples, results = table.of_task(files, hint, choice.task)
    score = (choice.score or "").removesuffix(",none") or None
    choice = replace(choice, task=task, score=score)
    found = table.result("lm_eval", samples, table.objects, partial(_rows, choice), choice)
    name, _, filtered = found.metric.partition(",")
    key = f"{name},{filtered or 'none'}"
    about = [(path, run) for path, run in results if key in run["results"].get(task, {})]
    said = [
        table.Said(path, _settings(run, task), float(run["results"][task][key]),
             run["n-samples"][task]["original"])
        for path, run in about
    ]  # fmt: skip
    aggregates = _aggregates(name, [run["configs"][task] for _, run in about])
    return table.with_said(found, said, aggregates)


def _rows(
    choice: Choice, record: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """Yield a row for each metric of a record."""
    said = record["resps"]
    while isinstance(said, list) and len(said) == 1:
        said = said[0]
    row = {
        "id": str(record["doc_id"]), "answer": table.text_of(said),
        "prompt": table.text_of(record["arguments"]["gen_args_0"]["arg_0"]),
        "content": record["doc_hash"], "target": table.text_of(record["target"]),
    }  # fmt: skip
    row |= table.labels(choice, record, record["doc"])
    suffix = "" if record["filter"] == "none" else f",{record['filter']}"
    for name in record["metrics"]:
        is_wanted = choice.score in (None, name + suffix)
        score = _score(name, record.get(name)) if is_wanted else {}
        yield (str(choice.task), name + suffix), row | score


def _score(name: str, found: Any) -> dict[str, float | None]:
    """Return the score and its weight; those of perplexities are a pair."""
    if isinstance(found, list) and len(found) == 2 and name in _USUAL and found[1]:
        return {"score": found[0] / found[1], "weight": float(found[1])}
    if found is None or isinstance(found, (int, float)):
        return {"score": None if found is None else float(found), "weight": None}
    raise UsageError(
        f"{name!r} is no number of each sample, but {found!r:.100}, of which lm-eval computes one "
        f"figure for all; give another metric by --score"
    )


def _aggregates(metric: str, configs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return how the metric is aggregated; nothing if it is not known."""
    for config in configs:
        for each in config.get("metric_list") or ():
            if each.get("metric") == metric and "aggregation" in each:
                known = _AGGREGATES.get(str(each["aggregation"]))
                return () if known is None else (known,)
    return (_USUAL[metric],) if metric in _USUAL else ()


def _settings(found: Mapping[str, Any], task: str) -> dict[str, object]:
    """Return what has to be equal among the jobs of one result."""
    return {name: found.get(name) for name in _SETTINGS} | {
        "model": found.get("model_name"), "task version": found.get("versions", {}).get(task),
        "shots": found.get("n-shot", {}).get(task), "lm-eval": found.get("lm_eval_version"),
        "limit": found.get("config", {}).get("limit"),
    }  # fmt: skip
