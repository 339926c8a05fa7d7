"""What the layers of modules.py do at a call: choose between our kernels and PyTorch's, and run on the chosen."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Proxy

from pullback.torch import functional
from pullback.torch.adaptive import output_sizes, why_mean_left, why_unequal
from pullback.torch.arrays import layout_of, untraced
from pullback.torch.autograd import is_plain
from pullback.torch.choice import conv_outputs, conv_reason, conv_unsuitable, pool_reason, unsuitable
from pullback.torch.mixed import mixed_conv
from pullback.torch.taking import with_calls
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
        """`forward` where it was chosen to run; what PyTorch's calls within is its own, whatever the model around it takes."""
        return with_calls(False, self._run, input, *more)

    def _run(self: Any, input: torch.Tensor, *more: Any) -> Any:
        if not isinstance(input, Proxy):
            reason, ops = _choice(self, input)
            if reason is None and not _for_onnx():
                return self.ours(input, ops, *more)
        elif self is not input.tracer.root:  # in torch.fx's graph it is one node, as PyTorch's own layers are
            return input.tracer.create_proxy("call_module", input.tracer.path_of_module(self), (input, *more), {})
        theirs: Any = super()
        return theirs.forward(input, *more)

    def __prepare_scriptable__(self) -> Any:
        """Asked by torch.jit.script, before it reads the source of `forward`."""
        raise RuntimeError("torch.jit.script knows PyTorch's own layers only: call pullback.torch.restore(model) first")


@untraced
def _choice(layer: Accelerated, input: torch.Tensor) -> Choice:
    return layer.choose(input)


def _for_onnx() -> bool:
    """Whether PyTorch traces for ONNX, which has PyTorch's ops only."""
    traces = torch._C._get_tracing_state() is not None or torch.compiler.is_compiling()
    return traces and bool(torch.onnx.is_in_onnx_export())


class ConvLayer(Accelerated):
    def cannot(self: Any, input: torch.Tensor) -> str | None:
        if self.padding_mode != "zeros":
            return f"padding_mode={self.padding_mode!r} is PyTorch's alone"
        return conv_unsuitable(input, self.spatial_rank, self.weight, self.bias)

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


class ConvTransposeLayer(ConvLayer):
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


class PoolLayer(Accelerated):
    def loses(self: Any, input: torch.Tensor) -> str | None:
        return pool_reason(input)


class MaxPoolLayer(PoolLayer):
    def ours(self: Any, input: torch.Tensor, ops: frozenset[str] | None, *more: Any) -> Any:
        pool = MAXES[self.spatial_rank]
        return pool(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )  # fmt: skip


class AvgPoolLayer(PoolLayer):
    def ours(self: Any, input: torch.Tensor, ops: frozenset[str] | None, *more: Any) -> torch.Tensor:
        pool, divisor = MEANS[self.spatial_rank], getattr(self, "divisor_override", None)  # PyTorch's has none along one axis
        return pool(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad, divisor)


class _Adaptive(PoolLayer):
    def outputs(self: Any, input: torch.Tensor) -> tuple[int, ...]:
        return output_sizes(type(self).__name__, input.shape[-self.spatial_rank :], self.output_size)

    def cannot(self: Any, input: torch.Tensor) -> str | None:
        refused = unsuitable(input, self.spatial_rank)
        if refused is not None or torch.compiler.is_compiling():
            return refused or "its windows would hold for one size only, while torch.compile may leave sizes open"
        left: str | None = self.why_left(input, self.outputs(input))
        return left

    def why_left(self, input: torch.Tensor, outputs: tuple[int, ...]) -> str | None:
        return why_unequal(input.shape[-len(outputs) :], outputs)

    def run(self: Any, input: torch.Tensor, *more: Any) -> Any:
        if torch.jit.is_tracing():  # a trace of ours would hold for one size only
            theirs: Any = super(Accelerated, self)
            return with_calls(False, theirs.forward, input)
        return super().run(input)


class AdaptiveMaxPoolLayer(_Adaptive):
    def ours(self: Any, input: torch.Tensor, ops: frozenset[str] | None, *more: Any) -> Any:
        return ADAPTIVE_MAXES[self.spatial_rank](input, self.output_size, self.return_indices)


class AdaptiveAvgPoolLayer(_Adaptive):
    def why_left(self, input: torch.Tensor, outputs: tuple[int, ...]) -> str | None:
        return why_mean_left(input, outputs)

    def ours(self: Any, input: torch.Tensor, ops: frozenset[str] | None, *more: Any) -> torch.Tensor:
        return ADAPTIVE_MEANS[self.spatial_rank](input, self.output_size)


CONVS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
MAXES = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
MEANS = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}
ADAPTIVE_MAXES = {1: functional.adaptive_max_pool1d, 2: functional.adaptive_max_pool2d, 3: functional.adaptive_max_pool3d}
ADAPTIVE_MEANS = {1: functional.adaptive_avg_pool1d, 2: functional.adaptive_avg_pool2d, 3: functional.adaptive_avg_pool3d}
