"""Measured numbers of depthwise and grouped convolutions.

Sizes of blocks are bytes, not shares of a cache: filter gradients are summed block by block, and their bits must not depend on the
machine.
"""

from __future__ import annotations

MOST_GROUP_CHANNELS = 16  # in a group on either side, beyond which `direct` fills its vectors
# Time of a multiplication of spread channels over one of `direct`, and of spreading a cell over the same (8, 16 channels a group).
SPREAD_COST, SPREAD_CELL_COST = 1.75, 0.75
MOST_SPREAD_LOSS = 2.0  # what empty lanes of spread vectors cost at the most, as a factor

MOST_PHASES = 32  # of columns that read neighbouring sources; beyond it, one phase whose neighbours share none
FEWEST_SEGMENT_COLUMNS = 16  # target columns of a segment of a row that is too long for scratch

CELLS_AREA_BYTES = 512 << 10  # source rows of a block in scratch, channels_last
CLASH_BYTES = 1 << 10  # cells a multiple of this apart share few sets of the first-level cache
PLANES_AREA_BYTES = 256 << 10  # unpacked rows of a block, channels_first
FLAT_MASKS_BYTES = 8 << 10  # of all masks: they must stay in the first-level cache
MOST_FLAT_MASKS_BYTES = 16 << 20  # where the kernel is asked for by name
SLIDE_BLOCK_BYTES = 32 << 10  # target rows of a block, which may wait in scratch for a non-temporal copy
SLIDE_BLOCK_ROWS = 8  # the fewest of a block: the rows above it are read again
SLIDE_SIZES = (3, 5)  # of the windows that machine code is made for
SLIDE_STRIDES = (1, 2)
SLIDE_USED_LANES = 0.6  # share of the lanes of a row's vectors that must hold columns

CELLS_PIECES, PLANES_PIECES = 32, 64  # of a filter gradient at the most: channels_last, channels_first
PIECE_SUMS_BYTES = 4 << 20  # of all pieces of a filter gradient together, channels_last
LEAST_PIECE_BYTES = 64 << 10  # of x and dy that are worth a piece with sums of its own
BLOCKS_EACH = 4  # for each thread, where no sum is cut, channels_last
HALOS_PER_BLOCK = 3  # the fewest rows of a block of a filter gradient, in halos
ADD_BLOCK = 1024  # elements of a filter that are added at a time
