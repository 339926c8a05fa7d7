"""A convolution as the Winograd kernels see it: tiles over two axes, with taps summed over a third, at stride 1."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.plan_cache import planned
from pullback.problem import Problem
from pullback.window import Window

TAPS = 3  # of a transformed axis at a time: a longer window is cut into stretches of so many
OUTPUTS = 4  # of a tile along a transformed axis


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


@dataclass(frozen=True)
class Side:
    """One array as the kernels see it: its depth, rows and columns, and the bytes between neighbours along each axis."""

    depth: int
    rows: int
    columns: int
    image_bytes: int
    depth_bytes: int
    row_bytes: int
    column_bytes: int
    channel_bytes: int
    group_bytes: int
    start_bytes: int  # where its first cell lies

    def arguments(self, name: str) -> dict[str, int]:
        return {
            f"{name}_group": self.group_bytes, f"{name}_image": self.image_bytes, f"{name}_depth": self.depth_bytes,
            f"{name}_row": self.row_bytes, f"{name}_column": self.column_bytes, f"{name}_channel": self.channel_bytes,
        }  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """A problem as the kernels see it: tiles of the target, which reads the source through the filter."""

    source: Side
    target: Side
    outputs: tuple[int, int]  # of a tile, down and across
    taps: int  # along the depth
    stretches_h: int  # of taps down and across
    stretches_w: int
    dilation: tuple[int, ...]  # along depth, rows and columns
    pad: tuple[int, ...]
    batch: int
    groups: int
    summed: int  # channels of a group that are summed over, and those that are made
    made: int
    size: int
    wide: int

    @property
    def lanes(self) -> int:
        return machine().vector_bytes // self.wide

    @property
    def numbers(self) -> int:
        """Products of a tile."""
        return math.prod(m + TAPS - 1 if m > 1 else 1 for m in self.outputs)

    @property
    def stretches(self) -> int:
        return self.stretches_h * self.stretches_w

    @property
    def sets(self) -> int:
        """Sets of taps, each with a transformed filter of its own."""
        return self.taps * self.stretches

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles down and across an image, the residues of a dilated axis after one another."""
        _, d_h, d_w = self.dilation
        return (
            _tiles(self.target.rows, self.outputs[0], d_h),
            _tiles(self.target.columns, self.outputs[1], d_w),
        )

    @property
    def positions(self) -> int:
        return self.batch * math.prod(self.tiles)


def _tiles(size: int, outputs: int, d: int) -> int:
    return -(-size // (outputs * d)) * d


def _side(problem: Problem, axes: Axes, size: tuple[int, ...], channels: int, steps: tuple[int, ...] | None = None) -> Side:
    """An array, or where `steps` are given those of its cells that windows read, if any: each steps-th along an axis."""
    last, item, window = problem.layout == "channels_last", problem.dtype.itemsize, problem.window
    cell = channels * item if last else item
    along = tuple(cell * math.prod(size[axis + 1 :]) for axis in range(len(size)))
    channel = item if last else item * math.prod(size)
    image, group, start = math.prod(size) * channels * item, channels // problem.groups * channel, 0
    if steps is not None:
        firsts = tuple(-p % s for p, s in zip(window.pad_low, steps, strict=True))
        start = sum(first * step for first, step in zip(firsts, along, strict=True))
        size = tuple(-(-(n - first) // s) for n, first, s in zip(size, firsts, steps, strict=True))
        along = tuple(step * s for step, s in zip(along, steps, strict=True))
    return Side(*axes.pick(size, 1), image, *axes.pick(along, 0), channel, group, start)


@planned
def shape_of(problem: Problem, flipped: bool) -> Shape | None:
    """flipped: the input gradient, which reads dy through the filter turned round. None where Winograd cannot be used.

    A stride that divides the dilation reads every so many cells of the input and no others: over these it is a stride of 1.
    """
    window, axes = problem.window, axes_of(problem.window)
    if axes is None or any(d % s for d, s in zip(window.dilation, window.stride, strict=True)):
        return None
    if problem.layout == "channels_first" and (axes.columns != window.rank - 1 or window.stride[-1] > 1):
        return None  # its columns must lie side by side
    c, m = problem.channels_in // problem.groups, problem.channels_out // problem.groups
    source = _side(problem, axes, window.input_size, problem.channels_in, window.stride)
    target = _side(problem, axes, window.output_size, problem.channels_out)
    strides, kernel = axes.pick(window.stride, 1), axes.pick(window.kernel, 1)
    dilation = tuple(d // s for d, s in zip(axes.pick(window.dilation, 1), strides, strict=True))
    pad = tuple(-(-p // s) for p, s in zip(axes.pick(window.pad_low, 0), strides, strict=True))
    if flipped:
        source, target, c, m = target, source, m, c
        pad = tuple((k - 1) * d - p for k, d, p in zip(kernel, dilation, pad, strict=True))
    if min(source.depth, source.rows, source.columns, target.depth, target.rows, target.columns, c, m, problem.batch) < 1:
        return None
    return Shape(
        source, target, (OUTPUTS if axes.rows is not None else 1, OUTPUTS), kernel[0], -(-kernel[1] // TAPS),
        -(-kernel[2] // TAPS), dilation, pad, problem.batch, problem.groups, c, m, problem.dtype.itemsize,
        8 if problem.dtype.name == "float64" else 4,
    )  # fmt: skip


def aligned(count: int, unit: int = 64) -> int:
    return -(-count // unit) * unit


def register_tile(made: int, lanes: int) -> tuple[int, int]:
    """(rows, vectors) of the register tile that wastes the fewest lanes, the wider the better."""
    registers = 32 if machine().vector_bytes == 64 else 16
    needed = -(-made // lanes)
    vectors = min(range(1, 6 if registers == 32 else 4), key=lambda v: (-(-needed // v) * v, -v))
    return max(1, min(14, (registers - vectors - 1) // vectors)), vectors
