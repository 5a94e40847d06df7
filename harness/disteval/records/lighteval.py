"""lighteval's details, a Parquet file a task, with the ``results_*.json`` of the same run.

The formats are those that ``EvaluationTracker`` of lighteval 0.13 writes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from polars.exceptions import PolarsError

from disteval.errors import DataError
from disteval.records.plain import labels, text_of
from disteval.records.table import Choice, Records, choose, common, cut_off, only, read_object

_DETAILS = re.compile(r"details_(.+)_(\d{4}-\d\d-\d\dT[-\d.]+)\.parquet")


def read(files: Sequence[Path], choice: Choice) -> Records:
    """Read one metric of one task, whose ids are the numbers of its documents."""
    results = [(path, read_object(path)) for path in files if path.suffix == ".json"]
    named = [(path, found) for path in files if (found := _DETAILS.fullmatch(path.name))]
    if not named:
        raise DataError(f"{files[0]} has no samples; give the files details_*.parquet as well")
    task = choose("task", "--task", [found[1] for _, found in named], choice.task)
    details = [(path, found[2]) for path, found in named if found[1] == task]
    rows, metrics = [], []
    for number, (path, _) in enumerate(details):
        try:
            records = pl.read_parquet(path).to_dicts()
            for line, record in enumerate(records, 1):
                metrics.append(record["metric"])
                rows.append(_row(record, line, choice) | {"file": number, "line": line})
        except (PolarsError, OSError, KeyError, TypeError) as error:
            raise cut_off(path, "", error) from error
    names = dict.fromkeys(name for each in metrics for name in each)
    metric = choose("metric", "--score", list(names), choice.score)
    rows = _of_metric(
        [row | {"score": found.get(metric)} for row, found in zip(rows, metrics, strict=True)]
    )
    dates = {date for _, date in details}
    about = [
        (path, found)
        for path, found in results
        if path.stem.removeprefix("results_") in dates and task in found["results"]
    ]
    settings, problems = common((path, _settings(found, task)) for path, found in about)
    means = {
        each.get("corpus_level_fn")
        for _, found in about
        for each in _config(found, task).get("metrics", ())
        if each.get("metric_name") == metric
    }
    return Records(
        frame=pl.DataFrame(rows, infer_schema_length=None), harness="lighteval", task=task,
        files=tuple(str(path) for path, _ in details), metric=metric,
        headline=only(found["results"][task][metric] for _, found in about
                      if metric in found["results"][task]),
        stated=only(
            size
            for _, found in about
            if (size := _config(found, task).get("original_num_docs") or -1) >= 0
        ),
        aggregates=("mean",) if means == {"mean"} else (), settings=settings, problems=problems,
    )  # fmt: skip


def _of_metric(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of one metric, and one of each document that has no score.

    A document has a record for each way of asking the model, such as by log-probabilities and by
    generation, and each record has the scores of the metrics that need this way.
    """
    scored = {row["id"] for row in rows if row["score"] is not None}
    others = {row["id"]: row for row in reversed(rows) if row["id"] not in scored}
    return [row for row in rows if row["score"] is not None] + list(others.values())[::-1]


def _row(record: Mapping[str, Any], line: int, choice: Choice) -> dict[str, Any]:
    doc, said = record["doc"], record["model_response"]
    golds = doc["gold_index"] if isinstance(doc["gold_index"], list) else [doc["gold_index"]]
    row = {
        "id": doc["id"] or str(line - 1), "prompt": text_of(said.get("input") or doc["query"]),
        "answer": text_of(said.get("text") or said.get("logprobs")),
        "target": text_of([doc["choices"][gold] for gold in golds]),
    }  # fmt: skip
    return row | labels(choice, doc, doc.get("specific"))


def _config(found: Mapping[str, Any], task: str) -> Mapping[str, Any]:
    config: Mapping[str, Any] = found["config_tasks"].get(task, {})
    return config


def _settings(found: Mapping[str, Any], task: str) -> dict[str, str]:
    """Return what has to be equal among the runs of one result."""
    general = found["config_general"]
    settings = {
        "model": (general.get("model_config") or {}).get("model_name"),
        "limit": general.get("max_samples"), "task version": _config(found, task).get("version"),
        "lighteval": general.get("lighteval_sha"),
    }  # fmt: skip
    return {name: str(value) for name, value in settings.items() if value is not None}
