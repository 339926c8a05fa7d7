"""Numbers of the convolution plans that were measured, each with its unit. What depends on a cache is a share of it."""

from __future__ import annotations

K_BLOCK = 16  # terms between two prefetches of a tile, about
PIECES = 32  # of a job: enough for four threads; more only where a piece stays worth its packing
PIECES_EACH = 4  # of a job for each of more threads, where its pieces cut no sum
RANGES_EACH = 2  # pieces of a filter gradient for each of more than four threads
FEWER_PIECES = 16  # of a filter gradient that reads in place: every further range of channels reads the other array once more

# direct: shares of the second-level cache.
PANEL_L2 = 1 / 5  # of one panel of the packed filter
BLOCK_L2 = 2 / 5  # of the source cells of a block with its results
PANELS_L2 = 1 / 2  # of all panels that are used between two reads of the source
PIECE_CELLS = 96  # cells of a block from which on a panel is worth loading for them
GROUPS_L2 = 1 / 2  # of what a block reads and writes of all groups, channels_last
WHOLE_COLUMNS = 0.9  # share of the columns that meet all taps, from which on padded rows are read in place
IMAGE_RUN = 7  # images in a block from which on a tile may hold one cell of each
TAPS_MET = 0.98  # share of taps along a row that meet a cell, below which such tiles pay
TAP_LISTS, TAP_LIST_BYTES = 8, 4 << 10  # lists of taps that are kept, a power of two of them; bytes of the longest of several

TILE_LOOP, TILE_CALL = 7.0, 80.0  # vector multiplications that a round of a tile's loop, and its call, take beside its own

# cells: multiplications that an element takes to be transposed, from single cells and from blocks of them.
TRANSPOSED, TRANSPOSED_BLOCK = 12, 30
CELLS_LOOP = 1.05  # of a multiplication: what it takes with the loops around it
CELLS_RUN = 200  # multiplications that copying a run of cells takes, beside its cells
CELLS_CHANNELS = 32  # channels summed at a time: the cells of one tile in all their planes stay in the first-level cache
CELLS_L2 = 1 / 2  # share of the second-level cache for the planes of a block and its results
# The same for a source cell that a stride takes out of its row, and a result that it puts into one; by some it is quick.
CELLS_TAKEN, CELLS_PUT, CELLS_BY_THREE, QUICK_STRIDES = 18, 22, 5, (1, 2, 4)
CELLS_RESERVE = 0.95  # of the cost of vectors over channels, below which vectors over cells are taken

PAIR_COST = 0.55  # of a multiplication of a pair's element, in those of float32

# pointwise.
POINTWISE_BYTES = 192 << 10  # bytes of the source cells of a block in scratch
POINTWISE_CELLS = 256  # cells of a block at the most
# Against the direct kernel, in multiplications of a cell: what a tile costs beside its terms, copying a cell instead of transposing
# it, transposing a result, and the share of its time that the direct kernel waits for memory that is not prefetched.
TILE_TERMS, COPIED, TRANSPOSED_RESULT, WAITED = 6, 2, 7, 0.2

# Filter gradient.
FEW_CHANNELS, FEW_IN_PLACE = 7, 10  # channels below which taps are merged: packed with x, or where they are
TRANSPOSING = 0.5  # cycles to transpose an element into a panel
SWAP_RESERVE = 0.95  # of the cost, below which x and dy change places
CROWDED = 0.4  # share of the cache's sets
PARTIAL_BYTES = 4 << 20  # bytes of all partial sums together
MOST_BLOCK_BYTES = 4 << 20  # bytes of a block in any case
BLOCK_CELLS, PART_CELLS, MOST_PARTS = 96, 512, 16  # in place: cells that repay fetching a block's sums, cells of a part, parts
EVEN_BLOCKS = 4  # blocks of a part from which on it does not matter that some parts have one more
