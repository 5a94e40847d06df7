"""The SHA-256 that a ``.safetensors`` file has among its metadata.

It is that of the whole file, in which 64 zeros stand for the digest itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from disteval.errors import WeightsError

_KEY = "disteval.sha256"  # others have checksums of other bytes in their metadata
_BLANK = b"0" * 64
_HEADER_BYTES = 1 << 20  # ResNet-18's takes 10 KB; each entry becomes several objects
_HEADER_SHIFT = 4  # a longer header has at most a sixteenth of the size of its file


def with_metadata(content: bytes, metadata: Mapping[str, str]) -> bytes:
    """Return a ``.safetensors`` file with metadata and a digest; equal ones give equal bytes.

    Args:
        content: The file without metadata, which safetensors itself writes in a random order.
        metadata: Its entries.
    """
    end = _header_end(content)
    entries = {**dict(sorted(metadata.items())), _KEY: _BLANK.decode()}
    header = {"__metadata__": entries, **json.loads(content[8:end])}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors are aligned
    blank = len(text).to_bytes(8, "little") + text + content[end:]
    return blank.replace(_BLANK, hashlib.sha256(blank).hexdigest().encode(), 1)


def check_digest(content: bytes, name: str) -> None:
    """Raise WeightsError if a file has a digest that is not the digest of its bytes.

    Args:
        content: The file, which is refused before its header is read if the header is too long.
        name: The beginning of the message.
    """
    size, most = _header_end(content) - 8, max(_HEADER_BYTES, len(content) >> _HEADER_SHIFT)
    if size > most:
        raise WeightsError(
            f"{name} can't be read as a safetensors file: its header has {size} bytes, more than "
            f"the {most} allowed"
        )
    header = content[8 : 8 + size]
    try:
        digest = json.loads(header)["__metadata__"][_KEY].encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return  # a file that others have written
    at = content.find(digest, 8)
    found = hashlib.sha256(content[:at])
    found.update(_BLANK)
    found.update(memoryview(content)[at + len(digest) :])
    if at < 0 or found.hexdigest().encode() != digest:
        raise WeightsError(
            f"{name} is damaged: its bytes do not have the SHA-256 in its metadata; write it "
            f"again, or use a checkpoint"
        )


def _header_end(content: bytes) -> int:
    return 8 + int.from_bytes(content[:8], "little")
