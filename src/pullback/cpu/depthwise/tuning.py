"""Measured numbers of depthwise and grouped convolutions.

Sizes of blocks are bytes, not shares of a cache: filter gradients are summed block by block, and their bits must not depend on the
machine.
"""

from __future__ import annotations

from typing import NamedTuple

MOST_GROUP_CHANNELS = 16  # in a group on either side, beyond which `direct` fills its vectors
FEWEST_GROUP_CHANNELS = 4  # on one side, beside which a filter gradient in channels_first may have twice as many on the other
MOST_GROUP_PRODUCTS = 22  # channels in times out of a group of a filter gradient in channels_last, likewise
# Cells of x for each output, and taps, above which such a gradient reads too much of x that few outputs use.
MOST_FILTER_SKIPPED, FEW_FILTER_TAPS = 3, 17
# Time of a multiplication of spread channels over one of `direct`, and of spreading a cell over the same (8, 16 channels a group).
SPREAD_COST, SPREAD_CELL_COST = 1.75, 0.75
# channels_first, one group at a time: output channels of a group that vectors over cells serve best, cells of a short row, cells of
# x for each output of an input gradient.
FEW_TARGETS, SHORT_ROW, MOST_SKIPPED = 8, 33, 8
FEWEST_PRODUCTS = 4  # channels in times out of a group, up to which strided planes are best taken apart
FEW_GROUP_PRODUCTS = 16  # channels in times out of a group of a filter gradient that `direct` is slow at, channels_first
MOST_DENSE = 10  # channels of dy without groups, above which `direct` fills its vectors, channels_first
SPREAD_OVER_CELLS = 0.5  # of what vectors over cells cost, in lanes: beyond it, spread groups of several channels take longer
MOST_SPREAD_LOSS = 2.0  # what empty lanes of spread vectors cost at the most, as a factor

MOST_PHASES = 32  # of columns that read neighbouring sources; beyond it, one phase whose neighbours share none
FEWEST_SEGMENT_COLUMNS = 16  # target columns of a segment of a row that is too long for scratch

# Of the columns in tiles, the share that meets all taps, from which on the source is read where it is, channels_last.
IN_PLACE_COLUMNS = 0.5
COPIED_TAPS = 20  # for each step of the stride, from which on it is copied all the same
IN_PLACE_TAPS = 4  # the most taps of a filter gradient that reads so: more of them repay copies that lie closer
CELLS_AREA_BYTES = 512 << 10  # source rows of a block in scratch, channels_last
CLASH_BYTES = 1 << 10  # cells a multiple of this apart share few sets of the first-level cache
PLANES_AREA_BYTES = 256 << 10  # unpacked rows of a block, channels_first
FLAT_MASKS_BYTES = 8 << 10  # of all masks: they must stay in the first-level cache
MOST_FLAT_MASKS_BYTES = 16 << 20  # where the kernel is asked for by name
SLIDE_BLOCK_BYTES = 32 << 10  # target rows of a block, which may wait in scratch for a non-temporal copy
SLIDE_BLOCK_ROWS = 8  # the fewest of a block: the rows above it are read again
SLIDE_SIZES = (3, 5, 7)  # of the windows that machine code is made for
SLIDE_STRIDES = (1, 2)
SLIDE_PRODUCTS = 5  # the largest window of a filter gradient
SLIDE_CELLS_UNITS = 64  # parts of blocks of all images, where these stay worth it
SLIDE_CELLS_CHANNELS = 64  # the fewest channels of a part: some lines of each cell
SLIDE_CELLS_IMAGE = 544 << 10  # the largest image of a filter gradient without strides, in bytes
SLIDE_CELLS_COLUMNS = {1: 16, 2: 7}  # target columns from which on windows of 3x3 are left to `group_cells`, by the stride
SLIDE_CELLS_HALOS = 3  # the fewest target rows of a block, in rows that it reads above or below them
# Share of the lanes of a row's vectors that must hold columns: where `flat` could run, by the size of windows; where it could not.
SLIDE_USED_LANES, SLIDE_FEWEST_LANES = {3: 0.6, 5: 0.4, 7: 0.4}, 0.2

