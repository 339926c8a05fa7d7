"""Layers that run on our kernels where these are expected to win, and on PyTorch's elsewhere.

Each is a subclass of PyTorch's layer without any state of its own, so that `accelerate` can turn one into the other in place. All
of PyTorch's keep their arguments, parameters and state_dict.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.fx import Proxy

from pullback.torch import functional
from pullback.torch.arrays import layout_of, untraced
from pullback.torch.autograd import is_plain
from pullback.torch.choice import conv_outputs, conv_reason, pool_reason, unsuitable
from pullback.torch.mixed import mixed_conv
from pullback.torch.tuning import CHOICES, faster_ops, is_faster

MEASURED = "it was measured to be faster"
Choice = tuple[str | None, frozenset[str] | None]


class Accelerated:
    """What the layers share: the choice between our kernels and PyTorch's."""

    spatial_rank = 0

    def cannot(self, input: torch.Tensor) -> str | None:
        """Why our kernels cannot do what the layer asks, which nothing overrules; None if they can."""
        return unsuitable(input, self.spatial_rank)

    def loses(self, input: torch.Tensor) -> str | None:
        """Why our kernels are expected to lose; None if they are not."""
        raise NotImplementedError

    def ours(self, input: torch.Tensor, ops: frozenset[str] | None, *more: Any) -> Any:
        """The layer on our kernels, or of a convolution these ops."""
        raise NotImplementedError

    def choose(self, input: torch.Tensor) -> Choice:
        """Why this input goes to PyTorch, None if it does not; and which ops go to our kernels, if these were timed one by one."""
        refused = self.cannot(input)
        if refused is not None:
            return refused, None
        if CHOICES in self.__dict__:
            faster = is_faster(self, input)
            if faster is not None:
                return (None if faster else MEASURED), None
        return self.loses(input), None

    def forward(self: Any, input: torch.Tensor) -> Any:
        return self.run(input)

    def run(self: Any, input: torch.Tensor, *more: Any) -> Any:
        """`forward` where it was chosen to run."""
        if not isinstance(input, Proxy):
            reason, ops = _choice(self, input)
            if reason is None:
                return self.ours(input, ops, *more)
        elif self is not input.tracer.root:  # in torch.fx's graph it is one node, as PyTorch's own layers are
            return input.tracer.create_proxy("call_module", input.tracer.path_of_module(self), (input, *more), {})
        theirs: Any = super()
        return theirs.forward(input, *more)


@untraced
def _choice(layer: Accelerated, input: torch.Tensor) -> Choice:
    return layer.choose(input)


class _Conv(Accelerated):
    def cannot(self: Any, input: torch.Tensor) -> str | None:
        if self.padding_mode != "zeros":
            return f"padding_mode={self.padding_mode!r} is PyTorch's alone"
        if torch.is_autocast_enabled("cpu"):
            return "under autocast PyTorch uses instructions of the CPU's that ours do without"
        return unsuitable(input, self.spatial_rank, self.weight, self.bias)

    def loses(self: Any, input: torch.Tensor) -> str | None:
        return conv_reason(input, self.weight, conv_outputs(input, self.stride, self.spatial_rank), self.groups)

    def choose(self: Any, input: torch.Tensor) -> Choice:
        if CHOICES in self.__dict__ and input.dim() == self.spatial_rank + 2 and self.cannot(input) is None:
            ops = faster_ops(self, input, self._keywords(input))
            if ops is not None:
                return (None if ops else MEASURED), ops
        return super().choose(input)

    def _keywords(self: Any, input: torch.Tensor) -> dict[str, Any]:
        given = functional.conv_keywords(
            f"conv{self.spatial_rank}d", self.weight, self.stride, self.padding, self.dilation, self.groups
        )  # fmt: skip
        return {**given, "layout": layout_of(input, self.weight)}

    def ours(self: Any, input: torch.Tensor, ops: frozenset[str] | None, *more: Any) -> torch.Tensor:
        if ops is not None and is_plain((input, self.weight)):
            return functional.add_bias(mixed_conv(ops, input, self.weight, self._keywords(input)), self.bias)
        conv = CONVS[self.spatial_rank]
        return conv(input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class _ConvTranspose(_Conv):
    def loses(self: Any, input: torch.Tensor) -> str | None:
        return conv_reason(input, self.weight, conv_outputs(input, 1, self.spatial_rank), self.groups)

    def choose(self: Any, input: torch.Tensor) -> Choice:
        return Accelerated.choose(self, input)

    def forward(self: Any, input: torch.Tensor, output_size: list[int] | None = None) -> Any:
        return self.run(input) if output_size is None else self.run(input, output_size)

    def ours(
        self: Any, input: torch.Tensor, ops: frozenset[str] | None, output_size: list[int] | None = None
    ) -> torch.Tensor:  # fmt: skip
        extra = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, self.spatial_rank, self.dilation
        )  # fmt: skip
        conv = TRANSPOSED[self.spatial_rank]
        return conv(input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)


