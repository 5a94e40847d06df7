"""An encoded object is decoded to an equal one, and bytes that are not a frame are refused."""

import pickle
import re
from typing import Any

import numpy as np
import pytest
from disteval import FrameError, RankError, UsageError, frames
from disteval.frames import BLOCK_BYTES, Call
from hypothesis import given
from hypothesis import strategies as st

from suites.helpers.frames import (
    Unloadable,
    Unpicklable,
    configured,
    digest,
    keyed,
    layout,
    objects,
)


class _UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class _WorseUnpicklable:
    def __reduce__(self) -> Any:
        raise _UnprintableError


def decode_parts(block: bytes, rest: Any) -> Any:
    return frames.decode_parts(frames.read_header(block, 0), block, rest, 0)


@given(objects)
def test_round_trip(obj: Any) -> None:
    assert frames.decode(frames.encode(obj), 0) == obj


def test_arrays_inside_of_a_pickle_and_those_that_need_one_come_back() -> None:
    many = [np.full(1024, i) for i in range(layout.MAX_MEMORIES + 2)]
    sent = {"small": np.arange(3), "objects": np.array([None, {1}], dtype=object), "many": many}
    came = frames.decode(frames.encode(sent), 0)
    assert digest(came) == digest(sent)
    assert frames.decode(frames.encode(sent["objects"]), 0).tolist() == [None, {1}]


def test_a_received_array_is_a_writable_copy() -> None:
    sent = np.arange(6).reshape(2, 3)
    received = frames.decode(frames.encode(sent), 0)
    received += 1
    assert sent.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("obj", [Unpicklable(), _WorseUnpicklable(), lambda: None])
def test_what_cannot_be_pickled_is_an_error_of_its_sender(obj: Any) -> None:
    frame = frames.encode(obj, rank=3)
    with pytest.raises(RankError, match="rank 3") as caught:
        frames.decode(frame, 3)
    assert caught.value.rank == 3


def test_an_object_over_the_cap_is_an_error_of_its_sender() -> None:
    small, large = frames.encode(b"x" * 900), frames.encode(np.zeros(5000), rank=2)
    with configured(max_object_bytes=1000):
        assert frames.decode(small, 0) == b"x" * 900
        with pytest.raises(RankError, match=r"rank 1 .*\b1000\b"):
            frames.decode(frames.encode(b"x" * 1001, rank=1), 1)
        with pytest.raises(FrameError, match=r"rank 2 .*\b1000\b"):
            frames.read_header(large[:BLOCK_BYTES], 2)


def test_an_object_of_just_the_cap_travels() -> None:
    for sent in (b"x" * 100, b"x" * 5000):
        size = len(pickle.dumps(sent, 5))
        frame = frames.encode(sent)
        with configured(max_object_bytes=size):
            assert frames.encode(sent) == frame
            frames.check_size(size, 0)
            assert frames.read_header(frame[:BLOCK_BYTES], 0).rest == len(frame) - BLOCK_BYTES
            with pytest.raises(FrameError, match=f"rank 0 announced {size + 1} bytes"):
                frames.check_size(size + 1, 0)
        with configured(max_object_bytes=size - 1), pytest.raises(RankError, match="over the cap"):
            frames.decode(frames.encode(sent), 0)


def test_the_cap_is_four_gib_unless_it_is_set() -> None:
    assert frames.max_object_bytes() == 4 * 1024**3
    with configured(max_object_bytes=1):
        assert frames.max_object_bytes() == 1


def test_an_object_that_fails_to_load_names_its_sender() -> None:
    with pytest.raises(FrameError, match=r"rank 2 .*no"):
        frames.decode(frames.encode(Unloadable(), rank=2), 2)


@given(objects, st.data())
def test_a_truncated_or_lengthened_frame_is_refused(obj: Any, data: st.DataObject) -> None:
    frame = frames.encode(obj, rank=1)
    cut = data.draw(st.integers(0, len(frame) - 1))
    with pytest.raises(FrameError, match="rank 1"):
        frames.decode(frame[:cut], 1)
    with pytest.raises(FrameError, match=f"{len(frame)} .*{len(frame) + 1}"):
        frames.decode(frame + b"\0", 1)


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(noise: bytes) -> None:
    with pytest.raises(FrameError, match="rank 0 sent"):
        frames.decode(noise, 0)


