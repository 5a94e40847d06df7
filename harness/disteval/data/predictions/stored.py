"""The outputs that an interrupted run has left, by the ids of their samples."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.data.predictions.columns import Ids, Table, joined, same_form
from disteval.data.predictions.parts import Part

_BLOCKS = 64
"""The number of blocks that memory holds, each of about a MiB or less."""


class Stored:
    """Outputs in the parts of a folder; memory holds 24 bytes a sample and up to 64 blocks.

    Args:
        folder: The folder.
        format: The format of its files.
        parts: The parts, and the ids of each.
    """

    def __init__(self, folder: Path, format: str, parts: Sequence[tuple[Part, Ids]]) -> None:  # noqa: A002
        self._folder = folder
        self._format = format
        self._parts = [part for part, _ in parts]
        every = np.concatenate([np.zeros(0, np.int64), *(ids for _, ids in parts)])
        begins = np.cumsum([0, *(len(ids) for _, ids in parts)])
        order = np.argsort(every, kind="stable")
        self.ids: Ids = every[order]
        self._part_of = np.searchsorted(begins, order, side="right") - 1
        self._row_of = order - begins[self._part_of]
        self._blocks: OrderedDict[tuple[int, int], Table] = OrderedDict()

    def has(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Return for each sample whether its output is stored."""
        if not len(self.ids):
            return np.zeros(len(ids), np.bool_)
        place = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        found: npt.NDArray[np.bool_] = self.ids[place] == ids
        return found

    def outputs(self, ids: Ids) -> Any | None:
        """Return the outputs of samples in this order; None if one is missing.

        They are missing also where rows of arrays of different shapes can't be one array again.
        """
        if not len(ids) or not self.has(ids).all():
            return None
        place = np.searchsorted(self.ids, ids)
        parts, rows = self._part_of[place], self._row_of[place]
        tables: list[Table] = []
        for number in np.unique(parts):
            size = self._parts[number].block_rows
            blocks = np.where(parts == number, rows // size, -1)
            for block in np.unique(blocks[blocks >= 0]):
                table = self._block(int(number), int(block))
                tables.append(table.pick(rows[blocks == block] % size))
        if not all(same_form(tables[0], table) for table in tables):
            return None
        table = joined(tables).in_order()
        table = table.pick(np.searchsorted(table.ids, ids))
        if not table.is_exact:
            return None
        try:
            return table.outputs(restored=True)
        except ValueError:  # arrays of different shapes
            return None

    def _block(self, part: int, block: int) -> Table:
        """Read a block, or take it from memory."""
        found = self._blocks.pop((part, block), None)
        if found is None:
            found = self._parts[part].block(self._folder, block, self._format)
        self._blocks[part, block] = found
        if len(self._blocks) > _BLOCKS:
            self._blocks.popitem(last=False)
        return found
