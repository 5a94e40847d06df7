"""Writing of predictions by the ranks of an evaluation, and what an interrupted one has left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from disteval.arguments import unwritable
from disteval.contract import BaseDistBackend
from disteval.coverage import Certificate
from disteval.data.predictions.columns import Ids, Table, joined, same_form, table_of
from disteval.data.predictions.parts import NOTE, Part, sealed, write_part
from disteval.data.predictions.reader import MANIFEST, UNFINISHED, VERSION
from disteval.data.predictions.run import begin, remove_strays
from disteval.data.predictions.settings import Predictions
from disteval.data.predictions.sink import Sink
from disteval.data.predictions.stored import Stored
from disteval.errors import CoverageError, RankError, describe_error
from disteval.files import write_atomically

PART_BYTES = 64 << 20
_SECONDS = 30.0
_SHARE = 0.05  # of the time so far, so that a long run has not too many parts


class PredictionWriter(Sink):
    """Writes this rank's predictions to its parts; every rank must make one.

    Args:
        where: The folder and the format.
        backend: Joins the ranks.
        size: The number of samples; None for a stream.
        limit: The number of elements at which a stream is ended; None for no limit.
        content: A digest of some samples; nothing if none is known.
        exact: Whether stored outputs are needed to the last bit, as metrics need them. If the
            folder does not have them so, all are computed again.

    Raises:
        UsageError: On every rank, see `begin`.
    """

    def __init__(
        self,
        where: Predictions,
        backend: BaseDistBackend,
        size: int | None,
        limit: int | None = None,
        content: str = "",
        *,
        exact: bool = True,
    ) -> None:
        self._where = where
        self._backend = backend
        self._settings = where.settings(size, limit) | {"samples_digest": content}
        self._run = begin(backend, where, self._settings, exact=exact)
        self._stored = Stored(where.path, where.format, self._run.kept)
        self._parts: list[Part] = []
        self._waiting: list[Table] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._begin = self._last = time.monotonic()

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
        if self._where.record is not None:
            outputs = self._where.record(outputs, batch)
        table = table_of(ids, outputs)
        is_new = ~self._stored.has(ids)
        if not is_new.all():
            table = table.pick(is_new)
        if not len(table.ids):
            return
        if self._waiting and not same_form(self._waiting[0], table):
            self._flush()
        self._waiting.append(table)
        self._waiting_rows += len(table.ids)
        self._waiting_bytes += table.size()
        now = time.monotonic()
        is_late = now - self._last > max(_SECONDS, _SHARE * (now - self._begin))
        is_full = self._waiting_rows >= self._where.rows_per_part
        if is_full or is_late or self._waiting_bytes >= PART_BYTES:
            self._flush()

    def close(self) -> None:
        """Keep what was written so far, and release the folder; `write` may not follow."""
        with suppress(Exception):  # the reason why the evaluation ended is reported already
            self._flush()
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
            self._flush()
        except Exception as error:  # other ranks wait for the news
            failure = describe_error(error)
        told = self._backend.all_gather_object((failure, self._parts))
        for rank, (other, _) in enumerate(told):
            if other is not None:
                self._run.release()
                raise RankError(rank, f"could not write its predictions: {other}")
        if self._backend.rank == 0:
            parts = [part for part, _ in self._run.kept]
            parts += [part for _, own in told for part in own]
            try:
                self._complete(parts, size, certificates)
            except Exception as error:  # other ranks wait for the news
                failure = str(error) if isinstance(error, CoverageError) else describe_error(error)
        failure = self._backend.broadcast_object(failure, src=0)
        self._run.release()
        if failure is not None:
            raise CoverageError(failure)

    def _flush(self) -> None:
        """Write what waits as one part, or as several if it is large."""
        waiting, self._waiting = self._waiting, []
        self._waiting_rows = self._waiting_bytes = 0
        self._last = time.monotonic()
        if not waiting:
            return
        table = joined(waiting).in_order()
        a_row = max(1, table.size() // len(table.ids))
        most = max(1, min(self._where.rows_per_part, PART_BYTES // a_row))
        for start in range(0, len(table.ids), most):
            rank, number = self._backend.rank, len(self._parts)
            name = f"part-{self._run.token}-{self._run.start}-{rank:05d}-{number:06d}"
            rows = table.pick(slice(start, start + most))
            try:
                self._parts.append(write_part(self._where.path, name, rows, self._where.format))
            except OSError as error:
                raise unwritable("the folder of predictions", self._where.path, error) from error

    def _complete(self, parts: list[Part], size: int, certificates: Sequence[Certificate]) -> None:
        """Check on rank 0 that the parts hold what was proved, and write the manifest."""
        folder = self._where.path
        wrong = [problem for part in parts if (problem := part.problem(folder, thorough=False))]
        if wrong:
            raise CoverageError(
                f"{len(wrong)} of {len(parts)} parts of the predictions are not in {folder} as "
                f"rank 0 sees it ({wrong[0]}); give a folder on a file system that all hosts share"
            )
        proved = _sum(certificates)
        if _sum([part.certificate for part in parts]) != proved:
            rows = sum(part.rows for part in parts)
            raise CoverageError(
                f"the parts in {folder} hold predictions of {rows} samples, which are not the "
                f"{proved.counted} samples that were evaluated; did the samples change since the "
                f"run was interrupted? Give another folder, or remove this one"
            )
        in_a_row = not parts or max(part.last for part in parts) == size - 1
        parts = sorted(parts, key=lambda part: (part.first, part.name))
        content = {
            "disteval": "predictions", "version": VERSION, "settings": self._settings,
            "size": size, "in_a_row": in_a_row, "parts": [asdict(part) for part in parts],
        }  # fmt: skip
        write_atomically(folder / MANIFEST, lambda file: file.write(sealed(content)))
        # From here on the result is there; what is left over does no harm.
        with suppress(OSError):
            (folder / UNFINISHED).unlink()
            remove_strays(folder, {part.name for part in parts})
            for part in parts:
                (folder / (part.name + NOTE)).unlink(missing_ok=True)


def _sum(certificates: Sequence[Certificate]) -> Certificate:
    mixed = sum(sent.mixed for sent in certificates) & ((1 << 64) - 1)
    return Certificate(sum(sent.counted for sent in certificates), mixed)
