"""How much memory does a collective take beside its result?"""

from __future__ import annotations

import sys

from . import _ranks, _worlds

BYTES = 8_000_000


class GatherMemory(_worlds.InWorld):
    """The peak memory of an all-gather of 8 MB from each of two ranks; the result takes 16 MB.

    The peak is the process's resident set, as ``getrusage`` tells it in ``ru_maxrss``, over what
    it held before the call, so that what a library allocates outside of Python counts. Backends
    whose ranks share a process are not asked.
    """

    params = (["torch_cpu", "mpi4py", "tf_horovod", "tf_collective", "jax", "paddle", "mlx"],)
    param_names = ("backend",)

    def setup(self, backend: str) -> None:
        if not sys.platform.startswith("linux"):
            raise NotImplementedError("only Linux lets a process forget its peak")
        self.start(backend, 2)

    def track_peak(self, _backend: str) -> int:
        """Return the peak of the rank that needs most memory."""
        return max(self.run(_ranks.gather_peak_bytes, BYTES))

    track_peak.unit = "bytes"  # type: ignore[attr-defined]
