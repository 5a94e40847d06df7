"""Examples of the files that ``--json`` writes."""

from __future__ import annotations

from typing import Any

HEADER = {
    "schema_version": 1, "version": "0.1.0", "created": "2026-11-27T04:11:00Z", "command": "eval",
}  # fmt: skip

EVALUATION: dict[str, Any] = {
    **HEADER, "kind": "eval", "task": "ResNet-18 on embedded/test",
    "metrics": {"accuracy": {"top1": 0.75, "correct_top1": 6, "size": 8}},
    "size": 8, "padded": 1, "coverage": "exact", "world_size": 3,
    "backend": "torch_cpu", "framework": "torch", "device": "cpu",
    "batch_size": 4, "samples_per_second": 100.5, "seconds": 0.08,
}  # fmt: skip

TASK: dict[str, Any] = {
    **HEADER, "kind": "eval", "task": "my_task:task",
    "metrics": {"loss": {"mean": 0.5, "worst": None}, "confusion": [[1, 2], [3, 4]]},
    "limit": None, "device": None, "size": 10, "padded": 2, "coverage": "exact",
    "compared": 10, "stored": 0, "stored_since": None, "digest": "d41d8cd98f00b204",
    "difference": 0.0, "repeatable": True,
    "world_size": 3, "backend": "threads", "batch_size": 4, "threads": None, "predictions": "out",
    "samples_per_second": 100.0, "seconds": 0.1, "versions": {"python": "3.12.0"},
    "leases": {
        "batches": 5, "committed": 3, "resumed": 2, "repeated": 1, "copies": 1,
        "lost": [{"rank": 1, "how": "killed by SIGKILL"}], "failed": ["rank 2 failed"],
    },
}  # fmt: skip

FIT: dict[str, Any] = {
    **HEADER, "kind": "fit", "launcher": "local", "world_size": 2, "epochs": 2,
    "batch_size": 64, "lr": 0.1, "seed": 0, "data": "embedded", "resumed": None,
    "best": {"epoch": 2, "correct": 6, "evaluated": 8},
    "records": [
        {"epoch": 1, "iter": 3, "mode": "train", "num_samples": 9, "loss": 2.5, "lr": 0.0625,
         "samples_per_second": 10.5, "seconds": 0.5},
        {"epoch": 1, "iter": 3, "mode": "val", "num_samples": 8, "loss": None, "accuracy": 0.25,
         "correct": 2, "evaluated": 8, "samples_per_second": 100.5, "seconds": 0.25},
        {"epoch": 2, "iter": 6, "mode": "train", "num_samples": 9, "loss": 1.25, "lr": 0.03125,
         "samples_per_second": 11.5, "seconds": 0.5},
        {"epoch": 2, "iter": 6, "mode": "val", "num_samples": 8, "loss": 1.5, "accuracy": 0.75,
         "correct": 6, "evaluated": 8, "samples_per_second": 101.5, "seconds": 0.25},
    ],
    "seconds": 3.5,
}  # fmt: skip
