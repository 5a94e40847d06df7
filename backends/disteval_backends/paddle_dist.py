"""Paddle's process groups: gloo on CPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from disteval.contract import Capabilities, No, Rendezvous
from disteval.errors import UsageError
from disteval.extras import when_used

from disteval_backends._host_arrays import Bytes, HostArrayDist

if TYPE_CHECKING:
    import paddle
    import paddle.distributed as dist
else:  # a leader reads this class, and its ranks use them
    paddle = when_used("paddle")
    dist = when_used("paddle.distributed")


class PaddleDist(HostArrayDist):
    """Object collectives over Paddle's default process group."""

    library: ClassVar[str] = "paddlepaddle"
    preload: ClassVar[tuple[str, ...]] = ("paddle", "paddle.distributed")
    capabilities: ClassVar[Capabilities] = Capabilities(
        bounded_waits=No("Paddle sets no timeout for gloo's collectives"),
        joins_again=No("Paddle can't make a second process group in one process"),
    )

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        """Join a gloo group whose store rank 0 keeps at ``rendezvous.host`` and ``port``."""
        super().init_process(rank, world_size, rendezvous)
        address = f"{rendezvous.host}:{rendezvous.port}"
        os.environ |= {
            "PADDLE_DISTRI_BACKEND": "gloo",
            "PADDLE_MASTER": address,
            "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_TRAINERS_NUM": str(world_size),
            "PADDLE_CURRENT_ENDPOINT": address,
            "PADDLE_TRAINER_ENDPOINTS": ",".join([address] * world_size),
            "FLAGS_stop_check_timeout": str(max(1, int(rendezvous.timeout))),
        }
        if world_size > 1:  # alone, Paddle makes no group
            dist.init_parallel_env()
            if not dist.is_initialized():  # Paddle has returned the group that was destroyed
                raise UsageError(
                    "this process has left a group of Paddle's, which can't make a second one in "
                    "a process; start new processes"
                )

    @classmethod
    def finalize_process(cls) -> None:
        """Leave the group."""
        if dist.is_initialized():
            dist.destroy_process_group()

    @property
    def is_initialized(self) -> bool:
        """Whether Paddle has a default process group."""
        return bool(dist.is_initialized())

    @property
    def rank(self) -> int:
        """The rank in the default group; 0 when there is none."""
        return int(dist.get_rank()) if self.is_initialized else 0

    @property
    def world_size(self) -> int:
        """The default group's size; 1 when there is none."""
        return int(dist.get_world_size()) if self.is_initialized else 1

    def _all_gather_tensor(self, tensor: Bytes) -> Sequence[Bytes]:
        gathered: list[paddle.Tensor] = []
        dist.all_gather(gathered, paddle.to_tensor(tensor))
        return [np.asarray(other.numpy()) for other in gathered]

    def _broadcast_tensor(self, tensor: Bytes, src: int) -> Bytes:
        moved = paddle.to_tensor(tensor)
        dist.broadcast(moved, src)
        return np.asarray(moved.numpy())
