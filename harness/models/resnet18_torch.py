"""ResNet-18 in torch, with torchvision's parameter names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from harness.models.preprocess import OFFSET, SCALE
from harness.models.resnet18 import NUM_CLASSES, STAGES


class BasicBlock(nn.Module):  # type: ignore[misc]
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != channels:
            shortcut = nn.Conv2d(inputs, channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (N, inputs, H, W) to (N, channels, H / stride, W / stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = torch.relu_(self.bn1(self.conv1(x)))
        return torch.relu_(self.bn2(self.conv2(x)) + shortcut)


class ResNet18(nn.Module):  # type: ignore[misc]
    """The 18-layer residual network of He et al. (2015)."""

    def __init__(self, num_classes: int = NUM_CLASSES) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        inputs = 64
        for stage, (channels, stride) in enumerate(STAGES, start=1):
            blocks = BasicBlock(inputs, channels, stride), BasicBlock(channels, channels, 1)
            setattr(self, f"layer{stage}", nn.Sequential(*blocks))
            inputs = channels
        self.fc = nn.Linear(inputs, num_classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Map pictures (N, 3, H, W) to what the last layer takes, (N, 512)."""
        x = self.maxpool(torch.relu_(self.bn1(self.conv1(x))))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return x.mean(dim=(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map pictures (N, 3, H, W) to scores (N, num_classes)."""
        return self.fc(self.features(x))


def build(weights: Mapping[str, npt.NDArray[np.float32]]) -> Any:
    """Build the network with these weights, ready to evaluate."""
    model = ResNet18()
    state = {name: torch.from_numpy(array) for name, array in weights.items()}
    # Only num_batches_tracked may be missing, which evaluation has no use for.
    missing, unexpected = model.load_state_dict(state, strict=False)
    wrong = [name for name in missing if not name.endswith("num_batches_tracked")] + unexpected
    if wrong:
        raise ValueError(f"these weights do not fit ResNet-18: {', '.join(wrong)}")
    return model.eval()


def preprocess(images: torch.Tensor) -> torch.Tensor:
    """Normalise uint8 pictures (N, 3, H, W) on their device, as `preprocess.preprocess` does."""
    offset, scale = (
        torch.from_numpy(values).to(images.device)[:, None, None] for values in (OFFSET, SCALE)
    )
    return images.float().sub_(offset).mul_(scale)


def make_predict(
    weights: Mapping[str, npt.NDArray[np.float32]], device: str = "cpu"
) -> Callable[[npt.NDArray[np.uint8]], torch.Tensor]:
    """Build the function that `harness.evaluate` calls for each batch.

    Args:
        weights: As of `harness.models.default_weights` or `harness.models.load_weights`.
        device: Where the network runs, for example ``cpu`` or ``cuda:0``.

    Returns:
        A function of uint8 pictures of shape (N, 3, 32, 32) to float32 scores of shape (N, 10) on
        the device.
    """
    target = torch.device(device)
    model = build(weights).to(target, memory_format=torch.channels_last)

    def predict(images: npt.NDArray[np.uint8]) -> Any:
        with torch.inference_mode():
            batch = preprocess(torch.from_numpy(images).to(target))
            return model(batch.contiguous(memory_format=torch.channels_last))

    return predict
