"""Over gloo a killed rank changes no result of leases, and sharded models wait for nobody."""

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import Leases, UsageError, evaluate
from disteval.data import ShardedStream
from disteval.metrics import AUROC, Accuracy
from disteval.world import World

from suites.helpers.ledger import dumps, loads
from suites.helpers.needs import needs

pytestmark = needs("torch")


def test_tensors_keep_their_types_and_all_bits() -> None:
    import torch

    for dtype in (torch.bfloat16, torch.float64, torch.bool, torch.complex64, torch.uint8):
        for shape in ((), (0, 3), (2, 3)):
            tensor = (torch.rand(shape) * 5).to(dtype)
            again = loads(dumps([tensor]))[0]
            assert (again.dtype, again.shape) == (dtype, tensor.shape)
            assert again.tolist() == tensor.tolist()


RANK = """
import json, os, signal, sys, time
import numpy as np, torch.distributed as dist
from disteval import Leases, UsageError, evaluate
from disteval.metrics import AUROC, Accuracy

rank, store, ledger = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=3)
numbers = np.arange(400)
calls = []

def predict(batch):
    calls.append(len(batch))
    if rank == 2 and len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
    return np.stack([np.sin(batch), np.cos(batch)], axis=1)

def update(outputs, batch):
    return outputs[:, 0], batch[1]

found = evaluate(
    predict, (numbers, numbers % 2), {"a": Accuracy(counts=True), "b": AUROC()}, "torch_cpu", 4,
    update={"b": update}, leases=Leases(), ledger=ledger,
)
print(json.dumps({"metrics": found.metrics, "lost": found.leases.lost}), flush=True)
os._exit(0)  # gloo would wait for the rank that is gone
"""


def test_a_rank_of_gloo_is_killed(tmp_path: Path) -> None:
    places = [str(tmp_path / "store"), str(tmp_path / "ledger")]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), *places], stdout=subprocess.PIPE, text=True
        )
        for rank in range(3)
    ]
    try:
        told = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0, -9]
    first, second = (json.loads(text) for text in told[:2])
    numbers = np.arange(400)
    expected = evaluate(
        lambda batch: np.stack([np.sin(batch), np.cos(batch)], axis=1), (numbers, numbers % 2),
        {"a": Accuracy(counts=True), "b": AUROC()}, "non_dist", 4,
        update={"b": lambda outputs, batch: (outputs[:, 0], batch[1])},
    )  # fmt: skip
    assert first["metrics"] == second["metrics"] == expected.metrics
    assert [text[:6] for text in first["lost"]] == ["rank 2"]


def sharded(backend: Any, samples: Any, leases: Any) -> Any:
    """Evaluate a model whose parameters are sharded over the ranks, and one that is not."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    whole = torch.nn.Linear(3, 4).eval()
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 4).eval()
    mesh = init_device_mesh("cpu", (backend.world_size,))
    fully_shard(model, mesh=mesh, reshard_after_forward=True)  # so that each call is a collective

    def predict(batch: Any) -> Any:
        with torch.no_grad():
            return model(batch)

    def bare(batch: Any) -> Any:
        with torch.no_grad():
            return whole(batch)

    found = evaluate(predict, samples, {"a": Accuracy(counts=True)}, backend, 2, leases=leases)
    alone = evaluate(bare, samples, {"a": Accuracy(counts=True)}, "non_dist", 2)
    return found.metrics == alone.metrics, found.size


@pytest.fixture(scope="module")
def three() -> Iterator[World]:
    with World("torch_cpu", 3, timeout=30) as world:
        yield world


@pytest.mark.parametrize("kind", ["rows", "leases", "shards"])
def test_a_model_with_sharded_parameters_is_called_equally_often(three: World, kind: str) -> None:
    """Else a rank would wait for ever: 7 samples in batches of 2 are 4 batches for 3 ranks."""
    import torch

    rows = [(row, number % 4) for number, row in enumerate(torch.rand(7, 3))]
    samples: Any = rows
    if kind == "shards":
        samples = ShardedStream(range(2), lambda shard: rows[:5] if shard else rows[5:])
    leases = None if kind != "leases" else Leases()
    assert three.run(partial(sharded, samples=samples, leases=leases)) == [(True, 7)] * 3


def refused(backend: Any) -> str:
    shards = ShardedStream(range(3), lambda shard: [(np.ones(3, np.float32), shard)])
    with pytest.raises(UsageError) as caught:
        sharded(backend, shards, Leases())
    return str(caught.value)


def test_ranks_with_sharded_parameters_do_not_borrow_shards_one_by_one(three: World) -> None:
    assert all("group_size" in told for told in three.run(refused))
