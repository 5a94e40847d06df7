"""inspect_ai's logs: ``.eval``, an archive with a file for each sample, or ``.json``.

The formats are those of inspect_ai 0.3.285. Nothing is unpacked into files.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from disteval.extras import needs
from disteval.records import table
from disteval.records.table import Choice, Records

MAX_MEMBER = 1 << 30
"""The most bytes of a file in an archive; that of a sample has its whole transcript."""

_ZSTANDARD = 93  # in the list of methods of zip archives
_WORDS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""The scores that inspect_ai's ``value_to_float`` makes of words."""


def read(files: Sequence[Path], choice: Choice) -> Records:
    """Read one score of one task, from the logs of one or several runs."""
    logs = {path: _log(path) for path in files}
    tasks = [log["eval"]["task"] for log in logs.values()]
    task = table.choose("task", "--task", tasks, choice.task)
    logs = {path: log for path, log in logs.items() if log["eval"]["task"] == task}
    runs = list(logs.values())
    score, metric = _metric(runs, choice.score)
    choice = replace(choice, task=task, score=f"{score}/{metric}")
    found = table.result(
        "inspect_ai", [*logs], lambda path: enumerate(_samples(path, logs[path]), 1),
        partial(_rows, choice, score, _epochs(runs[0])), choice,
    )  # fmt: skip
    scores = [each for log in runs for each in _scores(log) if each["name"] == score]
    is_mean = metric in ("accuracy", "mean") and all(
        each.get("reducer") in (None, "mean") for each in scores
    )
    stated, ids = _expected(runs)
    problems = tuple(
        f"{path}: the run has the status {log['status']!r}, and not 'success'"
        for path, log in logs.items()
        if log["status"] != "success"
    )
    said = [
        table.Said(path, _settings(log), next((float(each["metrics"][metric]["value"])
             for each in _scores(log) if each["name"] == score and each["metrics"].get(metric)),
             None), stated)
        for path, log in logs.items()
    ]  # fmt: skip
    found = replace(found, ids=ids, problems=problems)
    return table.with_said(found, said, ("mean",) if is_mean else ())


def _log(path: Path) -> dict[str, Any]:
    """Return a log without its samples: what has been run, and what came of it."""
    if path.suffix == ".json":
        return table.read_object(path)
    with _opened(path) as archive:
        names = archive.namelist()
        if "header.json" in names:
            return _member(path, archive, "header.json")
        log = _member(path, archive, "_journal/start.json")
        return {**log, "status": "started"}  # it was killed, or is running


