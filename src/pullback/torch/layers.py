"""What the layers of modules.py do at a call: choose between our kernels and PyTorch's, and run on the chosen."""

from __future__ import annotations

from typing import Any

import torch
from torch import get_autocast_dtype, is_autocast_enabled
from torch.compiler import is_compiling
from torch.fx import Proxy

from pullback.settings import what_is_set
from pullback.torch import functional, gpu_layers
from pullback.torch.adaptive import output_sizes, why_mean_left, why_unequal
from pullback.torch.arguments import autocast
from pullback.torch.arrays import layout_of, untraced
from pullback.torch.autograd import is_plain
from pullback.torch.choice import (
    DTYPES,
    computed_dtype,
    conv_outputs,
    conv_reason,
    conv_tiny,
    conv_unsuitable,
    pool_reason,
    pool_tiny,
    unsuitable,
)
from pullback.torch.choices import CHOICES, UNKNOWN, Key, can_measure, is_paused, key_of, ops_wanted
from pullback.torch.conv_calls import ConvCall
from pullback.torch.gpu_layers import GPU_PLANS, GpuPlans, ready
from pullback.torch.measuring import Turn
from pullback.torch.mixed import MIXED_OPS, mixed_conv, mixed_ops, torch_can
from pullback.torch.on_gpu import THEIRS, conv_kernels, pool_kernels
from pullback.torch.pending import Pending
from pullback.torch.pooling import pool_keywords
from pullback.torch.replayed import is_replayed
from pullback.torch.taking import with_calls, without_calls

CUDNN = "on a GPU cuDNN has it"
# Multiplications of a convolution, and elements of a pooled input, from which on a GPU saves more time than the Python of our call
# takes: a network whose layers are smaller waits for the CPU.
GPU_SMALL_WORK, GPU_SMALL_POOL = 1 << 28, 1 << 22
GPU_SMALL = "it is so small for a GPU that the call would cost more than it saves"
NO_OPS: frozenset[str] = frozenset()


