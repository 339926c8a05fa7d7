"""What tiles have in common: which cells the rows and columns of a tile are, and where those lie.

channels_last: a row is one cell of one image, the columns are its channels. channels_first: every channel counts as an image of
one channel, and all cells of all images are columns of one row. So the place of a cell is
((image * depth + d) * height + h) * width + w, times the channels, plus the channel, in both.

Arguments of three entries, for depth, height and width: SIZE, OUT cells of input and output, PAD low padding, READ cells that may
be read, and at compile time K kernel, S stride, D dilation.
"""

import triton
import triton.language as tl

LAST, FLAT = (tl.constexpr(i) for i in range(2))  # how the cells of a result lie in the rows and columns of tiles


@triton.jit
def split_small(number, size, MOST: tl.constexpr):
    """(number // size, number % size) of numbers below size + MOST, MOST at most 512: a division would take twenty instructions."""
    if MOST == 1:
        whole = (number >= size).to(tl.int32)
    else:
        # number * reciprocal errs by less than number * size / 2^20, which is under one where size < MOST.
        reciprocal = ((1 << 20) + size - 1) // size
        whole = tl.where(size >= MOST, (number >= size).to(tl.int32), (number * reciprocal) >> 20)
    return whole, number - whole * size


@triton.jit
def tile_places(rows, columns, cells, BR: tl.constexpr, BC: tl.constexpr, ORDER: tl.constexpr, WIDE: tl.constexpr):
    """(row, column, image, d, h, w, channel, inside) of this program's tile over images of these cells.

    The cells are those of the rows in channels_last (ORDER LAST), and of the columns where all cells are columns of one row
    (FLAT). The channel is 0 where there is only one.
    Only the first cell of a tile is divided by the sizes; the others follow it.
    """
    blocks = (columns + BC - 1) // BC
    pid = tl.program_id(0)
    first = (pid // blocks) * BR
    first_column = (pid % blocks) * BC
    if WIDE:
        first = first.to(tl.int64)
        first_column = first_column.to(tl.int64)
    ahead = tl.arange(0, BR)[:, None]
    row = first + ahead
    column = first_column + tl.arange(0, BC)[None, :]
    inside = (row < rows) & (column < columns)
    MOST: tl.constexpr = BC if ORDER == FLAT else BR
    channel = 0
    if ORDER == FLAT:
        first = first_column
        ahead = tl.arange(0, BC)[None, :]
    ahead, w = split_small((first % cells[2]).to(tl.int32) + ahead, cells[2], MOST)
    first = first // cells[2]
    if ORDER == LAST:
        channel = column
    ahead, h = split_small((first % cells[1]).to(tl.int32) + ahead, cells[1], MOST)
    first = first // cells[1]
    ahead, d = split_small((first % cells[0]).to(tl.int32) + ahead, cells[0], MOST)
    image = first // cells[0] + ahead
    return row, column, image, d, h, w, channel, inside


@triton.jit
def first_inside(start, K: tl.constexpr, D: tl.constexpr):
    """The first tap of windows that begin at these cells whose cell is not before the input; K where all are."""
    return tl.minimum((tl.maximum(-start, 0) + D - 1) // D, K)


@triton.jit
def taps_inside(start, low, high, K: tl.constexpr, D: tl.constexpr):
    """How many taps of windows that begin at these cells lie among the cells low .. high - 1 (as `Window.tap_ranges`)."""
    first = tl.minimum((tl.maximum(low - start, 0) + D - 1) // D, K)
    end = tl.minimum((tl.maximum(high - start, 0) + D - 1) // D, K)
    return tl.maximum(end - first, 0)
