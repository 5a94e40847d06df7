"""Random bytes are an error, and never cause a crash or an allocation beyond the cap."""

import tracemalloc
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
from disteval import FrameError, RankError, frames
from disteval.frames import BLOCK_BYTES
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.frames import arrays_and_objects, configured, keyed, serialising, tags

_CAP = 1 << 18
_TAG = slice(4, 20)
_BODY = 56
_INLINE_TAG = slice(56, 72)


@pytest.fixture(autouse=True, params=[b"", bytes(32)], ids=["checksum", "MAC"], scope="module")
def _key(request: pytest.FixtureRequest) -> Iterator[None]:
    with keyed(request.param):
        yield


@given(arrays_and_objects, st.data())
def test_a_flipped_bit_of_header_or_body_is_an_error(obj: Any, data: st.DataObject) -> None:
    frame = frames.encode(obj)
    body = frames.read_header(frame, 0).body
    is_inline = _BODY + body <= BLOCK_BYTES
    start = _BODY if is_inline else BLOCK_BYTES
    end = _BODY if is_inline else _INLINE_TAG.stop
    places = [*range(end), *range(start, start + body)]
    frame[data.draw(st.sampled_from(places))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        frames.decode(frame, 0)
    except FrameError:
        return
    raise AssertionError("the damage was not noticed")


@given(arrays_and_objects, st.data())
@settings(max_examples=100)
def test_damage_that_no_tag_shows_does_no_more_than_raise(obj: Any, data: st.DataObject) -> None:
    with configured(max_object_bytes=_CAP):
        frame = frames.encode(obj)
        for _ in range(data.draw(st.integers(1, 4))):
            place = data.draw(st.integers(0, len(frame) - 1) | st.integers(0, 80))
            frame[place] = data.draw(st.sampled_from([0, 1, 8, 127, 255]) | st.integers(0, 255))
        _decode_within_the_cap(_tagged(frame))


@given(st.binary(max_size=1000))
@settings(max_examples=100)
def test_random_bytes_do_no_more_than_raise(noise: bytes) -> None:
    with configured(max_object_bytes=_CAP):
        _decode_within_the_cap(bytearray(noise))


def test_bytes_that_belong_to_no_array_are_an_error() -> None:
    frame = frames.encode(np.zeros(1000)) + bytes(64)
    frame[48:56] = len(frame).to_bytes(8, "little")
    with pytest.raises(FrameError, match=r"0 .*8064.*8000"):
        frames.decode(_tagged(frame), 0)


def _decode_within_the_cap(frame: bytearray) -> None:
    """Decode a frame up to its pickle; any exception but these two is a defect.

    The pickle itself is not read: only a sender that means harm damages it and makes the tag right,
    and frames do not protect against that.
    """
    tracemalloc.start()
    try:
        with mock.patch.object(serialising.pickle, "loads"):
            frames.decode(frame, 0)
    except (FrameError, RankError):
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2 * _CAP, peak


def _tagged(frame: bytearray) -> bytearray:
    """Write the tags of the present contents of the frame."""
    size = int.from_bytes(frame[40:48], "little")
    end = _BODY + size
    if end > BLOCK_BYTES:
        body = frame[BLOCK_BYTES : BLOCK_BYTES + size]
        frame[_INLINE_TAG] = tags.tag(frame[20:_BODY], body)
        end = _INLINE_TAG.stop
    frame[_TAG] = tags.tag(frame[20:end])
    return frame
