"""Writing of predictions by the ranks of an evaluation, and what an interrupted one has left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from disteval.contract import BaseDistBackend
from disteval.coverage import Certificate
from disteval.data.predictions.buffer import PartBuffer
from disteval.data.predictions.columns import Ids
from disteval.data.predictions.manifest import complete
from disteval.data.predictions.run import begin
from disteval.data.predictions.settings import Predictions
from disteval.data.predictions.sink import Sink
from disteval.data.predictions.stored import Stored
from disteval.errors import CoverageError, RankError, describe_error


class PredictionWriter(Sink):
    """Writes this rank's predictions to its parts; every rank must make one.

    Args:
        where: The folder and the format.
        backend: Joins the ranks.
        settings: The record of what is evaluated, which must be equal for a run to go on.
        exact: Whether stored outputs are needed to the last bit, as metrics need them. If the
            folder does not have them so, all are computed again.

    Raises:
        UsageError: On every rank, see `begin`.
    """

    def __init__(
        self,
        where: Predictions,
        backend: BaseDistBackend,
        settings: Mapping[str, str],
        *,
        exact: bool = True,
    ) -> None:
        self._where = where
        self._backend = backend
        self._settings = {"format": where.format, **settings}
        self._run = begin(backend, where, self._settings, exact=exact)
        self._stored = Stored(where.path, where.format, self._run.kept)
        prefix = f"part-{self._run.token}-{self._run.start}-{backend.rank:05d}"
        self._buffer = PartBuffer(where, prefix)

    @property
    def stored_ids(self) -> Ids:
        """The samples that an interrupted run has left, in the order of their ids."""
        return self._stored.ids

    def stored(self, ids: Ids) -> Any | None:
        """Return the outputs of samples if the folder has all of them, else None.

        Arrays are those of their framework, with their own dtype and the same bits.
        """
        return self._stored.outputs(ids)

    def write(self, ids: Ids, outputs: Any, batch: Any = None) -> None:
        """Take the outputs of some samples; those that the folder has already are left out.

        Args:
            ids: The samples' global numbers.
            outputs: Their outputs, with one row for each.
            batch: The batch, for ``record``.

        Raises:
            UsageError: The outputs can't be stored in this format, or the folder can't be written.
        """
        self._buffer.add(ids, outputs, batch, ~self._stored.has(ids))

    def close(self) -> None:
        """Keep what was written so far, and release the folder; `write` may not follow."""
        with suppress(Exception):  # the reason why the evaluation ended is reported already
            self._buffer.flush()
        self._run.release()

    def finish(self, size: int, certificates: Sequence[Certificate]) -> None:
        """Write the manifest, after coverage was proved; every rank must call it.

        Args:
            size: The number of samples.
            certificates: Each rank's part of the proof of coverage.

        Raises:
            RankError: On every rank, if a rank could not write.
            CoverageError: On every rank, if the parts are not those of the samples, or can't be
                seen by rank 0.
        """
        failure: str | None = None
        try:
            self._buffer.flush()
        except Exception as error:  # other ranks wait for the news
            failure = describe_error(error)
        told = self._backend.all_gather_object((failure, self._buffer.parts))
        for rank, (other, _) in enumerate(told):
            if other is not None:
                self._run.release()
                raise RankError(rank, f"could not write its predictions: {other}")
        if self._backend.rank == 0:
            parts = [part for part, _ in self._run.kept]
            parts += [part for _, own in told for part in own]
            try:
                complete(self._where.path, self._settings, parts, size, certificates)
            except Exception as error:  # other ranks wait for the news
                failure = str(error) if isinstance(error, CoverageError) else describe_error(error)
        failure = self._backend.broadcast_object(failure, src=0)
        self._run.release()
        if failure is not None:
            raise CoverageError(failure)
