"""Which adaptive poolings are ordinary ones: where each output size divides the input's, the windows are alike and do not overlap.

Of the others, averages have an op of their own; maxima are PyTorch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pullback.shown import shown
from pullback.torch.arguments import plain
from pullback.torch.arrays import layout_of


def output_sizes(op: str, size: Sequence[int], output_size: Any) -> tuple[int, ...]:
    """The size of the result along each axis: one for all or one for each, where None keeps the input's."""
    several = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * len(size)
    if len(several) == 1:
        several = (several[0],) * len(size)
    if len(several) != len(size):
        raise ValueError(
            f"{op}: output_size is {shown(output_size)}; give an integer or None, or one for each of {len(size)} axes"
        )
    return tuple(n if wanted is None else plain(op, "output_size", wanted) for n, wanted in zip(size, several, strict=True))


def why_not(size: Sequence[Any], outputs: Sequence[int]) -> str | None:
    """Why these are no windows that our kernels could pool; None if they are."""
    for n, out in zip(size, outputs, strict=True):
        if type(n) is not int or type(out) is not int:
            return "its sizes are open while PyTorch traces"
        if out < 1:
            return f"its output_size is {out}"
    return None


def why_unequal(size: Sequence[Any], outputs: Sequence[int]) -> str | None:
    """Why the windows are not those of an ordinary pooling; None if they are."""
    unequal = (f"its windows differ in size: {o} out of {n} cells" for n, o in zip(size, outputs, strict=True) if n % o != 0)
    return why_not(size, outputs) or next(unequal, None)


def why_mean_left(input: Any, outputs: Sequence[int]) -> str | None:
    """Why an average over such windows is better left to PyTorch.

    Ours over windows of unequal sizes runs in channels_last: in the other format it pays for the sake of the gradient alone.
    """
    size = input.shape[-len(outputs) :]
    refused = why_not(size, outputs)
    if refused is not None or layout_of(input) == "channels_last" or (input.requires_grad and torch.is_grad_enabled()):
        return refused
    return why_unequal(size, outputs)


def window_of(size: Sequence[int], outputs: Sequence[int]) -> tuple[int, ...]:
    """Window and stride of the ordinary pooling."""
    return tuple(n // out for n, out in zip(size, outputs, strict=True))
