"""The records that plans of conv write and its kernels read."""

from __future__ import annotations

from pullback.cpu.engine.records import Record


class CellsSweep(Record):
    """Of cells_kernel."""

    ints = (
        "source target packed groups depths row_blocks col_blocks block_rows block_cols rows cols in_depth "
        "in_rows in_cols source_cell source_channel source_row source_plane source_image source_group step_d "
        "step_h step_w low_d low_h low_w grid_d grid_h grid_w hop_h hop_w reach_d reach_h reach_w line_places "
        "split_places plane_bytes channels block_channels n_count n_padded terms phases phase_table out_depth "
        "to_d to_h to_w target_cell target_row target_plane target_image target_group target_channel padded "
        "buffer_start buffer_row table_start range_start most_taps"
    )


class DirectSweep(Record):
    """Of direct_kernel."""

    ints = (
        "source target packed groups ranges range_blocks depths row_blocks col_blocks block_images block_rows "
        "block_cols images rows cols in_depth in_rows in_cols source_cell source_channel source_row "
        "source_plane source_image source_group step_d step_h step_w low_d low_h low_w grid_d grid_h grid_w "
        "hop_h hop_w reach_d reach_h reach_w parts_h parts_w apart_h apart_w part_h part_w in_place "
        "place_bytes line_bytes plane_bytes volume_bytes base_row base_col channels block_channels merged "
        "n_count n_padded terms phases phase_table columns runs list_start list_bytes slots cuts cut_bytes "
        "panels stream stretch ahead_table lines out_depth out_rows out_cols to_d to_h to_w target_cell "
        "target_row target_plane target_image target_group target_channel buffered buffer_start buffer_n redo"
    )


class FilterGradientSums(Record):
    """Of filter_gradient_kernel."""

    ints = (
        "x dy target groups channel_ranges range_channels n_ranges range_blocks part_blocks blocks row_blocks "
        "col_blocks block_images block_rows block_cols images depths rows cols in_depth in_rows in_cols "
        "x_image x_plane x_row x_cell x_channel y_image y_plane y_row y_cell y_channel step_h step_w hop_d "
        "hop_h hop_w channels n_count n_padded taps tap_table in_place low_h low_w grid_h grid_w reach_h "
        "reach_w place_bytes line_bytes plane_bytes volume_bytes panel_start panel_bytes table_start c_part "
        "c_group c_tap c_row merged x_channels dy_in_place table_bytes fetch ahead"
    )


class FilterGradientFinish(Record):
    """Of filter_gradient_kernel."""

    ints = "sums target parts part_bytes rows_each groups channels n_count taps"


class PackPack(Record):
    """Of pack_kernel."""

    ints = (
        "filter packed faults check blocks block n_count n_padded terms group_bytes n_bytes runs run_bytes "
        "run_length run_row place"
    )


class PointwiseSweep(Record):
    """Of pointwise_kernel."""

    ints = (
        "source target packed pieces_each piece_blocks block_cells groups cells channels n_count n_padded "
        "source_image source_group source_channel target_image target_group target_channel stretches stretch "
        "wide_table narrow_table ahead_table lines stream"
    )


class TransposeTranspose(Record):
    """Of transpose_kernel."""

    ints = "source target bands rows cols"
