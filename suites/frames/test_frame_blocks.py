"""The layout of frames, byte by byte."""

import pickle
import re
import struct
import zlib

import pytest
from disteval import FrameError, frames
from disteval.frames import Call


def test_a_frame_is_laid_out_as_the_documents_say() -> None:
    call, rank = Call(7, 3), 2
    for sent, is_inline in (("x", True), ("x" * 1000, False)):
        body = pickle.dumps(sent, 5)
        sizes = (len(body), 512 if is_inline else 512 + len(body))
        tagged = struct.pack("<BBHIIQQQ", 4, 0, 0, rank, call.operation, call.sequence, *sizes)
        tagged += body if is_inline else zlib.crc32(tagged + body).to_bytes(16, "little")
        block = b"DEHF" + zlib.crc32(tagged).to_bytes(16, "little") + tagged
        frame = block.ljust(512, b"\0") + (b"" if is_inline else body)
        assert frames.encode(sent, call, rank) == frame


@pytest.mark.parametrize(("place", "value"), [(0, 0x45), (20, 3), (20, 5), (21, 2)])
def test_a_frame_of_another_kind_or_version_is_refused(place: int, value: int) -> None:
    frame = frames.encode(1)
    frame[place] = value
    begin = re.escape(bytes(frame[:8]).hex(" "))
    what = f"rank 4 sent bytes that are not a frame of version 4: they begin with {begin};"
    with pytest.raises(FrameError, match=what):
        frames.read_header(frame, 4)
