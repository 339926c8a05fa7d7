"""What our BatchNorm and LayerNorm layers do at a call: PyTorch's book-keeping, on our kernels."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.compiler import is_compiling
from torch.nn.modules import module as hooks

from pullback.registry import CUDA, why_unavailable
from pullback.torch import gpu_norm
from pullback.torch.arrays import FIRST, LAST, layout_of
from pullback.torch.autograd import is_plain
from pullback.torch.choice import SMALL, surely, unsuitable
from pullback.torch.conv_calls import ConvCall
from pullback.torch.gpu_norm import BatchStatistics, RowStatistics
from pullback.torch.layers import GPU_SMALL, Accelerated
from pullback.torch.norm import Statistics, batch_norm, fits, fits_channels, lying, statistics
from pullback.torch.pending import FUSES, Pending, deferred
from pullback.torch.replayed import is_replayed
from pullback.torch.saving import is_watched
from pullback.torch.taking import with_calls

SMALL_NORM = 30_000  # elements of an input that PyTorch is done with before our call has begun
EQUAL_NORM = {FIRST: 150_000, LAST: 2_000_000}  # elements of an input that both take equally long for, with its gradient
# Elements on a GPU from which a call of ours, which is more Python than PyTorch's, saves more time than it takes.
GPU_SMALL_NORM, GPU_SMALL_ROWS = 1 << 25, 1 << 20
MISFIT = "its parameters are not plain tensors of the input's dtype and channels"
ONE_VALUE = "it has one value for each channel, which has no variance"
GAPS = "its memory has gaps"
EAGER_ONLY = "it is taken only where PyTorch runs eagerly on plain tensors"


# Elements of an input below which one pass for two ops saves less than it costs to wait for the second.
LEAST_FUSED = {FIRST: 100_000, LAST: 300_000}


def any_hooks() -> bool:
    """Whether a hook is on all modules."""
    return bool(
        hooks._global_forward_hooks
        or hooks._global_forward_pre_hooks
        or hooks._global_backward_hooks
        or hooks._global_backward_pre_hooks
    )


def something_compiled() -> bool:
    """Whether torch.compile was used in this process: its code takes no tensors that wait."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return any(backend is not None for backend in getattr(frames, "cached_backends", {}).values())


class NormLayer(Accelerated):
    """What both kinds share: results that may wait for what follows."""

    def _can_wait(self: Any, input: torch.Tensor) -> bool:
        """Whether a result may wait. A hook would look at it, and a checkpoint compares what is kept."""
        return (
            not is_compiling()  # first: what follows is not for torch.compile to trace
            and torch.is_grad_enabled()
            and (input.requires_grad or any(p is not None and p.requires_grad for p in self._parameters.values()))
            and torch.autograd.forward_ad._current_level < 0
            and not (self._forward_hooks or self._backward_hooks or self._backward_pre_hooks or any_hooks() or is_watched())
            and not something_compiled()
        )

    def _gpu_result(self: Any, by: Any, input: torch.Tensor, waits: bool) -> torch.Tensor:
        weight, bias = self._parameters["weight"], self._parameters["bias"]
        if waits and self.__dict__.get(FUSES) and self._can_wait(input):
            return deferred(self, by, input, weight, bias)
        result: torch.Tensor = by.fused(input, weight, bias, None, None)
        return result

    def why_not_on_gpu(self: Any, input: torch.Tensor) -> str | None:
        """Why our kernels for a GPU cannot do a call, whatever the layer."""
        if input.dtype not in gpu_norm.DTYPES:
            return f"it is {input.dtype}"
        return why_unavailable(CUDA) or (None if is_plain((input,)) else EAGER_ONLY)


