"""What tests of frames share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from disteval import frames
from disteval.conformance.fingerprint import digest
from disteval.frames import layout, serialising, tags
from hypothesis import strategies as st

_ARRAYS: tuple[Callable[[], Any], ...] = (
    lambda: np.arange(3),
    lambda: np.array(2.5),
    lambda: np.ones((2, 600)),
    lambda: np.asfortranarray(np.arange(6000.0).reshape(60, 100)),
    lambda: np.arange(5000)[::2],
    lambda: np.zeros((0, 3)),
    lambda: np.array(["a", "bcd"]),
    lambda: np.array(["2020-01-01", "NaT"], dtype="M8[D]"),
    lambda: np.array([1, 2], dtype=">i4"),
    lambda: np.float32(0.1),
)

arrays_and_objects = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.binary()
    | st.sampled_from(["x" * 500, b"y" * 5000])
    | st.sampled_from(_ARRAYS).map(lambda make: make()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
    ),
    max_leaves=8,
)
"""Numbers, text, bytes, arrays, and containers of them."""


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
"""What equals itself after a pickle."""


class Unpicklable:
    """Raises where it is sent."""

    def __reduce__(self) -> Any:
        raise RuntimeError("this can't travel")


def _raise_on_load() -> None:
    raise ValueError("no such thing here")


class Unloadable:
    """Raises where it comes."""

    def __reduce__(self) -> Any:
        return _raise_on_load, ()


def has_key() -> bool:
    """Return whether frames of this process carry a MAC; a checksum is four bytes and zeros."""
    return any(frames.encode(None)[8:20])


@contextmanager
def keyed(key: bytes) -> Iterator[None]:
    """`frames.set_key`, undone at the end."""
    frames.set_key(key)
    try:
        yield
    finally:
        frames.set_key(b"")


@contextmanager
def configured(max_object_bytes: int) -> Iterator[None]:
    """`frames.configure`, undone at the end."""
    before = frames.max_object_bytes()
    frames.configure(max_object_bytes=max_object_bytes)
    try:
        yield
    finally:
        frames.configure(max_object_bytes=before)
