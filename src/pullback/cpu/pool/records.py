"""The records of pooling: arguments of its kernels, and the tables that these read."""

from __future__ import annotations

from pullback.cpu.engine.records import Record

NOWHERE = -1  # a place in no block
MANY = 16  # winners turned into places at once (scatter)
CHAINS = 4  # runs of images whose outputs are added in turn (scatter)


class Axis(Record):
    """One spatial axis; `first` is the input cell of the first tap of output 0."""

    ints = "outputs cells taps stride dilation first"


class Reader(Record):
    """The outputs that read one cell of an axis: `count` of them from `first` on, the first by tap `tap`. See ReaderSteps."""

    ints = "first tap count"


class ReaderSteps(Record):
    """Head of a table of readers: steps of outputs and taps between the readers of a cell. A Reader for each cell follows."""

    ints = "output tap"


class LineTable(Record):
    """Head of a table of the lines (rows of the other array) that each target row takes.

    Steps of lines and of taps from plane to plane and from row to row; how many kinds of rows there are. A LineKind for each kind
    follows, then a LineRow for each target row.
    """

    ints = "plane_step row_step plane_tap row_tap kinds"


class LineKind(Record):
    """Rows that take the same lines from their first one on: planes, rows in each, and the tap of the first line."""

    ints = "planes rows tap"


class LineRow(Record):
    """One target row: its first line and its kind."""

    ints = "line kind"


class Line(Record):
    """One line that a row takes, written by kernels into scratch: where it begins (elements), its tap, its number."""

    changes = True
    ints = "place tap number"


class MaxForward(Record):
    """Of every kernel that finds winners; y, winners or indices may be 0 for not wanted. scatter sets x and winners for itself.

    index_image, row_base, col_base, tap_base: what makes a winner a flat index. empty: the value of windows without a cell.
    above: only values above it win.
    """

    ints = "x y winners indices axes line_table lines_start index_image row_base col_base tap_base"
    floats = "empty above"


class AvgForward(Record):
    """row_div, col_div: the divisors of output rows and columns. empty: the mean of windows without a cell."""

    ints = "x y axes line_table lines_start row_div col_div"
    floats = "empty"


class Blocked(Record):
    """Target rows of all images as one list, `block` of them a piece."""

    ints = "block images rows"


class OverChannels(Blocked):
    """Where rows are few they are cut as well: `parts` of them, `part_cols` columns each, are as many pieces."""

    ints = "channels part_cols parts"


class ChannelsMaxForward(MaxForward, OverChannels):
    """indexed: distances from tap to tap fit into 32 bits, so that flat indices are made in registers.

    ahead: bytes from a cell to the one that is prefetched meanwhile, or 0.
    """

    ints = "indexed ahead"


class ChannelsAvgForward(AvgForward, OverChannels):
    pass


class RowsMaxForward(MaxForward, Blocked):
    """Of rows of single elements."""


class RowsAvgForward(AvgForward, Blocked):
    """share: the reciprocal of all windows' divisor if that is one power of 2, or 0. col_div: a wide divisor per element."""

    floats = "share"


class Unpacked(Record):
    """Planes of the input unpacked by stride, in blocks of output rows; a piece has `per_piece` of `units` blocks.

    low_h, low_w: the first place that is unpacked; places_h, places_w: how many. tap_at: where each tap reads, in elements.
    """

    ints = (
        "per_piece units blocks block_rows channels "
        "low_h places_h low_w places_w "
        "distance area_bytes "  # bytes from plane to plane of a stride's phases, and from depth to depth
        "taps tap_at sum_start code_start own_start"
    )


class PlanesMaxForward(MaxForward, Unpacked):
    pass


class PlanesAvgForward(AvgForward, Unpacked):
    """col_div: one wide divisor per element of a row. Divisors of empty windows are 1, their sums 0."""


class Whole(Record):
    """Images of `cells` elements, each of them one window; `per_piece` of them a piece."""

    ints = "per_piece images cells"


class WholeMaxForward(Whole):
    """y, winners or indices may be 0 for not wanted; empty, above: as in MaxForward."""

    ints = "x y winners indices"
    floats = "empty above"


class WholeMaxGrad(Whole):
    ints = "dy winners dx"


class WholeMaxGradFromX(Whole):
    ints = "dy x dx"
    floats = "above"


class WholeAvgForward(Whole):
    ints = "x y"


class WholeAvgGrad(Whole):
    ints = "dy dx"


class InputRows(Blocked):
    """Of gradients over all input rows as one list. stage: bytes of rows made in scratch and then streamed; streams: stores may be
    non-temporal, since all of them are whole and aligned."""

    ints = "dy dx channels stage streams axes line_table lines_start col_readers"


class GatherMaxGrad(InputRows):
    ints = "winners"


class ChannelsAvgGrad(InputRows):
    """row_div, col_div: of output rows and columns. row_same, col_same: of all that read an input row or column, or 0."""

    ints = "row_div col_div row_same col_same"


