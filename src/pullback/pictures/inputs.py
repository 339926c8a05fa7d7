"""The arguments of `draw`: values or a size to fill, and the sentences for what cannot be drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pullback.ops.arguments import as_array, as_int, as_shape, one_of, per_axis
from pullback.rules import Array, is_supported_float
from pullback.shown import shown

OPS = ("max_pool", "avg_pool", "conv")
LARGEST_SIDE = 16
# Which op each keyword belongs to, where it is not all of them.
ONLY_FOR = {"ties": "max_pool", "nan": "max_pool", "count_include_pad": "avg_pool", "divisor": "avg_pool"}


def check_op(op: str, window: Any, filter: Any, keywords: dict[str, Any]) -> None:
    one_of("draw", "op", op, OPS)
    for name in keywords:
        if ONLY_FOR.get(name, op) != op:
            raise ValueError(f"draw: {name} belongs to {ONLY_FOR[name]}, not to {op}; leave it out")
    if op == "conv" and (window is None) == (filter is None):
        raise ValueError("draw: a convolution needs a filter, or a window for a random one: give one of them")
    if op != "conv" and filter is not None:
        raise ValueError(f"draw: filter belongs to conv, not to {op}; leave it out")
    if op != "conv" and window is None:
        raise ValueError(f"draw: {op} needs a window, for example window=3")


def as_values(name: str, value: Any, rng: np.random.Generator | None) -> Array:
    """A list or array as floats; with a generator also an int or a tuple of them, a size to fill with digits."""
    entries = value if isinstance(value, tuple) else (value,)
    if rng is not None and all(isinstance(entry, (int, np.integer)) for entry in entries):
        size = as_shape("draw", name, entries)
        check_limits(name, size)
        return rng.integers(0, 10, size).astype(np.float64)
    array = as_array("draw", name, value)
    if array.dtype.kind not in "iuf" and not is_supported_float(array.dtype):
        raise TypeError(f"draw: {name} has dtype {array.dtype}; it must hold real numbers")
    check_limits(name, array.shape)
    return array if is_supported_float(array.dtype) else array.astype(np.float64)


def random_filter(window: Any, x: Array, rng: np.random.Generator) -> Array:
    size = per_axis("draw", "window", window, x.ndim)
    check_limits("window", size)
    return rng.integers(-2, 3, size).astype(x.dtype)


def check_limits(name: str, size: Sequence[int]) -> None:
    """One image of one channel, of few enough cells that each can hold a number."""
    if len(size) not in (1, 2):
        raise ValueError(
            f"draw: {name} has shape {tuple(size)}; a picture is of one image with one channel, 1 or 2 axes: take x[0, ..., 0]"
        )
    if math.prod(size) == 0:
        raise ValueError(f"draw: {name} has shape {tuple(size)}, which holds no cell")
    if max(size) > LARGEST_SIDE:
        raise ValueError(
            f"draw: {name} is {'x'.join(map(str, size))} cells; beyond {LARGEST_SIDE} along a side the numbers are too small "
            "to read: draw a part of it, such as x[:8, :8], or a smaller size with the same window"
        )


def as_outline(outline: Any, output_size: tuple[int, ...]) -> str | tuple[int, ...]:
    """Which windows are outlined: "auto", "all", "none", or one output."""
    if isinstance(outline, str):
        return str(one_of("draw", "outline", outline, ("auto", "all", "none")))
    entries = outline if isinstance(outline, Sequence) else (outline,)
    place = tuple(as_int("draw", "outline", entry) for entry in entries)
    if len(place) != len(output_size) or not all(0 <= i < o for i, o in zip(place, output_size, strict=True)):
        raise ValueError(f"draw: outline is {shown(outline)}, which is no output of {output_size}")
    return place
