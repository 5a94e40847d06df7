"""A stand-in for torchvision, whose wheels fit one version of torch each.

It has the one function that torchmetrics' ``MeanAveragePrecision`` takes from it.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest


def box_convert(boxes: Any, in_fmt: str, out_fmt: str) -> Any:
    """Return boxes by their corners as boxes by a corner and their size."""
    import torch

    assert (in_fmt, out_fmt) == ("xyxy", "xywh")
    return torch.cat([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1)


def stand_in(patch: pytest.MonkeyPatch | None = None) -> None:
    """Have torchmetrics find this module in the place of ``torchvision.ops``."""
    from torchmetrics.detection import mean_ap

    patch = patch or pytest.MonkeyPatch()
    patch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    patch.setitem(sys.modules, "torchvision.ops", sys.modules[__name__])
    patch.setattr(mean_ap, "_TORCHVISION_AVAILABLE", True)
