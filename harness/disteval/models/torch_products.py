"""Convolutions of a few positions as matrix products, which a CPU computes sooner."""

from __future__ import annotations

from math import prod

import torch
from torch import nn
from torch.nn import functional

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
