"""Thin adapters over xgboost.collective, whose tracker rank 0 runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from disteval.contract import BaseDistBackend, Rendezvous
from disteval.frames import Buffer
from disteval.templates import BytesBaseDistBackend
from xgboost import collective
from xgboost.tracker import RabitTracker


class _XGBoost(BaseDistBackend):
    """The base of adapters that join by way of a tracker."""

    _tracker: ClassVar[Any] = None

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        super().init_process(rank, world_size, rendezvous)
        if rank == 0:
            cls._tracker = RabitTracker(world_size, rendezvous.host, sortby="task")
            cls._tracker.start()
            rendezvous.publish("tracker", json.dumps(cls._tracker.worker_args()))
        timeout = max(1, int(rendezvous.timeout))
        where = json.loads(rendezvous.lookup("tracker")) | {"dmlc_timeout": timeout}
        collective.init(dmlc_task_id=str(rank), **where)

    @classmethod
    def finalize_process(cls) -> None:
        collective.finalize()
        cls._tracker = None

    @property
    def is_initialized(self) -> bool:
        return collective.is_distributed()

    @property
    def rank(self) -> int:
        return collective.get_rank()

    @property
    def world_size(self) -> int:
        return collective.get_world_size()


class XGBoostObjects(_XGBoost):
    """xgboost's broadcast of objects, by which objects are gathered, too."""

    def all_gather_object(self, obj: Any) -> list[Any]:
        return [collective.broadcast(obj, src) for src in range(self.world_size)]

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        return collective.broadcast(obj, src)


class XGBoostSums(_XGBoost, BytesBaseDistBackend):
    """xgboost's allreduce of a matrix, of which each rank fills a row."""

    def _all_gather_bytes(self, mine: Buffer, sizes: Sequence[int]) -> Sequence[Buffer]:
        rows = np.zeros((self.world_size, max(sizes)), np.uint8)
        rows[self.rank, : len(mine)] = np.frombuffer(mine, np.uint8)
        sums = collective.allreduce(rows, collective.Op.SUM)
        assert sums.shape == rows.shape, f"the result has the shape {sums.shape}"
        return [row.data[:size] for row, size in zip(sums, sizes, strict=True)]
