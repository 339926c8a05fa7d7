"""Layer normalization of tensors on a GPU over their last axis, and its gradient, by rows_kernel.py."""

from __future__ import annotations

import torch

from pullback.cuda.launch import blocks, launch
from pullback.cuda.norm import plan
from pullback.cuda.norm.plan import Rows, Sums, sums_of


def normalize(
    what: Rows, x: torch.Tensor, scale: torch.Tensor | None, shift: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(y, the mean and the inverse deviation of each row). x is contiguous."""
    y = torch.empty_like(x, dtype=what.out)
    kept = x.new_empty((2, what.rows), dtype=sums_of(x.dtype))
    means, inverses = kept.unbind()
    launch(plan.normalizing_rows, what, x, x if scale is None else scale, x if shift is None else shift, y, means, inverses)
    return y, kept


def gradients(
    what: Rows, dy: torch.Tensor, x: torch.Tensor, kept: torch.Tensor, scale: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(dx, the sums for shift and scale, where they are wanted)."""
    dx = torch.empty_like(x)
    means, inverses = kept.unbind()
    chunks = blocks(what.rows, plan.row_chunk(what))
    part = x.new_empty((chunks, 2, what.columns), dtype=kept.dtype) if what.sums else kept
    launch(plan.gradient_of_rows, what, dy, x, x if scale is None else scale, means, inverses, dx, part)
    if not what.sums:
        return dx, None
    sums = x.new_empty((2, what.columns), dtype=kept.dtype)
    launch(plan.adding, Sums(chunks, what.columns, x.dtype), part, sums)
    return dx, sums
