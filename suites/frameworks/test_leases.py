"""Leases over gloo: a rank that is killed changes no result, although gloo can't bear it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from suites.helpers.needs import needs

pytestmark = needs("torch")

RANK = """
import json, os, signal, sys, time
import numpy as np, torch.distributed as dist
from disteval import Leases, evaluate
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
    import numpy as np
    from disteval import evaluate
    from disteval.metrics import AUROC, Accuracy

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