# permuted_filter.py: bytes of x and dy of a block, cells of a block at the least, bytes of a piece's sums.
PERMUTED_BLOCK_BYTES, PERMUTED_CELLS, PERMUTED_SUMS_BYTES = 128 << 10, 64, 256 << 10
PERMUTED_ROWS = 8  # sums of a tap of a tile at the most: the registers hold a permute's order beside each
PERMUTED_MOST_SUMS, PERMUTED_MOST_TAPS = 16, 4  # of a tile; other registers hold the orders, and what is spread
PERMUTED_FEW, PERMUTED_FEWER = 6, 5  # channels of dy that serve well beside more of x: of groups, and without groups
PERMUTED_SHARE = 0.75  # of a vector: channels of dy that it need not have for windows of one cell, and strides without groups
# Vectors of channels of x, which has more than dy: of groups; without groups.
PERMUTED_GROUP_LANES, PERMUTED_MOST_LANES = 2, 32
PERMUTED_MORE_ROWS = 10  # channels of dy beside many of x
PERMUTED_ROW_TAPS = 2, 4  # taps of a row that fill its tiles
PERMUTED_ONE_TAPS = 9  # taps for each output of a cell, above which one channel of x is left to others
# Groups of one channel: taps times channels at the most, and these for each output of a cell.
PERMUTED_DEPTHWISE_SUMS, PERMUTED_DEPTHWISE_REUSE = 784, 64
PERMUTED_SINGLE_LANES, PERMUTED_SHARE_LANES = 1.5, 2  # of windows of one cell without strides; beside PERMUTED_SHARE of dy
PERMUTED_BESIDE_WINOGRAD, PERMUTED_WINOGRAD_TAPS = 5, 3  # channels of dy, for windows of so many taps along an axis
# Vectors of channels of dy at the most, where it has more than x, by the most taps of the window: of groups, without groups.
PERMUTED_WIDE = ((1, 2.0, 8.0), (4, 1.0, 1.5), (9, 0.5, 0.5))
PERMUTED_WIDE_STRIDED = ((1, 1.5, 8.0), (4, 1.3, 1.5), (8, 0.7, 1.5), (9, 0.5, 1.5), (49, 0.5, 1.0))
PERMUTED_WIDEST = 0.5, 0.5  # for larger windows
CELLS_PIECES, PLANES_PIECES = 32, 64  # of a filter gradient at the most: channels_last, channels_first
PIECE_SUMS_BYTES = 4 << 20  # of all pieces of a filter gradient together, channels_last
LEAST_PIECE_BYTES = 64 << 10  # of x and dy that are worth a piece with sums of its own
BLOCKS_EACH = 4  # for each thread, where no sum is cut, channels_last
HALOS_PER_BLOCK = 3  # the fewest rows of a block of a filter gradient, in halos
ADD_BLOCK = 1024  # elements of a filter that are added at a time
MOST_TRANSPOSED_BYTES = 16 << 20  # of x and y, of which `group_transposed` makes copies at once
TRANSPOSED_PART_BYTES = 4 << 20  # of x and y of a part of the batch, where all of it would be more


class PlanesTime(NamedTuple):
    """Of `group_planes`, in ns on two cores of the machine it was measured on: only its ratio to TransposedTime counts."""

    call: float = 13900
    block: float = 30.4
    row: float = 0.33  # unpacked or made
    strided_row: float = 4.8  # more, where a stride takes rows apart
    vector: float = 0.66  # unpacked or made
    product: float = 0.084  # of vectors


class TransposedTime(NamedTuple):
    """Of `group_transposed`, in the same unit."""

    call: float = 59700
    vector: float = 1.6  # transposed, copied and made
    product: float = 0.041
    row: float = 0.092  # of taps, for a vector of channels of a target row
    # Where groups have several channels: a vector of a cell that is spread, its products, rows of taps.
    spread: float = 0.091
    spread_product: float = 0.063
    spread_row: float = 1.34


class PlanesFilterTime(NamedTuple):
    """Of filter gradients, in ns on two cores (filter_times.py)."""

    call: float = 13500
    strided_row: float = 5.9
    vector: float = 1.08
    product: float = 0.098
    tap: float = 2.0  # of a block


class TransposedFilterTime(NamedTuple):
    call: float = 44900
    vector: float = 1.44  # transposed
    product: float = 0.072
    tap: float = 0.136  # of a vector of channels of an output
    sum: float = 3.9  # element of the filter


class DirectFilterTime(NamedTuple):
    call: float = 16800
    product: float = 0.066
    tap: float = 0.159
    panel: float = 0.047  # element of dy, transposed into a panel
    read: float = 0.0127  # element of x
    strided_read: float = 0.062  # the same in rows that a stride takes apart
    row: float = 0.248  # of outputs, for a tap and a channel of x
    sum: float = 2.2


PLANES_TIME, TRANSPOSED_TIME = PlanesTime(), TransposedTime()
PLANES_FILTER_TIME, TRANSPOSED_FILTER_TIME, DIRECT_FILTER_TIME = PlanesFilterTime(), TransposedFilterTime(), DirectFilterTime()
WEIGHT_BYTES = 24 << 10  # weights that stay in the first-level cache beside what they are multiplied with (group_cells)
