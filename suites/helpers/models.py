"""What tests of ResNet-18 know of the inside: its modules, its weights by name, and its steps."""

from __future__ import annotations

from disteval.cli.eval_resnet18 import FRAMEWORKS
from disteval.metrics.arrays import to_numpy
from disteval.models.resnet18 import (
    buffer_shapes,
    fold_norms,
    is_folded,
    parameter_shapes,
    preprocess,
)
