"""The records that plans of winograd write and its kernels read."""

from __future__ import annotations

from pullback.cpu.engine.records import Record


class ConvolveTransformFilter(Record):
    """Of convolve_kernel."""

    ints = (
        "f packed faults chunk chunks depth taps made summed tap_bytes summed_bytes made_bytes group_bytes "
        "tap_at panel step panel_bytes packed_group stage_start"
    )


class ConvolveForward(Record):
    """Of convolve_kernel."""

    ints = (
        "x packed y faults blocks depth_blocks panel_blocks block depth_block panel_block positions tiles_h "
        "tiles_w in_depth in_rows in_columns out_depth out_rows out_columns depth stretches_h stretches_w d_d "
        "d_h d_w pad_d pad_h pad_w summed made x_group x_image x_depth x_row x_column x_channel y_group "
        "y_image y_depth y_row y_column y_channel filter_step panel_bytes packed_group pitch offset_start "
        "table_start zeros_start stage_start stage_row product_start"
    )


class FilterGradientShare(Record):
    """Of filter_gradient_kernel."""

    ints = (
        "x dy sums sum_bytes sum_step sum_pitch shares x_blocks dy_blocks x_block dy_block blocks "
        "depth_blocks block depth_block positions tiles_h tiles_w in_depth in_rows in_columns out_depth "
        "out_rows out_columns depth stretches_h stretches_w d_d d_h d_w pad_d pad_h pad_w channels made "
        "x_group x_image x_depth x_row x_column x_channel dy_group dy_image dy_depth dy_row dy_column "
        "dy_channel x_pitch dy_start offset_start table_start zeros_start stage_start stage_row"
    )


class FilterGradientFinish(Record):
    """Of filter_gradient_kernel."""

    ints = (
        "sums df faults sum_bytes sum_step sum_pitch shares x_blocks dy_blocks x_block dy_block depth taps "
        "channels made tap_at tap_bytes channel_bytes made_bytes group_bytes table_start stage_start"
    )
