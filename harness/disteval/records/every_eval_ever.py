"""Every Eval Ever's instance-level records, with the aggregate file beside them.

The formats are those of the schemas of every-eval-ever 0.3.0. They say of how many samples a figure
is, but not how many the data has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from disteval.errors import DataError
from disteval.files import file_digest
from disteval.records import table
from disteval.records.table import Choice, Records

_MEANS = ("accuracy", "pass_rate", "exact_match")
"""The kinds of metrics that are the mean of the scores."""


def read(files: Sequence[Path], choice: Choice) -> Records:
    """Read one metric of one evaluation."""
    samples = [path for path in files if path.suffix != ".json"]
    if not samples:
        raise DataError(f"{files[0]} has no samples; give the file *_samples.jsonl as well")
    runs = {path: table.read_object(path) for path in files if path.suffix == ".json"}
    keys = [_key_of(each) for run in runs.values() for each in run.get("evaluation_results", ())]
    rows = partial(_rows, choice, keys)
    found = table.result("every_eval_ever", samples, table.objects, rows, choice)
    said, problems, kinds = [], [], set()
    for path, run in runs.items():
        library = run.get("eval_library") or {}
        for each in run.get("evaluation_results", ()):
            if _key_of(each) == (found.task, found.metric):
                named = f"{library.get('name')} {library.get('version')}"
                settings = {"model": run["model_info"].get("id"), "library": named}
                said.append(table.Said(path, settings, float(each["score_details"]["score"])))
                kinds.add(each["metric_config"].get("metric_kind"))
                detailed = run.get("detailed_evaluation_results") or {}
                name, digest = Path(detailed.get("file_path", "")).name, detailed.get("checksum")
                for sample in samples if detailed.get("hash_algorithm") == "sha256" else ():
                    if sample.name == name and digest not in (None, file_digest(sample)):
                        what = (
                            "is not as it was written: its SHA-256 is not the one in the aggregate"
                        )
                        problems.append(f"{sample} {what}")
    is_mean = bool(kinds) and kinds <= set(_MEANS)
    found = replace(found, problems=tuple(problems))
    return table.with_said(found, said, ("mean",) if is_mean else ())


def _key_of(found: Mapping[str, Any]) -> tuple[str, str]:
    return found["evaluation_name"], str(found.get("evaluation_result_id") or "score")


def _rows(
    choice: Choice, keys: Sequence[tuple[str, str]], record: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """Yield the row of a record; or one without a score for each figure, if it is of no figure.

    The package's converters write such a record, with a score of 0 or one that they guess, of a
    sample that the harness has not scored.
    """
    said, error = record["output"] or {}, record.get("error")
    row = {
        "id": str(record["sample_id"]), "score": float(record["evaluation"]["score"]),
        "fate": "scored" if not error else "refused" if "refus" in error.lower() else "errored",
        "answer": table.text_of(said.get("raw") or record.get("messages")),
        "prompt": record["input"]["raw"], "target": table.text_of(record["input"]["reference"]),
        "content": record.get("sample_hash"),
    }  # fmt: skip
    row |= table.labels(choice, record.get("metadata"))
    key = _key_of(record)
    figures = [each for each in keys if each[0] == key[0]]
    names_none = record.get("evaluation_result_id") is None
    if names_none and figures and key not in figures:
        yield from ((figure, {**row, "score": None}) for figure in figures)
    else:
        yield key, row
