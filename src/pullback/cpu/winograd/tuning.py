"""What was measured about Winograd: sizes of blocks, and what its parts cost."""

from __future__ import annotations

# Blocks of a convolution.
CONVOLVE_CACHE = 7 / 16  # of the second-level cache for the transformed tiles of a block: with their products they stay in it
CONVOLVE_TILES = 24, 96  # of a block: fewer read the filter too often, more gain nothing
FEWEST_PIECES = 4  # where there are enough results: pieces with different results of the same tiles transform these again
FEWEST_SHARED_TILES = 12  # of a block for more than two threads
PANEL_TILES = 5  # tiles whose products with a panel take as long as loading it
FILTER_CHUNK = 16  # input channels of a piece of the filter
# A filter that few blocks read is transformed just ahead of its products, for each of them: up to so many blocks, where it would
# take more than this share of the second-level cache; and the share that a chunk of it then takes.
AHEAD_BLOCKS, AHEAD_CACHE, CHUNK_CACHE = 2, 1.0, 3 / 8
# Weights for each point of the transformed tiles, both as they are transformed, from which on threads share no panels: it takes as
# long to fetch so much from another core as to transform these points once more.
PANELS_APART = 0.4
FEWEST_TILES_THAT_PAY = 8  # of a block
MOST_PACKED_BYTES = 10 << 20  # of the transformed filter at a time: more is made and used in parts

# Blocks of a filter gradient.
GRADIENT_BYTES = 640 << 10  # of the transformed tiles of x, or of dy, in a block. Not a share of a cache: blocks cut sums
GRADIENT_TILES = 32, 96  # of a block: with few, the sums are loaded and stored too often
MOST_CHANNELS = 128  # of a block, half where both sides have more: its sums stay in the cache; fewer transform more often
FEWEST_CHANNELS = 32  # of a block for more than two threads
SPLIT_TILES = 48  # of a split at least: each has sums of its own, to be cleared and added up
MOST_PIECES = 16  # splits times blocks of channels, where there are not more of these
OWN_SUM_BYTES = 3 << 20  # of a piece, up to which its sums lie in its own scratch, if there is one split
MOST_SUM_BYTES = 4 << 20  # of all splits: sums that leave the caches cost more than tiles that are transformed more often

# Blocks of both.
DEPTH_BLOCK = 6  # output depths that share the transformed tiles of a block
MOST_BLOCK_BYTES = 6 << 20  # of the transformed tiles of a block in any case

# Costs, in vector multiply-adds on one core.
CALL = 30_000  # of the jobs that a plain sum does not have
TABLE = 150  # of the addresses of a tile
READ, WRITE, TRANSPOSE = 7, 5, 4  # per point of a tile and vector of channels: into tiles, out of them, channels_first
FILTER, FINISH, ADD = 9, 6, 3  # per point of a filter's vector: into the transform, out of it, the sums of each split
FAR = 60  # more, where these do not stay in the last-level cache, and all cores wait for the same memory
FAR_CACHE = 1 / 2  # of the last-level cache, beyond which they do not
PACK = 20  # per vector of a filter: what a plain sum takes to pack it
TERMS = 6  # of a register tile's loads, stores and call, as if it summed so many terms more
SLOWER = 1.05  # of a product between transforms, whose operands come from the second-level cache
PLAIN_ROWS, PLAIN_VECTORS = (
    2.0,
    0.25,
)  # of a plain filter gradient's tiles: what few rows and vectors of them take beside their terms
GAIN = 0.95  # of the cost of a plain sum at most, or the error is for nothing

MOST_REDONE = 0.5  # of the channels: where more are not finite, all are made by plain sums at once
