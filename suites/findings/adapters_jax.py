"""Thin adapters over jax.experimental.multihost_utils with other dtypes than our backend uses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from disteval_backends._host_arrays import Bytes
from disteval_backends.jax_dist import JaxDist
from jax.experimental import multihost_utils


class JaxFloats(JaxDist):
    """JAX's broadcast of 32-bit floating-point numbers."""

    def _broadcast_tensor(self, tensor: Bytes, src: int) -> Bytes:
        floats = self._rounded(tensor).view(np.float32)
        sent = multihost_utils.broadcast_one_to_all(floats, is_source=self.rank == src)
        return np.ascontiguousarray(sent).view(np.uint8)


class JaxIntegers(JaxDist):
    """JAX's all-gather of 64-bit integers."""

    def _all_gather_tensor(self, tensor: Bytes) -> Sequence[Bytes]:
        gathered = multihost_utils.process_allgather(self._rounded(tensor).view(np.int64))
        return [np.ascontiguousarray(row).view(np.uint8) for row in gathered]
