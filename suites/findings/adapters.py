"""Thin adapters over released libraries, to check these libraries against the contract.

They add only `init_process`. The pages of findings/ are about what that shows::

    disteval check suites.findings.adapters:TorchPlain
"""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

from disteval.contract import BaseDistBackend, Rendezvous
from disteval.registry import get_backend_class


class _Joining(BaseDistBackend):
    """The base of adapters that join as a backend of this project does."""

    joins_as: ClassVar[str] = "torch_cpu"

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        get_backend_class(cls.joins_as).init_process(rank, world_size, rendezvous)

    @classmethod
    def finalize_process(cls) -> None:
        get_backend_class(cls.joins_as).finalize_process()


class TorchPlain(_Joining):
    """torch.distributed's own object collectives, over gloo."""

    @property
    def is_initialized(self) -> bool:
        import torch.distributed as dist

        return dist.is_initialized()

    @property
    def rank(self) -> int:
        import torch.distributed as dist

        return dist.get_rank() if dist.is_initialized() else 0

    @property
    def world_size(self) -> int:
        import torch.distributed as dist

        return dist.get_world_size() if dist.is_initialized() else 1

    def all_gather_object(self, obj: Any) -> list[Any]:
        import torch.distributed as dist

        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, obj)
        return gathered

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        import torch.distributed as dist

        objects = [obj]
        dist.broadcast_object_list(objects, src=src)
        return objects[0]


class MPI4PyPlain(BaseDistBackend):
    """mpi4py's own object collectives."""

    launcher: ClassVar[str] = "mpirun"

    @property
    def _comm(self) -> Any:
        from mpi4py import MPI

        return MPI.COMM_WORLD

    @property
    def is_initialized(self) -> bool:
        from mpi4py import MPI

        return MPI.Is_initialized()

    @property
    def rank(self) -> int:
        return self._comm.Get_rank()

    @property
    def world_size(self) -> int:
        return self._comm.Get_size()

    def all_gather_object(self, obj: Any) -> list[Any]:
        return self._comm.allgather(obj)

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        return self._comm.bcast(obj, root=src)


class _MMEval(BaseDistBackend):
    """A backend that passes every call on to a backend of mmeval."""

    name: ClassVar[str]

    @property
    def _its(self) -> Any:
        backends = importlib.import_module("mmeval.core.dist_backends")
        return getattr(backends, self.name)()

    @property
    def is_initialized(self) -> bool:
        return self._its.is_initialized

    @property
    def rank(self) -> int:
        return self._its.rank

    @property
    def world_size(self) -> int:
        return self._its.world_size

    def all_gather_object(self, obj: Any) -> list[Any]:
        return self._its.all_gather_object(obj)

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        return self._its.broadcast_object(obj, src)


class MMEvalTorchCPU(_MMEval, _Joining):
    """mmeval's ``torch_cpu``."""

    name = "TorchCPUDist"


class MMEvalMPI4Py(_MMEval):
    """mmeval's ``mpi4py``."""

    launcher = "mpirun"
    name = "MPI4PyDist"


class MMEvalNonDist(_MMEval):
    """mmeval's ``non_dist``."""

    name = "NonDist"


class MMEvalPaddle(_MMEval, _Joining):
    """mmeval's ``paddle_dist``."""

    joins_as = "paddle"
    name = "PaddleDist"
