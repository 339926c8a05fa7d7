"""What plans of depthwise and grouped convolutions write and their kernels read: records, and the numbers that both must know.

The source is what is read (x, or dy for the input gradient), the target what is written (for the filter gradient dy stands in its
place); in_channels and out_channels are theirs. All offsets, steps and pitches are in bytes.
"""

from __future__ import annotations

from pullback.cpu.engine.records import WORD, Record

FEW_COLUMNS, MANY_COLUMNS = 4, 8  # target columns of the two register tiles of cells_kernel.py
CELL_VECTORS = 4  # vectors of channels of its tiles of one or two columns
# Names of x86's instructions that permute a vector by numbers in another, by lanes and bytes of an element.
PERMUTES = {(16, 4): "avx512.permvar.sf.512", (8, 8): "avx512.permvar.df.512", (8, 4): "avx2.permps"}
FEW_CHANNELS = 64  # up to which cells_kernel.py goes along a row for each vector of them
ROW_ENTRIES_SPARE = 1  # entries behind a list of rows in cells_filter_kernel.py: its tiles take up to this many too many
PLANE_OUTS = 4  # output channels at a time in planes_kernel.py
TAP_ENTRIES_SPARE = 2  # entries behind a list of taps in planes_kernel.py
SPARE_SUMS = 2  # vectors for the sums of the spare entries
PRODUCT_TAPS = 9  # taps of the largest products tile in flat_kernel.py and planes_kernel.py
FLAT_VECTORS = 4  # vectors of cells of the largest tile in flat_kernel.py, which reads masks so far
FLAT_MASK = 2  # bytes of a mask in flat_kernel.py: a bit for each lane
SLIDE_SPARE = 1 << 10  # bytes of slide_kernel.py's scratch that stand for a row of zeros; as many again take unwanted stores


class Offsets(Record):
    """An entry of a table of taps: where the source lies, and its weight (or the sum that becomes its gradient)."""

    ints = "source weight"


class ListedOffsets(Offsets):
    """The same in a list that a kernel makes in scratch."""

    changes = True


class Range(Record):
    """An entry of a table of ranges: the first number and the one behind the last."""

    ints = "first end"


class LaneRange(Record):
    """The lanes of a row in which a tap meets a cell, in a list in scratch (read by simd/register_tiles.py, too)."""

    changes = True
    ints = "first count"


SKIPPED_TAP = 2 * WORD + LaneRange.BYTES  # bytes of scratch for a tap of the lists in skipping_kernel.py


class FilterAdd(Record):
    """Adds the sums of all pieces of a filter gradient, in their order, `block` elements of the result at a time."""

    ints = "sums result pieces piece_bytes count block"


# --- channels_last: cells.py, cells_filter.py


class Segment(Record):
    """A part of the target columns of a row, and the source cells that these read."""

    ints = (
        "zeros_before cells zeros_after "  # as they lie in scratch; cells beyond the ends of the row are zeros
        "source_start source_bytes target_start target_bytes"  # within a row
    )


class ColumnPhase(Record):
    """Target columns of a segment whose neighbours read neighbouring sources."""

    ints = (
        "source_start weight_start target_start "  # of the first column
        "count middle end ends "  # columns; those from middle to end meet all taps, the range of the others begins at entry `ends`
        "taps tap_step weight_step "  # from one tap to the next, in the source and in the weights
        "reach source_step target_step"  # from one column to the next; reach: in taps, 0 where neighbours share no source
    )


class CellsBlocks(Record):
    """The rows of an array in channels_last, by blocks of target rows whose source rows, with their halo, are copied into scratch.

    A piece is a segment of a block. In scratch a cell holds `parts` vectors of channels for each vector of output channels.
    """

    ints = (
        "source source_rows source_pitch "
        "rows target_pitch out_channels "
        "blocks block_rows "  # table: first target row of each block, and the end
        "halo_ptr halo_rows "  # source rows of block b: those in halo_rows from halo_ptr[b] to halo_ptr[b + 1]
        "segments segment_table "  # of Segment
        "area_pitch "  # of a row in scratch
        "row_ptr row_offsets "  # Offsets of the source rows of target row r: from row_ptr[r] to row_ptr[r + 1]
        "parts part_offsets "  # Offsets of the parts of a cell
        "phases phase_table ends"  # ColumnPhase of each segment, Range of taps of columns that do not meet all
    )


