"""The records that plans of pool write and its kernels read."""

from __future__ import annotations

from pullback.cpu.engine.records import Record


class ChannelsMaxForward(Record):
    """Of channels_kernel."""

    ints = (
        "x y winners indices block images rows channels axes line_table lines_start index_image row_base",
        "col_base tap_base",
    )
    floats = ("empty above",)


class ChannelsMaxGrad(Record):
    """Of channels_kernel."""

    ints = ("dy winners dx block images rows channels stage streams axes line_table lines_start col_readers",)


class ChannelsAvgForward(Record):
    """Of channels_kernel."""

    ints = ("x y block images rows channels axes line_table lines_start row_div col_div",)
    floats = ("empty",)


class ChannelsAvgGrad(Record):
    """Of channels_kernel."""

    ints = (
        "dy dx block images rows channels stage streams axes line_table lines_start col_readers row_div",
        "col_div row_same col_same",
    )


class PhasesMaxGrad(Record):
    """Of phases_kernel."""

    ints = (
        "dy winners dx faults border border_count false_codes images image_outputs pieces group units blocks",
        "block_rows in_depth in_rows in_row out_depth out_rows out_row stride_d stride_h stride_w channels",
        "ptr shifts taps lowest highest outputs direct streams row_distance phase_start distance",
    )


class PhasesAvgGrad(Record):
    """Of phases_kernel."""

    ints = (
        "dy dx group units blocks block_rows in_depth in_rows in_row out_depth out_rows cols stride_h",
        "stride_w channels ptr shifts streams row_distance phase_start distance low_h places_h low_w places_w",
        "area_start area depth_readers row_div col_div uniform",
    )


class PlanesMaxForward(Record):
    """Of planes_kernel."""

    ints = (
        "x y winners indices group units blocks channels axes low_h places_h low_w places_w distance",
        "block_rows area_bytes sum_start code_start taps tap_at own_start line_table lines_start index_image",
        "row_base col_base tap_base",
    )
    floats = ("empty above",)


class PlanesAvgForward(Record):
    """Of planes_kernel."""

    ints = (
        "x y group units blocks channels axes low_h places_h low_w places_w distance block_rows area_bytes",
        "sum_start taps tap_at line_table lines_start row_div col_div",
    )
    floats = ("empty",)


class RowsMaxForward(Record):
    """Of rows_kernel."""

    ints = (
        "x y winners indices block images rows axes line_table lines_start index_image row_base col_base",
        "tap_base",
    )
    floats = ("empty above",)


class RowsAvgForward(Record):
    """Of rows_kernel."""

    ints = ("x y block images rows axes line_table lines_start row_div col_div",)
    floats = ("share empty",)


class ScatterMaxGrad(Record):
    """Of scatter_kernel."""

    ints = (
        "dy winners dx group units blocks rows cols channels source_rows source_cols block_row need_ptr",
        "need_row row_base col_first col_step col_cell stride taps tap_at tap_cell tap_row row_cells",
        "plane_rows span firsts cells reach many code_steps places_start",
    )


class ScatterMaxGradFromX(Record):
    """Of scatter_kernel."""

    ints = (
        "dy x dx find find_block find_words x_word winners_word find_start code_start group units blocks rows",
        "cols channels source_rows source_cols block_row need_ptr need_row row_base col_first col_step",
        "col_cell stride taps tap_at tap_cell span firsts cells reach many code_steps places_start",
    )


class ScatterMaxGradFromIndices(Record):
    """Of scatter_kernel."""

    ints = ("dy indices dx group images source_image target_image faults",)


class WholeMaxForward(Record):
    """Of whole_kernel."""

    ints = ("x y winners indices group images cells",)
    floats = ("empty above",)


class WholeMaxGrad(Record):
    """Of whole_kernel."""

    ints = ("dy winners dx group images cells",)


class WholeMaxGradFromX(Record):
    """Of whole_kernel."""

    ints = ("dy x dx group images cells",)
    floats = ("above",)


class WholeAvgForward(Record):
    """Of whole_kernel."""

    ints = ("x y group images cells",)


class WholeAvgGrad(Record):
    """Of whole_kernel."""

    ints = ("dy dx group images cells",)
