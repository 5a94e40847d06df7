"""One process and no library: every other backend must agree with it at world size 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from disteval.contract import Capabilities, No
from disteval.frames import Buffer
from disteval.templates import BytesBaseDistBackend


class NonDist(BytesBaseDistBackend):
    """A group of one rank.

    Objects become frames here too, so that code that works here works on many ranks: results are
    copies, and an object that cannot be serialised is an error.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        multi_rank=No("it is one process by design")
    )

    @property
    def is_initialized(self) -> bool:
        """Always false: there is no group to join."""
        return False

    @property
    def rank(self) -> int:
        """Always 0."""
        return 0

    @property
    def world_size(self) -> int:
        """Always 1."""
        return 1

    def _all_gather_bytes(self, mine: Buffer, sizes: Sequence[int]) -> Sequence[Buffer]:
        return [bytearray(mine)]