class Accelerated:
    """What the layers share: the choice between our kernels and PyTorch's.

    A layer says why our kernels cannot do a call (`cannot`), why measuring one does not pay (`tiny`), what the rules expect
    (`loses`), and runs on them (`ours`). That is all that measuring needs: forward and backward pass are timed as a whole, and go
    one way together. A layer whose ops can be mixed says which there are (`ops_of`) and times them where `ours` gets a Turn.
    """

    spatial_rank = 0
    has_modes = False  # whether train() and eval() make a difference to what it computes

    def cannot(self, input: torch.Tensor) -> str | None:
        """Why our kernels cannot do what the layer asks, which nothing overrules; None if they can."""
        return unsuitable(input, self.spatial_rank)

    def tiny(self, input: torch.Tensor) -> str | None:
        """Why our kernels lose surely, so that nothing need be measured; None if they may win."""
        return self.loses(input)

    def loses(self, input: torch.Tensor) -> str | None:
        """Why our kernels are expected to lose, where nothing is measured; None if they are not."""
        raise NotImplementedError

    def ops_of(self, input: torch.Tensor) -> tuple[tuple[str, ...], bool]:
        """The ops that a step with this input takes, and whether each can go its own way."""
        return ops_wanted(self, input), False

    def ours(self, input: torch.Tensor, way: frozenset[str] | Turn | None, *more: Any) -> Any:
        """The layer on our kernels; where its ops can be mixed, those that `way` names, or those of this turn."""
        raise NotImplementedError

    def forward(self: Any, input: torch.Tensor, *more: Any) -> Any:
        """On the kernels that are chosen. What PyTorch's forward calls is its own, whatever the model around it takes."""
        if type(input) is Pending:
            return self.forward(input.plain(), *more)
        if type(input) is torch.Tensor and input.is_cuda and not is_compiling():
            return self.forward_on_gpu(input, *more)
        if is_compiling() and isinstance(input, torch.Tensor) and input.is_cuda:  # it has kernels of its own to fuse
            theirs: Any = super()
            return theirs.forward(input, *more)
        choices = self.__dict__.get(CHOICES)
        if (
            choices is not None
            and not is_compiling()
            and choices.steps.looks_at(self)
            and type(input) is torch.Tensor
            and not is_paused()
            and can_measure(input)
        ):
            return choices.steps.call(self, choices, key_of(self, input), input, *more)
        return self.settled(input, *more)

    def forward_on_gpu(self: Any, input: torch.Tensor, *more: Any) -> Any:
        """By the lists of the cuda backend, which are asked once for each kind of input."""
        auto = is_autocast_enabled("cuda") and get_autocast_dtype("cuda")
        key = (input.shape, input.stride(), input.dtype, auto, what_is_set(), is_replayed(), self.gpu_key())
        plans = self.__dict__.get(GPU_PLANS)
        if plans is None:
            plans = self.__dict__[GPU_PLANS] = GpuPlans()
        plan = plans.get(key, UNKNOWN)
        if plan is UNKNOWN:
            plan = plans.keep(key, self.gpu_plan(input, *more) if self.why_left(input) is None else None)
        if plan is None or not ready(input):
            theirs: Any = super()
            return without_calls(theirs.forward, input, *more)
        return without_calls(self.run_gpu_plan, plan, input)

    def gpu_key(self: Any) -> Any:
        """What a plan depends on beside the input."""
        return None

    def gpu_plan(self: Any, input: torch.Tensor, *more: Any) -> Any:
        """What `run_gpu_plan` runs for such an input; None where it is PyTorch's."""
        return None

    def run_gpu_plan(self: Any, plan: Any, input: torch.Tensor) -> Any:
        raise NotImplementedError

    def plain(self: Any, input: torch.Tensor, *more: Any) -> Any:
        """PyTorch's own forward."""
        theirs: Any = super()
        return without_calls(theirs.forward, input, *more)

    def settled(self: Any, input: torch.Tensor, *more: Any) -> Any:
        """On the kernels that the layer has chosen, or in a turn of its trial."""
        choices = self.__dict__.get(CHOICES)
        if choices is not None and not is_compiling() and type(input) is torch.Tensor and input.is_cpu:
            theirs: Any = super()
            if input.shape in choices.tiny:
                return without_calls(theirs.forward, input, *more)
            key = key_of(self, input)
            way = choices.settled.get(key, UNKNOWN)
            if way is None:  # PyTorch's own forward is right wherever it is called
                return without_calls(theirs.forward, input, *more)
            if can_measure(input):
                way = choices.next(self, input, key) if way is UNKNOWN else way
                if way is None:
                    return without_calls(theirs.forward, input, *more)
                if type(way) is Turn:
                    return without_calls(self.take_turn, way, input, *more)
                return without_calls(self.ours_of_kind, key, input, way, *more)
        return with_calls(False, self._by_rules, input, *more)

    def ours_of_kind(self: Any, key: Key, input: torch.Tensor, way: frozenset[str] | Turn, *more: Any) -> Any:
        """`ours`, for an input of this kind."""
        return self.ours(input, way, *more)

    def take_turn(self: Any, turn: Turn, input: torch.Tensor, *more: Any) -> Any:
        """The layer in a turn of a trial."""
        theirs: Any = super()
        if turn.trial.separate:
            return turn.take(self.ours, input, turn, *more)
        way = None if turn.trial.chosen is None else turn.trial.chosen.ours
        return turn.take(self.ours, input, way, *more) if turn.ours else turn.take(theirs.forward, input, *more)

    def why_left(self, input: torch.Tensor) -> str | None:
        """Why the rules leave an input to PyTorch; None if they do not."""
        return self.cannot(input) or self.loses(input)

    def _by_rules(self: Any, input: torch.Tensor, *more: Any) -> Any:
        if not isinstance(input, Proxy):
            if _why_left(self, input) is None and not _for_onnx():
                return self.ours(input, None, *more)
        elif self is not input.tracer.root:  # in torch.fx's graph it is one node, as PyTorch's own layers are
            return input.tracer.create_proxy("call_module", input.tracer.path_of_module(self), (input, *more), {})
        theirs: Any = super()
        return theirs.forward(input, *more)

    def __prepare_scriptable__(self) -> Any:
        """Asked by torch.jit.script, before it reads the source of `forward`."""
        raise RuntimeError("torch.jit.script knows PyTorch's own layers only: call pullback.torch.restore(model) first")