class CellsCopied(CellsBlocks):
    """One channel per group: all channels of a cell, `cell` bytes apart in scratch.

    in_place: the source is read where it is; the offsets of rows count from an image's first.
    """

    ints = "cell in_place"


class CellsSpread(CellsBlocks):
    """Several channels per group, `step` output channels at a time: part k of a cell holds in each lane channel k of its group."""

    ints = (
        "step in_channels group_in_channels group_out_channels "
        "permuted orders "  # whether a cell is spread by permuting one vector, and the orders of its parts
        "copy_start copy_pitch"  # where the rows are copied to before they are spread
    )


class CellsGather(Record):
    """Forward or input gradient."""

    ints = "weights target stream"  # whether to use non-temporal stores


class CellsOneChannel(CellsCopied, CellsGather):
    """cells_kernel.py, one channel per group.

    block_channels: all rows of a block are made of so many channels, then of the next ones. stage: where in scratch a target
    row, of all channels, waits for a non-temporal copy; 0: it does not.
    """

    ints = "block_channels stage"


class CellsSeveralChannels(CellsSpread, CellsGather):
    """cells_kernel.py, several channels per group."""


class CellsPermuted(CellsBlocks, CellsGather):
    """cells_kernel.py, several channels per group, the source read where it is.

    `step` output channels belong to so many groups that what they read of a cell is one vector at most. Part k is that vector with
    its lanes in the order k.
    """

    ints = "step group_in_channels group_out_channels orders"


class CellsFilter(Record):
    """Filter gradient: a piece takes `per_piece` of the units (segments of blocks) and makes sums of its own."""

    ints = (
        "dy sums sums_bytes spare "  # spare: where in a piece's sums a row of taps takes what a tile adds beyond the last row
        "units per_piece "
        "area_start"  # of the source rows in scratch; before it lies a list of rows
    )


class CellsFilterOneChannel(CellsCopied, CellsFilter):
    """cells_filter_kernel.py, one channel per group. dy_start: where in scratch a row of dy is copied to."""

    ints = "dy_start"


class CellsFilterSeveralChannels(CellsSpread, CellsFilter):
    """cells_filter_kernel.py, several channels per group."""


class PermutedFilter(Record):
    """permuted_filter_kernel.py: `together` groups to a vector; a piece takes range_vectors vectors and part_blocks blocks.

    x_channels, y_channels: of a group, in row_parts by lane_parts tiles where they are many. row_taps: of a row of the window,
    tile_taps at a time, tap_step bytes apart in x. orders: of the permutes. all_rows: output rows of the batch. step_*: strides.
    sums_bytes: of a part's sums, which lie as the filter does: sums_tap, row_distance, lane_distance.
    """

    ints = (
        "source dy sums sums_bytes groups together vectors row_parts lane_parts ranges range_vectors x_channels y_channels "
        "row_taps tile_taps tap_step orders taps tap_table depths rows cols all_rows col_blocks block_cols block_rows blocks "
        "part_blocks step_d step_h step_w x_image x_plane x_row x_cell y_row y_cell table_start "
        "sums_tap row_distance lane_distance"
    )


# --- channels_first: planes.py


class PlanePhase(Record):
    """A phase of the stride: its taps in tap_offsets; of each axis how many taps it has, and their first entry in tap_ends."""

    ints = "first_tap end_tap taps_h ends_h taps_w ends_w"


class PlaneBlocks(Record):
    """Blocks of target rows of a group, whose source planes are unpacked into scratch: an area for each channel and each depth.

    An area is stride_h * stride_w planes, `plane_pitch` apart, of area_rows rows of area_cols elements of the compute type. Scratch
    begins with the list of the areas' Offsets.
    """

    ints = (
        "source groups group_in_channels group_out_channels "
        "source_depths source_rows source_cols depths rows cols "
        "blocks depth_blocks block_rows "  # of a group, of a depth; target rows of a block
        "stride_h stride_w low_h low_w area_rows area_cols "  # low: the first row and column of an area, over the stride
        "pitch plane_pitch area_bytes area_start "
        "depth_ptr depth_sources depth_taps "  # source depths and taps of target depth d: from depth_ptr[d] to depth_ptr[d + 1]
        "phase_table tap_offsets tap_ends "  # PlanePhase, Offsets; Range of rows or columns for which a tap meets a cell
        "depth_weights in_weights out_weights "  # from one depth, channel of a group to the next in the filter
        "entry_start"  # where in scratch taps are listed
    )


