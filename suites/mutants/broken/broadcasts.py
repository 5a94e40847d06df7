"""Backends whose broadcast is wrong."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from suites.mutants.broken.base import Mutant


class SrcIgnored(Mutant):
    breaks = "3.1"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        self._check_src(src)
        return super().broadcast_object(obj, 0)


class SrcOffByOne(Mutant):
    breaks = "3.1"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        self._check_src(src)
        return super().broadcast_object(obj, (src + 1) % self.world_size)


class BroadcastReturnsOwn(Mutant):
    breaks = "3.1"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        super().broadcast_object(obj, src)
        return copy.deepcopy(obj)


class BroadcastForgetsTheOrder(Mutant):
    """Returns the arrays of a broadcast in order C, whichever order they had."""

    breaks = "3.1"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        sent = super().broadcast_object(obj, src)
        return sent.copy() if type(sent) is np.ndarray else sent


class LastRankGetsNothing(Mutant):
    breaks = "3.1"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        sent = super().broadcast_object(obj, src)
        return sent if self.rank < self.world_size - 1 or self.rank == src else None


class OthersMustBeAbleToSend(Mutant):
    breaks = "3.3"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        self._check_src(src)
        return super().all_gather_object(obj)[src]


class NegativeSrcCountsBack(Mutant):
    breaks = "3.4"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        return super().broadcast_object(obj, src % self.world_size if src < 0 else src)


class SrcIsClamped(Mutant):
    breaks = "3.4"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        return super().broadcast_object(obj, min(src, self.world_size - 1) if src > 0 else src)


class OnlyRank0RefusesSrc(Mutant):
    breaks = "3.4"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        if self.rank and not 0 <= src < self.world_size:
            return None
        return super().broadcast_object(obj, src)


class LargeBroadcastsAreLost(Mutant):
    breaks = "3.5"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        sent = super().broadcast_object(obj, src)
        return None if type(sent) is bytes and len(sent) > 32 << 20 else sent
