"""What tiles have in common: which cells the rows and columns of a tile are, and where those lie.

channels_last: a row is one cell of one image, the columns are its channels. channels_first: a row is a line of cells along the
width, the columns are its cells, and every channel counts as an image of one channel. So the place of a cell is
((image * depth + d) * height + h) * width + w, times the channels, plus the channel, in both.

Arguments of three entries, for depth, height and width: SIZE, OUT cells of input and output, PAD low padding, READ cells that may be
read, and at compile time K kernel, S stride, D dilation.
"""

import triton
import triton.language as tl


@triton.jit
def tile_places(rows, columns, cells, BR: tl.constexpr, BC: tl.constexpr, LAST: tl.constexpr, WIDE: tl.constexpr):
    """(row, column, image, d, h, w, channel, inside) of this program's tile over images of these cells.

    w is of the columns in channels_first and of the rows in channels_last; the channel is 0 where there is only one.
    """
    blocks = (columns + BC - 1) // BC
    pid = tl.program_id(0)
    row = (pid // blocks) * BR
    if WIDE:
        row = row.to(tl.int64)
    row = (row + tl.arange(0, BR))[:, None]
    column = ((pid % blocks) * BC + tl.arange(0, BC))[None, :]
    inside = (row < rows) & (column < columns)
    rest = row
    if LAST:
        w = rest % cells[2]
        rest = rest // cells[2]
        channel = column
    else:
        w = column
        channel = 0
    h = rest % cells[1]
    rest = rest // cells[1]
    d = rest % cells[0]
    image = rest // cells[0]
    return row, column, image, d, h, w, channel, inside


@triton.jit
def taps_inside(start, low, high, K: tl.constexpr, D: tl.constexpr):
    """How many taps of windows that begin at these cells lie among the cells low .. high - 1 (as `Window.tap_ranges`)."""
    first = tl.minimum((tl.maximum(low - start, 0) + D - 1) // D, K)
    end = tl.minimum((tl.maximum(high - start, 0) + D - 1) // D, K)
    return tl.maximum(end - first, 0)


@triton.constexpr_function
def length(phases, axis, phase):
    """How many taps read the cells of a phase. `phases`: for each axis and phase its (tap, shift) pairs, as `Window.phases` has them."""
    return len(phases[axis][phase])


@triton.constexpr_function
def count(phases, axis):
    return len(phases[axis])


@triton.constexpr_function
def tap_of(phases, axis, phase, number):
    return phases[axis][phase][number][0]


@triton.constexpr_function
def shift_of(phases, axis, phase, number):
    """Cell j of a phase is read by this tap from output j + shift."""
    return phases[axis][phase][number][1]


@triton.jit
def interleaved(parts, START: tl.constexpr, STEP: tl.constexpr, COUNT: tl.constexpr):
    """parts[START], parts[START + STEP], ..., COUNT of them (a power of two), side by side along the columns."""
    if COUNT == 1:
        return parts[START]
    return tl.interleave(
        interleaved(parts, START, 2 * STEP, COUNT // 2), interleaved(parts, START + STEP, 2 * STEP, COUNT // 2)
    )
