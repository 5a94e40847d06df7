"""A guarded reader of files written by ``torch.save``, which are not trusted."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from disteval.errors import WeightsError

_CHUNK = 1 << 20
_ZIP = b"PK\x03\x04"
_PICKLE_SHIFT = 10
"""A pickle, which describes tensors, has at most a thousandth of the size of the whole.

It takes a hundred times its size in memory, and a second for each million instructions.
"""


def read_torch_file(
    file: str | Path | BinaryIO, name: str, max_bytes: int, remedy: str, map_location: Any = "cpu"
) -> Any:
    """Read a file of ``torch.save``.

    Nothing in the file is run, every byte is compared with its checksum, and a compressed archive
    is not unpacked beyond the limit. Files of releases before torch 1.6 are refused.

    Args:
        file: A path, or a binary file that can seek.
        name: The beginning of each message, such as ``weights file w.pt``.
        max_bytes: The largest content that is read.
        remedy: What the user can do when the file can't be read; the end of that message.
        map_location: See ``torch.load``.

    Raises:
        WeightsError: The file is damaged or too large, or holds more than tensors and plain
            containers.
    """
    import torch

    with (
        _refused(name, remedy),
        Path(file).open("rb") if isinstance(file, (str, Path)) else nullcontext(file) as stream,
    ):
        _check(stream, name, max_bytes)
        stream.seek(0)
        return torch.load(stream, map_location=map_location, weights_only=True)


def check_torch_file(path: Path, name: str, max_bytes: int, remedy: str) -> None:
    """Refuse a file that `read_torch_file` would, as far as that shows without torch.

    Raises:
        WeightsError: See `read_torch_file`.
    """
    with _refused(name, remedy), path.open("rb") as stream:
        _check(stream, name, max_bytes)


@contextmanager
def _refused(name: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except WeightsError:
        raise
    except Exception as error:  # a damaged file can make the unpickler raise anything
        reason = (str(error) or "no reason given").splitlines()[0]
        cause: Exception | None = error
        if "weights_only" in str(error):  # torch advises to switch off what protects the user
            named = re.search(r"GLOBAL (\S+)", str(error))
            reason, cause = f"it names {named[1]}" if named else "its pickle is refused", None
        raise WeightsError(
            f"{name} can't be read: it is damaged, or holds more than tensors and "
            f"plain containers ({type(error).__name__}: {reason}); {remedy}"
        ) from cause


def state_dict_of(content: Any) -> dict[str, Any] | None:
    """Return the tensors by name that a file holds, at its top level or under ``state_dict``.

    Returns:
        None if the content is not a state dict.
    """
    import torch

    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping):
        return None
    tensors = all(isinstance(value, torch.Tensor) for value in content.values())
    return {str(key): value for key, value in content.items()} if tensors else None


def check_size(name: str, size: int, max_bytes: int, hint: str = "") -> None:
    """Raise WeightsError if a file is too large."""
    if size > max_bytes:
        raise WeightsError(f"{name} holds {size} bytes, more than the {max_bytes} allowed{hint}")


def _check(stream: BinaryIO, name: str, max_bytes: int) -> None:
    stream.seek(0)
    # As torch tells them apart: zipfile also finds an archive after other bytes.
    if stream.read(len(_ZIP)) != _ZIP:
        raise ValueError(
            "it is no zip archive, as torch.save writes since release 1.6; load an older file with "
            "torch, and save it again"
        )
    # torch.load ignores the checksums, and inflates compressed entries to any size.
    with zipfile.ZipFile(stream) as archive:
        check_size(name, sum(entry.file_size for entry in archive.infolist()), max_bytes)
        for entry in archive.infolist():
            if entry.filename.endswith(".pkl"):
                check_size(
                    f"{entry.filename} in {name}", entry.file_size, max_bytes >> _PICKLE_SHIFT
                )
            with archive.open(entry) as part:
                while part.read(_CHUNK):
                    pass
