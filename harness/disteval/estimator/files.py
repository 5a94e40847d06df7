"""The last line of checkpoints, which has a checksum, and files that rank 0 writes for all.

The last line of a checkpoint follows the archive of ``torch.save``, whose readers ignore it. It
says which state the file holds, and ends with the SHA-256 of every byte before the checksum.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from disteval.contract import BaseDistBackend
from disteval.errors import RankError

_CHUNK = 1 << 20
_LONGEST_SEAL = 1024
_BEGIN = b'\n{"disteval": "checkpoint", '
_MIDDLE = b" sha256 "
_NO_SEAL = "the checksum at its end is missing or incomplete"


@dataclass(frozen=True)
class Seal:
    """The last line of a checkpoint.

    Attributes:
        epoch: The complete epochs.
        iter: The complete iterations.
        training: The training that the file belongs to; see `Context.training`.
        written: When it was written, in ns since 1970; decides between files of one iteration.
        size: The bytes before this line.
    """

    epoch: int
    iter: int
    training: str
    written: int
    size: int

    @property
    def age(self) -> tuple[int, int, int]:
        """The place of the file among those of its training; the newest is the highest."""
        return self.epoch, self.iter, self.written


class SealedFile:
    """A binary file to which a checkpoint is written, and then its seal.

    Args:
        file: The file, at its beginning.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, data: Any) -> int:
        """Write bytes."""
        self._hash.update(data)
        self._size += memoryview(data).nbytes
        return self._file.write(data)

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()

    def seal(self, epoch: int, iteration: int, training: str) -> None:
        """Write the last line."""
        seal = Seal(epoch, iteration, training, time.time_ns(), self._size)
        facts = json.dumps({"disteval": "checkpoint", **asdict(seal)})
        self.write(b"\n" + facts.encode() + _MIDDLE)
        self._file.write(self._hash.hexdigest().encode() + b"\n")


def read_seal(file: BinaryIO) -> Seal | None:
    """Return the seal at the end of a file, which is not compared with the rest of the file yet.

    Returns:
        None if there is no seal, or the file does not have the size that it says.
    """
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - _LONGEST_SEAL))
    tail = file.read()
    begin = tail.rfind(_BEGIN)
    line = tail[begin + 1 :] if begin >= 0 else b""
    try:
        facts = json.loads(line.rpartition(_MIDDLE)[0])
        del facts["disteval"]
        seal = Seal(**facts)
        whole = seal.size + 1 + len(line) == end and line.endswith(b"\n")
        numbers = all(type(number) is int for number in (*seal.age, seal.size))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return seal if whole and numbers and isinstance(seal.training, str) else None


def problem_of(file: BinaryIO) -> str | None:
    """Return what is wrong with a checkpoint, after a comparison of every byte; None if nothing."""
    seal = read_seal(file)
    if seal is None:
        return _NO_SEAL
    end = file.seek(0, os.SEEK_END)
    file.seek(-(len(hashlib.sha256().hexdigest()) + 1), os.SEEK_END)
    checksum = file.read()
    found = hashlib.sha256()
    left = end - len(checksum)
    file.seek(0)
    while left and (data := file.read(min(left, _CHUNK))):
        found.update(data)
        left -= len(data)
    if found.hexdigest().encode() + b"\n" != checksum:
        return "its bytes do not have the checksum at its end"
    return None


def write_on_rank_0(backend: BaseDistBackend, path: Path, write: Callable[[], None]) -> None:
    """Write a file on rank 0; each rank calls this, and gets a RankError if it can't be written."""
    failure, cause = None, None
    if backend.rank == 0:
        try:
            write()
        except Exception as error:  # the other ranks wait for the result, whatever it is
            failure, cause = f"{type(error).__name__}: {error}", error
    failure = backend.broadcast_object(failure, src=0)
    if failure is not None:
        raise RankError(
            0,
            f"could not write {path}: {failure}; the files that were written before are unchanged, "
            f"so remove the cause and resume from the last checkpoint",
        ) from cause
