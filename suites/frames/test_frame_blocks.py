"""The layout of frames, byte by byte."""

from __future__ import annotations

import pickle
import re
import struct
import zlib

import numpy as np
import pytest
from disteval import FrameError, frames
from disteval.frames import Call
from hypothesis import example, given
from hypothesis import strategies as st

from suites.helpers.frames import layout, serialising


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


def test_sizes_that_can_not_be_are_refused() -> None:
    for body, count, size in ((457, 0, 968), (15, 2, 4000), (9000, 1001, 20_000), (0, 0, 511)):
        block = layout.block(layout.PICKLE, count, Call(), 0, bytes(body), size)
        with pytest.raises(
            FrameError, match=f"sizes: a body of {body} bytes and {count} arrays in {size} bytes"
        ):
            frames.read_header(block, 0)
    for body, count, size in (
        (457, 0, 969),
        (16, 2, 4000),
        (9000, 1000, 20_000),
        (456, 0, 512),
        (0, 0, 512),
    ):
        block = layout.block(layout.PICKLE, count, Call(), 0, bytes(body), size)
        assert frames.read_header(block, 0).rest == size - 512


def test_a_body_of_any_length_comes_back_with_its_array() -> None:
    array = np.arange(serialising.OUT_OF_BAND_BYTES, dtype=np.uint8)
    inline = set()
    for length in range(280, 420):
        block, rest = frames.split([b"x" * length, array])
        inline.add(len(rest) == array.nbytes)
        came = frames.decode_parts(frames.read_header(block, 0), block, bytearray(rest), 0)
        assert came[0] == b"x" * length
        assert (came[1] == array).all()
    assert inline == {True, False}


@example(bytes(600), [1] * 4)
@given(st.binary(max_size=600), st.lists(st.integers(0, 200), max_size=4))
def test_a_frame_takes_no_more_than_was_said(body: bytes, lengths: list[int]) -> None:
    memories = [memoryview(bytes(length)) for length in lengths]
    said = layout.laid_out_size(body, memories)
    rest = layout.assemble(layout.PICKLE, body, memories, Call(), 0).rest
    assert len(rest) <= said <= len(body) + sum(lengths) + 72 * len(lengths)


def test_blocks_of_small_objects_are_decoded_together() -> None:
    call = Call(5)
    good = [frames.encode({"loss": 0.5}, call, rank) for rank in range(2)]
    assert frames.decode_small([good[0], memoryview(good[1])], call) == [{"loss": 0.5}] * 2
    damaged = bytearray(good[1])
    damaged[60] ^= 1
    for other in (
        damaged,
        good[1][:-1],
        good[0],
        frames.encode(1, Call(6), 1),
        frames.encode(1, Call(5, 1), 1),
        frames.encode("x" * 1000, call, 1)[: frames.BLOCK_BYTES],
        frames.encode(np.zeros(1000), call, 1)[: frames.BLOCK_BYTES],
        frames.encode(lambda: None, call, 1),
    ):
        assert frames.decode_small([good[0], other], call) is None
