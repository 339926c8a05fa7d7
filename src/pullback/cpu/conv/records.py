"""The records of dense convolution: arguments of its kernels, and the tables that these read."""

from __future__ import annotations

from pullback.cpu.engine.records import Record

# A run of target cells is a row with zeros beyond its ends, a part of a row that the same taps make, one cell of each image, or the
# middle of a row, whose cells meet all taps along it, and then a column of cells at its ends.
ROWS_OF_CELLS, PARTS_OF_ROWS, CELLS_OF_IMAGES, MIDDLES_AND_COLUMNS = 0, 1, 2, 3
LONGEST_K_BLOCK, SHORTEST_K_BLOCK = (
    16,
    7,
)  # cells of a k-block of a filter gradient that prefetches, where rows can be cut evenly
PACKED_TERMS = 16  # of a filter that are transposed at once, while it is packed
TRANSPOSED_ROWS = 64  # rows that are transposed at once: whole lines on both sides, few enough rows for the TLB


class Phase(Record):
    """One phase of a sweep (sweep.py): its bases and where its target cells start, by axis; taps of earlier phases, its own taps.

    places: a table of where its taps lie (cells kernel). Three PhaseAxis follow each Phase.
    """

    ints = "bases_d bases_h bases_w start_d start_h start_w earlier_taps taps places"


class PhaseAxis(Record):
    """The taps of one axis of a phase: how many; the lowest offset, which is the first tap's, and the distance of offsets.

    place: where the cells of the first tap lie from the first place of a base, in bytes, and tap_pitch from tap to tap there.
    """

    ints = "taps low apart place tap_pitch"


PHASE_PITCH = Phase.BYTES + 3 * PhaseAxis.BYTES


class Sweep(Record):
    """Of all kernels that sweep: source, target and packed filter, their sizes and their pitches in bytes.

    depths, rows, cols: bases by axis. step_*: source cells from base to base; to_*: target cells from base to base; low_*: the
    first source cell of base 0. terms: rows of a panel of the packed filter; channels: those that are summed, out_channels: those
    made.
    """

    ints = (
        "source target packed "
        "groups images depths rows cols phases terms channels out_channels padded_channels "
        "in_depth in_rows in_cols out_depth out_rows out_cols "
        "source_channel source_cell source_row source_plane source_image source_group "
        "target_channel target_cell target_row target_plane target_image target_group "
        "step_d step_h step_w to_d to_h to_w low_d low_h low_w"
    )


class Blocked(Sweep):
    """Sweeps in blocks of bases, whose source cells lie in scratch with their halo.

    grid_*: distance of the source cells that are kept; hop_*: of those from base to base; reach_*: of those of one base.
    """

    ints = (
        "row_blocks col_blocks block_rows block_cols block_channels phase_table "
        "grid_d grid_h grid_w hop_h hop_w reach_d reach_h reach_w buffer_start"
    )


class DirectSweep(Blocked):
    """parts_*: sets of source cells, one for each tap, where taps lie far apart: apart_* cells from set to set, part_* bytes.

    place_bytes, line_bytes, plane_bytes, volume_bytes: pitches of the source cells in scratch, or in the source if in_place;
    base_*: from base to base. merged: taps of a row that are one k-block; columns: k-blocks of a row then, or 0: as many as it
    has taps. runs: what a run of target cells is. The taps that meet a cell are listed at list_start, in list_slots lists; each
    tap is cut into `cuts`. panels: blocks of output channels made between two reads of the source. k_block: terms of a k-block if
    memory is prefetched, or 0; prefetch_table, prefetch_lines: what a k-block prefetches. buffered: results go through
    scratch, buffer_n channels of each cell. group_parts: pieces of a block, of part_groups groups each. range_pieces: pieces
    of a range of output channels, which follow each other, so that a thread reads those panels that it has packed; 0: ranges
    of a block do. redo: only where the target holds something that is not finite. zeroed: cells that no tap makes are zeroed
    for all groups at once. odd: the last pair of channels has one channel only, where they are counted in pairs.
    """

    ints = (
        "ranges range_blocks range_pieces block_images group_parts part_groups "
        "parts_h parts_w apart_h apart_w part_h part_w "
        "in_place place_bytes line_bytes plane_bytes volume_bytes base_row base_col "
        "merged columns runs list_start list_bytes list_slots cuts cut_bytes "
        "panels stream k_block prefetch_table prefetch_lines buffered buffer_n redo zeroed odd"
    )