@untraced
def _why_left(layer: Accelerated, input: torch.Tensor) -> str | None:
    return layer.why_left(input)


def _for_onnx() -> bool:
    """Whether PyTorch traces for ONNX, which has PyTorch's ops only."""
    traces = torch._C._get_tracing_state() is not None or torch.compiler.is_compiling()
    return traces and bool(torch.onnx.is_in_onnx_export())


class ConvLayer(Accelerated):
    op = "conv"

    def cannot(self: Any, input: torch.Tensor) -> str | None:
        if self.padding_mode != "zeros":
            return f"padding_mode={self.padding_mode!r} is PyTorch's alone"
        if input.is_cuda and self.op != "conv":
            return CUDNN
        return conv_unsuitable(input, self.spatial_rank, self.weight, self.bias)

    def outputs(self: Any, input: torch.Tensor) -> int:
        return conv_outputs(input, self.stride, self.spatial_rank)

    def tiny(self: Any, input: torch.Tensor) -> str | None:
        return conv_tiny(self.weight, self.outputs(input))

    def loses(self: Any, input: torch.Tensor) -> str | None:
        if input.is_cuda:
            if self.outputs(input) * self.weight.numel() < GPU_SMALL_WORK and not is_replayed():
                return GPU_SMALL
            return None if self.on_gpu(input) else CUDNN
        return conv_reason(input, self.weight, self.outputs(input), self.groups)

    def gpu_key(self: Any) -> Any:
        weight = self._parameters["weight"]
        return weight.shape, weight.stride()

    def on_gpu(self: Any, input: torch.Tensor) -> frozenset[str]:
        """The ops that our kernels take on a GPU."""
        if input.dim() != self.spatial_rank + 2:
            return NO_OPS
        keywords = {**self.keywords(input), "layout": layout_of(input, self.weight)}
        kernels = conv_kernels(input, self.weight, computed_dtype(input), keywords)
        return frozenset(op for op, kernel in zip(MIXED_OPS, kernels, strict=True) if kernel not in THEIRS)

    def gpu_plan(self: Any, input: torch.Tensor, *more: Any) -> Any:
        keywords = {**self.keywords(input, *more), "layout": layout_of(input, self.weight)}
        if not torch_can(keywords):
            return None
        return gpu_layers.conv_plan(input, self.weight, computed_dtype(input), keywords, self.on_gpu(input))

    def run_gpu_plan(self: Any, plan: Any, input: torch.Tensor) -> Any:
        return gpu_layers.conv(plan, *autocast(input, self.weight, self.bias))

    def keywords(self: Any, *more: Any) -> dict[str, Any]:
        name = f"conv{self.spatial_rank}d"
        return functional.conv_keywords(name, self.weight, self.stride, self.padding, self.dilation, self.groups)

    def ops_of(self: Any, input: torch.Tensor) -> tuple[tuple[str, ...], bool]:
        batched = input.dim() == self.spatial_rank + 2
        if batched and is_plain((self.weight,)) and torch_can(self.keywords(input)):
            return mixed_ops(input, self.weight, self.bias), True
        return super().ops_of(input)

    def ours(self: Any, input: torch.Tensor, way: frozenset[str] | Turn | None, *more: Any) -> torch.Tensor:
        if way is None:
            return self.whole(input, *more)
        found: torch.Tensor = self.ours_of_kind(key_of(self, input), input, way, *more)
        return found

    def ours_of_kind(self: Any, key: Key, input: torch.Tensor, way: frozenset[str] | Turn, *more: Any) -> torch.Tensor:
        weight, bias = self.weight, self.bias
        if input.dim() == self.spatial_rank + 2 and is_plain((input, weight)):
            # More is a size of the result, which no call of a kind knows.
            known = CHOICES in self.__dict__ and not more
            call = self.__dict__[CHOICES].call(key, self, input, weight) if known else None
            if call is not None:
                return mixed_conv(way, call, self.op, call.keywords, input, weight, bias)
            given = autocast(input, weight, bias)
            keywords = {**self.keywords(input, *more), "layout": layout_of(*given[:2])}
            if torch_can(keywords):
                return mixed_conv(way, None, self.op, keywords, *given)
        return self.whole(input, *more)

    def settled_call(self: Any, input: torch.Tensor, weight: torch.Tensor) -> ConvCall | None:
        """The convolution of this kind of input; None where each call has to be looked at."""
        keywords = {**self.keywords(input), "layout": layout_of(input, weight)}
        if input.dtype not in DTYPES or weight.dtype is not input.dtype or not torch_can(keywords):
            return None
        return ConvCall(self.op, input, weight, keywords)

    def whole(self: Any, input: torch.Tensor, *more: Any) -> torch.Tensor:
        """All ops on our kernels, whatever PyTorch does with them."""
        conv = CONVS[self.spatial_rank]
        return conv(input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class ConvTransposeLayer(ConvLayer):
    op = "conv_transpose"

    def outputs(self: Any, input: torch.Tensor) -> int:
        return conv_outputs(input, 1, self.spatial_rank)

    def forward(self: Any, input: torch.Tensor, output_size: list[int] | None = None) -> Any:
        return super().forward(input) if output_size is None else super().forward(input, output_size)

    def _extra(self: Any, input: torch.Tensor, output_size: list[int] | None = None) -> list[int]:
        extra: list[int] = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, self.spatial_rank, self.dilation
        )  # fmt: skip
        return extra

    def keywords(self: Any, input: torch.Tensor, *more: Any) -> dict[str, Any]:
        name = f"conv_transpose{self.spatial_rank}d"
        given = functional.conv_keywords(name, self.weight, self.stride, self.padding, self.dilation, self.groups)
        return functional.transposed_keywords(name, self.spatial_rank, self._extra(input, *more), given)

    def whole(self: Any, input: torch.Tensor, *more: Any) -> torch.Tensor:
        conv = TRANSPOSED[self.spatial_rank]
        extra = self._extra(input, *more)
        return conv(input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)


