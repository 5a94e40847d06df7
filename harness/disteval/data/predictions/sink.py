"""What takes the outputs of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from disteval.coverage import Certificate
from disteval.data.predictions.columns import Ids


class Sink:
    """Takes the outputs of an evaluation, batch by batch; this one forgets them.

    Attributes:
        stored_ids: The samples that an interrupted run has left, in the order of their ids.
        record: The function that returns what is kept of the outputs and the batch, if any.
        format: The format of files, if any are written.
    """

    record: Callable[[Any, Any], Any] | None = None
    format: str | None = None

    @property
    def stored_ids(self) -> Ids:  # noqa: D102
        return np.zeros(0, np.int64)

    def stored(self, ids: Ids) -> Any | None:
        """Return the outputs of samples, bit for bit, if an earlier run has left all of them."""
        return None

    def write(self, ids: Ids, outputs: Any, batch: Any = None) -> None:
        """Take the outputs of the samples of a batch that count."""

    def finish(self, size: int, certificates: Sequence[Certificate]) -> None:
        """Complete the result, after coverage was proved; every rank must call it.

        Args:
            size: The number of samples.
            certificates: Each rank's part of the proof of coverage.
        """

    def close(self) -> None:
        """Keep what was written so far; no other rank is waited for."""
