"""Proof of coverage for people who keep their own evaluation loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from disteval.arguments import check_choice, check_count, is_switched_on
from disteval.contract import BaseDistBackend
from disteval.coverage import (
    Counted,
    add_certificates,
    as_text,
    describe_faults,
    not_once,
    prove,
    unpacked_ids,
)
from disteval.data.contents import DIGESTS, Digests, differing, digests_of_rows, total
from disteval.data.digests import IncomparableError
from disteval.default_backend import get_dist_backend, joining_backend
from disteval.errors import CoverageError, UsageError
from disteval.metrics.state import integers

_MOST = (1 << 63) - 1  # ids are int64


@dataclass(frozen=True, eq=False)
class Covered:
    """The proof that `Coverage.certify` returns, the same on every rank.

    Attributes:
        size: The number of samples, each of which was counted.
        counted: The number of samples that all ranks counted, repeated ones included.
        repeated: The ids that were counted more than once, in order: int64 of shape (N,).
        coverage: ``exact`` if the contents are known to be right: those of one process, or those of
            the digest that was expected. Otherwise ``by index``: only numbers were proved.
        digest: 16 hexadecimal digits about the contents of the samples, each once, which depend on
            neither ranks nor batches nor order; None if they were not given with every batch.
    """

    size: int
    counted: int
    repeated: npt.NDArray[np.int64]
    coverage: Literal["exact", "by index"] = "by index"
    digest: str | None = None


class Coverage:
    """The samples that the ranks of an evaluation loop counted, and proof that none is missing.

    Args:
        size: The number of samples in the data set, the same on every rank. None is for a stream,
            whose length nobody knows: the samples that were counted must be those from 0 up to the
            last one, but samples after the last that was counted can't be noticed.
        backend: The backend that joins the ranks, or its name. None stands for the default, which
            is found when coverage is certified, see `disteval.get_dist_backend`.

    Raises:
        UsageError: The size is not a whole number, or the backend's name is not known.
    """

    def __init__(self, size: int | None, backend: str | BaseDistBackend | None = None) -> None:
        self._size = None if size is None else check_count("size", size, 0, _MOST)
        if backend is not None:
            get_dist_backend(backend)  # a wrong name is an error before the first batch
        self._backend = backend
        self.reset()

    def reset(self) -> None:
        """Forget every sample, as before another evaluation of the same data set."""
        self._counted = Counted()
        self._contents: list[Digests] | None = []

    def count(self, ids: Any, contents: Any = None) -> None:
        """Count the samples of a batch on this rank.

        Args:
            ids: The numbers of the samples in the data set, from 0 up: integers of shape (N,), as
                a list or an array of any framework; or one integer. They may be in any order.
            contents: What the samples hold, labels included: an array or a list with a row for each
                sample, or a tuple or dict of these, such as the batch. See `certify`.

        Raises:
            UsageError: The ids are not such integers, or there is not one row for each of them in
                the contents, or these can't be compared. It is raised on this rank alone; let it
                end the process, because the other ranks wait in `certify`.
        """
        found = integers("ids", ids)
        if found.ndim > 1:
            raise UsageError(
                f"ids have shape {found.shape}; give one integer for each sample, of shape (N,)"
            )
        found = np.atleast_1d(found)
        if contents is None and len(found):
            self._contents = None
        if contents is not None and self._contents is not None and is_switched_on(DIGESTS):
            self._contents.append(_digests(contents, len(found)))
        self._counted.add(found)

    def certify(
        self,
        repeats: Literal["forbidden", "allowed"] = "forbidden",
        digest: str | None = None,
    ) -> Covered:
        """Prove that all ranks together counted every sample; every rank must call it.

        A rank that has counted no sample calls it too. What was counted stays, so more samples can
        be counted and all of them certified again. A proof takes one collective of a few bytes; the
        ids are sent only if a sample is missing or was repeated.

        Args:
            repeats: Whether a sample may be counted more than once, as samplers do that give each
                rank equally many. If it may, remove the repeated samples from your results: give
                metrics the same ids.
            digest: The digest of the contents that are expected, such as a run on one rank has
                given, or one of last week. A rank reads other samples than the others, so ranks
                alone can't know whether theirs are right.

        Raises:
            CoverageError: On every rank, when a sample is missing, is not in the data set, or was
                counted more than once without being allowed to; when ranks have counted one sample
                with different contents, or the digest is another one than expected.
            UsageError: On every rank, when ranks have different sizes or settings. On one rank,
                when no backend joins it to the others, or ``repeats`` is not known.
        """
        check_choice("repeats", repeats, ("forbidden", "allowed"))
        backend = joining_backend(self._backend)
        blocks, certificate = self._counted.sealed()
        contents: int | None = None
        if self._contents is not None and is_switched_on(DIGESTS):
            digests = np.concatenate([np.zeros(0, np.uint64), *self._contents])
            contents = total(unpacked_ids(blocks), digests)
        certificate = certificate._replace(contents=contents)
        notes = backend.all_gather_object((self._size, repeats, digest, certificate))
        for position, name in enumerate(("sizes", "settings of repeats", "digests")):
            given = [note[position] for note in notes]
            if any(other != given[0] for other in given):
                raise UsageError(
                    f"ranks certify coverage with different {name}: {given}, by rank; give every "
                    f"rank the same"
                )
        whole = add_certificates([certificate for *_, certificate in notes])
        counted, _, contents = whole
        expected = counted if self._size is None else self._size
        if prove(whole, expected):
            found = _checked(contents, digest, backend.world_size)
            return Covered(counted, counted, np.zeros(0, np.int64), *found)

        shards = [*map(unpacked_ids, backend.all_gather_object(blocks))]
        distinct, times = np.unique(np.concatenate(shards), return_counts=True)
        size = int(distinct[-1]) + 1 if self._size is None else self._size
        faults = describe_faults([distinct] if repeats == "allowed" else shards, size)
        if faults:
            raise not_once(counted, self._size, faults)
        if contents is not None:
            contents = _once(shards, backend.all_gather_object(self._contents))
        found = _checked(contents, digest, backend.world_size)
        return Covered(size, counted, distinct[times > 1], *found)


def _digests(contents: Any, count: int) -> Digests:
    try:
        found = digests_of_rows(contents)
    except (IncomparableError, ValueError) as error:
        raise UsageError(
            f"contents can't be compared: {error}; give arrays or lists with a row for each "
            f"sample, or leave contents out"
        ) from error
    if len(found) != count:
        raise UsageError(f"contents have {len(found)} rows, and there are {count} ids")
    return found


def _once(shards: Sequence[npt.NDArray[np.int64]], digests: Sequence[Sequence[Digests]]) -> int:
    """Return the total of all samples, each once, after a proof that its repeats are the same."""
    ranks = np.repeat(np.arange(len(shards)), [*map(len, shards)])
    ids, every = np.concatenate(shards), np.concatenate([part for own in digests for part in own])
    order = np.argsort(ids, kind="stable")
    ids, every, ranks = ids[order], every[order], ranks[order]
    same = ids[1:] == ids[:-1]
    wrong = np.flatnonzero(same & (every[1:] != every[:-1]))
    if len(wrong):
        at = wrong[0]
        raise CoverageError(str(differing(int(ids[at]), [*{*ranks[at : at + 2].tolist()}])))
    first = np.append(True, ~same)
    return total(ids[first], every[first])


def _checked(
    contents: int | None, expected: str | None, world_size: int
) -> tuple[Literal["exact", "by index"], str | None]:
    found = as_text(contents)
    if expected is not None and found != expected:
        raise CoverageError(
            f"the digest of the samples is {found or 'not known'}, and {expected} was expected: "
            f"a rank has read other samples or labels, or in another order, than the run that gave "
            f"it; give contents with every batch, and every rank the same samples"
        )
    return "exact" if found and (expected or world_size == 1) else "by index", found
