"""Frames: the bytes that ranks exchange. Objects become frames and frames become objects again.

The templates in `disteval.contract` use this package; a backend that subclasses one of them does
not need it. `layout` says where each byte of a frame lies, `serialising` turns objects into frames
and back and limits their size, `tags` shows damaged and forged frames.

Frames hold pickles, and reading a pickle can run any code. A frame is opened after its tag was
checked; where the ranks have no key (see `set_key`), decode only what ranks of your own job sent.
"""

from disteval.frames.layout import ALIGNMENT, BLOCK_BYTES, Buffer, Call
from disteval.frames.serialising import (
    check_size,
    configure,
    copied,
    decode,
    decode_parts,
    decode_small,
    encode,
    max_object_bytes,
    read_header,
    split,
)
from disteval.frames.tags import set_key

__all__ = [
    "ALIGNMENT",
    "BLOCK_BYTES",
    "Buffer",
    "Call",
    "check_size",
    "configure",
    "copied",
    "decode",
    "decode_parts",
    "decode_small",
    "encode",
    "max_object_bytes",
    "read_header",
    "set_key",
    "split",
]
