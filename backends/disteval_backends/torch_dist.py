"""torch.distributed: gloo on CPU tensors, NCCL on CUDA tensors."""

from __future__ import annotations

import os
import socket
import weakref
from abc import abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from disteval.contract import Capabilities, No, Rendezvous
from disteval.errors import BackendUnavailableError, UsageError
from disteval.extras import when_used
from disteval.frames import Buffer
from disteval.host import interfaces
from disteval.launched import ranks_on_this_host
from disteval.templates import Collectives, TensorBaseDistBackend

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
else:  # a leader reads these classes, and its ranks use them
    torch, dist = when_used("torch"), when_used("torch.distributed")

_collectives: weakref.WeakKeyDictionary[Any, Collectives] = weakref.WeakKeyDictionary()
"""The collectives of each process group."""

_SEND_BYTES = 1 << 20  # gloo's all-gather copies what it has received, and pads to the longest
_SEND_TAG = 29_500  # no message that the user sends in this group may be taken for one of ours


class _TorchDist(TensorBaseDistBackend["torch.Tensor"]):
    """The common base of gloo and NCCL; a subclass says on which device its tensors live.

    Args:
        process_group: A group of your own; None stands for the default group, whenever it is made.
    """

    library: ClassVar[str] = "torch"
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch.distributed")
    device_type: ClassVar[str]

    def __init__(self, process_group: dist.ProcessGroup | None = None) -> None:
        self._process_group = process_group

    @property
    def is_initialized(self) -> bool:
        """Whether torch.distributed has a default process group."""
        return bool(dist.is_available() and dist.is_initialized())

    @property
    def rank(self) -> int:
        """The rank in the process group; 0 when there is none."""
        return dist.get_rank(self._process_group) if self.is_initialized else 0

    @property
    def world_size(self) -> int:
        """The process group's size; 1 when there is none."""
        return dist.get_world_size(self._process_group) if self.is_initialized else 1

    @classmethod
    def finalize_process(cls) -> None:
        """Leave the default process group, where there is one."""
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()

    @abstractmethod
    def _device(self) -> torch.device:
        """The device of the tensors that travel."""

    @property
    def _collectives(self) -> Collectives:
        if self.rank < 0:
            raise UsageError("this process is not in the process group; only its members may call")
        group = dist.group.WORLD if self._process_group is None else self._process_group
        collectives = _collectives.get(group)
        if collectives is None:
            self._check_devices()
            collectives = _collectives.setdefault(group, Collectives())
        return collectives

    def _to_tensor(self, data: Buffer, size: int) -> torch.Tensor:
        tensor = torch.empty(size, dtype=torch.uint8)
        tensor.numpy()[: len(data)] = np.frombuffer(data, dtype=np.uint8)
        return tensor.to(self._device())

    def _to_bytes(self, tensor: torch.Tensor) -> Buffer:
        return memoryview(tensor.cpu().numpy())

    def _all_gather_tensor(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        gathered = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(gathered, tensor, group=self._process_group)
        return gathered

    def _broadcast_tensor(self, tensor: torch.Tensor, src: int) -> torch.Tensor:
        dist.broadcast(tensor, src=self._global_rank(src), group=self._process_group)
        return tensor

    def _global_rank(self, rank: int) -> int:
        """Return the number that a rank of the process group has in the default group."""
        group = self._process_group
        return rank if group is None else dist.get_global_rank(group, rank)

    def _check_devices(self) -> None:
        """Refuse a group that can't move this backend's tensors, before the library hangs on it."""
        devices = dist.get_backend_config(self._process_group)
        if self.device_type not in devices:
            raise UsageError(
                f"this process group ({devices}) does not move {self.device_type} tensors; "
                f"pass process_group=torch.distributed.new_group(backend=…) of one that does"
            )


class TorchCPUDist(_TorchDist):
    """gloo, or any process group that moves CPU tensors."""

    device_type = "cpu"

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        """Join a gloo group that listens on ``rendezvous.own_host`` alone."""
        # gloo listens on the host name's address otherwise, which may be another network's.
        for name, address in interfaces():
            if address == rendezvous.own_host:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        _join("gloo", rank, world_size, rendezvous)

    def _all_gather_bytes(self, mine: Buffer, sizes: Sequence[int]) -> Sequence[Buffer]:
        if max(sizes) < _SEND_BYTES:
            return super()._all_gather_bytes(mine, sizes)
        own, group = self.rank, self._process_group
        parts = [self._to_tensor(mine if r == own else b"", n) for r, n in enumerate(sizes)]
        works = []
        for rank in set(range(len(sizes))) - {own}:
            peer = self._global_rank(rank)
            if sizes[rank]:
                works.append(dist.irecv(parts[rank], peer, group, _SEND_TAG))
            if sizes[own]:
                works.append(dist.isend(parts[own], peer, group, _SEND_TAG))
        for work in works:
            assert work is not None  # it is None on processes outside of the group
            work.wait()
        return [self._to_bytes(part) for part in parts]

    def _device(self) -> torch.device:
        return torch.device("cpu")


class TorchCUDADist(_TorchDist):
    """NCCL; each rank uses its current CUDA device, ``torch.cuda.set_device`` before that."""

    device_type = "cuda"
    devices: ClassVar[str] = "cuda"
    capabilities: ClassVar[Capabilities] = Capabilities(
        detects_lost_ranks=No("NCCL's watchdog ends the process instead of raising"),
        bounded_waits=No("NCCL's watchdog ends the process instead of raising"),
    )

    def __init__(self, process_group: dist.ProcessGroup | None = None) -> None:
        if not torch.cuda.is_available():
            raise BackendUnavailableError(
                "backend 'torch_cuda' can't be used: torch finds no CUDA device here; "
                "use 'torch_cpu', or a machine with a GPU and a CUDA build of torch"
            )
        super().__init__(process_group)

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        """Take a GPU of this machine, and join an NCCL group."""
        devices = torch.cuda.device_count()
        here = ranks_on_this_host(world_size)
        if here > devices:
            raise BackendUnavailableError(
                f"world size {world_size} needs {here} GPUs here, and torch finds {devices}; "
                f"NCCL can't put two ranks on one"
            )
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank % here)))
        _join("nccl", rank, world_size, rendezvous)

    def _device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())


def _join(library: str, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
    dist.init_process_group(
        library,
        store=_store(rank, world_size, rendezvous),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=rendezvous.timeout),
    )


def _store(rank: int, world_size: int, rendezvous: Rendezvous) -> dist.Store:
    """Where the ranks meet: a file that nobody else can open, or a port of rank 0's host."""
    if rendezvous.directory is not None:
        return dist.FileStore(str(rendezvous.directory / "torch_store"), world_size)
    patience: dict[str, Any] = {
        "timeout": timedelta(seconds=rendezvous.timeout),
        "wait_for_workers": False,
    }
    if rank > 0:
        port = int(rendezvous.lookup("torch_store"))
        return dist.TCPStore(rendezvous.host, port, world_size, **patience)
    # Bound here: the store itself would listen on every address of the host.
    server = socket.create_server((rendezvous.host, 0))
    port = server.getsockname()[1]
    own = {"is_master": True, "master_listen_fd": server.detach()}
    store = dist.TCPStore(rendezvous.host, port, world_size, **own, **patience)
    rendezvous.publish("torch_store", str(port))
    return store
