"""A convolution as the Winograd kernels see it: tiles over two axes, with taps summed over a third, at stride 1."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.sizes import ceil_div, round_up, sum_bytes, tile_rows
from pullback.cpu.winograd.records import OUTPUTS, TAPS
from pullback.problem import Problem
from pullback.window import Window


@dataclass(frozen=True)
class Axes:
    """Which spatial axis is the depth, whose taps are summed, and which two are transformed; None for one that is not there."""

    depth: int | None
    rows: int | None
    columns: int | None

    def pick(self, values: tuple[int, ...], missing: int) -> tuple[int, int, int]:
        return tuple(missing if axis is None else values[axis] for axis in (self.depth, self.rows, self.columns))  # type: ignore[return-value]


def axes_of(window: Window) -> Axes | None:
    """The last two axes with several taps are transformed, or the only one; None where more than one axis is left."""
    several = [axis for axis, k in enumerate(window.kernel) if k > 1]
    chosen = several[-2:]
    rest = [axis for axis in range(window.rank) if axis not in chosen]
    if not chosen or len(rest) > 1:
        return None
    return Axes(rest[0] if rest else None, chosen[0] if len(chosen) > 1 else None, chosen[-1])


def unit_stride(window: Window) -> Window | None:
    """The window over those cells alone that it reads, at stride 1; None where a stride does not divide the dilation.

    A stride that does reads every so many cells of the input, and no others.
    """
    if any(d % s for d, s in zip(window.dilation, window.stride, strict=True)):
        return None
    axes = tuple(zip(window.input_size, window.stride, window.dilation, window.pad_low, strict=True))
    cells = tuple(ceil_div(n - -p % s, s) for n, s, _, p in axes)
    dilation = tuple(d // s for _, s, d, _ in axes)
    low = tuple(ceil_div(p, s) for _, s, _, p in axes)
    high = tuple(
        outputs + (k - 1) * d - n - p
        for outputs, k, d, n, p in zip(window.output_size, window.kernel, dilation, cells, low, strict=True)
    )
    return Window(cells, window.output_size, window.kernel, (1,) * window.rank, dilation, low, high)


@planned
def compacted(problem: Problem) -> tuple[Problem, tuple[slice, ...]] | None:
    """In channels_first, where a stride divides the dilation: the problem over the cells that windows read, and where these are.

    Columns must lie side by side there; in channels_last the same cells are read where they are.
    """
    window, unit = problem.window, unit_stride(problem.window)
    if problem.layout != "channels_first" or window.stride[-1] == 1 or unit is None or min(unit.input_size) < 1:
        return None
    cells = (slice(-p % s, None, s) for p, s in zip(window.pad_low, window.stride, strict=True))
    return replace(problem, window=unit), (slice(None), slice(None), *cells)


@dataclass(frozen=True)
class Side:
    """One array as the kernels see it: its depth, rows and columns, and the bytes between neighbours along each axis."""

    depth: int
    rows: int
    columns: int
    image_pitch: int
    depth_pitch: int
    row_pitch: int
    column_pitch: int
    channel_pitch: int
    group_pitch: int
    start_bytes: int  # where its first cell lies


@dataclass(frozen=True)
class Shape:
    """A problem as the kernels see it: tiles of the target, which reads the source through the filter."""

    source: Side
    target: Side
    outputs: tuple[int, int]  # of a tile, down and across
    depth_taps: int
    tap_blocks_h: int  # of TAPS taps, down and across
    tap_blocks_w: int
    dilation: tuple[int, ...]  # along depth, rows and columns
    pad: tuple[int, ...]
    batch: int
    groups: int
    in_channels: int  # of a group: those that are summed over
    out_channels: int
    item_bytes: int  # of an element in the arrays
    sum_bytes: int  # and in scratch

    @property
    def lanes(self) -> int:
        return machine().vector_bytes // self.sum_bytes

    @property
    def points(self) -> int:
        """Numbers of a transformed tile, each a product of its own."""
        return math.prod(m + TAPS - 1 if m > 1 else 1 for m in self.outputs)

    @property
    def tap_blocks(self) -> int:
        return self.tap_blocks_h * self.tap_blocks_w

    @property
    def k_blocks(self) -> int:
        """Sets of taps, each with a transformed filter of its own, that are summed between the transforms."""
        return self.depth_taps * self.tap_blocks

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles down and across an image, the residues of a dilated axis after one another."""
        sizes = (self.target.rows, self.target.columns)
        down, across = (ceil_div(n, m * d) * d for n, m, d in zip(sizes, self.outputs, self.dilation[1:], strict=True))
        return down, across

    @property
    def positions(self) -> int:
        return self.batch * math.prod(self.tiles)


def _side(problem: Problem, axes: Axes, size: tuple[int, ...], channels: int, cells: tuple[int, ...] | None = None) -> Side:
    """An array, or of one with strides so many cells along each axis: those that windows read, if any."""
    last, item, window = problem.layout == "channels_last", problem.dtype.itemsize, problem.window
    cell = channels * item if last else item
    pitches = tuple(cell * math.prod(size[axis + 1 :]) for axis in range(len(size)))
    channel = item if last else item * math.prod(size)
    image, group, start = math.prod(size) * channels * item, channels // problem.groups * channel, 0
    if cells is not None:
        start = sum(-p % s * pitch for p, s, pitch in zip(window.pad_low, window.stride, pitches, strict=True))
        pitches = tuple(pitch * s for pitch, s in zip(pitches, window.stride, strict=True))
    return Side(*axes.pick(cells or size, 1), image, *axes.pick(pitches, 0), channel, group, start)


@planned
def shape_of(problem: Problem, flipped: bool) -> Shape | None:
    """flipped: the input gradient, which reads dy through the flipped filter. None where Winograd cannot be used."""
    window, axes, unit = problem.window, axes_of(problem.window), unit_stride(problem.window)
    if axes is None or unit is None:
        return None
    if problem.layout == "channels_first" and (axes.columns != window.rank - 1 or window.stride[-1] > 1):
        return None  # its columns must lie side by side
    c, m = problem.channels_in // problem.groups, problem.channels_out // problem.groups
    source = _side(problem, axes, window.input_size, problem.channels_in, unit.input_size)
    target = _side(problem, axes, window.output_size, problem.channels_out)
    kernel, dilation, pad = axes.pick(window.kernel, 1), axes.pick(unit.dilation, 1), axes.pick(unit.pad_low, 0)
    if flipped:
        source, target, c, m = target, source, m, c
        pad = tuple((k - 1) * d - p for k, d, p in zip(kernel, dilation, pad, strict=True))  # type: ignore[assignment]
    if min(source.depth, source.rows, source.columns, target.depth, target.rows, target.columns, c, m, problem.batch) < 1:
        return None
    outputs = (OUTPUTS if axes.rows is not None else 1, OUTPUTS)
    return Shape(
        source, target, outputs, kernel[0], ceil_div(kernel[1], TAPS), ceil_div(kernel[2], TAPS), dilation, pad,
        problem.batch, problem.groups, c, m, problem.dtype.itemsize, sum_bytes(problem.dtype),
    )  # fmt: skip


def register_tile(out_channels: int, lanes: int) -> tuple[int, int]:
    """(rows, vectors) of the register tile that wastes the fewest lanes, the wider the better."""
    widest = 5 if machine().registers == 32 else 3
    needed = ceil_div(out_channels, lanes)
    vectors = min(range(1, widest + 1), key=lambda v: (round_up(needed, v), -v))
    return tile_rows(vectors), vectors
