"""How many seconds and bytes does the result of a metric take as the data set grows?"""

from __future__ import annotations

from . import _ranks, _worlds

ROUNDS = 20


class ComputeCost(_worlds.InWorld):
    """The cost of `Accuracy.compute(size=...)` on two ranks, with one sample of padding."""

    params = (
        ["threads", "torch_cpu", "mpi4py", "tf_horovod", "tf_collective", "jax", "paddle", "mlx"],
        [1_000, 10_000, 100_000, 1_000_000],
    )
    param_names = ("backend", "samples_a_rank")

    def setup(self, backend: str, _samples: int) -> None:
        self.start(backend, 2)

    def track_time(self, _backend: str, samples: int) -> float:
        """Return the time of the median call, including the work around the collective."""
        return _worlds.median_of(self.run(_ranks.compute_seconds, (samples, ROUNDS))) * 1e6

    track_time.unit = "us"  # type: ignore[attr-defined]

    def track_bytes_sent(self, _backend: str, samples: int) -> int:
        """Return the bytes of the frames of the rank that sends most."""
        return max(self.run(_ranks.compute_bytes, samples))

    track_bytes_sent.unit = "bytes"  # type: ignore[attr-defined]
