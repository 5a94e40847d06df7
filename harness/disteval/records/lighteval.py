"""lighteval's details, a Parquet file a task, with the ``results_*.json`` of the same run.

The formats are those that ``EvaluationTracker`` of lighteval 0.13 writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from polars.exceptions import PolarsError

from disteval.errors import UsageError
from disteval.records import table
from disteval.records.table import Choice, Records


def read(files: Sequence[Path], choice: Choice) -> Records:
    """Read one metric of one task, whose ids are the numbers of its documents."""
    hint = "give the files details_*.parquet as well"
    task, details, results = table.of_task(files, hint, choice.task)
    choice = replace(choice, task=task)
    found = table.result("lighteval", details, _records, partial(_rows, choice), choice)
    # A document has a record for each way of asking the model, such as by log-probabilities and by
    # generation, and each record has the scores of the metrics that need this way.
    has_score, is_first = pl.col("score").is_not_null(), pl.int_range(pl.len()).over("id") == 0
    found = replace(found, frame=found.frame.filter(
        has_score | (is_first & ~has_score.any().over("id"))
    ))  # fmt: skip
    said, means = [], set()
    for path, run in results:
        figures, config = run["results"].get(task), run["config_tasks"].get(task, {})
        if len(splits := config.get("evaluation_splits") or ()) > 1:
            raise UsageError(
                f"{path}: {task} is of the splits {', '.join(splits)}, and lighteval numbers the "
                f"documents of each from 0; evaluate one split at a time"
            )
        if figures is not None:
            size = config.get("original_num_docs") or -1
            said.append(table.Said(path, _settings(run, config), figures.get(found.metric),
                             size if size >= 0 else None))  # fmt: skip
            means |= {each.get("corpus_level_fn") for each in config.get("metrics", ())
                      if each.get("metric_name") == found.metric}  # fmt: skip
    return table.with_said(found, said, ("mean",) if means == {"mean"} else ())


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        records = pl.read_parquet(path).to_dicts()
    except (PolarsError, OSError) as error:
        raise table.cut_off(path, "", error) from error
    for line, record in enumerate(records, 1):
        yield line, {**record, "line": line}


def _rows(
    choice: Choice, record: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """Yield a row for each metric of a record."""
    doc, said = record["doc"], record["model_response"]
    golds = doc["gold_index"] if isinstance(doc["gold_index"], list) else [doc["gold_index"]]
    row = {
        "id": doc["id"] or str(record["line"] - 1),
        "prompt": table.text_of(said.get("input") or doc["query"]),
        "answer": table.text_of(said.get("text") or said.get("logprobs")),
        "target": table.text_of([doc["choices"][gold] for gold in golds]),
    }  # fmt: skip
    row |= table.labels(choice, doc, doc.get("specific"))
    for name, score in record["metric"].items():
        yield (str(choice.task), name), row | {"score": score}


def _settings(found: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, object]:
    """Return what has to be equal among the runs of one result."""
    general = found["config_general"]
    return {
        "model": (general.get("model_config") or {}).get("model_name"),
        "limit": general.get("max_samples"), "task version": config.get("version"),
        "lighteval": general.get("lighteval_sha"),
    }  # fmt: skip