class PoolLayer(Accelerated):
    gpu_op = ""  # the op of the cuda backend; "" where it has none

    def cannot(self: Any, input: torch.Tensor) -> str | None:
        if input.is_cuda and not self.gpu_op:
            return f"on a GPU {type(self).__name__} is PyTorch's"
        divisor = getattr(self, "divisor_override", None)
        if input.is_cuda and (getattr(self, "return_indices", False) or (divisor is not None and divisor < 1)):
            return "on a GPU indices, and divisors below 1, are PyTorch's"
        return unsuitable(input, self.spatial_rank, gpu=True)

    def tiny(self: Any, input: torch.Tensor) -> str | None:
        return pool_tiny(input)

    def loses(self: Any, input: torch.Tensor) -> str | None:
        if not input.is_cuda:
            return pool_reason(input)
        if input.dim() != self.spatial_rank + 2:
            return "on a GPU only batches are taken"
        if input.numel() < GPU_SMALL_POOL and not is_replayed():
            return GPU_SMALL
        kernels = pool_kernels(self.gpu_op, input, layout_of(input), self.gpu_keywords(input))
        return "PyTorch has it as fast on a GPU" if any(kernel in THEIRS for kernel in kernels) else None

    def gpu_plan(self: Any, input: torch.Tensor, *more: Any) -> Any:
        return gpu_layers.pool_plan(input, self.gpu_op, layout_of(input), self.gpu_keywords(input))

    def run_gpu_plan(self: Any, plan: Any, input: torch.Tensor) -> Any:
        return gpu_layers.pool(plan, input)

    def gpu_keywords(self: Any, input: torch.Tensor) -> dict[str, Any]:
        """What the op is called with beside its tensor and layout."""
        raise NotImplementedError


