"""Slow answers straight from the formulas, in float64: what the op tests compare with. Shares no code with the library.

Every op is one loop over `reads`: output y, tap t and the input cell y*s - p + t*d it reads. A gradient is the same loop
with the roles of the arrays exchanged. Only batch and channels are vectorised.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

Cell = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    sizes: Cell
    kernel: Cell
    stride: Cell
    dilation: Cell
    low: Cell
    high: Cell
    outs: Cell

    def cell(self, y: Cell, t: Cell) -> Cell:
        return tuple(yi * s - p + ti * d for yi, s, p, ti, d in zip(y, self.stride, self.low, t, self.dilation, strict=True))

    def inside(self, cell: Cell) -> bool:
        return all(0 <= c < n + min(q, 0) for c, n, q in zip(cell, self.sizes, self.high, strict=True))

    def inside_padded(self, cell: Cell) -> bool:
        return all(-p <= c < n + q for c, n, p, q in zip(cell, self.sizes, self.low, self.high, strict=True))

    def outputs(self) -> Iterator[Cell]:
        return product(*map(range, self.outs))

    def taps(self) -> Iterator[Cell]:
        return product(*map(range, self.kernel))

    def reads(self) -> Iterator[tuple[Cell, Cell, Cell]]:
        for y in self.outputs():
            for t in self.taps():
                if self.inside(cell := self.cell(y, t)):
                    yield y, t, cell


def each(value: Any, rank: int) -> Cell:
    return (value,) * rank if isinstance(value, int) else tuple(value)


def axis_size(n: int, e: int, s: int, p: int, q: int, rounding: str) -> int:
    """Windows on an axis; one that only rounding up adds is dropped where it starts past the (cropped) input and its low pad."""
    steps = n + p + q - e
    whole = steps // s + 1
    if rounding == "floor":
        return whole
    o = math.ceil(steps / s) + 1 if rounding == "ceil" else (2 * steps + s) // (2 * s) + 1
    return o - 1 if o > whole and (o - 1) * s >= n + min(q, 0) + p else o


def geometry(
    sizes: Cell, kernel: Any, stride: Any = 1, dilation: Any = 1, padding: Any = "valid", rounding: str = "floor"
) -> Geometry:
    rank = len(sizes)
    k, d = each(kernel, rank), each(dilation, rank)
    s = k if stride is None else each(stride, rank)
    low, high, outs = [], [], []
    for axis in range(rank):
        n, e = sizes[axis], d[axis] * (k[axis] - 1) + 1
        if padding in ("same", "same_lower"):
            o = math.ceil(n / s[axis])
            needed = max(0, (o - 1) * s[axis] + e - n)
            p = math.ceil(needed / 2) if padding == "same_lower" else needed // 2
            q = needed - p
        else:
            entry = 0 if padding == "valid" else padding if isinstance(padding, int) else padding[axis]
            p, q = (entry, entry) if isinstance(entry, int) else entry
            o = axis_size(n, e, s[axis], p, q, rounding)
        low.append(p)
        high.append(q)
        outs.append(o)
    return Geometry(sizes, k, s, d, tuple(low), tuple(high), tuple(outs))


def last(array: Any, layout: str) -> np.ndarray:
    """An activation in float64 with its channels last."""
    wide = np.asarray(array).astype(np.float64)
    return wide if layout == "channels_last" else np.moveaxis(wide, 1, -1)


def back(array: np.ndarray, layout: str) -> np.ndarray:
    return array if layout == "channels_last" else np.moveaxis(array, -1, 1)


def sizes_of(shape: Cell, layout: str) -> Cell:
    return tuple(shape[1:-1] if layout == "channels_last" else shape[2:])


def channels_of(shape: Cell, layout: str) -> int:
    return shape[-1] if layout == "channels_last" else shape[1]


def filter_last(filter: Any, layout: str) -> np.ndarray:
    """A filter in float64 as (*k, channels per group, filters)."""
    wide = np.asarray(filter).astype(np.float64)
    return wide if layout == "channels_last" else np.moveaxis(wide, (0, 1), (-1, -2))


def group_slices(groups: int, channels: int, filters: int) -> Iterator[tuple[slice, slice]]:
    c, m = channels // groups, filters // groups
    return ((slice(g * c, g * c + c), slice(g * m, g * m + m)) for g in range(groups))


def conv(x: Any, filter: Any, *, layout: str = "channels_last", groups: int = 1, **keywords: Any) -> np.ndarray:
    a, f = last(x, layout), filter_last(filter, layout)
    g = geometry(a.shape[1:-1], f.shape[:-2], **keywords)
    y = np.zeros((a.shape[0], *g.outs, f.shape[-1]))
    for out, t, cell in g.reads():
        for c, m in group_slices(groups, a.shape[-1], f.shape[-1]):
            y[:, *out, m] += a[:, *cell, c] @ f[*t, :, m]
    return back(y, layout)


def conv_grad_input(
    dy: Any, filter: Any, shape: Cell, *, layout: str = "channels_last", groups: int = 1, **keywords: Any
) -> np.ndarray:
    d, f = last(dy, layout), filter_last(filter, layout)
    g = geometry(sizes_of(shape, layout), f.shape[:-2], **keywords)
    dx = np.zeros((shape[0], *g.sizes, channels_of(shape, layout)))
    for out, t, cell in g.reads():
        for c, m in group_slices(groups, dx.shape[-1], f.shape[-1]):
            dx[:, *cell, c] += d[:, *out, m] @ f[*t, :, m].T
    return back(dx, layout)


def conv_grad_filter(
    dy: Any, x: Any, shape: Cell, *, layout: str = "channels_last", groups: int = 1, **keywords: Any
) -> np.ndarray:
    d, a = last(dy, layout), last(x, layout)
    df = filter_last(np.zeros(shape), layout)
    g = geometry(a.shape[1:-1], df.shape[:-2], **keywords)
    for out, t, cell in g.reads():
        for c, m in group_slices(groups, a.shape[-1], df.shape[-1]):
            df[*t, :, m] += a[:, *cell, c].T @ d[:, *out, m]
    return df if layout == "channels_last" else np.moveaxis(df, (-1, -2), (0, 1))


def winning_cell(cells: list[tuple[float, Cell]], ties: str, nan: str) -> tuple[float, Cell] | None:
    """The winner among the (value, cell) pairs of a window in scan order, None if there is none."""
    numbers = [pair for pair in cells if not math.isnan(pair[0])]
    if nan == "propagate" and len(numbers) < len(cells):
        return next(pair for pair in cells if math.isnan(pair[0]))
    if not numbers:
        return None
    top = max(value for value, _ in numbers)
    equal = [pair for pair in numbers if pair[0] == top]
    return equal[0] if ties == "first" else equal[-1]


def winners(a: np.ndarray, g: Geometry, ties: str, nan: str) -> Iterator[tuple[int, Cell, int, tuple[float, Cell] | None]]:
    """(batch, output, channel, winner) of every window of a channels-last array."""
    for out in g.outputs():
        read = [cell for t in g.taps() if g.inside(cell := g.cell(out, t))]
        for n, c in product(range(a.shape[0]), range(a.shape[-1])):
            yield n, out, c, winning_cell([(float(a[n, *cell, c]), cell) for cell in read], ties, nan)


def flat_index(shape: Cell, layout: str, n: int, cell: Cell, c: int, storage_order: int) -> int:
    """Where a cell lies in the flat input; with storage_order 1 its spatial part counts the first axis fastest."""
    sizes = sizes_of(shape, layout)
    spatial, step = 0, 1
    for axis in range(len(sizes)) if storage_order else reversed(range(len(sizes))):
        spatial += cell[axis] * step
        step *= sizes[axis]
    channels = channels_of(shape, layout)
    return (n * step + spatial) * channels + c if layout == "channels_last" else (n * channels + c) * step + spatial


def max_pool(
    x: Any,
    window: Any,
    *,
    stride: Any = None,
    layout: str = "channels_last",
    ties: str = "first",
    nan: str = "propagate",
    storage_order: int = 0,
    **keywords: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """(values, indices)"""
    a = last(x, layout)
    g = geometry(a.shape[1:-1], window, stride, **keywords)
    y = np.full((a.shape[0], *g.outs, a.shape[-1]), -np.inf)
    indices = np.full(y.shape, -1, np.int64)
    for n, out, c, won in winners(a, g, ties, nan):
        if won is not None:
            y[n, *out, c] = won[0]
            indices[n, *out, c] = flat_index(np.shape(x), layout, n, won[1], c, storage_order)
    return back(y, layout), back(indices, layout)


def max_pool_grad(
    dy: Any,
    x: Any,
    window: Any,
    *,
    stride: Any = None,
    layout: str = "channels_last",
    ties: str = "first",
    nan: str = "propagate",
    **keywords: Any,
) -> np.ndarray:
    d, a = last(dy, layout), last(x, layout)
    dx = np.zeros(a.shape)
    for n, out, c, won in winners(a, geometry(a.shape[1:-1], window, stride, **keywords), ties, nan):
        if won is not None:
            dx[n, *won[1], c] += d[n, *out, c]
    return back(dx, layout)


def divisors(g: Geometry, count_include_pad: bool, divisor: int | None) -> np.ndarray:
    """What each window's sum is divided by: the cells that count (1 where there is none, which gives 0), or one number."""
    if divisor is not None:
        return np.full(g.outs, float(divisor))
    counts = np.ones(g.outs)
    for out in g.outputs():
        cells = [g.cell(out, t) for t in g.taps()]
        counts[out] = max(1, sum(map(g.inside_padded if count_include_pad else g.inside, cells)))
    return counts


def avg_pool(
    x: Any,
    window: Any,
    *,
    stride: Any = None,
    layout: str = "channels_last",
    count_include_pad: bool = False,
    divisor: int | None = None,
    **keywords: Any,
) -> np.ndarray:
    a = last(x, layout)
    g = geometry(a.shape[1:-1], window, stride, **keywords)
    y = np.zeros((a.shape[0], *g.outs, a.shape[-1]))
    for out, _, cell in g.reads():
        y[:, *out] += a[:, *cell]
    return back(y / divisors(g, count_include_pad, divisor)[None, ..., None], layout)


def avg_pool_grad(
    dy: Any,
    shape: Cell,
    window: Any,
    *,
    stride: Any = None,
    layout: str = "channels_last",
    count_include_pad: bool = False,
    divisor: int | None = None,
    **keywords: Any,
) -> np.ndarray:
    d = last(dy, layout)
    g = geometry(sizes_of(shape, layout), window, stride, **keywords)
    dx = np.zeros((shape[0], *g.sizes, channels_of(shape, layout)))
    shares = d / divisors(g, count_include_pad, divisor)[None, ..., None]
    for out, _, cell in g.reads():
        dx[:, *cell] += shares[:, *out]
    return back(dx, layout)
