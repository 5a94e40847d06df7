"""Files of torch's flight recorder, one a rank, as torch writes them for NCCL and reads them.

The form is described in torch's tutorial on the flight recorder. gloo's record lacks the name of
its group, without which torch's own analyser stops; it is added here.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import sys
from pathlib import Path
from typing import Any

from disteval.errors import DataError, UsageError, describe_error
from disteval.traces.torch_calls import DEFAULT_GROUP, Call, read_calls, recorded_calls

PREFIXES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""The variables in which torch looks for the path of its files, without the rank at the end."""

_RANK = re.compile(r"(\d+)(\.json)?$")
_MOST_BYTES = 1 << 28


def tell_calls(rank: int, since_ns: int | None = None) -> list[Call] | None:
    """Return the calls of this process after a failure, and write them where torch would.

    Args:
        rank: The rank that this process is.
        since_ns: As for `disteval.traces.torch_calls.recorded_calls`; None stands for ever.
    """
    _write_dump(rank)
    return recorded_calls(since_ns or 0)


def _write_dump(rank: int) -> None:
    """Write the record of this process where a variable of torch's says; without one do nothing."""
    prefix = next((os.environ[name] for name in PREFIXES if os.environ.get(name)), "")
    library = getattr(getattr(sys.modules.get("torch"), "_C", None), "_distributed_c10d", None)
    dump = getattr(library, "_dump_fr_trace", None)
    if not prefix or dump is None:
        return
    try:
        record = pickle.loads(dump(includeStackTraces=False))  # they take seconds to find
        _name_group(record)
        Path(f"{prefix}{rank}").write_bytes(pickle.dumps(record, protocol=2))
    except Exception as error:  # the folder is missing, or another release of torch
        failure = describe_error(error)
        sys.stderr.write(f"torch's record can't be written to {prefix}{rank}: {failure}\n")


def _name_group(record: dict[str, Any]) -> None:
    groups = record.get("pg_config", {})
    names = {tuple(entry["process_group"]) for entry in record.get("entries", [])}
    name = next((name for name, what in names if what == DEFAULT_GROUP), None)
    if name is not None and name not in groups and "" in groups:
        groups[name] = groups.pop("") | {"name": name, "desc": DEFAULT_GROUP}


def read_dumps(folder: Path) -> dict[int, list[Call]]:
    """Return the calls of each rank whose record is in a folder.

    Args:
        folder: The folder; a file's name ends in the rank's number, or in that and ``.json``.

    Raises:
        UsageError: There is no such file in the folder, or there are two of one rank.
        DataError: A file is no record of torch's flight recorder.
    """
    files = [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
    found: dict[int, Path] = {}
    for path in sorted(files):
        if match := _RANK.search(path.name):
            rank = int(match[1])
            if rank in found:
                raise UsageError(
                    f"{folder} has two files of rank {rank}, {found[rank].name} and {path.name}; "
                    f"keep the files of one run alone"
                )
            found[rank] = path
    if not found:
        raise UsageError(
            f"{folder} has no file whose name ends in the number of a rank; name the folder in "
            f"which torch's flight recorder has written, such as that of {PREFIXES[0]}"
        )
    return {rank: _read(found[rank]) for rank in sorted(found)}


def _read(path: Path) -> list[Call]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")
        data = path.read_bytes()
        is_json = path.suffix == ".json" or data[:1] == b"{"
        return read_calls(json.loads(data) if is_json else _Unpickler(io.BytesIO(data)).load())
    except Exception as error:  # a damaged pickle can make the unpickler raise anything
        raise DataError(
            f"{path} is no record of torch's flight recorder: {describe_error(error)}; remove it, "
            f"or name another folder"
        ) from error


class _Unpickler(pickle.Unpickler):
    """A reader of pickles that name no class and no function."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")
