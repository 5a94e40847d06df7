"""lm-eval's ``samples_*.jsonl``, with the ``results_*.json`` of the same run.

The formats are those that ``EvaluationTracker`` of lm_eval 0.4.13 writes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from disteval.errors import DataError, UsageError
from disteval.records.plain import labels, text_of
from disteval.records.table import Choice, Records, choose, common, objects, only, read_object

_SAMPLES = re.compile(r"samples_(.+)_(\d{4}-\d\d-\d\dT[-\d.]+)\.jsonl")

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
    results = [(path, read_object(path)) for path in files if path.suffix == ".json"]
    samples = [(path, *_named(path)) for path in files if path.suffix != ".json"]
    if not samples:
        raise DataError(
            f"{files[0]} has no samples; run lm_eval with --log_samples, and give the files "
            f"samples_*.jsonl or their folder as well"
        )
    task = choose("task", "--task", [task for _, task, _ in samples], choice.task)
    samples = [each for each in samples if each[1] == task]
    dates = {date for _, _, date in samples}
    if dates & {_date_of(path) for path, _ in results}:
        results = [each for each in results if _date_of(each[0]) in dates]
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for number, (path, _, _) in enumerate(samples):
        for line, record in objects(path):
            for name, row in _rows(path, line, record, choice):
                rows[name].append({**row, "file": number, "line": line})
    metric = choose(
        "metric", "--score", sorted(rows), (choice.score or "").removesuffix(",none") or None
    )
    name, _, filtered = metric.partition(",")
    key = f"{name},{filtered or 'none'}"
    about = [(path, found) for path, found in results if key in found["results"].get(task, {})]
    figures = {float(found["results"][task][key]) for _, found in about}
    settings, problems = common((path, _settings(found, task)) for path, found in about)
    notes: tuple[str, ...] = ()
    if len(figures) > 1:
        notes = ("each job states a figure of its own, and none that is of all samples is stated",)
    return Records(
        frame=pl.DataFrame(rows[metric], infer_schema_length=None), harness="lm_eval", task=task,
        files=tuple(str(path) for path, _, _ in samples), metric=metric, notes=notes,
        headline=only(figures),
        stated=only(found["n-samples"][task]["original"] for _, found in about),
        aggregates=_aggregates(name, [found["configs"][task] for _, found in about]),
        settings=settings, problems=problems,
    )  # fmt: skip


def _named(path: Path) -> tuple[str, str]:
    """Return the task and the date in a file's name."""
    found = _SAMPLES.fullmatch(path.name)
    return (found[1], found[2]) if found else (path.stem, "")


def _date_of(path: Path) -> str:
    return path.stem.removeprefix("results_")


def _rows(
    path: Path, line: int, record: Mapping[str, Any], choice: Choice
) -> list[tuple[str, dict[str, Any]]]:
    """Return the name of each metric of a record, and its row."""
    try:
        said = record["resps"]
        while isinstance(said, list) and len(said) == 1:
            said = said[0]
        row = {
            "id": str(record["doc_id"]), "answer": text_of(said),
            "prompt": text_of(record["arguments"]["gen_args_0"]["arg_0"]),
            "content": record["doc_hash"], "target": text_of(record["target"]),
        }  # fmt: skip
        row |= labels(choice, record, record["doc"])
        suffix = "" if record["filter"] == "none" else f",{record['filter']}"
        return [
            (name + suffix, row | _score(path, line, name, record.get(name)))
            for name in record["metrics"]
        ]
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{path}, line {line}: the record of a sample has no {error}, which lm-eval writes "
            f"since version 0.4.9; write the samples with a newer one, or give --id and --score"
        ) from error


def _score(path: Path, line: int, name: str, found: Any) -> dict[str, float | None]:
    """Return the score and its weight; those of perplexities are a pair."""
    if isinstance(found, list) and len(found) == 2 and name in _USUAL and found[1]:
        return {"score": found[0] / found[1], "weight": float(found[1])}
    if found is None or isinstance(found, (int, float)):
        return {"score": None if found is None else float(found), "weight": None}
    raise UsageError(
        f"{path}, line {line}: {name!r} is no number of each sample, but {found!r:.100}, of which "
        f"lm-eval computes one figure for all; give another metric by --score"
    )


def _aggregates(metric: str, configs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return how the metric is aggregated; nothing if it is not known."""
    for config in configs:
        for each in config.get("metric_list") or ():
            if each.get("metric") == metric and "aggregation" in each:
                known = _AGGREGATES.get(str(each["aggregation"]))
                return () if known is None else (known,)
    return (_USUAL[metric],) if metric in _USUAL else ()


def _settings(found: Mapping[str, Any], task: str) -> dict[str, str]:
    """Return what has to be equal among the jobs of one result."""
    settings = {name: found.get(name) for name in _SETTINGS}
    settings["model"] = found.get("model_name")
    settings["task version"] = found.get("versions", {}).get(task)
    settings["shots"] = found.get("n-shot", {}).get(task)
    settings["limit"] = found.get("config", {}).get("limit")
    settings["lm-eval"] = found.get("lm_eval_version")
    return {name: str(value) for name, value in settings.items() if value is not None}
