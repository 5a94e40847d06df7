"""Proof of coverage for people who keep their own evaluation loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from disteval.arguments import check_choice, check_count
from disteval.contract import BaseDistBackend
from disteval.coverage import Counted, describe_faults, not_once, prove
from disteval.default_backend import get_dist_backend, joining_backend
from disteval.errors import UsageError
from disteval.metrics.ids import integers

_MOST = (1 << 63) - 1  # ids are int64


@dataclass(frozen=True, eq=False)
class Covered:
    """The proof that `Coverage.certify` returns, the same on every rank.

    Attributes:
        size: The number of samples, each of which was counted.
        counted: The number of samples that all ranks counted, repeated ones included.
        repeated: The ids that were counted more than once, in order: int64 of shape (N,).
    """

    size: int
    counted: int
    repeated: npt.NDArray[np.int64]


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

    def count(self, ids: Any) -> None:
        """Count the samples of a batch on this rank.

        Args:
            ids: The numbers of the samples in the data set, from 0 up: integers of shape (N,), as
                a list or an array of any framework; or one integer. They may be in any order.

        Raises:
            UsageError: The ids are not such integers. It is raised on this rank alone; let it end
                the process, because the other ranks wait in `certify`.
        """
        found = integers("ids", ids)
        if found.ndim > 1:
            raise UsageError(
                f"ids have shape {found.shape}; give one integer for each sample, of shape (N,)"
            )
        self._counted.add(np.atleast_1d(found))

    def certify(self, repeats: Literal["forbidden", "allowed"] = "forbidden") -> Covered:
        """Prove that all ranks together counted every sample; every rank must call it.

        A rank that has counted no sample calls it too. What was counted stays, so more samples can
        be counted and all of them certified again. A proof takes one collective of a few bytes; the
        ids are sent only if a sample is missing or was repeated.

        Args:
            repeats: Whether a sample may be counted more than once, as samplers do that give each
                rank equally many. If it may, remove the repeated samples from your results: give
                metrics the same ids.

        Raises:
            CoverageError: On every rank, when a sample is missing, is not in the data set, or was
                counted more than once without being allowed to.
            UsageError: On every rank, when ranks have different sizes or settings. On one rank,
                when no backend joins it to the others, or ``repeats`` is not known.
        """
        check_choice("repeats", repeats, ("forbidden", "allowed"))
        backend = joining_backend(self._backend)
        notes = backend.all_gather_object((self._size, repeats, self._counted.certificate()))
        for position, name in enumerate(("sizes", "settings of repeats")):
            given = [note[position] for note in notes]
            if any(other != given[0] for other in given):
                raise UsageError(
                    f"ranks certify coverage with different {name}: {given}, by rank; give every "
                    f"rank the same"
                )
        certificates = [certificate for *_, certificate in notes]
        total = sum(certificate.counted for certificate in certificates)
        if prove(certificates, total if self._size is None else self._size):
            return Covered(total, total, np.zeros(0, np.int64))

        shards = [sent.all() for sent in backend.all_gather_object(self._counted)]
        distinct, times = np.unique(np.concatenate(shards), return_counts=True)
        size = int(distinct[-1]) + 1 if self._size is None else self._size
        faults = describe_faults([distinct] if repeats == "allowed" else shards, size)
        if faults:
            raise not_once(total, self._size, faults)
        return Covered(size, total, distinct[times > 1])
