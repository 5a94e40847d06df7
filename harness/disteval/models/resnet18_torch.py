"""ResNet-18 in torch, with torchvision's parameter names."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from disteval.errors import WeightsError
from disteval.models.resnet18 import BLOCKS, NUM_CLASSES, OFFSET, SCALE, fold_norms, is_folded

MOST_POSITIONS = 2
"""The height and width up to which each output of a 3x3 convolution depends on every position."""

_ROWS = 16
"""The number of rows of which each product has a multiple.

Libraries compute some rows at a time, at most 16, and what is left over by another order of sums;
so without this a row's bits would depend on its place, and on the number of threads.
"""


class ProductConv2d(nn.Module):  # type: ignore[misc]
    """A convolution that is a matrix product where its input has one height and width.

    Of the products of a 3x3 convolution, 20 of 36 are with padding if there are 2x2 positions, and
    8 of 9 if there is one; and before each batch a library brings the kernel, which is large in
    such layers, into the order in which it convolves larger pictures. Here a sample is a vector of
    all its positions and channels, which needs no copy in the memory format channels last, and the
    matrix has the weights without those that meet padding. Scores change by rounding only.

    Args:
        conv: The convolution, of squares and with a bias. It computes inputs of other sizes.
        size: The height and width of the input.
    """

    def __init__(self, conv: nn.Conv2d, size: int) -> None:
        super().__init__()
        self.conv, self.size = conv, size
        (kernel, _), (stride, _), (padding, _) = conv.kernel_size, conv.stride, conv.padding
        self.side = (size + 2 * padding - kernel) // stride + 1
        # With a kernel of 1x1 and a stride of 2, positions beyond these have no weight.
        self.read = min(size, (self.side - 1) * stride - padding + kernel)
        weight = conv.weight.detach()
        outputs = (self.side, self.side, weight.shape[0])
        inputs = (self.read, self.read, weight.shape[1])
        matrix = weight.new_zeros((*outputs, *inputs))
        for row in range(self.side):
            rows, kernel_rows = self._overlap(row * stride - padding, kernel)
            for column in range(self.side):
                columns, kernel_columns = self._overlap(column * stride - padding, kernel)
                met = weight[:, :, kernel_rows, kernel_columns]
                matrix[row, column, :, rows, columns] = met.permute(0, 2, 3, 1)
        self.matrix = matrix.reshape(prod(outputs), prod(inputs))
        self.bias = conv.bias.detach().repeat(self.side**2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (N, inputs, H, W) to (N, channels, H / stride, W / stride)."""
        if x.shape[2:] != (self.size, self.size):
            return self.conv(x)
        vectors = x[:, :, : self.read, : self.read].permute(0, 2, 3, 1).flatten(1)
        missing = -len(x) % _ROWS
        if missing:
            vectors = functional.pad(vectors, (0, 0, 0, missing))
        found = functional.linear(vectors, self.matrix, self.bias)[: len(x)]
        return found.unflatten(1, (self.side, self.side, -1)).permute(0, 3, 1, 2)

    def _overlap(self, first: int, kernel: int) -> tuple[slice, slice]:
        """Return the positions under a kernel that begins at ``first``, and its weights there."""
        start, stop = max(first, 0), min(first + kernel, self.read)
        return slice(start, stop), slice(start - first, stop - first)


_SLICE = 128
"""The most rows of a slice: larger ones are hardly faster, and a short batch fills one up."""


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
        return torch.relu_(self.bn2(self.conv2(x)).add_(shortcut))


class ResNet18(nn.Module):  # type: ignore[misc]
    """The 18-layer residual network of He et al. (2015).

    Args:
        num_classes: The number of classes, which is the number of scores for each picture.
        folded: Whether there are no batch normalisations, see `fold_norms`.
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
        x = torch.relu_(self.maxpool(self.bn1(self.conv1(x))))  # equal, and of fewer values
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
    """Normalise uint8 pictures (N, 3, H, W) on their device, as `resnet18.preprocess` does."""
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
        ``dtype``, on the device. On a CPU it is a `SlicedPredict`, unless it is exact.

    On a GPU, this process computes its convolutions without TF32 from here on
    (``torch.backends.cudnn.allow_tf32 = False``). TF32 is torch's default, and has ten bits: an
    H200 then got 7,958 of the 10,000 embedded pictures right and 7,956 in batches of 1,000, and
    without it 7,960 as a CPU does, in batches of every size that was tried.
    """
    target = torch.device(device)
    if target.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False
    kind = getattr(torch, dtype)
    weights = weights if exact else fold_norms(weights)
    model = build(weights)
    model = model.to(target, kind, memory_format=torch.channels_last)
    staging = _Staging(target) if target.type == "cuda" else None
    if target.type == "cpu" and is_folded(weights):
        return SlicedPredict(use_products(model), kind)

    def predict(images: npt.NDArray[np.uint8]) -> Any:
        with torch.inference_mode():
            raw = torch.from_numpy(images)
            batch = preprocess(raw if staging is None else staging.send(raw))
            return model(batch.to(kind, memory_format=torch.channels_last))

    return predict


class SlicedPredict:
    """The folded network on a CPU, which computes a batch in slices of one shape.

    Rows are added to the last slice if it has fewer. A picture's scores have the same bits at every
    place of every batch of one size: each layer computes a slice by the same code whichever
    pictures are in it, convolutions compute each picture by itself, and `ProductConv2d` says why a
    row of a product does not depend on its place. A shorter batch has the same bits too if it holds
    whole slices, since it is cut into equal ones.

    Args:
        model: The network, see `use_products`.
        kind: The data type in which it computes.
    """

    def __init__(self, model: nn.Module, kind: torch.dtype) -> None:
        self._model, self._kind = model, kind

    def __call__(self, images: npt.NDArray[np.uint8]) -> Any:
        """Return the scores of pictures of shape (N, 3, 32, 32)."""
        with torch.inference_mode():
            slices = list(torch.from_numpy(images).split(self.slice_rows(len(images))))
            missing = len(slices[0]) - len(slices[-1])
            if missing:
                slices[-1] = functional.pad(slices[-1], (0, 0) * 3 + (0, missing))
            form = torch.channels_last
            batches = (preprocess(each).to(self._kind, memory_format=form) for each in slices)
            return torch.cat([self._model(batch) for batch in batches])[: len(images)]

    @staticmethod
    def slice_rows(rows: int) -> int:
        """Return the number of rows of a slice, of which a batch of so many rows is cut into few.

        A batch of some such slices has slices of the same number of rows.
        """
        return -(-rows // max(1, -(-rows // _SLICE)))


def use_products(model: ResNet18, size: int = 32) -> ResNet18:
    """Compute convolutions of at most 2x2 positions as matrix products, and return the network.

    The matrices take 18 MB in float32 beside the weights, which stay for pictures of other sizes.

    Args:
        model: The network, folded.
        size: The height and width of its pictures.
    """
    size = -(-size // 4)  # after the first convolution and the pooling
    for name, _, stride in BLOCKS:
        block = model.get_submodule(name)
        if size <= MOST_POSITIONS:
            block.conv1 = ProductConv2d(block.conv1, size)
            if block.downsample is not None:
                block.downsample[0] = ProductConv2d(block.downsample[0], size)
        size = -(-size // stride)
        if size <= MOST_POSITIONS:
            block.conv2 = ProductConv2d(block.conv2, size)
    return model


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
