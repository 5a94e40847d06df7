"""Thin adapters over libraries that move objects, texts or tensors with torch.distributed.

Each hands its objects to one function of a library, in a form that its documentation names. The
rest is torch's own, over gloo.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from disteval.contract import Rendezvous
from disteval.frames import Buffer
from disteval_backends.torch_dist import TorchCPUDist

from suites.findings.adapters import TorchPlain


def _chunks(data: Buffer, size: int) -> list[bytes]:
    return [bytes(data[begin : begin + size]) for begin in range(0, len(data), size)]


class TorchStrided(TorchCPUDist):
    """torch's broadcast of a column of a matrix."""

    def _broadcast_tensor(self, tensor: torch.Tensor, src: int) -> torch.Tensor:
        column = torch.stack([tensor, torch.zeros_like(tensor)], dim=1)[:, 0]
        dist.broadcast(column, src)
        return column.contiguous()


class IgniteTexts(TorchCPUDist):
    """ignite's all-gather of a text with a character for each byte."""

    def _all_gather_bytes(self, mine: Buffer, sizes: Sequence[int]) -> Sequence[Buffer]:
        import ignite.distributed as idist

        texts = idist.all_gather(bytes(mine).decode("latin-1"))
        return [text.encode("latin-1") for text in texts]


class IgniteNumbers(TorchCPUDist):
    """ignite's broadcast of numbers, each of which holds four bytes."""

    def _broadcast_bytes(self, mine: Buffer, sizes: Sequence[int], src: int) -> Buffer:
        import ignite.distributed as idist

        words = np.zeros(-(-sizes[src] // 4), "<u4")
        if self.rank == src:
            words.view(np.uint8)[: sizes[src]] = np.frombuffer(mine, np.uint8)
        numbers = [idist.broadcast(word, src) for word in words.tolist()]
        return np.array(numbers).astype("<u4").view(np.uint8).data[: sizes[src]]


class IgniteRanks(TorchCPUDist):
    """ignite's all-gather among ranks that are given as a list."""

    def _all_gather_tensor(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        import ignite.distributed as idist

        ranks = list(range(self.world_size))
        return idist.all_gather(tensor, group=ranks).chunk(self.world_size)


class Accelerate(TorchPlain):
    """Joins accelerate's state to torch's group, as a launcher that sets variables would."""

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        from accelerate import PartialState

        super().init_process(rank, world_size, rendezvous)
        ranks = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
        sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(world_size))
        with mock.patch.dict(os.environ, ranks | sizes, MASTER_ADDR=rendezvous.host):
            PartialState(cpu=True)


class AccelerateDict(Accelerate):
    """accelerate's gather_object of a dictionary."""

    def all_gather_object(self, obj: Any) -> list[Any]:
        from accelerate.utils import gather_object

        return gather_object({"object": obj})["object"]


class AccelerateBits(Accelerate, TorchCPUDist):
    """accelerate's gather of booleans, after pad_across_processes."""

    all_gather_object = TorchCPUDist.all_gather_object
    broadcast_object = TorchCPUDist.broadcast_object

    def _all_gather_bytes(self, mine: Buffer, sizes: Sequence[int]) -> Sequence[Buffer]:
        from accelerate.utils import gather, pad_across_processes

        bits = torch.from_numpy(np.unpackbits(np.frombuffer(mine, np.uint8))).bool()
        gathered = gather(pad_across_processes(bits[None], dim=1))
        rows = np.packbits(gathered.numpy(), axis=1)
        return [row.data[:size] for row, size in zip(rows, sizes, strict=True)]


class AccelerateCopies(Accelerate, TorchCPUDist):
    """accelerate's copy_tensor_to_devices of a matrix."""

    all_gather_object = TorchCPUDist.all_gather_object
    broadcast_object = TorchCPUDist.broadcast_object

    def _broadcast_tensor(self, tensor: torch.Tensor, src: int) -> torch.Tensor:
        from accelerate.utils import copy_tensor_to_devices

        return copy_tensor_to_devices(tensor[None] if self.rank == src else None)[0]


class MMEngineCollect(TorchPlain):
    """mmengine's collect_results, whose list rank 0 then broadcasts."""

    def all_gather_object(self, obj: Any) -> list[Any]:
        return self.broadcast_object(self._collected(obj))

    def _collected(self, obj: Any, **options: Any) -> Any:
        from mmengine.dist import collect_results

        return collect_results([obj], self.world_size, **options)


class _SlowToRead:
    """An object whose unpickling takes a moment, as that of many results does."""

    def __reduce__(self) -> tuple[Callable[[float], None], tuple[float]]:
        return time.sleep, (0.3,)


class MMEngineCollectTwice(MMEngineCollect):
    """mmengine's collect_results of sizes, then of objects, by way of one temporary folder."""

    folder: ClassVar[Path]

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        super().init_process(rank, world_size, rendezvous)
        cls.folder = rendezvous.path / "collected"

    def all_gather_object(self, obj: Any) -> list[Any]:
        data = pickle.dumps(obj)
        size = (len(data), _SlowToRead() if self.rank == 0 else None)
        sizes = self._collected(size, tmpdir=str(self.folder))
        parts = self._collected(data, tmpdir=str(self.folder))
        sizes, parts = self.broadcast_object((sizes, parts))
        assert [size for size, _ in sizes] == [len(part) for part in parts]
        return [pickle.loads(part) for part in parts]


class MMEngineGroup(TorchPlain):
    """mmengine's gather_object to rank 1 among all ranks but 0, whose list is then gathered."""

    def all_gather_object(self, obj: Any) -> list[Any]:
        from mmengine.dist import gather_object

        group = dist.new_group(list(range(1, self.world_size)))
        others = gather_object(obj, dst=1, group=group) if self.rank else None
        (first, _), (_, rest), *_ = super().all_gather_object((obj, others))
        return [first, *rest]


class MMEngineSums(TorchCPUDist):
    """mmengine's all_reduce_dict of integers, of which each rank fills a row, and of a float."""

    def _all_gather_bytes(self, mine: Buffer, sizes: Sequence[int]) -> Sequence[Buffer]:
        from mmengine.dist import all_reduce_dict

        words = np.zeros((self.world_size, -(-max(sizes) // 4)), "<u4")
        words[self.rank].view(np.uint8)[: len(mine)] = np.frombuffer(mine, np.uint8)
        sums = {"words": torch.from_numpy(words.astype(np.int64)), "loss": torch.zeros(1)}
        all_reduce_dict(sums)
        rows = sums["words"].numpy().astype("<u4")
        return [row.view(np.uint8).data[:size] for row, size in zip(rows, sizes, strict=True)]


class MonaiTexts(TorchCPUDist):
    """MONAI's string_list_all_gather of a text for each 64 bytes."""

    def _all_gather_bytes(self, mine: Buffer, sizes: Sequence[int]) -> Sequence[Buffer]:
        from monai.utils import string_list_all_gather

        texts = string_list_all_gather([chunk.hex() for chunk in _chunks(mine, 64)])
        ends = np.cumsum([-(-size // 64) for size in sizes])
        assert len(texts) == ends[-1], f"{len(texts)} texts came instead of {ends[-1]}"
        return [bytes.fromhex("".join(part)) for part in np.split(np.array(texts), ends[:-1])]


class MonaiTensors(TorchPlain):
    """MONAI's evenly_divisible_all_gather of a pickled object, as a list."""

    def all_gather_object(self, obj: Any) -> list[Any]:
        from monai.utils import evenly_divisible_all_gather

        data = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
        gathered = evenly_divisible_all_gather(data, concat=False)
        return [pickle.loads(part.numpy().tobytes()) for part in gathered]


class TorchevalDict(TorchCPUDist):
    """torcheval's synchronisation of a metric's state that is a dictionary with a key a rank."""

    def _all_gather_bytes(self, mine: Buffer, sizes: Sequence[int]) -> Sequence[Buffer]:
        from torcheval.metrics.synclib import metrics_traversal_order, sync_states

        tensor = self._to_tensor(mine, len(mine))
        states = {"metric": {"parts": {f"rank {self.rank}": tensor}}}
        devices = {"metric": torch.device("cpu")}
        synced = sync_states(states, devices, metrics_traversal_order(states))
        parts = [state["metric"]["parts"] for state in synced]
        return [self._to_bytes(part[f"rank {rank}"]) for rank, part in enumerate(parts)]
