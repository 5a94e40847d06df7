"""Frames as backends move them: as bytes of a known layout, as arrays, and many blocks at once."""

from __future__ import annotations

import pickle
import re
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from disteval import FrameError, RankError, framing, plain, wire
from disteval.conformance.fingerprint import see
from disteval.errors import IncompleteFrameError
from disteval.framing import BLOCK_BYTES, Call
from hypothesis import example, given
from hypothesis import strategies as st

from suites.frames import Unloadable, Unpicklable, configured, objects


@example(b"x" * 1000, 64)
@example(b"x" * 1001, 64)
@given(objects, st.integers(1, 300))
def test_an_array_of_a_frame_holds_the_frame_and_is_aligned(obj: Any, multiple: int) -> None:
    frame = framing.encode(obj)
    for array, length in (
        (framing.encode_array(obj), len(frame)),
        (framing.encode_array(obj, multiple), -(-len(frame) // multiple) * multiple),
    ):
        assert (array.dtype, array.shape) == (np.uint8, (length,))
        assert array.ctypes.data % wire.ALIGNMENT == 0
        assert array[: len(frame)].tobytes() == frame


@given(st.lists(objects, max_size=5), st.integers(1, 9))
def test_blocks_of_many_ranks_are_decoded_in_order(objs: list[Any], sequence: int) -> None:
    call = Call(sequence)
    frames = [framing.encode(framing.Numbered(obj, call)) for obj in objs]
    blocks = bytearray().join(frame[:BLOCK_BYTES] for frame in frames)
    sizes = [len(frame) for frame in frames if len(frame) > BLOCK_BYTES]
    if sizes:
        with pytest.raises(IncompleteFrameError) as caught:
            framing.decode_blocks(blocks, call)
        assert caught.value.size == sizes[0]
    else:
        assert framing.decode_blocks(blocks, call) == objs


def test_blocks_of_several_kinds_are_decoded_each() -> None:
    sent = [np.arange(3), "x", np.arange(4.0), None]
    frames = [framing.encode(framing.Numbered(obj, Call(1))) for obj in sent]
    came = framing.decode_blocks(bytearray().join(frames), Call(1))
    assert see(came).digest == see(sent).digest


def test_a_block_that_is_wrong_names_its_rank() -> None:
    good, ahead, unloadable, refused = (
        framing.encode(framing.Numbered(obj, Call(number)))
        for obj, number in ((1, 5), (1, 6), (Unloadable(), 5), (Unpicklable(), 5))
    )
    for bad, message in (
        (ahead, "this rank is in all_gather_object #5, and rank 2 in all_gather_object #6"),
        (unloadable, "object of rank 2 can't be rebuilt here: ValueError: no such thing here"),
        (refused, "rank 2 could not serialise its object of type Unpicklable"),
    ):
        with pytest.raises((FrameError, RankError), match=message):
            framing.decode_blocks(good + good + bad, Call(5))
    with configured(allow_pickle=False), pytest.raises(FrameError, match=r"rank 0 .* is a pickle"):
        framing.decode_blocks(good, Call(5))


def test_a_block_that_came_damaged_is_refused() -> None:
    good = framing.encode(framing.Numbered("x", Call(5)))
    bad = bytearray(good)
    bad[45] ^= 1
    with pytest.raises(FrameError, match="rank 1 sent a frame that came damaged"):
        framing.decode_blocks(good + bad, Call(5))


def test_a_frame_is_laid_out_as_the_documents_say() -> None:
    body = pickle.dumps("x", 5)
    for obj, sent, kind, call in (
        ("x", body, 0, Call(7, 3)),
        (np.arange(3, dtype=np.int8), plain.dumps(np.arange(3, dtype=np.int8))[0], 1, Call()),
    ):
        checked = struct.pack("<BBHIQQQ", 2, kind, 0, call.operation, call.sequence, len(sent), 512)
        frame = b"DEHF" + zlib.crc32(checked + sent).to_bytes(4, "little") + checked + sent
        assert framing.encode(framing.Numbered(obj, call)) == frame.ljust(512, b"\0")


@pytest.mark.parametrize(("place", "value"), [(0, 0x45), (8, 1), (8, 3), (9, 3)])
def test_a_frame_of_another_kind_or_version_is_refused(place: int, value: int) -> None:
    frame = framing.encode(1)
    frame[place] = value
    begin = re.escape(bytes(frame[:8]).hex(" "))
    what = f"rank 4 sent bytes that are no frame of version 2: they begin with {begin}$"
    with pytest.raises(FrameError, match=what):
        framing.size_of(frame, 4)


def test_sizes_that_can_not_be_are_refused() -> None:
    for body, count, size in ((473, 0, 984), (15, 2, 4000), (9000, 1001, 20_000), (0, 0, 511)):
        block = wire.block(wire.PICKLE, count, Call(), bytes(body), size)
        with pytest.raises(FrameError, match=f"sizes can't be: {body} in {size} bytes"):
            framing.size_of(block, 0)
    for body, count, size in (
        (473, 0, 985),
        (16, 2, 4000),
        (9000, 1000, 20_000),
        (472, 0, 512),
        (0, 0, 512),
    ):
        block = wire.block(wire.PICKLE, count, Call(), bytes(body), size)
        assert framing.size_of(block, 0) == size


def test_a_body_of_any_length_comes_back_with_its_array() -> None:
    array = np.arange(plain.OUT_OF_BAND_BYTES, dtype=np.uint8)
    inline = set()
    for length in range(280, 420):
        block, rest = framing.split([b"x" * length, array])
        inline.add(len(rest) == array.nbytes)
        came = framing.decode(block, 0, rest=bytearray(rest))
        assert came[0] == b"x" * length
        assert (came[1] == array).all()
    assert inline == {True, False}


@example(bytes(600), [1] * 4)
@given(st.binary(max_size=600), st.lists(st.integers(0, 200), max_size=4))
def test_a_frame_takes_no_more_than_was_said(body: bytes, lengths: list[int]) -> None:
    memories = [memoryview(bytes(length)) for length in lengths]
    said = wire.laid_out_size(body, memories)
    rest = wire.assemble(wire.PICKLE, body, memories, Call()).rest
    assert len(rest) <= said <= len(body) + sum(lengths) + 72 * len(lengths)
