"""One process, no library: what every other backend must agree with at world size 1."""

from __future__ import annotations

from typing import Any, ClassVar

from disteval import framing
from disteval.contract import BaseDistBackend, Capabilities, No


class NonDist(BaseDistBackend):
    """The world of one.

    Objects still travel through a frame, so that what works here works on many ranks: results are
    copies, and an object that can't be serialised is an error.
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

    def all_gather_object(self, obj: Any) -> list[Any]:
        """See `BaseDistBackend.all_gather_object`."""
        return [framing.decode(framing.encode(obj), 0)]

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """See `BaseDistBackend.broadcast_object`."""
        self._check_src(src)
        return framing.decode(framing.encode(obj), src)
