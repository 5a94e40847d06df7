"""The files of predictions that one rank has written, each with a digest.

They count when the ledger names them, and are read when the manifest does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from disteval.coverage import Certificate, certify
from disteval.data.predictions.columns import Field, Form, StoredTable
from disteval.data.predictions.formats import FORMATS, block_rows
from disteval.files import file_digest, write_atomically

NAME = re.compile(r"\.?(part-[0-9a-f]{16}-\d{6,})(\..*)")
"""The name of a part, and of each of its files after the suffix is added."""


@dataclass(frozen=True)
class PartFile:
    """One part of the predictions, as ledger and manifest describe it.

    Attributes:
        name: The name of its files without their suffix.
        files: Each file's size in bytes and SHA-256, by suffix.
        form: Whether outputs were one array or list, a tuple or a dict.
        fields: The columns.
        rows: The number of samples.
        first: The lowest id.
        last: The highest id.
        certificate: The number of ids and the sum of their hashes.
        block_rows: The number of rows in each block but the last.
        offsets: Where blocks begin and end, for a format that needs it.
    """

    name: str
    files: Mapping[str, tuple[int, str]]
    form: Form
    fields: tuple[Field, ...]
    rows: int
    first: int
    last: int
    certificate: Certificate
    block_rows: int
    offsets: tuple[int, ...] = field(default=(), repr=False)

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return -(-self.rows // self.block_rows)

    def problem(self, folder: Path, *, thorough: bool = True) -> str | None:
        """Return what is wrong with the files; None if each has its size and its digest.

        Args:
            folder: The folder of the files.
            thorough: Whether every byte is read; otherwise, sizes are enough.
        """
        for suffix, (size, digest) in self.files.items():
            path = folder / (self.name + suffix)
            try:
                found = path.stat().st_size
                if found != size:
                    return f"{path.name} has {found} bytes, and {size} were written"
                if thorough and file_digest(path) != digest:
                    return f"{path.name} does not have the bytes that were written"
            except FileNotFoundError:
                return f"{path.name} is missing"
            except OSError as error:
                return f"{path.name} can't be read ({error.strerror})"
        return None

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> PartFile:
        """Return the part that a manifest describes."""
        fields = tuple(
            Field(**{**one, "shape": tuple(one["shape"])}) for one in facts.pop("fields")
        )
        files = {
            suffix: (int(size), str(digest))
            for suffix, (size, digest) in facts.pop("files").items()
        }
        certificate = Certificate(*facts.pop("certificate"))
        offsets = tuple(facts.pop("offsets"))
        is_own = all(suffix[:1] == "." and "/" not in suffix for suffix in files)
        if not NAME.fullmatch(facts["name"] + ".") or not is_own:
            raise ValueError(f"a part has the name {facts['name']!r}")
        return cls(files=files, fields=fields, certificate=certificate, offsets=offsets, **facts)


def write_part(folder: Path, name: str, table: StoredTable, format: str) -> PartFile:  # noqa: A002
    """Write a table to the files of a new part.

    Args:
        folder: The folder.
        name: The name of the part.
        table: The rows, in the order of their ids, at least one.
        format: The name of the format.

    Raises:
        UsageError: The format can't hold the table.
        OSError: A file can't be written.
    """
    size = block_rows(table)
    contents, offsets = FORMATS[format].encode(table, size)
    for suffix, content in contents.items():
        write_atomically(folder / (name + suffix), partial(_write, content))
    return PartFile(
        name=name,
        files={suffix: (len(data), _digest(data)) for suffix, data in contents.items()},
        form=table.form,
        fields=tuple(table.fields),
        rows=len(table.ids),
        first=int(table.ids[0]),
        last=int(table.ids[-1]),
        certificate=certify(table.ids),
        block_rows=size,
        offsets=tuple(offsets),
    )


def _write(content: bytes, file: BinaryIO) -> None:
    file.write(content)


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return JSON of two lines: the content, and its digest."""
    line = json.dumps(content).encode()
    return line + b"\n" + json.dumps({"sha256": _digest(line)}).encode() + b"\n"


def unsealed(path: Path, longest: int) -> dict[str, Any]:
    """Return the content of a file that `sealed` made.

    Raises:
        ValueError: The file is damaged, or is no such file.
        OSError: It can't be read.
    """
    with path.open("rb") as file:
        data = file.read(longest + 1)
    line, _, seal = data.partition(b"\n")
    try:
        whole = json.loads(seal) == {"sha256": _digest(line)}
        content = json.loads(line) if whole else None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is damaged: its bytes do not have the digest at its end")
    return content


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()
