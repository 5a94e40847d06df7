"""inspect_ai's logs: ``.eval``, an archive with a file for each sample, or ``.json``.

The formats are those of inspect_ai 0.3.285. Nothing is unpacked into files.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from disteval.extras import needs
from disteval.records.plain import labels, text_of
from disteval.records.table import (
    Choice,
    Records,
    choose,
    common,
    cut_off,
    only,
    parsed,
    read_object,
)

MAX_MEMBER = 1 << 30
"""The most bytes of a file in an archive; that of a sample has its whole transcript."""

_ZSTANDARD = 93  # in the list of methods of zip archives
_WORDS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""The scores that inspect_ai's ``value_to_float`` makes of words."""


def read(files: Sequence[Path], choice: Choice) -> Records:
    """Read one score of one task, from the logs of one or several runs."""
    logs = [(path, _log(path)) for path in files]
    task = choose("task", "--task", [log["eval"]["task"] for _, log in logs], choice.task)
    logs = [each for each in logs if each[1]["eval"]["task"] == task]
    score, metric = _metric([log for _, log in logs], choice.score)
    problems = [
        f"{path}: the run has the status {log['status']!r}, and not 'success'"
        for path, log in logs
        if log["status"] != "success"
    ]
    rows = []
    for number, (path, log) in enumerate(logs):
        for line, sample in enumerate(_samples(path, log), 1):
            try:
                row = _row(sample, score, _epochs(log), choice)
            except (KeyError, TypeError, IndexError, AttributeError) as error:
                raise cut_off(path, f"sample {line}", f"{type(error).__name__}: {error}") from error
            rows.append({**row, "file": number, "line": line})
    found = [each for _, log in logs for each in (log.get("results") or {}).get("scores", ())]
    reducers = {each.get("reducer") for each in found if each["name"] == score}
    is_mean = metric in ("accuracy", "mean") and reducers <= {None, "mean"}
    figure = only(each for _, log in logs for each in _figures(log, score, metric))
    stated, ids = _expected([log for _, log in logs])
    settings, differing = common((path, _settings(log)) for path, log in logs)
    return Records(
        frame=pl.DataFrame(rows, schema_overrides={"score": pl.Float64}, infer_schema_length=None),
        harness="inspect_ai", files=tuple(str(path) for path, _ in logs), task=task,
        metric=f"{score}/{metric}", headline=figure,
        stated=stated, ids=ids, aggregates=("mean",) if is_mean else (),
        settings=settings, problems=(*problems, *differing),
    )  # fmt: skip


def _log(path: Path) -> dict[str, Any]:
    """Return a log without its samples: what has been run, and what came of it."""
    if path.suffix == ".json":
        return read_object(path)
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
        raise cut_off(path, "", error) from error


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    """Return the object in a file of an archive, which is no larger than `MAX_MEMBER`."""
    try:
        info = archive.getinfo(name)
        if info.file_size > MAX_MEMBER:
            raise ValueError(
                f"it has {info.file_size:,} bytes, and at most {MAX_MEMBER:,} are read"
            )
        if info.compress_type == _ZSTANDARD:
            data = _decompressed(path, info)
        else:
            with archive.open(info) as file:
                data = file.read(info.file_size + 1)
        return parsed(data)
    except (OSError, ValueError, KeyError, RecursionError, zipfile.BadZipFile, zlib.error) as error:
        raise cut_off(path, name, error) from error


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


def _metric(logs: Sequence[Mapping[str, Any]], chosen: str | None) -> tuple[str, str]:
    """Return the score and its metric, which the caller gives as ``score`` or ``score/metric``."""
    found = [(each["name"], each["metrics"]) for log in logs
             for each in (log.get("results") or {}).get("scores", ())]  # fmt: skip
    if not found:  # of a run that was killed
        found = [(each["name"], {"accuracy": {}}) for log in logs
                 for each in log["eval"].get("scorers") or ()]  # fmt: skip
    scores = [name for name, _ in found]
    name, _, metric = (chosen or "").partition("/")
    score = choose("score", "--score", scores, name or None)
    metrics = [each for name, them in found if name == score for each in them]
    usual = [each for each in ("accuracy", "mean") if each in metrics]
    return score, choose(
        "metric", f"--score {score}/METRIC", metrics, metric or next(iter(usual), None)
    )


def _epochs(log: Mapping[str, Any]) -> int:
    return int(log["eval"]["config"].get("epochs") or 1)


def _figures(log: Mapping[str, Any], score: str, metric: str) -> list[float]:
    scores = (log.get("results") or {}).get("scores", ())
    return [float(each["metrics"][metric]["value"]) for each in scores
            if each["name"] == score and metric in each["metrics"]]  # fmt: skip


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


def _row(
    sample: Mapping[str, Any], score: str, epochs: int, choice: Choice
) -> dict[str, str | float | None]:
    output, scores = sample["output"], sample.get("scores") or {}
    choices = output.get("choices") or [{}]
    stop = choices[0].get("stop_reason")
    # A scorer may give an object of several scores, each of which has a name of its own.
    several = [each["value"] for each in scores.values() if isinstance(each["value"], dict)]
    value = scores[score]["value"] if score in scores else None
    value = next((each[score] for each in several if score in each), value)
    fate = "scored"
    if sample.get("error"):
        fate = "errored"
    elif stop == "content_filter" or value == "N":
        fate = "refused"
    elif sample.get("limit") or stop in ("max_tokens", "model_length"):
        fate = "cut"
    prompt = text_of(sample["input"]) or ""
    row = {
        "id": _id(sample["id"], sample["epoch"], epochs), "score": _number(value), "fate": fate,
        "answer": output.get("completion"), "prompt": prompt,
        "target": text_of(sample["target"]), "attempts": 1 + len(sample.get("error_retries") or ()),
        "cluster": None if epochs == 1 else str(sample["id"]),
        "content": hashlib.sha256(f"{sample['epoch']} {prompt}".encode()).hexdigest(),
    }  # fmt: skip
    return row | labels(choice, sample.get("metadata"), sample)


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


def _settings(log: Mapping[str, Any]) -> dict[str, str]:
    """Return what has to be equal among the logs of one result."""
    run = log["eval"]
    settings = {
        "model": run.get("model"), "task version": run.get("task_version"),
        "epochs": run["config"].get("epochs"), "limit": run["config"].get("limit"),
        "samples of the data": run["dataset"].get("samples"),
        "commit": (run.get("revision") or {}).get("commit"),
        "inspect_ai": (run.get("packages") or {}).get("inspect_ai"),
    }  # fmt: skip
    return {name: str(value) for name, value in settings.items() if value is not None}
