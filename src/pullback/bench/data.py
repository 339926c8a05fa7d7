"""A case's data, the same for everybody, and the right answers: the reference backend in float64 on these very numbers."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

import pullback as pb
from pullback.bench.cases import Case
from pullback.cpu.engine.memory import aligned_bytes
from pullback.rules import Array, Layout


def numpy_dtype(name: str) -> np.dtype[Any]:
    """A dtype by name; bfloat16 needs ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        name = ml_dtypes.bfloat16
    return np.dtype(name)


def aligned(array: Array) -> Array:
    """A contiguous copy that begins at a cache line, as the arrays that every system makes itself do.

    NumPy's large arrays begin 16 bytes behind one, so that each vector that is read crosses a line: whoever got those as they are
    would be timed on other data than who copies them first.
    """
    copy = aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def to_layout(layout: Layout, array: Array) -> Array:
    """A channels-last activation as an aligned array of a layout."""
    return aligned(array if layout == "channels_last" else np.moveaxis(array, -1, 1))


def to_channels_last(layout: Layout, array: Array) -> Array:
    return array if layout == "channels_last" else np.moveaxis(array, 1, -1)


def filter_to_layout(layout: Layout, filter: Array) -> Array:
    """A filter (*k, c, m) as an aligned array of a layout's filter form."""
    return aligned(filter if layout == "channels_last" else np.moveaxis(filter, (-1, -2), (0, 1)))


def filter_to_channels_last(layout: Layout, filter: Array) -> Array:
    return filter if layout == "channels_last" else np.moveaxis(filter, (0, 1), (-1, -2))


@dataclass(frozen=True)
class Data:
    """x, dy and the filter of a case, channels last; a pooling case has an empty filter."""

    case: Case
    x: Array
    dy: Array
    filter: Array

    def lifted(self) -> Data:
        """The same numbers for `case.lifted()`."""
        case = self.case.lifted()
        f = self.filter.reshape(case.filter_shape) if case.kind == "conv" else self.filter
        return replace(
            self, case=case, x=self.x.reshape(case.input_shape), dy=self.dy.reshape(case.output_shape), filter=f
        )  # fmt: skip


def make_data(case: Case, dtype: str) -> Data:
    """Seeded data, uniform in [-1, 1).

    x is a shuffled ladder: up to 2**24 cells all float32 values differ, so no window has two maxima and every tie rule
    gives the same gradient. (In the half precisions ties cannot be avoided.)
    """
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    kind = numpy_dtype(dtype)
    cells = math.prod(case.input_shape)
    ladder = rng.permutation(cells).astype(np.float64) - cells // 2
    x = (ladder * 2.0 ** (1 - max(1, cells - 1).bit_length())).reshape(case.input_shape)
    dy = rng.uniform(-1, 1, case.output_shape)
    f = rng.uniform(-1, 1, case.filter_shape if case.kind == "conv" else (0,))
    return Data(case, x.astype(kind), dy.astype(kind), f.astype(kind))


def quick_data(case: Case) -> Data:
    """Float32 data in a tenth of the time: x are distinct values again, but scattered by arithmetic instead of shuffled."""
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    place = np.arange(math.prod(case.input_shape), dtype=np.uint32)
    for shift, factor in ((11, 0x9E3779B1), (13, 0x85EBCA77)):  # each step maps 24 bits one to one
        place = (place ^ (place >> np.uint32(shift))) * np.uint32(factor) & np.uint32(0xFFFFFF)
    x = (place.astype(np.float32) * np.float32(2.0**-23) - np.float32(1)).reshape(case.input_shape)
    shapes = case.output_shape, case.filter_shape if case.kind == "conv" else (0,)
    dy, f = (rng.random(shape, np.float32) * np.float32(2) - np.float32(1) for shape in shapes)
    return Data(case, x, dy, f)


def spatial_indices(layout: Layout, case: Case, flat: Array) -> Array:
    """Our flat indices as positions within one channel's image, channels last: the form all systems can be brought to."""
    cells = math.prod(case.window.input_size)
    if layout == "channels_last":
        return flat // case.channels_in % cells
    return to_channels_last(layout, flat % cells)


class Expected:
    """The right results of a case's ops, each computed when first asked for."""

    def __init__(self, data: Data) -> None:
        self.case = data.case
        self._known: dict[str, tuple[Array, ...]] = {}
        self.x, self.dy, self.filter = (a.astype(np.float64, copy=False) for a in (data.x, data.dy, data.filter))

    def of(self, op: str) -> tuple[Array, ...]:
        """The results of an op, channels last, float64; indices as spatial positions."""
        if op not in self._known:
            self._known[op] = self._compute(op)
        return self._known[op]

    @cached_property
    def absolute(self) -> Expected:
        """The same ops on absolute values: what rounding errors are measured against."""
        x, dy, f = (np.abs(a) for a in (self.x, self.dy, self.filter))
        return Expected(Data(self.case, x, dy, f))

    def _compute(self, op: str) -> tuple[Array, ...]:
        parts: dict[str, Callable[[], tuple[Array, ...]]] = {
            "max_pool": lambda: self._max[:1],
            "max_pool_with_indices": lambda: self._max,
            "max_pair": lambda: (self._max[0], self._max_grad),
            "avg_pool": lambda: (self._avg,),
            "avg_pool_grad": lambda: (self._avg_grad,),
            "avg_pair": lambda: (self._avg, self._avg_grad),
            "conv": lambda: (self._run(pb.conv, self.x, self.filter),),
            "conv_grad_input": lambda: (self._run(pb.conv_grad_input, self.dy, self.filter, self.case.input_shape),),
            "conv_grad_filter": lambda: (self._run(pb.conv_grad_filter, self.dy, self.x, self.case.filter_shape),),
        }
        return parts[op]() if op in parts else (self._max_grad,)

    def _run(self, op: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        groups = {"groups": self.case.groups} if self.case.kind == "conv" else {}
        with pb.backend("reference"):
            return op(*args, **self.case.geometry, **groups, **keywords)

    @cached_property
    def _max(self) -> tuple[Array, ...]:
        values, indices = self._run(pb.max_pool, self.x, self.case.window.kernel, return_indices=True)
        return values, spatial_indices("channels_last", self.case, indices)

    @cached_property
    def _max_grad(self) -> Array:
        return np.asarray(self._run(pb.max_pool_grad, self.dy, self.x, self.case.window.kernel))

    @cached_property
    def _avg(self) -> Array:
        return np.asarray(self._run(pb.avg_pool, self.x, self.case.window.kernel))

    @cached_property
    def _avg_grad(self) -> Array:
        return np.asarray(self._run(pb.avg_pool_grad, self.dy, self.case.input_shape, self.case.window.kernel))