class TapList(Record):
    """Head of a list of taps in scratch: the rows and columns of taps that it holds, and how many; then their places and
    numbers."""

    changes = True
    ints = "above below left right count"


class CellsSweep(Blocked):
    """line_places: places of a row; split_places: places of one split (row residue, column residue) of a plane.

    row_phases: phases along a row. buffer_row: bytes of the results of an output channel. table_start,
    range_start: scratch for the places of up to most_taps weights, and for lists of taps.
    """

    ints = "line_places split_places row_phases plane_bytes buffer_row table_start range_start most_taps"


class LaneRange(Record):
    """Lanes that a tap adds to."""

    changes = True
    ints = "first count"


class PointwiseSweep(Sweep):
    """pieces_each: pieces of an image and group, of piece_blocks blocks of block_cells cells. k_blocks, k_block: k-blocks and their
    terms; wide_table, narrow_table: where they begin in panels of two vectors and of one."""

    ints = (
        "pieces_each piece_blocks block_cells cells "
        "k_blocks k_block wide_table narrow_table prefetch_table prefetch_lines stream"
    )


class Pack(Record):
    """The filter is `runs` runs of elements that belong to the terms place[run, 0 : run_length]; -1: to none.

    run_row = 0: a run holds the terms of one output channel (the next one is n_bytes on), and is transposed in run_units units of
    PACKED_TERMS terms. Else a run is one term of all output channels, side by side, and a unit. parts: pieces of a panel, of
    part_units of its units. check: a filter that is not finite is reported in faults. With lanes of pairs, terms 2 n and 2 n + 1
    are the two of pair n, and -2 - 2 n the only one of it.
    """

    ints = (
        "filter packed faults check parts units part_units run_units blocks block out_channels padded_channels terms "
        "group_bytes n_bytes runs run_bytes run_length run_row place"
    )


class FilterTap(Record):
    """An entry of the table of taps of a filter gradient: by axis the place read first, first and last output; the tap whose sums
    it adds to, the first of its channels and how many, whether other entries have made these sums before."""

    ints = "place_d first_d last_d place_h first_h last_h place_w first_w last_w number first_row rows adds"


class Runs(Record):
    """Runs of memory: counts and distances of two loops around them, and their bytes."""

    ints = "outer outer_pitch inner inner_pitch bytes"


class FilterGradientSums(Record):
    """A piece sums a range of input channels by a range of output channels over part_blocks blocks of cells.

    x_*, y_*: pitches of x and dy in bytes. Packed blocks of x: place_bytes to volume_bytes are their pitches, grid_*, hop_*,
    reach_*, low_* as in Blocked. panel_start, panel_bytes: where dy is packed. table_start, table_bytes: tables of places in
    scratch. sums_part, sums_group, sums_tap, sums_row: pitches of the sums. merged: taps of a row that count as channels.
    prefetches: whether the next block is prefetched; block_runs: two Runs, what a block reads of x and of dy.
    """

    ints = (
        "x dy target "
        "groups channel_ranges range_channels n_ranges range_blocks part_blocks blocks "
        "row_blocks col_blocks block_images block_rows block_cols "
        "images depths rows cols in_depth in_rows in_cols channels out_channels padded_channels x_channels "
        "x_image x_plane x_row x_cell x_channel y_image y_plane y_row y_cell y_channel "
        "step_h step_w hop_d hop_h hop_w low_h low_w grid_h grid_w reach_h reach_w "
        "taps tap_table merged in_place dy_in_place place_bytes line_bytes plane_bytes volume_bytes "
        "panel_start panel_bytes table_start table_bytes sums_part sums_group sums_tap sums_row prefetches block_runs"
    )


class FilterGradientFinish(Record):
    """The sums of all parts added up in order; rows_each: rows (group, channel) of a piece."""

    ints = "sums target parts part_bytes rows_each groups channels out_channels taps"


class Transpose(Record):
    """Matrices one after the other, `bands` pieces to a matrix. `faults`: a word set to 1 where a number is not finite; or 0."""

    ints = "source target bands rows cols faults"
