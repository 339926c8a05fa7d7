"""The geometry of sliding windows in N dimensions: the only place that knows sizes, pads, taps, phases and divisors.

Letters, per axis: n input size, k window (kernel) size, s stride, d dilation, p low pad, q high pad, o output size, and
e = (k - 1) * d + 1 the span of a dilated window. Output y covers input cells y*s - p + t*d for the taps t = 0 .. k-1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Rounding = Literal["floor", "ceil", "round"]
Divisor = Literal["valid", "padded", "full"] | int
Ints = npt.NDArray[np.int64]
Padding = str | int | Sequence[int] | Sequence[tuple[int, int]]

ROUNDINGS: tuple[Rounding, ...] = ("floor", "ceil", "round")
PADDING_NAMES = ("valid", "same", "same_lower")


def span(k: int, d: int) -> int:
    """Cells from the first to the last tap of a dilated window, both included."""
    return (k - 1) * d + 1


def same_pads(n: int, e: int, s: int, *, lower: bool = False, clamp: bool = True) -> tuple[int, int]:
    """Low and high pad that make the output ceil(n / s) long.

    The odd cell goes to the end, or to the start if `lower`. Without `clamp` the total may be negative (stride beyond the
    window): windows then start inside the input, as TF.js does in 3-D; floor division puts the odd cell as TF.js does.
    """
    total = (-(-n // s) - 1) * s + e - n
    if clamp:
        total = max(0, total)
    small, large = total // 2, total - total // 2
    return (large, small) if lower else (small, large)


def round_size(value: Fraction, rounding: Rounding) -> int:
    """An exact fractional output size made whole: floor, ceil, or round half up."""
    if rounding == "floor":
        return math.floor(value)
    if rounding == "ceil":
        return math.ceil(value)
    return math.floor(value + Fraction(1, 2))


def readable_cells(n: int, q: int) -> int:
    """Cells of an axis that windows may read: a negative high pad crops the last ones, as slicing them off beforehand would.

    (A negative low pad needs no care: the first window begins behind what it crops.)
    """
    return max(0, n + min(q, 0))


def count_windows(n: int, e: int, s: int, p: int, q: int, rounding: Rounding) -> int:
    """Output size of one axis. A window that only rounding up adds is dropped if it starts past the readable input and low
    pad.
    """
    steps = Fraction(n + p + q - e, s) + 1
    o = round_size(steps, rounding)
    if o > math.floor(steps) and (o - 1) * s >= n + min(q, 0) + p:
        o -= 1
    return o


@dataclass(frozen=True, slots=True)
class Phase:
    """One residue class of an axis's input cells: cells start, start + s, ..., seen by the same taps.

    Cell number j of the class is reached by tap `taps[m]` from output j + shifts[m], where that output exists.
    """

    start: int
    count: int
    taps: tuple[int, ...]
    shifts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Readers:
    """The outputs that read each cell i of an axis, ascending: first[i] + m step by tap first_tap[i] + m tap_step, m <
    count[i].
    """

    first: Ints
    step: int
    first_tap: Ints
    tap_step: int
    count: Ints


@dataclass(frozen=True)
class Window:
    """Frozen geometry of one sliding-window problem; every tuple has one entry per spatial axis."""

    input_size: tuple[int, ...]
    output_size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad_low: tuple[int, ...]
    pad_high: tuple[int, ...]

    @classmethod
    def make(
        cls,
        input_size: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
        padding: str | Sequence[tuple[int, int]],
        rounding: Rounding = "floor",
    ) -> Window:
        """Geometry from a padding name or one (low, high) pair per axis.

        Raises ValueError where a window does not fit into the padded input.
        """
        lows, highs, outs = [], [], []
        for axis, (n, k, s, d) in enumerate(zip(input_size, kernel, stride, dilation, strict=True)):
            e = span(k, d)
            if padding in ("same", "same_lower"):
                p, q = same_pads(n, e, s, lower=padding == "same_lower")
                o = -(-n // s)
            else:
                p, q = (0, 0) if isinstance(padding, str) else padding[axis]
                o = count_windows(n, e, s, p, q, rounding)
                if o < 1:
                    raise ValueError(
                        f"a window of {k} with dilation {d} spans {e} cells, more than the {n} input cells with padding "
                        f"({p}, {q}) on spatial axis {axis}; make the window smaller or the padding larger"
                    )
            lows.append(p)
            highs.append(q)
            outs.append(o)
        return cls(tuple(input_size), tuple(outs), tuple(kernel), tuple(stride), tuple(dilation), tuple(lows), tuple(highs))

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def tap_count(self) -> int:
        return math.prod(self.kernel)

    def taps(self) -> Iterator[tuple[int, ...]]:
        """All taps of a window, row-major; the position in this order is the tap's number."""
        return product(*map(range, self.kernel))

    def starts(self, axis: int) -> Ints:
        """The cell where the window of each output begins; may lie outside the input."""
        return np.arange(self.output_size[axis], dtype=np.int64) * self.stride[axis] - self.pad_low[axis]

    def tap_cell(self, axis: int, y: int, t: int) -> int:
        """Input cell that tap t of output y reads on an axis; may lie outside the input."""
        return y * self.stride[axis] - self.pad_low[axis] + t * self.dilation[axis]

    def readable(self, axis: int) -> int:
        """Cells of an axis, from the first on, that windows may read."""
        return readable_cells(self.input_size[axis], self.pad_high[axis])

    def outputs_of_tap(self, axis: int, t: int) -> range:
        """The outputs whose tap t falls inside the input."""
        n, o, s = self.readable(axis), self.output_size[axis], self.stride[axis]
        first_cell = t * self.dilation[axis] - self.pad_low[axis]
        low = max(0, -(first_cell // s))  # smallest y with y*s + first_cell >= 0
        high = min(o, (n - 1 - first_cell) // s + 1)
        return range(low, max(low, high))

    def tap_slices(self, tap: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Slices (outputs, inputs), one pair per axis, that pair each output with the cell its tap reads."""
        outs, ins = [], []
        for axis, t in enumerate(tap):
            ys = self.outputs_of_tap(axis, t)
            if not ys:
                outs.append(slice(0, 0))
                ins.append(slice(0, 0))
                continue
            s = self.stride[axis]
            first = self.tap_cell(axis, ys.start, t)
            outs.append(slice(ys.start, ys.stop))
            ins.append(slice(first, first + (len(ys) - 1) * s + 1, s))
        return tuple(outs), tuple(ins)

    def covering(self, axis: int, i: int) -> tuple[tuple[int, int], ...]:
        """The (output, tap) pairs of an axis that read input cell i, outputs ascending."""
        o, k, s = self.output_size[axis], self.kernel[axis], self.stride[axis]
        pairs = []
        for t in reversed(range(k)) if i < self.readable(axis) else ():
            y, rest = divmod(i + self.pad_low[axis] - t * self.dilation[axis], s)
            if rest == 0 and 0 <= y < o:
                pairs.append((y, t))
        return tuple(pairs)

    def tap_ranges(self, axis: int) -> tuple[Ints, Ints]:
        """(first tap inside the input, how many) of each output."""
        return self._taps_between(axis, self.starts(axis), 0, self.readable(axis))

    def _taps_between(self, axis: int, starts: Ints, low: int, high: int) -> tuple[Ints, Ints]:
        """(first tap, how many) of the windows that begin at these cells, among the cells low .. high-1."""
        k, d = self.kernel[axis], self.dilation[axis]
        first = np.clip(-((starts - low) // d), 0, k)
        return first, np.maximum(np.clip((high - 1 - starts) // d + 1, 0, k) - first, 0)

    def readers(self, axis: int) -> Readers:
        """Who reads each cell of an axis, by arithmetic.

        Cell i is read by output y with tap t where y s + t d = i + p. Divided by g = gcd(s, d) that has solutions only if g
        divides i + p; from one solution to the next t changes by s / g and y by d / g, so they are an arithmetic progression.
        """
        n, o, k = self.input_size[axis], self.output_size[axis], self.kernel[axis]
        g = math.gcd(self.stride[axis], self.dilation[axis])
        s, d = self.stride[axis] // g, self.dilation[axis] // g
        c, rest = np.divmod(np.arange(n, dtype=np.int64) + self.pad_low[axis], g)
        residue = c % s * pow(d, -1, s) % s  # of every tap that reads the cell, modulo s
        lowest, highest = np.maximum(-((np.int64(o - 1) * s - c) // d), 0), np.minimum(c // d, k - 1)
        last_tap = lowest + (residue - lowest) % s
        first_tap = highest - (highest - residue) % s
        count = np.maximum((first_tap - last_tap) // s + 1, 0)
        count[rest != 0] = 0
        count[self.readable(axis) :] = 0
        first = np.where(count > 0, (c - first_tap * d) // s, 0)
        return Readers(first, d, np.where(count > 0, first_tap, 0), -s, count)

    def phases(self, axis: int) -> tuple[Phase, ...]:
        """The stride phases of an axis: its input cells split by residue, each with the taps that reach it.

        Over its phases a strided gradient is a few small stride-1 problems, with no zero ever multiplied. (Of windows that
        reach into cropped cells, see `reaches_crop`, nothing here speaks.)
        """
        n, k, d, p = self.input_size[axis], self.kernel[axis], self.dilation[axis], self.pad_low[axis]
        g = math.gcd(self.stride[axis], d)
        s = self.stride[axis]
        inverse = pow(d // g, -1, s // g)
        found = []
        for start in range(min(s, n)):
            c, rest = divmod(start + p, g)
            taps = range(c * inverse % (s // g), k, s // g) if rest == 0 else range(0)  # those with t d = start + p modulo s
            found.append(Phase(start, -(-(n - start) // s), tuple(taps), tuple((start + p - t * d) // s for t in taps)))
        return tuple(found)

    @cached_property
    def reaches_crop(self) -> bool:
        """Whether the last window of some axis reaches past what a negative high pad leaves, as rounding up may have it."""
        return any(
            self.readable(axis) < self.input_size[axis]
            and self.tap_cell(axis, self.output_size[axis] - 1, self.kernel[axis] - 1) >= self.readable(axis)
            for axis in range(self.rank)
        )

    def cropped(self) -> Window:
        """The same windows over an input of the readable cells alone."""
        size = tuple(self.readable(axis) for axis in range(self.rank))
        high = tuple(q if q > 0 else n + q - left for n, q, left in zip(self.input_size, self.pad_high, size, strict=True))
        return replace(self, input_size=size, pad_high=high)

    def merged(self) -> Window:
        """The same windows over fewer axes: an axis that every window spans whole is joined to the axis before it.

        Cells and taps keep their row-major numbers. A stride that no second window follows becomes 1.
        """
        axes = [list(axis) for axis in zip(
            self.input_size, self.output_size, self.kernel, self.stride, self.dilation, self.pad_low, self.pad_high, strict=True
        )]  # fmt: skip
        for axis in axes:
            if axis[1] == 1:
                axis[3] = 1
        index = len(axes) - 1
        while index > 0:
            n, o, k, _, d, p, _ = axes[index]
            before = axes[index - 1]
            spans = o == 1 and k == n and p == 0 and (d == 1 or k == 1)
            if spans and (before[4] == 1 or before[2] == 1):
                size, outputs, kernel, stride, _, low, high = before
                axes[index - 1] = [size * n, outputs, kernel * n, stride * n if outputs > 1 else 1, 1, low * n, high * n]
                del axes[index]
            index -= 1
        return Window(*(tuple(values) for values in zip(*axes, strict=True)))

    def axis_divisor(self, axis: int, rule: Divisor) -> Ints:
        """Cells that count towards the average of each output, along one axis.

        valid: taps inside the input. padded: taps inside input and declared pads. full: all taps. A number is the divisor of
        every window itself, and the first axis carries it.
        """
        n, o, k = self.input_size[axis], self.output_size[axis], self.kernel[axis]
        if isinstance(rule, int):
            return np.full(o, 1 if axis else rule, np.int64)
        if rule == "full":
            return np.full(o, k, np.int64)
        if rule == "valid":
            return self.tap_ranges(axis)[1]
        return self._taps_between(axis, self.starts(axis), -self.pad_low[axis], n + self.pad_high[axis])[1]

    def divisor(self, rule: Divisor) -> Ints:
        """Divisor of the average at every output position, an array of shape `output_size`."""
        return _outer([self.axis_divisor(axis, rule) for axis in range(self.rank)])


def _outer(parts: Sequence[Ints]) -> Ints:
    """The product of one array per axis, an array of all axes."""
    product_of_all = np.ones((), np.int64)
    for part in parts:
        product_of_all = product_of_all[..., None] * part
    return product_of_all


@dataclass(frozen=True)
class AdaptiveWindow:
    """Windows that cut an axis of n cells into o parts, of sizes that may differ by one: output y has the cells
    floor(y n / o) .. ceil((y + 1) n / o) - 1. Neighbours share a cell where o does not divide n, and many do where o > n.
    """

    input_size: tuple[int, ...]
    output_size: tuple[int, ...]

    reaches_crop = False  # as a Window says it: nothing is cropped

    def even(self) -> Window | None:
        """The same as ordinary windows, which these are where every output size divides its input size."""
        if any(n % o or not n for n, o in zip(self.input_size, self.output_size, strict=True)):
            return None
        kernel = tuple(n // o for n, o in zip(self.input_size, self.output_size, strict=True))
        return Window.make(self.input_size, kernel, kernel, (1,) * self.rank, "valid")

    @property
    def rank(self) -> int:
        return len(self.input_size)

    @property
    def dilation(self) -> tuple[int, ...]:
        return (1,) * self.rank

    @cached_property
    def kernel(self) -> tuple[int, ...]:
        """The largest window along each axis: taps are numbered as if all were that large."""
        return tuple(int(self.sizes(axis).max()) for axis in range(self.rank))

    @property
    def tap_count(self) -> int:
        return math.prod(self.kernel)

    def starts(self, axis: int) -> Ints:
        """The cell where the window of each output begins."""
        n, o = self.input_size[axis], self.output_size[axis]
        return np.arange(o, dtype=np.int64) * n // o

    def ends(self, axis: int) -> Ints:
        """The cell behind the window of each output."""
        n, o = self.input_size[axis], self.output_size[axis]
        return -(-np.arange(1, o + 1, dtype=np.int64) * n // o)

    def sizes(self, axis: int) -> Ints:
        return self.ends(axis) - self.starts(axis)

    def cells_of_tap(self, tap: Sequence[int]) -> tuple[list[Ints], list[Ints]]:
        """(outputs, cells) of each axis: the outputs whose windows have this tap, and the cells that they read by it."""
        outputs = [np.flatnonzero(self.sizes(axis) > t) for axis, t in enumerate(tap)]
        return outputs, [self.starts(axis)[ys] + tap[axis] for axis, ys in enumerate(outputs)]

    def taps(self) -> Iterator[tuple[int, ...]]:
        """All taps of the largest window, row-major; the position in this order is the tap's number."""
        return product(*map(range, self.kernel))

    def readers(self, axis: int) -> Readers:
        """Who reads each cell of an axis. By which tap is left open: from one reader to the next it changes unevenly."""
        cells = np.arange(self.input_size[axis], dtype=np.int64)
        first = np.searchsorted(self.ends(axis), cells, side="right")
        count = np.searchsorted(self.starts(axis), cells, side="right") - first
        return Readers(first, 1, np.zeros_like(cells), 0, count)

    def divisor(self) -> Ints:
        """Cells of every window, an array of shape `output_size`."""
        return _outer([self.sizes(axis) for axis in range(self.rank)])


def axis_slices(channel_axis_last: bool, spatial: Sequence[slice]) -> tuple[Any, ...]:
    """Index a batched array by spatial slices: (n, *spatial, c) or (n, c, *spatial)."""
    everything = slice(None)
    return (everything, *spatial, everything) if channel_axis_last else (everything, everything, *spatial)


def unravelled(indices: Ints, shape: tuple[int, ...]) -> tuple[Ints, ...]:
    """np.unravel_index, which gives wrong numbers for large arrays that end in an axis of size 1: so on flat arrays."""
    return tuple(part.reshape(indices.shape) for part in np.unravel_index(indices.reshape(-1), shape))


def ravelled(places: tuple[Ints, ...], shape: tuple[int, ...]) -> Ints:
    """np.ravel_multi_index, on flat arrays for the same reason."""
    return np.ravel_multi_index(tuple(part.reshape(-1) for part in places), shape).reshape(places[0].shape)