class PlanesGather(PlaneBlocks):
    """planes_kernel.py, forward or input gradient: a plane of sums for each phase and output channel; phases are interleaved."""

    ints = (
        "weights target group_weights "
        "units per_piece "  # blocks of all images' groups; of a piece
        "phases_h phases_w phases "
        "sum_start sum_pitch out_pitch "  # planes of sums in scratch: from phase to phase, from one output channel to the next
        "stage "  # where in scratch results wait for a non-temporal copy; 0: they do not
        "columns column_offsets weight_pitch "  # Offsets of the first tap of each column of three, where all taps are such columns
        "most_taps"  # of a list
    )


class FilterPieces(Record):
    """Pieces of a filter gradient in channels_first: chunks of `per_piece` units (blocks of images), for group_block groups."""

    ints = "dy sums sums_bytes units per_piece chunks group_block"


class PlanesProducts(PlaneBlocks, FilterPieces):
    """planes_kernel.py, filter gradient: a vector of sums for each weight of a group."""

    ints = (
        "dy_start "  # in scratch: a block of dy
        "range_start "  # a list of LaneRange
        "own_start own_bytes spare_start"  # the vectors of sums; those that take what a tile adds beyond the last tap
    )


# --- channels_first in place: flat.py, slide.py


class FlatPlanes(Record):
    """flat_kernel.py: planes as runs of cells. Tap t reads `shifts[t]` bytes from each cell, in the lanes of masks[t]."""

    ints = "source groups source_cells cells taps shifts masks mask_pitch"


class FlatGather(FlatPlanes):
    """Forward or input gradient; a piece is `per_piece` planes."""

    ints = "weights target planes per_piece"


class FlatProducts(FlatPlanes, FilterPieces):
    """Filter gradient; units are images."""


class SlidePlanes(Record):
    """slide_kernel.py: planes in blocks of rows. low: the source row and column of the first tap of target row and column 0."""

    ints = "source groups source_rows source_cols rows cols blocks block_rows low_h low_w"


class SlideWeights(SlidePlanes):
    """Forward or input gradient; a piece is `per_piece` units, which are blocks of planes."""

    ints = (
        "weights target units per_piece "
        "group_weights weight_row weight_column "  # from one group, row, column of the filter to the next
        "stage"  # where in scratch results wait for a non-temporal copy; 0: they do not
    )


class SlideGather(SlideWeights):
    """Forward, or an input gradient of stride 1, whose window is reversed. weight_start: offset of the first weight."""

    ints = "weight_start"


class SlideInterleave(SlideWeights):
    """Input gradient of a stride: source rows from first_row to last_row complete all target rows, the columns likewise.

    Here a block is of source rows, and `low` are the pads.
    """

    ints = "first_row last_row first_column last_column"


class SlideProducts(SlidePlanes, FilterPieces):
    """Filter gradient; units are blocks of images. own_start: the vectors of sums in scratch."""

    ints = "own_start"


# --- channels_last in place: slide_cells.py


class SlideCells(Record):
    """slide_cells_kernel.py: cells in blocks of rows. low: the source row and column of the first tap of target cell 0."""

    ints = (
        "source channels source_rows source_cols source_cell source_pitch rows cols target_cell target_pitch "
        "low_h low_w stride blocks block_rows "
        "parts part_channels "  # channels that a piece takes together
        "units per_piece"
    )


class SlideCellsGather(SlideCells):
    """Forward, or an input gradient of stride 1, whose window is reversed; units are parts of blocks of images."""

    ints = "weights target weight_start weight_row weight_column stream"  # whether to use non-temporal stores


class SlideCellsProducts(SlideCells):
    """Filter gradient: pieces are chunks of `per_piece` units (blocks of images) of a part."""

    ints = "dy sums sums_bytes chunks"
