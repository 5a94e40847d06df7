"""Every Eval Ever's instance-level records, with the aggregate file beside them.

The formats are those of the schemas of every-eval-ever 0.3.0. They say of how many samples a figure
is, but not how many the data has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from disteval.errors import DataError
from disteval.files import file_digest
from disteval.records.plain import labels, text_of
from disteval.records.table import (
    Choice,
    Records,
    choose,
    common,
    cut_off,
    objects,
    only,
    read_object,
)

_MEANS = ("accuracy", "pass_rate", "exact_match")
"""The kinds of metrics that are the mean of the scores."""


def read(files: Sequence[Path], choice: Choice) -> Records:
    """Read one metric of one evaluation."""
    rows: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    samples = [path for path in files if path.suffix != ".json"]
    for number, path in enumerate(samples):
        for line, record in objects(path):
            try:
                row = _row(record, choice) | {"file": number, "line": line}
                metric = str(record.get("evaluation_result_id") or "score")
                rows[record["evaluation_name"]][metric].append(row)
            except (KeyError, TypeError) as error:
                raise cut_off(path, f"line {line}", f"no {error}") from error
    if not rows:
        raise DataError(f"{files[0]} has no samples; give the file *_samples.jsonl as well")
    task = choose("task", "--task", sorted(rows), choice.task)
    metric = choose("metric", "--score", sorted(rows[task]), choice.score)
    about, problems = [], []
    for path in files:
        found = read_object(path) if path.suffix == ".json" else {}
        mine = [
            each
            for each in found.get("evaluation_results", ())
            if (each["evaluation_name"], each.get("evaluation_result_id")) == (task, metric)
        ]
        about += [(path, found, each) for each in mine]
        if mine:
            problems += _unlike(found.get("detailed_evaluation_results") or {}, samples)
    settings, differing = common((path, _settings(found)) for path, found, _ in about)
    kinds = {result["metric_config"].get("metric_kind") for _, _, result in about}
    return Records(
        frame=pl.DataFrame(rows[task][metric], infer_schema_length=None), harness="every_eval_ever",
        files=tuple(map(str, samples)), task=task, metric=metric,
        headline=only(float(result["score_details"]["score"]) for _, _, result in about),
        aggregates=("mean",) if kinds and kinds <= set(_MEANS) else (),
        settings=settings, problems=(*problems, *differing),
    )  # fmt: skip


def _row(record: Mapping[str, Any], choice: Choice) -> dict[str, Any]:
    said, error = record["output"] or {}, record.get("error")
    row = {
        "id": str(record["sample_id"]), "score": float(record["evaluation"]["score"]),
        "fate": "scored" if not error else "refused" if "refus" in error.lower() else "errored",
        "answer": text_of(said.get("raw") or record.get("messages")),
        "prompt": record["input"]["raw"], "target": text_of(record["input"]["reference"]),
        "content": record.get("sample_hash"),
    }  # fmt: skip
    return row | labels(choice, record.get("metadata"))


def _unlike(detailed: Mapping[str, Any], samples: Sequence[Path]) -> list[str]:
    """Say if the file of samples is not the one that the aggregate was written with."""
    name, digest = Path(detailed.get("file_path", "")).name, detailed.get("checksum")
    return [
        f"{path} is not as it was written: its SHA-256 is not the one in the aggregate"
        for path in samples
        if path.name == name and detailed.get("hash_algorithm") == "sha256"
        and digest not in (None, file_digest(path))
    ]  # fmt: skip


def _settings(found: Mapping[str, Any]) -> dict[str, str]:
    library = found.get("eval_library") or {}
    return {
        "model": str(found["model_info"].get("id")),
        "library": f"{library.get('name')} {library.get('version')}",
    }
