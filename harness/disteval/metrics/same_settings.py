"""Settings that must be the same on every rank."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from disteval.contract import BaseDistBackend
from disteval.errors import UsageError

Check = Callable[[Sequence[Any]], None]
"""A function that gets what every rank sent, by rank, and raises an error on every rank alike."""


def digest_of(settings: Mapping[str, Any]) -> bytes:
    """Return 16 bytes that differ if settings do: a small message, at any number of settings.

    Equal settings may have other pickles, so `check_same` has the last word.
    """
    return blake2b(pickle.dumps(settings), digest_size=16).digest()


def checking(
    backend: BaseDistBackend, digest: bytes, settings: Callable[[], Mapping[str, Any]]
) -> Check:
    """Return the function that compares the digests that all ranks have sent.

    It gathers the settings themselves where digests differ, so every rank must call it; then it
    raises UsageError as `check_same` does.
    """

    def check(digests: Sequence[Any]) -> None:
        if digests.count(digest) != len(digests):  # on every rank alike
            check_same(backend.all_gather_object(settings()))

    return check


def check_same(settings: Sequence[Mapping[str, Any]]) -> None:
    """Raise UsageError that names the first setting in which a rank differs from rank 0.

    Args:
        settings: Those of each rank, by rank.
    """
    first = settings[0]
    for rank, other in enumerate(settings):
        for name in {**first, **other}:
            if other.get(name) != first.get(name):
                raise UsageError(
                    f"ranks do not evaluate the same thing: {name} is {first.get(name)!r} on rank "
                    f"0 and {other.get(name)!r} on rank {rank}; give every rank the same"
                )
