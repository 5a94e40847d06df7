"""Proves distributed evaluation right.

Importing this imports no framework: backends and models are loaded when they are asked for.
"""

from disteval.by_sample import seeds
from disteval.contract import (
    BaseDistBackend,
    Capabilities,
    No,
    Rendezvous,
)
from disteval.data import ByLength, PredictionReader, Predictions, load_predictions
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
from disteval.evaluation import Coverage, Covered, Evaluation, Leases, Task, evaluate, predict_all
from disteval.registry import list_all_backends, register_backend
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
