"""What is encoded comes back equal; what is no frame is refused."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from disteval import FrameError, RankError, UsageError, framing, wire
from disteval.conformance.fingerprint import see
from disteval.errors import IncompleteFrameError
from disteval.framing import BLOCK_BYTES, Call
from disteval_backends.threads_dist import ThreadsDist
from hypothesis import given
from hypothesis import strategies as st

from suites.frames import Unloadable, Unpicklable, configured, objects, plain_objects
from suites.thread_world import run_ranks


class _Verbose:
    def __reduce__(self) -> Any:
        raise RuntimeError("long " * 100_000)


class _UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class _WorseUnpicklable:
    def __reduce__(self) -> Any:
        raise _UnprintableError


def _deep() -> Any:
    found: Any = 1
    for _ in range(100):
        found = [found]
    return found


@given(objects)
def test_round_trip(obj: Any) -> None:
    assert framing.decode(framing.encode(obj), 0) == obj


def test_arrays_inside_of_a_pickle_and_those_that_need_one_come_back() -> None:
    many = [np.full(1024, i) for i in range(wire.MAX_MEMORIES + 2)]
    sent = {"small": np.arange(3), "objects": np.array([None, {1}], dtype=object), "many": many}
    came = framing.decode(framing.encode(sent), 0)
    assert see(came).digest == see(sent).digest
    assert framing.decode(framing.encode(sent["objects"]), 0).tolist() == [None, {1}]


def test_an_array_needs_no_pickle_where_pickles_are_allowed() -> None:
    frame = framing.encode(np.arange(3))
    with configured(allow_pickle=False):
        assert framing.decode(frame, 0).tolist() == [0, 1, 2]


def test_a_received_array_is_a_writable_copy() -> None:
    sent = np.arange(6).reshape(2, 3)
    received = framing.decode(framing.encode(sent), 0)
    received += 1
    assert sent.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("obj", [Unpicklable(), _WorseUnpicklable(), lambda: None])
def test_what_cannot_be_pickled_is_an_error_of_its_sender(obj: Any) -> None:
    frame = framing.encode(obj)
    with pytest.raises(RankError, match="rank 3 could not serialise its object of type") as caught:
        framing.decode(frame, 3)
    assert caught.value.rank == 3


def test_an_object_over_the_cap_is_an_error_of_its_sender() -> None:
    small, large = framing.encode(b"x" * 900), framing.encode(np.zeros(5000))
    with configured(max_object_bytes=1000):
        assert framing.decode(small, 0) == b"x" * 900
        with pytest.raises(RankError, match=r"rank 1 would send \d+ bytes, over the cap of 1000"):
            framing.decode(framing.encode(b"x" * 1001), 1)
        with pytest.raises(FrameError, match=r"rank 2 announced \d+ bytes, over the cap of 1000"):
            framing.size_of(large[:BLOCK_BYTES], 2)


def test_an_object_of_just_the_cap_travels() -> None:
    for sent in (b"x" * 100, b"x" * 5000):
        size = len(pickle.dumps(sent, 5))
        frame = framing.encode(sent)
        with configured(max_object_bytes=size):
            assert framing.encode(sent) == frame
            framing.check_size(size + BLOCK_BYTES, 0)
            assert framing.size_of(frame[:BLOCK_BYTES], 0) == len(frame)
            with pytest.raises(FrameError, match=f"rank 0 announced {size + 513} bytes"):
                framing.check_size(size + BLOCK_BYTES + 1, 0)
        with configured(max_object_bytes=size - 1), pytest.raises(RankError, match="over the cap"):
            framing.decode(framing.encode(sent), 0)


def test_the_cap_is_four_gib_unless_it_is_set() -> None:
    assert framing.MAX_OBJECT_BYTES == 4 * 1024**3
    with configured(max_object_bytes=1):
        assert framing.MAX_OBJECT_BYTES == 1


def test_memory_that_follows_counts_against_the_cap_before_it_is_joined() -> None:
    for count in (1, 3):
        sent = [np.zeros(4096 + i, np.uint8) for i in range(count)]
        with configured(max_object_bytes=4096 * count), pytest.raises(RankError, match="the cap"):
            framing.decode(framing.encode(sent), 0)
        with configured(max_object_bytes=(4096 + 300) * count):
            assert len(framing.decode(framing.encode(sent), 0)) == count


def test_a_reason_is_cut_where_it_is_long() -> None:
    with pytest.raises(RankError) as caught:
        framing.decode(framing.encode(_Verbose()), 0)
    assert 1900 < len(str(caught.value)) < 2100


def test_an_object_that_fails_to_load_names_its_sender() -> None:
    with pytest.raises(FrameError, match="object of rank 2 can't be rebuilt here: ValueError: no"):
        framing.decode(framing.encode(Unloadable()), 2)


@given(objects, st.data())
def test_a_truncated_or_lengthened_frame_is_refused(obj: Any, data: st.DataObject) -> None:
    frame = framing.encode(obj)
    cut = data.draw(st.integers(0, len(frame) - 1))
    with pytest.raises(FrameError, match="rank 1"):
        framing.decode(frame[:cut], 1)
    with pytest.raises(FrameError, match=r"rank 1 announced a frame of \d+ bytes, but \d+ came"):
        framing.decode(frame + b"\0", 1)


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(noise: bytes) -> None:
    with pytest.raises(FrameError, match="rank 0 sent"):
        framing.decode(noise, 0)


@given(st.integers(0, 600), st.integers(0, 3))
def test_a_small_object_fits_the_block_and_a_large_one_says_how_much_follows(
    size: int, arrays: int
) -> None:
    sent = [b"x" * size, *(np.arange(600 + i) for i in range(arrays))]
    frame = framing.encode(sent)
    assert (len(frame) == BLOCK_BYTES) == (arrays == 0 and size <= 451)
    assert framing.size_of(frame[:BLOCK_BYTES], 0) == len(frame)
    if len(frame) > BLOCK_BYTES:
        with pytest.raises(IncompleteFrameError) as caught:
            framing.decode(frame[:BLOCK_BYTES], 0)
        assert caught.value.size == len(frame)
    came = framing.decode(frame, 0)
    assert came[0] == sent[0]
    assert [array.tolist() for array in came[1:]] == [array.tolist() for array in sent[1:]]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_large_array_is_not_copied_on_the_way_in_nor_out(order: Any, wrapped: bool) -> None:
    sent = np.asarray(np.arange(40_000.0).reshape(200, 200), order=order)
    block, rest = framing.split({"scores": sent} if wrapped else sent)
    assert len(block) == BLOCK_BYTES
    assert np.shares_memory(np.frombuffer(rest, np.uint8), sent)
    came = bytearray(rest)
    received = framing.decode(block, 0, rest=came)
    array = received["scores"] if wrapped else received
    assert np.shares_memory(np.frombuffer(came, np.uint8), array)
    assert array.flags.writeable
    assert array.flags.f_contiguous == sent.flags.f_contiguous
    assert (array == sent).all()


def test_several_arrays_are_aligned_in_one_memory() -> None:
    sent = [np.arange(5001, dtype=np.uint8), np.arange(1000.0), np.ones((7, 99))]
    block, rest = framing.split(sent)
    memory = np.empty(len(rest), np.uint8)
    memory[:] = np.frombuffer(rest, np.uint8)
    for array, expected in zip(framing.decode(block, 0, rest=memory.data), sent, strict=True):
        assert np.shares_memory(array, memory)
        assert (array.ctypes.data - memory.ctypes.data) % 64 == 0
        assert (array == expected).all()


def test_arrays_in_memory_that_may_not_change_are_copied() -> None:
    received = framing.decode(bytes(framing.encode(np.arange(1000))), 0)
    received += 1
    assert received[0] == 1


@given(objects, st.integers(1, 1 << 40), st.integers(0, 1000), st.integers(0, 2))
def test_a_frame_of_another_collective_is_an_error_that_names_both(
    obj: Any, sequence: int, operation: int, what: int
) -> None:
    sent = Call(sequence, operation)
    expected = [sent, Call(sequence + 1, operation), Call(sequence, operation + 1)][what]
    frame = framing.encode(framing.Numbered(obj, sent))
    assert framing.decode(frame, 0) == framing.Numbered(obj, sent)
    if what == 0:
        assert framing.decode(frame, 0, expected) == obj
        return
    with pytest.raises(FrameError) as caught:
        framing.decode(frame, 4, expected)
    assert f"this rank is in {expected}, and rank 4 in {sent}" in str(caught.value)


def test_a_frame_of_no_collective_is_refused_where_one_is_expected() -> None:
    with pytest.raises(FrameError, match="all_gather_object #3, and rank 1 in no numbered"):
        framing.decode(framing.encode(1), 1, Call(3))


@given(plain_objects)
def test_plain_objects_travel_without_pickle(obj: Any) -> None:
    with configured(allow_pickle=False):
        came = framing.decode(framing.encode(obj), 0)
    assert see(came).digest == see(obj).digest


@pytest.mark.parametrize(
    "obj", [{1, 2}, [range(3)], np.array([None]), np.ma.array([1]), _deep(), bool]
)
def test_without_pickle_others_are_an_error_of_their_sender(obj: Any) -> None:
    with configured(allow_pickle=False):
        frame = framing.encode(obj)
    with pytest.raises(RankError, match=r"rank 2 could not serialise its .*(needs pickle|deep)"):
        framing.decode(frame, 2)


def test_without_pickle_a_pickle_that_comes_is_refused() -> None:
    frame = framing.encode({1, 2})
    refusal = pytest.raises(FrameError, match="it is a pickle, and allow_pickle is off here")
    with configured(allow_pickle=False), refusal:
        framing.decode(frame, 1)


@pytest.mark.parametrize("cap", [0, -1, 1.5, True])
def test_a_cap_that_is_none_is_refused(cap: Any) -> None:
    with pytest.raises(UsageError, match="max_object_bytes must be"):
        framing.configure(max_object_bytes=cap)


def test_ranks_whose_collectives_are_mispaired_are_told() -> None:
    def rank(backend: ThreadsDist) -> Any:
        if backend.rank == 0:
            return backend.all_gather_object("gathered")
        return backend.broadcast_object("sent", src=0)

    for outcome in run_ranks(2, rank):
        assert isinstance(outcome, FrameError)
        assert "all_gather_object #1" in str(outcome)
        assert "broadcast_object from 0 #1" in str(outcome)


def test_a_rank_that_is_one_collective_ahead_is_told() -> None:
    def rank(backend: ThreadsDist) -> Any:
        if backend.rank == 1:
            backend._next_call()
        return backend.all_gather_object(backend.rank)

    for outcome in run_ranks(2, rank):
        assert isinstance(outcome, FrameError)
        assert "#1" in str(outcome) and "#2" in str(outcome)