@pytest.mark.parametrize(("place", "value"), [(0, 0x45), (20, 3), (20, 5), (21, 2)])
def test_a_frame_of_another_kind_or_version_is_refused(place: int, value: int) -> None:
    frame = frames.encode(1)
    frame[place] = value
    begin = re.escape(bytes(frame[:8]).hex(" "))
    what = f"rank 4 sent bytes that are not a frame of version 4: they begin with {begin};"
    with pytest.raises(FrameError, match=what):
        frames.read_header(frame, 4)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_large_array_is_not_copied_on_the_way_in_nor_out(order: Any, wrapped: bool) -> None:
    sent = np.asarray(np.arange(40_000.0).reshape(200, 200), order=order)
    block, rest = frames.split({"scores": sent} if wrapped else sent)
    assert len(block) == BLOCK_BYTES
    assert np.shares_memory(np.frombuffer(rest, np.uint8), sent)
    came = bytearray(rest)
    received = decode_parts(block, came)
    array = received["scores"] if wrapped else received
    assert np.shares_memory(np.frombuffer(came, np.uint8), array)
    assert array.flags.writeable
    assert array.flags.f_contiguous == sent.flags.f_contiguous
    assert (array == sent).all()


@given(objects, st.integers(1, 1 << 40), st.integers(0, 1000), st.integers(0, 2))
def test_a_frame_of_another_collective_is_an_error_that_names_both(
    obj: Any, sequence: int, operation: int, what: int
) -> None:
    sent = Call(sequence, operation)
    expected = [sent, Call(sequence + 1, operation), Call(sequence, operation + 1)][what]
    frame = frames.encode(obj, sent, 4)
    assert frames.decode(frame, 4) == obj
    blocks = [frames.encode(obj, sent, rank)[:BLOCK_BYTES] for rank in range(2)]
    small = frames.decode_small(blocks, expected)
    assert small is None or (what == 0 and small == [obj] * 2)
    assert frames.decode_small([frames.encode(1, sent)[:BLOCK_BYTES]], sent) == [1]
    if what == 0:
        assert frames.decode(frame, 4, expected) == obj
        return
    with pytest.raises(FrameError) as caught:
        frames.decode(frame, 4, expected)
    assert f"this rank is in {expected}, and rank 4 in {sent}" in str(caught.value)


def test_a_frame_of_no_collective_is_refused_where_one_is_expected() -> None:
    with pytest.raises(FrameError, match=r"object #3.*rank 1"):
        frames.decode(frames.encode(1, rank=1), 1, Call(3))


_KEY = bytes(range(32))


@given(objects | st.just("x" * 1000), st.integers(0, 3))
def test_a_frame_under_a_key_comes_back_where_the_key_is_the_same(obj: Any, rank: int) -> None:
    with keyed(_KEY):
        frame = frames.encode(obj, Call(3), rank)
        assert frames.decode(frame, rank, Call(3)) == obj


@pytest.mark.parametrize("size", [0, 1000])
def test_a_frame_without_the_key_is_refused_before_it_is_opened(size: int) -> None:
    sent = [b"x" * size, Unloadable()]
    with keyed(_KEY[::-1]):
        of_another_world = frames.encode(sent, rank=2)
    for frame, what in (
        (frames.encode(sent, rank=2), "with a checksum and no MAC"),
        (of_another_world, "whose MAC is wrong"),
    ):
        expected = f"rank 2 sent a frame {what}, and this rank expects .* was not opened: .* rank 2"
        with keyed(_KEY), pytest.raises(FrameError, match=expected):
            # The block alone is refused, so no memory is allocated for what it announces.
            frames.read_header(frame[:BLOCK_BYTES], 2)
        with keyed(_KEY):
            assert frames.decode_small([frame[:BLOCK_BYTES]] * 3, Call()) is None
    with pytest.raises(FrameError, match=r"rank 2.*key"):
        frames.decode(of_another_world, 2)


def test_a_body_that_follows_the_block_of_another_frame_is_refused() -> None:
    with keyed(_KEY):
        one, other = (frames.split(text * 1000) for text in "xy")
        with pytest.raises(FrameError, match=r"rank 0 .*MAC"):
            decode_parts(one.block, other.rest)


@pytest.mark.parametrize("key", [b"", _KEY])
def test_the_frame_of_one_rank_is_not_taken_for_that_of_another(key: bytes) -> None:
    with keyed(key):
        frame = frames.encode(1, rank=1)
        with pytest.raises(FrameError, match=r"rank 1 .*rank 0"):
            frames.decode(frame, 0)


@pytest.mark.parametrize("size", [1, 16, 31, 33, 64])
def test_a_key_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match=rf"\b{size}\b.*\b32\b"):
        frames.set_key(bytes(size))


@pytest.mark.parametrize("cap", [0, -1, 1.5, True])
def test_a_cap_that_is_none_is_refused(cap: Any) -> None:
    with pytest.raises(UsageError, match="_object_bytes"):
        frames.configure(max_object_bytes=cap)