class Phases(Record):
    """Gradients phase by phase of the strides; a piece has `per_piece` of `units` blocks of `block_rows` rows of a phase.

    Distances and starts are bytes; shifts, lowest, highest and area are elements.

    ptr, shifts: the entries of each phase and where they find their outputs. row_distance, phase_start, distance: where the rows
    that are interleaved, and the phases of a row, lie in scratch.
    """

    ints = (
        "dy dx "
        "per_piece units blocks block_rows channels "
        "in_depth in_rows in_row out_depth out_rows "
        "stride_h stride_w ptr shifts streams "
        "row_distance phase_start distance"
    )


class PhasesMaxGrad(Phases):
    """border, false_codes: the winners of windows that stick out, and the codes that only a false one has; `faults` is set then.

    direct: the one phase is dx itself.
    """

    ints = (
        "winners faults pieces images image_outputs border border_count false_codes "
        "stride_d out_row taps lowest highest outputs direct"
    )


class PhasesAvgGrad(Phases):
    """Planes of dy unpacked into scratch. uniform: the divisor that all windows share, or 0: then rows of dy are divided first."""

    ints = "cols low_h places_h low_w places_w area_start area areas_bytes depth_readers row_div col_div uniform"


class Scatter(Record):
    """Each dy is added at its winner, in a block of input rows; a piece has `per_piece` of `units` blocks.

    block_row, need_ptr, need_row: the first row of each block, and the output rows whose windows may reach it. row_base,
    col_first, col_step: where the windows of a row begin, in elements; col_cell, stride: in columns. firsts, cells: the same for
    `span` columns, int32. tap_at, tap_cell, tap_row: where each tap lies from there, as a place, a column and a row; behind the
    taps numbers that lie in no block. row_cells: the row of its plane in which an output row's windows begin, or 0 where a tap
    above or below its plane cannot meet another plane. reach: how far a row's cells may lie from its base. many: places fit 32
    bits. together: whole images that are taken together, or 0: then firsts are of a run of these (a CHAINS-th), behind cells come
    the rows and the planes in which windows begin, table_bytes apart, and a unit is an image. quick: winners are looked at first,
    as border and false_codes (of PhasesMaxGrad) say, and true ones are trusted; offsets: where each code's tap lies, int32.
    """

    ints = (
        "dy dx "
        "per_piece units blocks rows cols channels source_rows source_cols "
        "block_row need_ptr need_row "
        "row_base col_first col_step col_cell stride span firsts cells reach "
        "taps tap_at tap_cell tap_row row_cells plane_rows "
        "many code_steps places_start together table_bytes quick border border_count false_codes offsets"
    )


class CodeSteps(Record):
    """What makes a winner's code (a byte) an offset: reciprocals, in 1 / 2**16, of the window's columns and rows; these and their
    dilations; a step per tap, per row of taps that it counts past, and per plane; the planes' dilation, and their number."""

    ints = "by_cols by_rows kernel_cols kernel_rows dilation row_dilation code_step row_step plane_step plane_dilation planes"


class ScatterMaxGrad(Scatter):
    ints = "winners"


class ScatterMaxGradFromX(Scatter):
    """find: a compiled forward kernel whose pieces are single rows; find_block: its arguments (MaxForward), of which each thread
    has a copy of find_words at find_start. code_start: where it leaves the winners of a row."""

    ints = "x find find_block find_words find_start code_start"


class ScatterMaxGradFromIndices(Record):
    """Image after image; an index outside its own image is counted in faults."""

    ints = "dy indices dx per_piece images source_image target_image faults"


class Run(Record):
    """Rows of an image that follow each other."""

    ints = "first rows"


class TransposedBlock(Record):
    """Target rows of an image and the source rows that they need: from first_source on, in `runs` runs from number `run` on."""

    ints = "first_source run runs first_target targets"


class Transposed(Record):
    """Bands of `lanes` planes transposed into scratch; a piece has `per_piece` of `units`, each a block of target rows of a band.

    source_row, target_row, source_cells, target_cells: elements of a row and of a plane. inner: a compiled kernel over channels
    whose piece b makes block b; inner_block: its arguments, of which each thread has a copy of inner_words at inner_start.
    target_start, code_start: where targets and winners lie in scratch, transposed.
    """

    ints = (
        "per_piece units blocks planes lanes source_row source_cells target_row target_cells "
        "block_table runs inner inner_block inner_words inner_start target_start"
    )


class TransposedMaxForward(Transposed):
    """y, winners, indices and what makes a winner an index: as in MaxForward. own_start: winners of a block as they are indexed."""

    ints = "x y winners indices index_image row_base col_base tap_base code_start own_start"


class TransposedAvgForward(Transposed):
    ints = "x y"


class TransposedMaxGrad(Transposed):
    ints = "dy winners dx code_start"


class TransposedAvgGrad(Transposed):
    ints = "dy dx"
