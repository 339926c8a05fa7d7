"""What our BatchNorm layers do at a call: PyTorch's book-keeping, on our kernels."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.nn.modules import module as hooks

from pullback.torch.arrays import FIRST, LAST, layout_of
from pullback.torch.autograd import is_plain
from pullback.torch.choice import SMALL, surely, unsuitable
from pullback.torch.layers import Accelerated
from pullback.torch.norm import Statistics, batch_norm, fits, lying, statistics
from pullback.torch.pending import FUSES, Pending, deferred
from pullback.torch.saving import is_watched
from pullback.torch.taking import with_calls

SMALL_NORM = 30_000  # elements of an input that PyTorch is done with before our call has begun
EQUAL_NORM = {FIRST: 150_000, LAST: 2_000_000}  # elements of an input that both take equally long for, with its gradient
EAGER_ONLY = "it is taken only where PyTorch runs eagerly on plain tensors"


# Elements of an input below which one pass for two ops saves less than it costs to wait for the second.
LEAST_FUSED = {FIRST: 100_000, LAST: 300_000}


def _any_hooks() -> bool:
    """Whether a hook is on all modules."""
    return bool(hooks._global_forward_hooks or hooks._global_backward_hooks or hooks._global_backward_pre_hooks)


def something_compiled() -> bool:
    """Whether torch.compile was used in this process: its code takes no tensors that wait."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return any(backend is not None for backend in getattr(frames, "cached_backends", {}).values())


class BatchNormLayer(Accelerated):
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
            torch.is_grad_enabled()
            and self._wants_gradients(input)
            and input.dim() == max(self.spatial_rank + 2, 3)
            and input.dtype in (torch.float32, torch.float64)
            and is_plain((input,))
            and input.numel() >= LEAST_FUSED[layout_of(input)]
            and torch.autograd.forward_ad._current_level < 0
            and not (self._forward_hooks or self._backward_hooks or self._backward_pre_hooks or _any_hooks() or is_watched())
            and self._misfit(input) is None
            and not something_compiled()
        )

    def _wants_gradients(self: Any, input: torch.Tensor) -> bool:
        return input.requires_grad or any(p is not None and p.requires_grad for p in self._parameters.values())

    def cannot(self: Any, input: torch.Tensor) -> str | None:
        if self.spatial_rank > 1 and input.dim() != self.spatial_rank + 2:
            return f"the input has {input.dim()} axes"
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
            return "its parameters are not plain tensors of the input's dtype and channels"
        if self._of_batch() and input.numel() == input.shape[1]:
            return "it has one value for each channel, which has no variance"
        return "its memory has gaps" if lying(input) is None else None

    def _of_batch(self: Any) -> bool:
        """Whether the batch's own statistics are taken."""
        return self.training or (self._buffers["running_mean"] is None and self._buffers["running_var"] is None)

    def tiny(self: Any, input: torch.Tensor) -> str | None:
        return SMALL if surely(input.numel() < SMALL_NORM) else None

    def loses(self: Any, input: torch.Tensor) -> str | None:
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

    def _statistics(self: Any, input: torch.Tensor) -> Statistics:
        _, _, mean, variance = self._tensors()
        momentum, batches = self.momentum, self._buffers["num_batches_tracked"]
        if self.training and self.track_running_stats and batches is not None:
            batches.add_(1)
            if momentum is None:
                momentum = 1.0 / float(batches)
        keeps = mean is not None and variance is not None and (not self.training or self.track_running_stats)
        running = (mean, variance) if keeps else None
        return statistics(input, running, self._of_batch(), momentum or 0.0, self.eps)