def _samples(path: Path, log: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if path.suffix == ".json":
        yield from log["samples"]
        return
    with _opened(path) as archive:
        for name in archive.namelist():
            if name.startswith("samples/"):
                yield _member(path, archive, name)


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise table.cut_off(path, "", error) from error


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    """Return the object in a file of an archive, which is no larger than `MAX_MEMBER`."""
    try:
        info = archive.getinfo(name)
        if info.file_size > MAX_MEMBER:
            raise ValueError(f"of {info.file_size:,} bytes, at most {MAX_MEMBER:,} are read")
        if info.compress_type == _ZSTANDARD:
            data = _decompressed(path, info)
        else:
            with archive.open(info) as file:
                data = file.read(info.file_size + 1)
        return table.parsed(data)
    except (OSError, ValueError, KeyError, RecursionError, zipfile.BadZipFile, zlib.error) as error:
        raise table.cut_off(path, name, error) from error


def _decompressed(path: Path, info: zipfile.ZipInfo) -> bytes:
    """Return a file of an archive that Python's zipfile can't read before version 3.14."""
    with needs("logs of inspect_ai", "records"):
        import zstandard
    with path.open("rb") as file:
        file.seek(info.header_offset)
        lengths = file.read(30)[26:]  # of the name and the other fields that follow
        more = int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
        file.seek(more, os.SEEK_CUR)
        content = file.read(info.compress_size)
    try:
        data = zstandard.ZstdDecompressor().stream_reader(content).read(info.file_size + 1)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    if len(data) != info.file_size or zlib.crc32(data) != info.CRC:
        raise ValueError("it is cut off, or has other bytes than its checksum is of")
    return bytes(data)


def _scores(log: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the scores of a log, each with its metrics; those of a killed run have no figure."""
    named = [{"name": each["name"], "metrics": {"accuracy": {}}}
             for each in log["eval"].get("scorers") or ()]  # fmt: skip
    return (log.get("results") or {}).get("scores") or named


def _metric(logs: Sequence[Mapping[str, Any]], chosen: str | None) -> tuple[str, str]:
    """Return the score and its metric, which the caller gives as ``score`` or ``score/metric``."""
    found = [(each["name"], each["metrics"]) for log in logs for each in _scores(log)]
    name, _, metric = (chosen or "").partition("/")
    score = table.choose("score", "--score", [name for name, _ in found], name or None)
    metrics = [each for name, them in found if name == score for each in them]
    usual = next((each for each in ("accuracy", "mean") if each in metrics), None)
    return score, table.choose("metric", f"--score {score}/METRIC", metrics, metric or usual)


def _epochs(log: Mapping[str, Any]) -> int:
    return int(log["eval"]["config"].get("epochs") or 1)


def _expected(logs: Sequence[Mapping[str, Any]]) -> tuple[int | None, pl.Series | None]:
    """Return how many samples and epochs the logs say there are, and their ids if all are named."""
    data = logs[0]["eval"]["dataset"]
    ids = {each for log in logs for each in log["eval"]["dataset"].get("sample_ids") or ()}
    epochs = _epochs(logs[0])
    size = data.get("samples")
    if size is None or len(ids) < size:  # a limit, or other jobs, leave some out
        return None if size is None else size * epochs, None
    named = [_id(each, epoch, epochs) for each in ids for epoch in range(1, epochs + 1)]
    return None, pl.Series("id", named, pl.String)


def _id(an_id: int | str, epoch: int, epochs: int) -> str:
    return str(an_id) if epochs == 1 else f"{an_id} epoch {epoch}"


def _rows(
    choice: Choice, score: str, epochs: int, sample: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    output, scores = sample["output"], sample.get("scores") or {}
    choices = output.get("choices") or [{}]
    stop = choices[0].get("stop_reason")
    # A scorer may give an object of several scores, each of which has a name of its own.
    named = {name: each["value"] for name, each in scores.items()}
    for each in [each for each in named.values() if isinstance(each, dict)]:
        named |= each
    value = named.get(score)
    fate = "scored"
    if sample.get("error"):
        fate = "errored"
    elif stop == "content_filter" or value == "N":
        fate = "refused"
    elif sample.get("limit") or stop in ("max_tokens", "model_length"):
        fate = "cut"
    prompt = table.text_of(sample["input"]) or ""
    row = {
        "id": _id(sample["id"], sample["epoch"], epochs), "score": _number(value), "fate": fate,
        "answer": output.get("completion"), "prompt": prompt,
        "target": table.text_of(sample["target"]),
        "attempts": 1 + len(sample.get("error_retries") or ()),
        "cluster": None if epochs == 1 else str(sample["id"]),
        "content": hashlib.sha256(f"{sample['epoch']} {prompt}".encode()).hexdigest(),
    }  # fmt: skip
    key = str(choice.task), str(choice.score)
    yield key, row | table.labels(choice, sample.get("metadata"), sample)


def _number(value: object) -> float | None:
    """Return what inspect_ai's ``value_to_float`` makes of a score."""
    if isinstance(value, (int, float)):
        return float(value)
    if not isinstance(value, str):
        return None  # of several numbers, of which inspect_ai makes 0, with a warning
    word = _WORDS.get(value, _WORDS.get(value.lower()))
    try:
        return float(value) if word is None else word
    except ValueError:
        return None


def _settings(log: Mapping[str, Any]) -> dict[str, object]:
    """Return what has to be equal among the logs of one result."""
    run = log["eval"]
    return {
        "model": run.get("model"), "task version": run.get("task_version"),
        "epochs": run["config"].get("epochs"), "limit": run["config"].get("limit"),
        "samples of the data": run["dataset"].get("samples"),
        "commit": (run.get("revision") or {}).get("commit"),
        "inspect_ai": (run.get("packages") or {}).get("inspect_ai"),
    }  # fmt: skip
