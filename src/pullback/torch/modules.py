"""Layers that run on our kernels where these are expected to win, and on PyTorch's elsewhere.

Each is a subclass of PyTorch's layer without any state of its own, so that `accelerate` can turn one into the other in place. All
of PyTorch's keep their arguments, parameters and state_dict.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pullback.torch import functional
from pullback.torch.choice import conv_outputs, conv_reason, pool_reason, unsuitable
from pullback.torch.mixed import mixed_conv
from pullback.torch.tuning import CHOICES, faster_ops, is_faster

MEASURED = "it was measured to be faster"


class Accelerated:
    """What the layers share: the choice between our kernels and PyTorch's."""

    def reason(self, input: torch.Tensor) -> str | None:
        """Why the rules leave this input to PyTorch; None if they do not."""
        raise NotImplementedError

    def ops_on_ours(self, input: torch.Tensor) -> frozenset[str] | None:
        """The ops of a layer that were timed one by one and go to our kernels; None where it goes there as a whole or not."""
        return None

    def left_to_torch(self, input: torch.Tensor) -> str | None:
        """Why this input goes to PyTorch; None if it goes to our kernels. What was measured overrules what is expected."""
        refused = unsuitable(input)
        if refused is not None:
            return refused
        if CHOICES in self.__dict__ and not torch.is_autocast_enabled("cpu"):
            faster = is_faster(self, input)
            if faster is not None:
                return None if faster else MEASURED
        return self.reason(input)


class _Conv(Accelerated):
    def reason(self: Any, input: torch.Tensor) -> str | None:
        if self.padding_mode != "zeros":
            return f"padding_mode={self.padding_mode!r} is PyTorch's alone"
        rank = len(self.kernel_size)
        return conv_reason(input, self.weight, conv_outputs(input, self.stride, rank), self.groups)

    def ops_on_ours(self: Any, input: torch.Tensor) -> frozenset[str] | None:
        """The ops of this convolution that were measured to be faster on our kernels; None where none were timed one by one."""
        if CHOICES not in self.__dict__ or self.padding_mode != "zeros" or torch.is_autocast_enabled("cpu"):
            return None
        if input.dim() != len(self.kernel_size) + 2 or self.weight.dtype != input.dtype or unsuitable(input) is not None:
            return None
        keywords = functional.conv_keywords(input, self.weight, self.stride, self.padding, self.dilation, self.groups)
        return faster_ops(self, input, keywords)

    def left_to_torch(self: Any, input: torch.Tensor) -> str | None:
        ours = self.ops_on_ours(input)
        if ours is None:
            return super().left_to_torch(input)
        return None if ours else MEASURED

    def _conv_forward(self: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ours = self.ops_on_ours(input)
        if ours:
            keywords = functional.conv_keywords(input, weight, self.stride, self.padding, self.dilation, self.groups)
            return functional.add_bias(mixed_conv(ours, input, weight, keywords), bias)
        if ours is not None or self.left_to_torch(input) is not None:
            theirs: Any = super()
            result: torch.Tensor = theirs._conv_forward(input, weight, bias)
            return result
        conv = CONVS[len(self.kernel_size)]
        return conv(input, weight, bias, self.stride, self.padding, self.dilation, self.groups)


class _ConvTranspose(Accelerated):
    def reason(self: Any, input: torch.Tensor) -> str | None:
        return conv_reason(input, self.weight, conv_outputs(input, (1,), len(self.kernel_size)), self.groups)

    def forward(self: Any, input: torch.Tensor, output_size: list[int] | None = None) -> torch.Tensor:
        if self.left_to_torch(input) is not None:
            theirs: Any = super()
            result: torch.Tensor = theirs.forward(input, output_size)
            return result
        rank = len(self.kernel_size)
        extra = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, rank, self.dilation
        )  # fmt: skip
        conv = TRANSPOSED[rank]
        return conv(input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)


class _Pool(Accelerated):
    rank = 0

    def reason(self: Any, input: torch.Tensor) -> str | None:
        if getattr(self, "divisor_override", None) is not None:
            return "divisor_override is PyTorch's alone"
        return pool_reason(input)

    def forward(self: Any, input: torch.Tensor) -> Any:
        if self.left_to_torch(input) is not None:
            theirs: Any = super()
            return theirs.forward(input)
        return self._pool(input)


class _MaxPool(_Pool):
    def _pool(self: Any, input: torch.Tensor) -> Any:
        pool = MAXES[self.rank]
        return pool(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )  # fmt: skip


class _AvgPool(_Pool):
    def _pool(self: Any, input: torch.Tensor) -> Any:
        pool = MEANS[self.rank]
        return pool(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)


CONVS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
MAXES = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
MEANS = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


class Conv1d(_Conv, nn.Conv1d):
    """torch.nn.Conv1d on our kernels."""


class Conv2d(_Conv, nn.Conv2d):
    """torch.nn.Conv2d on our kernels."""


class Conv3d(_Conv, nn.Conv3d):
    """torch.nn.Conv3d on our kernels."""


class ConvTranspose1d(_ConvTranspose, nn.ConvTranspose1d):
    """torch.nn.ConvTranspose1d on our kernels."""


class ConvTranspose2d(_ConvTranspose, nn.ConvTranspose2d):
    """torch.nn.ConvTranspose2d on our kernels."""


class ConvTranspose3d(_ConvTranspose, nn.ConvTranspose3d):
    """torch.nn.ConvTranspose3d on our kernels."""


class MaxPool1d(_MaxPool, nn.MaxPool1d):
    """torch.nn.MaxPool1d on our kernels."""

    rank = 1


class MaxPool2d(_MaxPool, nn.MaxPool2d):
    """torch.nn.MaxPool2d on our kernels."""

    rank = 2


class MaxPool3d(_MaxPool, nn.MaxPool3d):
    """torch.nn.MaxPool3d on our kernels."""

    rank = 3


class AvgPool1d(_AvgPool, nn.AvgPool1d):
    """torch.nn.AvgPool1d on our kernels."""

    rank = 1


class AvgPool2d(_AvgPool, nn.AvgPool2d):
    """torch.nn.AvgPool2d on our kernels."""

    rank = 2


class AvgPool3d(_AvgPool, nn.AvgPool3d):
    """torch.nn.AvgPool3d on our kernels."""

    rank = 3


_OURS = (
    Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d,
    MaxPool1d, MaxPool2d, MaxPool3d, AvgPool1d, AvgPool2d, AvgPool3d,
)  # fmt: skip
SWAPS: dict[type[nn.Module], type[nn.Module]] = {getattr(nn, ours.__name__): ours for ours in _OURS}
BACK: dict[type[nn.Module], type[nn.Module]] = {ours: theirs for theirs, ours in SWAPS.items()}
