"""The backend `jax` on a host whose GPUs are a stand-in: what JAX reports while ranks join."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import jax
from disteval_backends.jax_dist import JaxDist


class OneGpu(JaxDist):
    """Every rank finds one GPU."""

    gpus = 1

    @classmethod
    def init_process(cls, *given: Any) -> None:
        found = [SimpleNamespace(platform="gpu")] * cls.gpus
        with patch.object(jax, "local_devices", lambda: found):
            super().init_process(*given)


class FourGpus(OneGpu):
    """Every rank finds the same four GPUs."""

    gpus = 4
