"""Backends whose broadcast is wrong."""

from __future__ import annotations

import copy
import queue
from contextlib import suppress
from typing import Any

import numpy as np
from disteval import frames
from disteval.contract import Capabilities, No

from suites.mutants.broken.base import Mutant, add
from suites.mutants.broken.gathered import sorted_as_text


class FromAnother(Mutant):
    """A backend that changes the source of a broadcast."""

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        return super().broadcast_object(obj, self.change(src))


add(
    globals(), FromAnother, "3.1",
    SrcIgnored=lambda self, src: 0,
    SrcOffByOne=lambda self, src: (src + 1) % self.world_size,
)  # fmt: skip
add(
    globals(), FromAnother, "3.4",
    NegativeSrcCountsBack=lambda self, src: src % self.world_size if src < 0 else src,
    SrcIsClamped=lambda self, src: min(src, self.world_size - 1),
)  # fmt: skip


class Broadcast(Mutant):
    """A backend that changes what a broadcast returns."""

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        return self.change(super().broadcast_object(obj, src), obj, src)


add(
    globals(), Broadcast, "3.1",
    BroadcastReturnsOwn=lambda self, sent, obj, src: copy.deepcopy(obj),
    # Arrays come in order C, whichever order they had.
    BroadcastForgetsTheOrder=lambda self, sent, obj, src: (
        sent.copy() if type(sent) is np.ndarray else sent
    ),
    LastRankGetsNothing=lambda self, sent, obj, src: (
        sent if self.rank in (src, *range(self.world_size - 1)) else None
    ),
)  # fmt: skip
add(
    globals(), Broadcast, "3.5",
    LargeBroadcastsAreLost=lambda self, sent, obj, src: (
        None if type(sent) is bytes and len(sent) > 32 << 20 else sent
    ),
)  # fmt: skip


add(
    globals(), FromAnother, "2.1",
    SrcIsTheRankSortedAsText=lambda self, src: (
        sorted_as_text([*range(self.world_size)])[src] if 0 <= src < self.world_size else src
    ),
)  # fmt: skip


class DropsWhatNobodyReads(Mutant):
    """Publishes objects, and drops what a rank has not yet read behind a thousand others."""

    breaks = "5.2"
    capabilities = Capabilities(detects_mismatches=No("a source does not wait for the others"))

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        self._check_src(src)
        member = self._member
        if member is None:
            return super().broadcast_object(obj, src)
        queues = member.group.__dict__.setdefault("queues", {})
        others = {*range(self.world_size)} - {src}
        if self.rank == src:
            frame = frames.encode(obj)
            for other in others:
                with suppress(queue.Full):
                    queues.setdefault((src, other), queue.Queue(1000)).put_nowait(bytes(frame))
        else:
            own = queues.setdefault((src, self.rank), queue.Queue(1000))
            frame = bytearray(own.get(timeout=20))
        return frames.decode(frame, 0)


class OthersMustBeAbleToSend(Mutant):
    breaks = "3.3"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        self._check_src(src)
        return super().all_gather_object(obj)[src]


class OnlyRank0RefusesSrc(Mutant):
    breaks = "3.4"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        if self.rank and not 0 <= src < self.world_size:
            return None
        return super().broadcast_object(obj, src)
