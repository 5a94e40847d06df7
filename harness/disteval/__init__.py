"""Proves distributed evaluation right.

Importing this imports no framework: backends and models are loaded when they are asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from disteval.contract import (
    BaseDistBackend,
    Capabilities,
    No,
    Rendezvous,
)
from disteval.default_backend import get_dist_backend, set_default_dist_backend
from disteval.errors import (
    AuditError,
    BackendUnavailableError,
    CoverageError,
    DataError,
    FrameError,
    HarnessError,
    LedgerError,
    LibraryMissingError,
    RankError,
    TrainingError,
    UnknownBackendError,
    UsageError,
    WeightsError,
    WorldError,
)
from disteval.registry import list_all_backends, register_backend
from disteval.sharding import ShardPlan
from disteval.templates import BytesBaseDistBackend, TensorBaseDistBackend

if TYPE_CHECKING:
    from disteval.by_sample import seeds
    from disteval.data import ByLength, PredictionReader, Predictions, load_predictions
    from disteval.evaluation import Coverage, Covered, Evaluation, Leases, Task
    from disteval.evaluation.evaluate import evaluate
    from disteval.evaluation.predict_all import predict_all

__all__ = [
    "AuditError",
    "BackendUnavailableError",
    "BaseDistBackend",
    "ByLength",
    "BytesBaseDistBackend",
    "Capabilities",
    "Coverage",
    "CoverageError",
    "Covered",
    "DataError",
    "Evaluation",
    "FrameError",
    "HarnessError",
    "Leases",
    "LedgerError",
    "LibraryMissingError",
    "No",
    "PredictionReader",
    "Predictions",
    "RankError",
    "Rendezvous",
    "ShardPlan",
    "Task",
    "TensorBaseDistBackend",
    "TrainingError",
    "UnknownBackendError",
    "UsageError",
    "WeightsError",
    "WorldError",
    "evaluate",
    "get_dist_backend",
    "list_all_backends",
    "load_predictions",
    "predict_all",
    "register_backend",
    "seeds",
    "set_default_dist_backend",
]

# Imported when they are used, for most commands evaluate nothing.
_LATER = {
    "disteval.by_sample": {"seeds"},
    "disteval.data": {"ByLength", "PredictionReader", "Predictions", "load_predictions"},
    "disteval.evaluation": {
        "Coverage", "Covered", "Evaluation", "Leases", "Task", "evaluate", "predict_all",
    },
}  # fmt: skip


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        for home, names in _LATER.items():
            if name in names:
                return globals().setdefault(name, getattr(import_module(home), name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
