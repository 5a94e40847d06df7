"""Proves distributed evaluation right.

Importing this imports no framework: backends and models are loaded when they are asked for.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from disteval.contract import BaseDistBackend, Capabilities, No, Rendezvous
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

if TYPE_CHECKING:
    from disteval.by_sample import seeds
    from disteval.data import ByLength, PredictionReader, Predictions, load_predictions
    from disteval.evaluation import Coverage, Covered, Evaluation, Leases, Task
    from disteval.evaluation.evaluate import evaluate
    from disteval.evaluation.predict_all import predict_all
    from disteval.sharding import ShardPlan
    from disteval.templates import BytesBaseDistBackend, TensorBaseDistBackend

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

# Imported in this order until one has the name that was asked for: most commands evaluate nothing.
_HOMES = ("sharding", "by_sample", "templates", "data", "evaluation")


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        for home in _HOMES if name in __all__ else ():
            module = import_module(f"disteval.{home}")
            if hasattr(module, name):
                return globals().setdefault(name, getattr(module, name))
        if not name.startswith("_") and find_spec(f"disteval.{name}"):
            return import_module(f"disteval.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
