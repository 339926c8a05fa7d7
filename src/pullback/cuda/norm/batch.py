"""Batch normalization of tensors on a GPU, and its gradient: what the passes of channels_kernel.py are put together to."""

from __future__ import annotations

import torch

from pullback.cuda.launch import launch
from pullback.cuda.norm import plan
from pullback.cuda.norm.plan import Channels, Sums, sums_of


def _rows(what: Channels, x: torch.Tensor) -> torch.Tensor:
    """Memory for mean, variance, inverse deviation and shift."""
    return x.new_empty((4, what.channels), dtype=sums_of(x.dtype))


def batch_statistics(
    what: Channels, x: torch.Tensor, shift: torch.Tensor | None, running: tuple[torch.Tensor, torch.Tensor] | None = None,
    batches: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Rows of mean, variance, inverse deviation and shift; what is kept of them moves."""
    found = _rows(what, x)
    part = x.new_empty((plan.chunks_of(what), 2, what.channels), dtype=found.dtype)
    launch(plan.statistics, what, x, part)
    mean, variance = (found, found) if running is None else running
    rest = (found, mean, variance, found if batches is None else batches)
    launch(plan.merging, what, part, part if shift is None else shift, *rest)
    return found


def given_statistics(
    what: Channels, x: torch.Tensor, shift: torch.Tensor | None, mean: torch.Tensor, variance: torch.Tensor
) -> torch.Tensor:
    """The same rows of statistics that are given."""
    found = _rows(what, x)
    launch(plan.taking, what, mean, variance, mean if shift is None else shift, found)
    return found


def normalize(
    what: Channels, x: torch.Tensor, found: torch.Tensor, scale: torch.Tensor | None, add: torch.Tensor | None
) -> torch.Tensor:
    """y, which lies in memory as x does."""
    y = torch.empty_like(x)
    launch(plan.normalizing, what, x, found, found if scale is None else scale, x if add is None else add, y)
    return y


def gradients(
    what: Channels, dy: torch.Tensor, x: torch.Tensor, y: torch.Tensor | None, found: torch.Tensor, scale: torch.Tensor | None,
    wants_x: bool = True,
) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:  # fmt: skip
    """(dx, the sums for shift and scale, what reaches the normalization and what was added to it). y: where something was added
    before an activation.
    """
    chunks, channels = plan.chunks_of(what), what.channels
    part = x.new_empty((chunks, 2, channels), dtype=found.dtype)
    masked = dy if y is None else torch.empty_like(x)
    a = found if scale is None else scale
    launch(plan.summing, what, dy, x, x if y is None else y, found, a, masked, part)
    sums = x.new_empty((2, channels), dtype=found.dtype)
    launch(plan.adding, Sums(chunks, channels, x.dtype), part, sums)
    if not wants_x:
        return None, sums, masked
    dx = torch.empty_like(x)
    launch(plan.applying, what, masked, x, found, a, sums, dx)
    return dx, sums, masked