class LayerNormLayer(NormLayer):
    """Taken on a GPU alone, over one axis."""

    def forward(self: Any, input: torch.Tensor, *more: Any) -> Any:
        if type(input) is torch.Tensor and not input.is_cuda:  # at once: on the CPU nothing is ours
            theirs: Any = super(Accelerated, self)
            return theirs.forward(input)
        return super().forward(input, *more)

    def cannot(self: Any, input: torch.Tensor) -> str | None:
        if not input.is_cuda:
            return "on the CPU LayerNorm is PyTorch's"
        if len(self.normalized_shape) != 1 or input.shape[-1:] != self.normalized_shape:
            return "it is taken over one axis only"
        if self.normalized_shape[0] > gpu_norm.MOST_COLUMNS or not input.numel():
            return f"rows have 1 to {gpu_norm.MOST_COLUMNS} numbers"
        if gpu_norm.fits(tuple(self._parameters.values()), self.normalized_shape[0], input) is None:
            return MISFIT
        return GAPS if not input.is_contiguous() else self.why_not_on_gpu(input)

    def loses(self: Any, input: torch.Tensor) -> str | None:
        if not input.is_cuda:
            return "on the CPU LayerNorm is PyTorch's"
        return GPU_SMALL if input.numel() < GPU_SMALL_ROWS and not is_replayed() else None

    def gpu_key(self: Any) -> tuple[Any, ...]:
        return self.normalized_shape, self.eps, *[p is None or (p.dtype, p.device) for p in self._parameters.values()]

    def gpu_plan(self: Any, input: torch.Tensor, *more: Any) -> Any:
        from pullback.cuda.norm.plan import Rows

        columns, dtype = input.shape[-1], input.dtype
        of_columns = gpu_norm.fits(tuple(self._parameters.values()), columns, input)
        mixed = torch.is_autocast_enabled("cuda") and dtype is not torch.float64  # then PyTorch's is made in float32
        if of_columns is None or (not mixed and of_columns is not dtype):
            return None
        affine = [self._parameters[name] is not None for name in ("weight", "bias")]
        out = torch.float32 if mixed else dtype
        return Rows(input.numel() // columns, columns, dtype, out, of_columns, self.eps, *affine)

    def run_gpu_plan(self: Any, plan: Any, input: torch.Tensor) -> torch.Tensor:
        return self._gpu_result(RowStatistics(plan), input, torch.is_autocast_enabled("cuda"))


class BatchNormLayer(NormLayer):
    has_modes = True

    def forward(self: Any, input: torch.Tensor, *more: Any) -> Any:
        if torch.jit.is_tracing():  # ours leaves nothing that a trace could hold
            theirs: Any = super(Accelerated, self)
            return with_calls(False, theirs.forward, input)
        if type(input) is Pending:
            return self.forward(input.plain())
        return super().forward(input)

    def settled(self: Any, input: torch.Tensor, *more: Any) -> Any:
        if self.__dict__.get(FUSES) and self._may_wait(input):
            return deferred(self, self._statistics(input), input, self._parameters["weight"], self._parameters["bias"])
        return super().settled(input)

    def _may_wait(self: Any, input: torch.Tensor) -> bool:
        """Whether the result may wait for what follows. A hook would look at it, and a checkpoint compares what is kept."""
        return (
            self._can_wait(input)
            and input.dim() == max(self.spatial_rank + 2, 3)
            and input.dtype in (torch.float32, torch.float64)
            and is_plain((input,))
            and input.numel() >= LEAST_FUSED[layout_of(input)]
            and self._misfit(input) is None
        )

    def gpu_key(self: Any) -> tuple[Any, ...]:
        return (
            self.training, self.momentum, self.eps, self.track_running_stats,
            *[t is None or (t.dtype, t.device) for t in (*self._tensors(), self._buffers["num_batches_tracked"])],
        )  # fmt: skip

    def gpu_plan(self: Any, input: torch.Tensor, *more: Any) -> Any:
        from pullback.cuda.norm.plan import Channels

        how, of_channels = gpu_norm.lying(input), gpu_norm.fits(self._tensors(), input.shape[1], input)
        if how is None or of_channels is None:
            return None
        weight, bias, mean, _ = self._tensors()
        counts = self.training and self.track_running_stats and self._buffers["num_batches_tracked"] is not None
        momentum = self.momentum
        if momentum is None:
            momentum = -1.0 if counts else 0.0
        return Channels(
            *how[:3], input.dtype, how[3], of_channels, weight is not None, bias is not None, batch=self._of_batch(),
            eps=self.eps, momentum=momentum, running=self.training and self.track_running_stats and mean is not None,
            counts=counts and momentum >= 0,
        )  # fmt: skip

    def run_gpu_plan(self: Any, plan: Any, input: torch.Tensor) -> torch.Tensor:
        batch = gpu_norm.batch_kernels()
        _, bias, mean, variance = self._tensors()
        batches = self._buffers["num_batches_tracked"]
        if plan.momentum < 0:  # the kernel reads their number
            batches.add_(1)
        if plan.batch:
            found = batch.batch_statistics(plan, input, bias, (mean, variance) if plan.running else None, batches)
        else:
            found = batch.given_statistics(plan, input, bias, mean, variance)
        return self._gpu_result(BatchStatistics(plan, found), input, True)

    def _why_not_on_gpu(self: Any, input: torch.Tensor) -> str | None:
        refused: str | None = self.why_not_on_gpu(input)
        if refused is not None:
            return refused
        if not 2 <= input.dim() <= self.spatial_rank + 2 or gpu_norm.lying(input) is None:
            return GAPS
        batches = self._buffers["num_batches_tracked"]
        if batches is not None and (batches.dtype is not torch.int64 or batches.device != input.device):
            return MISFIT
        if input.shape[1] != self.num_features or gpu_norm.fits(self._tensors(), input.shape[1], input) is None:
            return MISFIT
        return ONE_VALUE if self._of_batch() and input.numel() == input.shape[1] else None

    def cannot(self: Any, input: torch.Tensor) -> str | None:
        if self.spatial_rank > 1 and input.dim() != self.spatial_rank + 2:
            return f"the input has {input.dim()} axes"
        if input.is_cuda:
            left: str | None = self._why_not_on_gpu(input)
            return left
        refused = unsuitable(input, self.spatial_rank, *self._tensors())
        if refused is not None:
            return refused
        if not is_plain((input,)) or torch.autograd.forward_ad._current_level >= 0:
            return EAGER_ONLY
        misfit: str | None = self._misfit(input)
        return misfit

    def _tensors(self: Any) -> tuple[torch.Tensor | None, ...]:
        parameters, buffers = self._parameters, self._buffers
        return parameters["weight"], parameters["bias"], buffers["running_mean"], buffers["running_var"]

    def _misfit(self: Any, input: torch.Tensor) -> str | None:
        """Why a plain input does not go with our kernels; what is no input for PyTorch either gets its error from there."""
        if not fits(self._tensors(), input) or input.shape[1] != self.num_features:
            return MISFIT
        if self._of_batch() and input.numel() == input.shape[1]:
            return ONE_VALUE
        return GAPS if lying(input) is None else None

    def _of_batch(self: Any) -> bool:
        """Whether the batch's own statistics are taken."""
        return self.training or (self._buffers["running_mean"] is None and self._buffers["running_var"] is None)

    def tiny(self: Any, input: torch.Tensor) -> str | None:
        return SMALL if surely(input.numel() < SMALL_NORM) else None

    def loses(self: Any, input: torch.Tensor) -> str | None:
        if input.is_cuda:
            return GPU_SMALL if input.numel() < GPU_SMALL_NORM and not is_replayed() else None
        if self.tiny(input) is None and surely(input.numel() < EQUAL_NORM[layout_of(input)]):
            return "PyTorch is as fast at an input of this size"
        tiny: str | None = self.tiny(input)
        return tiny

    def ours(self: Any, input: torch.Tensor, way: Any, *more: Any) -> torch.Tensor:
        if self._misfit(input) is not None:  # since it was measured, a parameter has become another
            theirs: Any = super(Accelerated, self)
            return theirs.forward(input)
        weight, bias, *_ = self._tensors()
        return batch_norm(input, self._statistics(input), weight, bias)

    def batch_arguments(self: Any, call: ConvCall) -> tuple[Any, ...] | None:
        """(running statistics, momentum, eps, scale, bias) for a convolution's result, now counted; None if they do not fit."""
        weight, bias, *_ = tensors = self._tensors()
        if not fits_channels(tensors, (call.filter_shape[0],), call.dtype):
            return None
        running, momentum = self._moved()
        return running, momentum, self.eps, weight, bias

    def _statistics(self: Any, input: torch.Tensor) -> Statistics:
        running, momentum = self._moved()
        return statistics(input, running, self._of_batch(), momentum, self.eps)

    def _moved(self: Any) -> tuple[tuple[torch.Tensor, torch.Tensor] | None, float]:
        """The running statistics, where this batch moves them, and by how much; the batch is counted."""
        _, _, mean, variance = self._tensors()
        momentum, batches = self.momentum, self._buffers["num_batches_tracked"]
        if self.training and self.track_running_stats and batches is not None:
            batches.add_(1)
            if momentum is None:
                momentum = 1.0 / float(batches)
        keeps = mean is not None and variance is not None and (not self.training or self.track_running_stats)
        return ((mean, variance) if keeps else None), momentum or 0.0
