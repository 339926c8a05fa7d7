"""Adaptive pooling as ordinary pooling: where each output size divides the input's, the windows are alike and do not overlap.

The one place that knows it: ops for windows of unequal sizes would be told apart from the others here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pullback.shown import shown
from pullback.torch.arguments import plain


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


def why_unequal(size: Sequence[Any], outputs: Sequence[int]) -> str | None:
    """Why the windows are not those of an ordinary pooling; None if they are."""
    for n, out in zip(size, outputs, strict=True):
        if type(n) is not int or type(out) is not int:
            return "its sizes are open while PyTorch traces"
        if out < 1:
            return f"its output_size is {out}"
        if n % out != 0:
            return f"its windows differ in size: {out} out of {n} cells"
    return None


def window_of(size: Sequence[int], outputs: Sequence[int]) -> tuple[int, ...]:
    """Window and stride of the ordinary pooling."""
    return tuple(n // out for n, out in zip(size, outputs, strict=True))
