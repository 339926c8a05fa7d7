"""What our BatchNorm layers do at a call: PyTorch's book-keeping, on our kernels."""

from __future__ import annotations

from typing import Any

import torch

from pullback.torch.arrays import LAST, layout_of
from pullback.torch.choice import SMALL, surely, unsuitable
from pullback.torch.layers import Accelerated
from pullback.torch.norm import batch_norm, statistics, unsuited

SMALL_NORM = {False: 30_000, True: 30_000}  # elements of an input that PyTorch is done with before our call has begun


class BatchNormLayer(Accelerated):
    def cannot(self: Any, input: torch.Tensor) -> str | None:
        if self.spatial_rank > 1 and input.dim() != self.spatial_rank + 2:
            return f"the input has {input.dim()} axes"
        tensors = (self.weight, self.bias, self.running_mean, self.running_var)
        refused = unsuitable(input, self.spatial_rank, *tensors)
        return unsuited(input, tensors, self._of_batch()) if refused is None else refused

    def _of_batch(self: Any) -> bool:
        """Whether the batch's own statistics are taken."""
        return bool(self.training or (self.running_mean is None and self.running_var is None))

    def loses(self: Any, input: torch.Tensor) -> str | None:
        return SMALL if surely(input.numel() < SMALL_NORM[layout_of(input) == LAST]) else None

    def ours(self: Any, input: torch.Tensor, ops: frozenset[str] | None, *more: Any) -> torch.Tensor:
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        keeps = not self.training or self.track_running_stats
        running = (self.running_mean, self.running_var) if keeps and self.running_mean is not None else None
        by = statistics(input, running, self._of_batch(), momentum, self.eps)
        return batch_norm(input, by, self.weight, self.bias)
