"""The records that plans of depthwise write and its kernels read."""

from __future__ import annotations

from pullback.cpu.engine.records import Record


class CellsFilterAdd(Record):
    """Of cells_filter_kernel."""

    ints = "sums result pieces distance block count"


class CellsFilterDirect(Record):
    """Of cells_filter_kernel."""

    ints = (
        "source dy sums group units blocks block_rows need_ptr need_row rows source_rows source_row "
        "target_row channels segments segment_table cell area_row area_start other_start sums_bytes spare "
        "row_ptr row_pairs phases phase_table ends part_pairs"
    )


class CellsFilterGrouped(Record):
    """Of cells_filter_kernel."""

    ints = (
        "source dy sums group units blocks block_rows need_ptr need_row rows source_rows source_row "
        "target_row channels step source_channels sources_each targets_each parts permuted orders segments "
        "segment_table area_row copy_start copy_row area_start sums_bytes spare row_ptr row_pairs phases "
        "phase_table ends part_pairs"
    )


class CellsDirect(Record):
    """Of cells_kernel."""

    ints = (
        "source weights target blocks block_rows need_ptr need_row rows source_rows source_row target_row "
        "channels segments segment_table cell area_row row_ptr row_pairs phases phase_table ends part_pairs "
        "stream stage"
    )


class CellsGrouped(Record):
    """Of cells_kernel."""

    ints = (
        "source weights target blocks block_rows need_ptr need_row rows source_rows source_row target_row "
        "channels step source_channels sources_each targets_each parts permuted orders segments segment_table "
        "area_row copy_start copy_row row_ptr row_pairs phases phase_table ends part_pairs stream"
    )


class FlatGather(Record):
    """Of flat_kernel."""

    ints = "source weights target group planes groups source_cells cells taps shifts masks mask_row"


class FlatProducts(Record):
    """Of flat_kernel."""

    ints = "source dy sums group images groups group_block chunks sums_bytes source_cells cells taps shifts masks mask_row"


class PlanesGather(Record):
    """Of planes_kernel."""

    ints = (
        "source weights target group units groups blocks per_depth sources_each targets_each source_depths "
        "source_rows source_cols depths rows cols stride_h stride_w phases_h phases_w low_h places_h low_w "
        "places_w pitch distance area_bytes area_start sum_start sum_plane block_rows stage d_ptr d_src d_tap "
        "phase_table tap_pairs plane_taps group_weights source_weights target_weights columns column_pairs "
        "weight_row tap_ends entry_start entries"
    )


class PlanesProducts(Record):
    """Of planes_kernel."""

    ints = (
        "source dy sums group units groups group_block chunks sums_bytes blocks per_depth sources_each "
        "targets_each source_depths source_rows source_cols depths rows cols stride_h stride_w low_h places_h "
        "low_w places_w pitch distance area_bytes area_start other_start entry_start own_start end block_rows "
        "d_ptr d_src d_tap phase_table tap_pairs tap_ends range_start plane_taps source_weights "
        "target_weights"
    )


class SlideGather(Record):
    """Of slide_kernel."""

    ints = (
        "source weights target group units groups blocks block_rows source_rows source_cols rows cols low_h "
        "low_w weight_start weight_row weight_column group_weights stage"
    )


class SlideProducts(Record):
    """Of slide_kernel."""

    ints = (
        "source dy sums group units groups group_block chunks sums_bytes blocks block_rows source_rows "
        "source_cols rows cols low_h low_w own_start"
    )


class SlideWeave(Record):
    """Of slide_kernel."""

    ints = (
        "source weights target group units groups blocks block_rows first_row last_row first_column "
        "last_column source_rows source_cols rows cols low_h low_w weight_row weight_column group_weights "
        "stage"
    )
