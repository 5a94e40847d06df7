"""Proves distributed evaluation right.

Importing this imports no framework: backends and models are loaded when they are asked for.
"""

from harness.contract import (
    BaseDistBackend,
    Capabilities,
    No,
    Rendezvous,
    TensorBaseDistBackend,
)
from harness.errors import (
    BackendUnavailableError,
    CoverageError,
    DataError,
    FrameError,
    HarnessError,
    LibraryMissingError,
    RankError,
    UnknownBackendError,
    UsageError,
    WeightsError,
    WorldError,
)
from harness.evaluation import Evaluation, evaluate
from harness.registry import (
    get_dist_backend,
    list_all_backends,
    register_backend,
    set_default_dist_backend,
)
from harness.sharding import ShardPlan

__all__ = [
    "BackendUnavailableError",
    "BaseDistBackend",
    "Capabilities",
    "CoverageError",
    "DataError",
    "Evaluation",
    "FrameError",
    "HarnessError",
    "LibraryMissingError",
    "No",
    "RankError",
    "Rendezvous",
    "ShardPlan",
    "TensorBaseDistBackend",
    "UnknownBackendError",
    "UsageError",
    "WeightsError",
    "WorldError",
    "evaluate",
    "get_dist_backend",
    "list_all_backends",
    "register_backend",
    "set_default_dist_backend",
]
