"""JAX's multi-process runtime: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from disteval.contract import Capabilities, No, Rendezvous
from disteval.errors import BackendUnavailableError
from disteval.extras import when_used
from disteval.launched import launched_job, ranks_on_this_host

from disteval_backends._host_arrays import Bytes, HostArrayDist

if TYPE_CHECKING:
    import jax
    from jax.experimental import multihost_utils
else:  # a leader reads this class, and its ranks use them
    jax = when_used("jax")
    multihost_utils = when_used("jax.experimental.multihost_utils")

_MAX_SECONDS = 600
_SHUTDOWN_SECONDS = 5


class JaxDist(HostArrayDist):
    """Object collectives over uint8 arrays in host memory, one process a rank.

    The arrays of a model may live on any device; this backend does not touch them.
    """

    library: ClassVar[str] = "jax"
    preload: ClassVar[tuple[str, ...]] = ("jax", "jax.experimental.multihost_utils")
    devices: ClassVar[str] = "cpu, cuda"
    capabilities: ClassVar[Capabilities] = Capabilities(
        bounded_waits=No("JAX's collectives have no timeout of their own"),
        joins_again=No("JAX joins its runtime only before the process has used a device"),
    )

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        """Join JAX's runtime, which rank 0 coordinates at ``rendezvous.host`` and ``port``."""
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        # JAX's preemption service catches SIGTERM, and the process would go on.
        jax.config.update("jax_enable_preemption_service", False)
        super().init_process(rank, world_size, rendezvous)
        address = f"{rendezvous.host}:{rendezvous.port}"
        seconds = max(1, min(int(rendezvous.timeout), _MAX_SECONDS))
        jax.distributed.initialize(
            address,
            world_size,
            rank,
            initialization_timeout=seconds,
            heartbeat_timeout_seconds=max(seconds, 10),
            shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
            coordinator_bind_address=address,
        )
        try:
            _refuse_shared_gpus(world_size)
        except BackendUnavailableError:
            cls.finalize_process()
            raise

    @classmethod
    def finalize_process(cls) -> None:
        """Leave the runtime."""
        if jax.distributed.is_initialized():
            jax.distributed.shutdown()

    @property
    def is_initialized(self) -> bool:
        """Whether this process has joined JAX's runtime."""
        return bool(jax.distributed.is_initialized())

    # Asking JAX for the process index would initialise its devices, and nobody could join after.

    @property
    def rank(self) -> int:
        """The process index; 0 outside of a group."""
        return int(jax.process_index()) if self.is_initialized else 0

    @property
    def world_size(self) -> int:
        """The number of processes; 1 outside of a group."""
        return int(jax.process_count()) if self.is_initialized else 1

    def _all_gather_tensor(self, tensor: Bytes) -> Sequence[Bytes]:
        return list(multihost_utils.process_allgather(self._rounded(tensor)))

    def _broadcast_tensor(self, tensor: Bytes, src: int) -> Bytes:
        is_source = self.rank == src
        sent = multihost_utils.broadcast_one_to_all(self._rounded(tensor), is_source=is_source)
        return np.asarray(sent)

    def _rounded(self, tensor: Bytes) -> Bytes:
        # XLA compiles a collective for each length, so only powers of two are used.
        return self._to_tensor(tensor.data, 1 << (len(tensor) - 1).bit_length())


def _refuse_shared_gpus(world_size: int) -> None:
    """Refuse several ranks of a host that use the same GPUs, before NCCL fails in a collective.

    JAX lets each process use all GPUs that it sees. SLURM's and Open MPI's ranks get one each, and
    those of another launcher may have a CUDA_VISIBLE_DEVICES each. Ranks that a world starts have
    one environment.
    """
    here, is_launched = ranks_on_this_host(world_size), launched_job() is not None
    is_given = jax.config.values.get("jax_cuda_visible_devices", "all") != "all"
    if here == 1 or (is_launched and (is_given or "CUDA_VISIBLE_DEVICES" in os.environ)):
        return
    gpus = sum(device.platform == "gpu" for device in jax.local_devices())
    if gpus:
        raise BackendUnavailableError(
            f"world size {world_size} puts {here} ranks on this host, JAX finds {gpus} GPUs here "
            f"in each of them, and NCCL can't put two ranks on one; start the ranks with srun or "
            f"Open MPI's mpirun, where JAX gives each a GPU of its own, or with another launcher "
            f"and a CUDA_VISIBLE_DEVICES for each, or set JAX_PLATFORMS=cpu"
        )