class _Pool(Accelerated):
    def loses(self: Any, input: torch.Tensor) -> str | None:
        return pool_reason(input)


class _MaxPool(_Pool):
    def ours(self: Any, input: torch.Tensor, ops: frozenset[str] | None, *more: Any) -> Any:
        pool = MAXES[self.spatial_rank]
        return pool(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )  # fmt: skip


class _AvgPool(_Pool):
    def ours(self: Any, input: torch.Tensor, ops: frozenset[str] | None, *more: Any) -> torch.Tensor:
        pool, divisor = MEANS[self.spatial_rank], getattr(self, "divisor_override", None)  # PyTorch's has none along one axis
        return pool(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad, divisor)


CONVS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
MAXES = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
MEANS = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


class Conv1d(_Conv, nn.Conv1d):
    """torch.nn.Conv1d on our kernels."""

    spatial_rank = 1


class Conv2d(_Conv, nn.Conv2d):
    """torch.nn.Conv2d on our kernels."""

    spatial_rank = 2


class Conv3d(_Conv, nn.Conv3d):
    """torch.nn.Conv3d on our kernels."""

    spatial_rank = 3


class ConvTranspose1d(_ConvTranspose, nn.ConvTranspose1d):
    """torch.nn.ConvTranspose1d on our kernels."""

    spatial_rank = 1


class ConvTranspose2d(_ConvTranspose, nn.ConvTranspose2d):
    """torch.nn.ConvTranspose2d on our kernels."""

    spatial_rank = 2


class ConvTranspose3d(_ConvTranspose, nn.ConvTranspose3d):
    """torch.nn.ConvTranspose3d on our kernels."""

    spatial_rank = 3


class MaxPool1d(_MaxPool, nn.MaxPool1d):
    """torch.nn.MaxPool1d on our kernels."""

    spatial_rank = 1


class MaxPool2d(_MaxPool, nn.MaxPool2d):
    """torch.nn.MaxPool2d on our kernels."""

    spatial_rank = 2


class MaxPool3d(_MaxPool, nn.MaxPool3d):
    """torch.nn.MaxPool3d on our kernels."""

    spatial_rank = 3


class AvgPool1d(_AvgPool, nn.AvgPool1d):
    """torch.nn.AvgPool1d on our kernels."""

    spatial_rank = 1


class AvgPool2d(_AvgPool, nn.AvgPool2d):
    """torch.nn.AvgPool2d on our kernels."""

    spatial_rank = 2


class AvgPool3d(_AvgPool, nn.AvgPool3d):
    """torch.nn.AvgPool3d on our kernels."""

    spatial_rank = 3


_OURS = (
    Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d,
    MaxPool1d, MaxPool2d, MaxPool3d, AvgPool1d, AvgPool2d, AvgPool3d,
)  # fmt: skip
SWAPS: dict[type[nn.Module], type[nn.Module]] = {getattr(nn, ours.__name__): ours for ours in _OURS}
BACK: dict[type[nn.Module], type[nn.Module]] = {ours: theirs for theirs, ours in SWAPS.items()}