class MaxPoolLayer(PoolLayer):
    gpu_op = "max_pool"

    def gpu_keywords(self: Any, input: torch.Tensor) -> dict[str, Any]:
        name, rank = f"max_pool{self.spatial_rank}d", self.spatial_rank
        return pool_keywords(name, input, rank, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)

    def ours(self: Any, input: torch.Tensor, way: frozenset[str] | Turn | None, *more: Any) -> Any:
        pool = MAXES[self.spatial_rank]
        return pool(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )  # fmt: skip


class AvgPoolLayer(PoolLayer):
    gpu_op = "avg_pool"

    def gpu_keywords(self: Any, input: torch.Tensor) -> dict[str, Any]:
        name, rank = f"avg_pool{self.spatial_rank}d", self.spatial_rank
        window = pool_keywords(name, input, rank, self.kernel_size, self.stride, self.padding, 1, self.ceil_mode)
        divisor = getattr(self, "divisor_override", None)
        return {**window, "count_include_pad": bool(self.count_include_pad), "divisor": divisor}

    def ours(self: Any, input: torch.Tensor, way: frozenset[str] | Turn | None, *more: Any) -> torch.Tensor:
        pool, divisor = MEANS[self.spatial_rank], getattr(self, "divisor_override", None)  # PyTorch's has none along one axis
        return pool(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad, divisor)


class _Adaptive(PoolLayer):
    def outputs(self: Any, input: torch.Tensor) -> tuple[int, ...]:
        return output_sizes(type(self).__name__, input.shape[-self.spatial_rank :], self.output_size)

    def cannot(self: Any, input: torch.Tensor) -> str | None:
        refused = PoolLayer.cannot(self, input)  # no super(): torch.compile cannot trace it here
        if refused is not None or torch.compiler.is_compiling():
            return refused or "its windows would hold for one size only, while torch.compile may leave sizes open"
        left: str | None = self.why_windows(input, self.outputs(input))
        return left

    def why_windows(self, input: torch.Tensor, outputs: tuple[int, ...]) -> str | None:
        return why_unequal(input.shape[-len(outputs) :], outputs)

    def forward(self: Any, input: torch.Tensor, *more: Any) -> Any:
        if torch.jit.is_tracing():  # a trace of ours would hold for one size only
            theirs: Any = super(Accelerated, self)
            return with_calls(False, theirs.forward, input)
        return super().forward(input)


class AdaptiveMaxPoolLayer(_Adaptive):
    def ours(self: Any, input: torch.Tensor, way: frozenset[str] | Turn | None, *more: Any) -> Any:
        return ADAPTIVE_MAXES[self.spatial_rank](input, self.output_size, self.return_indices)


class AdaptiveAvgPoolLayer(_Adaptive):
    def why_windows(self, input: torch.Tensor, outputs: tuple[int, ...]) -> str | None:
        return why_mean_left(input, outputs)

    def ours(self: Any, input: torch.Tensor, way: frozenset[str] | Turn | None, *more: Any) -> torch.Tensor:
        return ADAPTIVE_MEANS[self.spatial_rank](input, self.output_size)


CONVS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
MAXES = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
MEANS = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}
ADAPTIVE_MAXES = {1: functional.adaptive_max_pool1d, 2: functional.adaptive_max_pool2d, 3: functional.adaptive_max_pool3d}
ADAPTIVE_MEANS = {1: functional.adaptive_avg_pool1d, 2: functional.adaptive_avg_pool2d, 3: functional.adaptive_avg_pool3d}
