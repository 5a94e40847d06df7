"""Causes of objects that arrive changed: what was lost says how they were serialised."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import numpy as np

from disteval.conformance.causes.lists import pairs
from disteval.conformance.fingerprint import digest
from disteval.conformance.seen import Difference, Long, Seen, explains, same

PICKLE = (
    "objects are pickled with a protocol below 5, with which NumPy's arrays arrive in the byte "
    "order of the machine (and, below 3, some classes as older ones); pass protocol=5 to "
    "pickle.dumps"
)
NATIVE = (
    "arrays are converted to the byte order of the machine; send the array pickled, or its dtype "
    "with it, and convert nothing"
)
ARRAY = (
    "arrays are rebuilt from their values, so that their dtype, shape or memory order is lost; "
    "pickle the array, or send dtype, shape and order with its bytes"
)
SERIALISER = (
    "objects travel in a format that knows fewer types than Python, as JSON and MessagePack do; "
    "pickle them, by protocol 5"
)
INT64 = "integers travel as 64 bits, and larger ones wrap around; pickle the object"
TEXT = (
    "text is encoded with an error handler that replaces what UTF-8 can't hold; pickle the object, "
    'or encode with errors="surrogatepass"'
)
SHARING = (
    "the parts of an object are serialised or copied one by one, so that what two of them share is "
    "there twice; serialise the whole object at once"
)

_MOST_DEEP = 20
_SIMPLER = ((bytearray, bytes), (bool, int))
_CONTAINERS = (tuple, set, frozenset, range)


def leaves(got: Any, expected: Any, deep: int = 0) -> Iterator[tuple[Any, Any]]:
    """Return the innermost parts of two objects that differ; none if only their sharing does."""
    if digest(got) == digest(expected):
        return
    alike = type(got) is type(expected) and deep < _MOST_DEEP
    if alike and type(got) in (list, tuple) and len(got) == len(expected):
        parts = list(zip(got, expected, strict=True))
    elif alike and type(got) is dict and list(got) == list(expected):
        parts = list(zip(got.values(), expected.values(), strict=True))
    elif alike and hasattr(got, "__dict__") and not isinstance(got, BaseException):
        parts = [(vars(got), vars(expected))]
    else:
        yield got, expected
        return
    for one, other in parts:
        yield from leaves(one, other, deep + 1)


def conversion(seen: Seen) -> str:
    """Name the conversion that explains every part that differs."""
    for cause in (PICKLE, NATIVE, ARRAY, SERIALISER, INT64, TEXT, SHARING):

        def explained(difference: Difference, cause: str = cause) -> bool:
            found = pairs(difference)
            return bool(found) and all(cause in _of_pair(p.got, p.expected) for p in found or ())

        if explains(seen, explained):
            # Pickle keeps the byte order of an array with fields, by any protocol.
            native = any(_fields_are_native(difference) for difference in seen.every)
            return NATIVE if cause == PICKLE and native else cause
    return ""


def _of_pair(got: Any, expected: Any) -> set[str]:
    """Return the causes that would explain all differences between two objects."""
    found = [_of_leaf(*leaf) for leaf in leaves(got, expected)]
    if found:
        return set.intersection(*found)
    return {SHARING} if type(got) is type(expected) in (list, tuple, dict) else set()


def _of_leaf(got: Any, expected: Any) -> set[str]:
    if isinstance(got, Long):
        return set()
    if isinstance(expected, np.ndarray):
        return _of_array(got, expected)
    if isinstance(expected, ModuleNotFoundError):
        return {PICKLE} if type(got) is ImportError else set()
    if type(expected) is int and type(got) is int:
        return {INT64} if (got - expected) % (1 << 64) == 0 else set()
    if type(expected) is str and type(got) is str:
        ways = {expected.encode(errors=how).decode() for how in ("replace", "ignore")}
        return {TEXT} if got in ways else set()
    zoned = isinstance(expected, datetime.datetime) and type(got) is type(expected)
    fields = getattr(expected, "__dict__", None)
    known = (
        (zoned and got == expected.replace(tzinfo=None))
        or ((type(expected), type(got)) in _SIMPLER and got == expected)
        or (type(expected) in _CONTAINERS and type(got) is list and len(got) == len(expected))
        or (bool(fields) and type(got) is dict and got == fields)
    )
    return {SERIALISER} if known else set()


def _of_array(got: Any, expected: Any) -> set[str]:
    if not isinstance(got, np.ndarray):
        plain = expected.tolist()
        return {ARRAY, SERIALISER} if got == plain or same(got, expected[()]) else set()
    laid_out = got.shape == expected.shape and got.strides == expected.strides
    if got.dtype == expected.dtype.newbyteorder("=") != expected.dtype and laid_out:
        swapped = np.array_equal(got, expected)
        return {NATIVE} if expected.dtype.names else ({PICKLE, NATIVE} if swapped else set())
    if expected.dtype.kind == "c" and got.dtype.kind == "f":
        return {ARRAY} if np.array_equal(got, expected.real) else set()
    changed = (got.dtype, got.shape, got.strides) != (
        expected.dtype, expected.shape, expected.strides
    )  # fmt: skip
    values = got.size == expected.size and got.ravel().tolist() == expected.ravel().tolist()
    return {ARRAY} if changed and values else set()


def _fields_are_native(difference: Difference) -> bool:
    """Return whether an array with fields has lost its byte order."""
    return any(
        NATIVE in _of_leaf(*leaf) and getattr(leaf[1].dtype, "names", None)
        for pair in pairs(difference) or ()
        for leaf in leaves(pair.got, pair.expected)
        if isinstance(leaf[1], np.ndarray)
    )


VALUES = (conversion,)
"""The causes of objects that are changed by how they are serialised."""
