"""A Problem: everything a kernel needs to know about one call, finished and frozen, so that no kernel recomputes geometry."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np

from pullback.rules import Layout, WinnerRule
from pullback.window import AdaptiveWindow, Divisor, Window

LARGEST_BYTES = 1 << 47  # of an array in any machine's address space
SURELY_THERE = 1 << 30


def check_room(op: str, shape: tuple[int, ...], item_bytes: int) -> None:
    """MemoryError for an array that this machine cannot hold: before a plan makes tables of its size."""
    count = math.prod(shape) * item_bytes
    if count == 0:  # NumPy wants even an empty array's other sizes to be countable
        count = math.prod(size for size in shape if size) * item_bytes
        if count <= LARGEST_BYTES:
            return
    if count <= SURELY_THERE:
        return
    if count <= LARGEST_BYTES:
        try:
            np.empty(count, np.uint8)  # asks for addresses only, and gives them back
        except MemoryError:
            pass
        else:
            return
    raise MemoryError(f"{op}: an array of shape {shape} takes {count:.3g} bytes, more than there is; make its sizes smaller")


OUTPUT, INPUT = attrgetter("output_shape"), attrgetter("input_shape")
# The shape of each op's result. (input_shape is that of x, or of what indices count in; output_shape that of y.)
RESULTS: dict[str, Callable[[Any], tuple[int, ...]]] = {
    "conv": OUTPUT,
    "conv_grad_input": INPUT,
    "conv_grad_filter": attrgetter("filter_shape"),
    "max_pool": OUTPUT,
    "max_pool_grad": INPUT,
    "max_pool_grad_from_indices": INPUT,
    "max_pool_grad_from_winners": INPUT,
    "max_pool_jvp": OUTPUT,
    "max_pool_jvp_from_indices": OUTPUT,
    "max_pool_jvp_from_winners": OUTPUT,
    "max_unpool": INPUT,
    "max_unpool_grad": OUTPUT,
    "avg_pool": OUTPUT,
    "avg_pool_grad": INPUT,
    "adaptive_max_pool": OUTPUT,
    "adaptive_max_pool_grad": INPUT,
    "adaptive_max_pool_jvp": OUTPUT,
    "adaptive_avg_pool": OUTPUT,
    "adaptive_avg_pool_grad": INPUT,
    "dilation": OUTPUT,
    "dilation_grad_input": INPUT,
    "dilation_grad_filter": lambda problem: (*problem.window.kernel, problem.channels_in),
}


@dataclass(frozen=True)
class Problem:
    """One op on one geometry. Hashable, so plans can be kept by problem.

    `empty` is the value of an output whose window has no winner (max) or no cell (average).
    """

    op: str
    dtype: np.dtype[Any]
    layout: Layout
    batch: int
    channels_in: int
    channels_out: int
    window: Window
    groups: int = 1
    winner: WinnerRule | None = None
    divisor: Divisor | None = None
    empty: float = 0.0
    return_indices: bool = False
    return_winners: bool = False
    storage_order: int = 0

    def __post_init__(self) -> None:
        window = self.window
        if any(o == 1 < s for o, s in zip(window.output_size, window.stride, strict=True)):
            # A stride that no second window follows says nothing, and plans would make room for its cells.
            strides = tuple(1 if o == 1 else s for o, s in zip(window.output_size, window.stride, strict=True))
            object.__setattr__(self, "window", replace(window, stride=strides))
        self._check_room()

    def _check_room(self) -> None:
        item = self.dtype.itemsize
        check_room(self.op, self.input_shape, item)
        beside = 8 if self.return_indices else self.winner_dtype.itemsize if self.return_winners else 0
        check_room(self.op, self.output_shape, max(item, beside))
        if self.op == "conv_grad_filter":
            check_room(self.op, self.filter_shape, item)

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, name) for name in self.__dataclass_fields__))

    def __hash__(self) -> int:  # asked for at every call, and never changing
        return self._hash

    def shape_of(self, channels: int, spatial: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of an array of activations in this layout."""
        if self.layout == "channels_last":
            return (self.batch, *spatial, channels)
        return (self.batch, channels, *spatial)

    @cached_property
    def input_shape(self) -> tuple[int, ...]:
        return self.shape_of(self.channels_in, self.window.input_size)

    @cached_property
    def output_shape(self) -> tuple[int, ...]:
        return self.shape_of(self.channels_out, self.window.output_size)

    @cached_property
    def result_shape(self) -> tuple[int, ...]:
        """Of what the op returns."""
        shape: tuple[int, ...] = RESULTS[self.op](self)
        return shape

    @cached_property
    def winner_dtype(self) -> np.dtype[Any]:
        """The narrowest unsigned type for tap numbers and, as its largest value, the mark of a window without a winner."""
        for name, most in (("uint8", 2**8 - 1), ("uint16", 2**16 - 1)):
            if self.window.tap_count <= most:
                return np.dtype(name)
        return np.dtype("uint32")

    @cached_property
    def filter_shape(self) -> tuple[int, ...]:
        per_group = self.channels_in // self.groups
        if self.layout == "channels_last":
            return (*self.window.kernel, per_group, self.channels_out)
        return (self.channels_out, per_group, *self.window.kernel)


@dataclass(frozen=True)
class AdaptiveProblem(Problem):
    """Pooling over windows of unequal sizes: an op of its own, since a kernel for ordinary windows would misread them."""

    window: AdaptiveWindow  # type: ignore[assignment]

    __hash__ = Problem.__hash__

    def __post_init__(self) -> None:
        self._check_room()


@dataclass(frozen=True)
class IndexProblem:
    """A max-pool gradient whose geometry is all in its indices: where they point to is all there is to know."""

    op: str
    dtype: np.dtype[Any]
    layout: Layout
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    storage_order: int = 0

    def __post_init__(self) -> None:
        check_room(self.op, self.input_shape, self.dtype.itemsize)

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Of what the op returns."""
        shape: tuple[int, ...] = RESULTS[self.op](self)
        return shape


AnyProblem = Problem | IndexProblem
