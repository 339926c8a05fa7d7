"""Filter gradient of grouped convolutions in channels_last, by sums of products; see cells_filter_kernel.py."""

from __future__ import annotations

from pullback.cpu.conv.common import moved_bytes
from pullback.cpu.depthwise import tuning
from pullback.cpu.depthwise.cells_tables import cells_tables, in_place_tables, reads_in_place, sides_of
from pullback.cpu.depthwise.common import is_depthwise
from pullback.cpu.depthwise.partial_sums import FilterPlans, with_add
from pullback.cpu.depthwise.records import (
    ROW_ENTRIES_SPARE,
    CellsFilterOneChannel,
    CellsFilterSeveralChannels,
    ListedOffsets,
    Segment,
)
from pullback.cpu.engine.plan import make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.sizes import LINE, ceil_div, round_up
from pullback.cpu.machine_code.variants import Variant
from pullback.problem import Problem


@planned
def filter_plans(problem: Problem, padded: bool = True) -> FilterPlans:
    """padded: taps beside the source may be multiplied by zero; a result that is not finite may be wrong then."""
    sides, one_channel, window, moved = sides_of(problem), is_depthwise(problem), problem.window, moved_bytes(problem)
    used = window.tap_count * sides.tap_weights
    sums_bytes = used + window.kernel[-1] * sides.tap_weights  # a spare row of taps behind them
    worth = moved // max(tuning.LEAST_PIECE_BYTES, 2 * sums_bytes)
    most = max(1, min(tuning.CELLS_PIECES, tuning.PIECE_SUMS_BYTES // sums_bytes, worth))
    area_start = round_up((window.tap_count * sides.group_in_channels + ROW_ENTRIES_SPARE) * ListedOffsets.BYTES, LINE)
    in_place = one_channel and window.tap_count <= tuning.IN_PLACE_TAPS and reads_in_place(problem, sides)
    tables, area = (in_place_tables(problem, sides, 1), 0) if in_place else cells_tables(problem, sides, padded)
    dy_start = round_up(area_start + area, LINE)
    units = problem.batch * tables["blocks"] * tables["segments"]
    per_piece = ceil_div(units, most)
    pieces = ceil_div(units, per_piece)
    tables |= {
        "dy": None, "sums": None, "sums_bytes": sums_bytes, "spare": used, "per_piece": per_piece, "units": units,
        "area_start": area_start, "dy_start": dy_start,
    }  # fmt: skip
    # Groups of one channel copy the part of a row of dy that belongs to a segment; the others read it where it is.
    dy_bytes = int(tables["segment_table"][:, Segment.place("target_bytes")].max()) if one_channel and not in_place else 0
    compiled = Variant("depthwise.cells_filter", "one_channel" if one_channel else "several_channels", problem.dtype.name)
    record = CellsFilterOneChannel if one_channel else CellsFilterSeveralChannels
    products = make_plan(compiled, record, pieces, dy_start + dy_bytes, moved, tables)
    return with_add(problem, products, pieces, sums_bytes)
