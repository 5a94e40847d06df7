"""ResNet-18 in torch, with torchvision's parameter names."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from disteval.errors import WeightsError
from disteval.models.folding import fold_norms, is_folded
from disteval.models.preprocess import OFFSET, SCALE
from disteval.models.resnet18 import BLOCKS, NUM_CLASSES


class BasicBlock(nn.Module):  # type: ignore[misc]
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, channels: int, stride: int, folded: bool = False) -> None:
        super().__init__()
        norm = nn.Identity if folded else nn.BatchNorm2d
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=folded)
        self.bn1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=folded)
        self.bn2 = norm(channels)
        self.downsample: nn.Module | None = None
        if inputs != channels:
            shortcut = nn.Conv2d(inputs, channels, 1, stride, bias=folded)
            self.downsample = nn.Sequential(shortcut, norm(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (N, inputs, H, W) to (N, channels, H / stride, W / stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = torch.relu_(self.bn1(self.conv1(x)))
        return torch.relu_(self.bn2(self.conv2(x)) + shortcut)


class ResNet18(nn.Module):  # type: ignore[misc]
    """The 18-layer residual network of He et al. (2015).

    Args:
        num_classes: The number of classes, which is the number of scores for each picture.
        folded: Whether there are no batch normalisations, see `disteval.models.folding.fold_norms`.
    """

    def __init__(self, num_classes: int = NUM_CLASSES, *, folded: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=folded)
        self.bn1 = nn.Identity() if folded else nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        for stage in (1, 2, 3, 4):
            setattr(self, f"layer{stage}", nn.Sequential())
        inputs = 64
        for name, channels, stride in BLOCKS:
            stage_name = name.partition(".")[0]
            getattr(self, stage_name).append(BasicBlock(inputs, channels, stride, folded))
            inputs = channels
        self.fc = nn.Linear(inputs, num_classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Map pictures (N, 3, H, W) to the features that the last layer takes, (N, 512)."""
        x = self.maxpool(torch.relu_(self.bn1(self.conv1(x))))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return x.mean(dim=(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map pictures (N, 3, H, W) to scores (N, num_classes)."""
        return self.fc(self.features(x))


def build(weights: Mapping[str, npt.NDArray[np.float32]]) -> Any:
    """Build the network with these weights, folded or not, in evaluation mode.

    Raises:
        WeightsError: A weight is missing, or is not one of the network's.
    """
    model = ResNet18(folded=is_folded(weights))
    state = {name: torch.from_numpy(array) for name, array in weights.items()}
    # Only num_batches_tracked may be missing, which evaluation does not use.
    missing, unexpected = model.load_state_dict(state, strict=False)
    wrong = [name for name in missing if not name.endswith("num_batches_tracked")] + unexpected
    if wrong:
        raise WeightsError(
            f"these weights do not fit ResNet-18: {', '.join(wrong)}; give those of "
            f"disteval.models.default_weights or load_weights"
        )
    return model.eval()


def preprocess(images: torch.Tensor) -> torch.Tensor:
    """Normalise uint8 pictures (N, 3, H, W) on their device, as `preprocess.preprocess` does."""
    offset, scale = (
        torch.from_numpy(values).to(images.device)[:, None, None] for values in (OFFSET, SCALE)
    )
    return images.float().sub_(offset).mul_(scale)


def make_predict(
    weights: Mapping[str, npt.NDArray[np.float32]],
    device: str = "cpu",
    *,
    exact: bool = False,
    dtype: Literal["float32", "bfloat16"] = "float32",
) -> Callable[[npt.NDArray[np.uint8]], torch.Tensor]:
    """Build the function that `disteval.evaluate` calls for each batch.

    Args:
        weights: The weights, from `default_weights` or `load_weights` of `disteval.models`.
        device: The device that computes the network, for example ``cpu`` or ``cuda:0``.
        exact: Whether to compute batch normalisations instead of folding them, see `fold_norms`.
        dtype: The number format that the network computes in.

    Returns:
        A function of uint8 pictures of shape (N, 3, 32, 32) to scores of shape (N, 10), of
        ``dtype``, on the device.
    """
    target = torch.device(device)
    kind = getattr(torch, dtype)
    model = build(weights if exact else fold_norms(weights))
    model = model.to(target, kind, memory_format=torch.channels_last)
    staging = _Staging(target) if target.type == "cuda" else None

    def predict(images: npt.NDArray[np.uint8]) -> Any:
        with torch.inference_mode():
            raw = torch.from_numpy(images)
            batch = preprocess(raw if staging is None else staging.send(raw))
            return model(batch.to(kind, memory_format=torch.channels_last))

    return predict


class _Staging:
    """Two page-locked buffers: one batch is copied to the GPU while the last one is computed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._slots: deque[tuple[torch.Tensor, torch.cuda.Event]] = deque(maxlen=2)

    def send(self, images: torch.Tensor) -> torch.Tensor:
        """Copy pictures to the device, in order with the work that is queued there."""
        if len(self._slots) == 2 and self._slots[0][0].shape == images.shape:
            buffer, sent = self._slots.popleft()
            sent.synchronize()  # the copy of the pictures in it has ended
        else:
            buffer = torch.empty(images.shape, dtype=images.dtype, pin_memory=True)
            sent = torch.cuda.Event()
        buffer.copy_(images)
        found = buffer.to(self._device, non_blocking=True)
        sent.record(torch.cuda.current_stream(self._device))
        self._slots.append((buffer, sent))
        return found
