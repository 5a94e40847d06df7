"""What is encoded comes back equal; what is no frame is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import FrameError, RankError, framing

objects = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


class _Unpicklable:
    def __reduce__(self) -> Any:
        raise RuntimeError("this can't travel")


class _UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class _WorseUnpicklable:
    def __reduce__(self) -> Any:
        raise _UnprintableError


def _raise_on_load() -> None:
    raise ValueError("no such thing here")


class _Unloadable:
    def __reduce__(self) -> Any:
        return _raise_on_load, ()


@given(objects)
def test_round_trip(obj: Any) -> None:
    assert framing.decode(framing.encode(obj), 0) == obj


def test_a_received_array_is_a_writable_copy() -> None:
    sent = np.arange(6).reshape(2, 3)
    received = framing.decode(framing.encode(sent), 0)
    received += 1
    assert sent.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("obj", [_Unpicklable(), _WorseUnpicklable(), lambda: None])
def test_what_cannot_be_pickled_is_an_error_of_its_sender(obj: Any) -> None:
    frame = framing.encode(obj)
    with pytest.raises(RankError, match="rank 3 could not serialise its object of type") as caught:
        framing.decode(frame, 3)
    assert caught.value.rank == 3


def test_an_object_over_the_cap_is_an_error_of_its_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MAX_OBJECT_BYTES", 1000)
    assert framing.decode(framing.encode(b"x" * 900), 0) == b"x" * 900
    with pytest.raises(RankError, match=r"rank 1 would send \d+ bytes, over the cap of 1000"):
        framing.decode(framing.encode(b"x" * 1001), 1)
    with pytest.raises(FrameError, match="rank 2 announced 5000 bytes, over the cap of 1000"):
        framing.check_size(5000, 2)


def test_an_object_that_fails_to_load_names_its_sender() -> None:
    with pytest.raises(FrameError, match="object of rank 2 can't be rebuilt here: ValueError: no"):
        framing.decode(framing.encode(_Unloadable()), 2)


@given(objects, st.data())
def test_a_truncated_or_lengthened_frame_is_refused(obj: Any, data: st.DataObject) -> None:
    frame = framing.encode(obj)
    cut = data.draw(st.integers(0, len(frame) - 1))
    with pytest.raises(FrameError, match="rank 1"):
        framing.decode(frame[:cut], 1)
    with pytest.raises(FrameError, match="rank 1 announced a payload"):
        framing.decode(frame + b"\0", 1)


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(noise: bytes) -> None:
    with pytest.raises(FrameError, match="rank 0 sent"):
        framing.decode(noise, 0)


def test_the_frame_of_none_is_the_shortest() -> None:
    # TensorBaseDistBackend.broadcast_object pads it to the sender's size.
    shortest = len(framing.encode(None))
    for obj in (0, True, "", b"", (), [], {}, 1.5, lambda: None):
        assert len(framing.encode(obj)) >= shortest
