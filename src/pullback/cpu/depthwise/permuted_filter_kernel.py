"""Filter gradient of groups of few channels, channels_last: the groups of a vector side by side, spread over it in registers.

The side of x and dy with more channels a group is read as it is (`lanes`); of the other (`spread`) a permute brings channel r of
each group to all lanes of that group. Channels that do not fit into a vector, or into `rows`, are tiles of their own. A tile
sums the products of all r over the cells of a block, for some taps of a row of the window, which share what is loaded of dy. A
piece takes a part of the cells and a range of vectors, with sums of its own in scratch, and writes them as the filter lies. x and
dy are read where they are, under masks, and cells whose tap falls outside x are left out.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import types
from numba.extending import intrinsic

from pullback.cpu.conv.records import FilterTap
from pullback.cpu.depthwise.emit_kernel import Emit, emit_loop, emit_permute, load_order
from pullback.cpu.depthwise.records import PermutedFilter
from pullback.cpu.depthwise.tuning import PERMUTED_MOST_SUMS, PERMUTED_MOST_TAPS
from pullback.cpu.simd.native import fill_zero
from pullback.cpu.simd.record_types import records_at
from pullback.cpu.simd.vectors import inline, outline, put_int, stay_outline

tap_at = records_at(FilterTap)
CHAINS = 8  # sums that are added to in turn: a multiply-add waits for the one before


@cache
def _make_tile(lanes: Any, rows: int, x_spread: bool, taps: int) -> Any:
    """tile(x, y, tap_step, sums, tap_sums, orders, runs, cells): sums += products of `taps` taps over `runs` runs of cells.

    x, y: (address, table of offsets of the runs, bytes between cells, channels). Taps are tap_step bytes of x and tap_sums bytes
    of sums apart.
    """
    sets = max(1, CHAINS // (rows * taps))
    each = taps * rows

    @intrinsic
    def tile(
        context: Any, x: Any, y: Any, tap_step: Any, sums: Any, tap_sums: Any, orders: Any, runs: Any, cells: Any
    ) -> Any:  # fmt: skip
        def emit(ctx: Any, builder: Any, sig: Any, values: Any) -> Any:
            sides, (tap_step, sums, tap_sums, orders, runs, cells) = values[:2], values[2:]
            emitter, vector = Emit(lanes, builder), lanes.count * lanes.compute_size
            none, many = emitter.number(0), emitter.number(sets)
            places, tables, steps, counts = zip(
                *([builder.extract_value(side, i) for i in range(4)] for side in sides), strict=True
            )  # fmt: skip
            masks = [emitter.mask(count) for count in counts]
            order = [
                load_order(builder, builder.add(orders, emitter.number(r * vector)), lanes.count, lanes.compute_size)
                for r in range(rows)
            ]  # fmt: skip
            turns = builder.sdiv(cells, many)

            def spread(value: Any) -> list[Any]:
                return [emit_permute(builder, value, order[r], lanes.compute_size) for r in range(rows)]

            def products(at: Any, totals: Any) -> list[Any]:
                place, dy = at[0], emitter.load(at[1], False, masks[1])
                factors, made = [dy] * rows if x_spread else spread(dy), []
                for t in range(taps):
                    value = emitter.load(place, False, masks[0])
                    values = spread(value) if x_spread else [value] * rows
                    made += [emitter.fma(values[r], factors[r], totals[t * rows + r]) for r in range(rows)]
                    place = builder.add(place, tap_step)
                return made

            def several(_: Any, carried: Any) -> list[Any]:
                at, made = list(carried[:2]), []
                for s in range(sets):
                    made += products(at, carried[2 + s * each : 2 + (s + 1) * each])
                    at = [builder.add(a, step) for a, step in zip(at, steps, strict=True)]
                return [*at, *made]

            def single(_: Any, carried: Any) -> list[Any]:
                made = products(carried[:2], carried[2:])
                return [*(builder.add(a, step) for a, step in zip(carried[:2], steps, strict=True)), *made]

            def run(t: Any, totals: Any) -> list[Any]:
                at = [
                    builder.add(place, emitter.word(builder.add(table, emitter.times(t, 8))))
                    for place, table in zip(places, tables, strict=True)
                ]  # fmt: skip
                carried = emit_loop(builder, none, turns, [*at, *totals], several)
                if sets == 1:
                    return list(carried[2:])
                left = emit_loop(builder, builder.mul(turns, many), cells, carried[: 2 + each], single)
                return [*left[2:], *carried[2 + each :]]

            totals = emit_loop(builder, none, runs, [emitter.zero] * (each * sets), run)
            for t in range(taps):
                for r in range(rows):
                    place = builder.add(sums, emitter.number(r * vector))
                    total = emitter.load(place, True)
                    for s in range(sets):
                        total = builder.fadd(total, totals[s * each + t * rows + r])
                    emitter.store(place, total, True)
                sums = builder.add(sums, tap_sums)
            return ctx.get_dummy_value()

        return types.void(x, y, *(types.int64,) * 6), emit

    @outline
    def outlined(x, y, tap_step, sums, tap_sums, orders, runs, cells):
        stay_outline()
        tile(x, y, tap_step, sums, tap_sums, orders, runs, cells)

    return outlined


def build(lanes: Any, rows: int, x_spread: bool) -> dict[str, Any]:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    get_wide, put_wide = lanes.get_wide, lanes.put_wide
    most = max(1, PERMUTED_MOST_SUMS // rows)
    tile_1, tile_2, tile_3, tile_4 = (
        _make_tile(lanes, rows, x_spread, min(taps + 1, most)) for taps in range(PERMUTED_MOST_TAPS)
    )

    @inline
    def tile(taps, x, y, tap_step, sums, tap_sums, orders, runs, cells):
        if taps == 1:
            tile_1(x, y, tap_step, sums, tap_sums, orders, runs, cells)
        elif taps == 2:
            tile_2(x, y, tap_step, sums, tap_sums, orders, runs, cells)
        elif taps == 3:
            tile_3(x, y, tap_step, sums, tap_sums, orders, runs, cells)
        else:
            tile_4(x, y, tap_step, sums, tap_sums, orders, runs, cells)

    @inline
    def list_runs(args, tap, first, last, x_at, y_at):
        """Where x and dy of the rows of a block lie that meet a tap; how many there are."""
        h, rest = first % args.rows, first // args.rows
        d, image, count = rest % args.depths, rest // args.depths, 0
        for row in range(first, last):
            if tap.first_d <= d < tap.last_d and tap.first_h <= h < tap.last_h:
                x = image * args.x_image + (d * args.step_d + tap.place_d) * args.x_plane
                put_int(x_at + 8 * count, x + (h * args.step_h + tap.place_h) * args.x_row)
                put_int(y_at + 8 * count, row * args.y_row)
                count += 1
            h += 1
            if h == args.rows:
                h, d = 0, d + 1
                if d == args.depths:
                    d, image = 0, image + 1
        return count

    @inline
    def place_of(args, v):
        """First group of a vector of sums, and its first channels there: of the spread side, and of the other."""
        rest = v // args.row_parts
        return rest // args.lane_parts * args.together, v % args.row_parts * rows, rest % args.lane_parts * V

    @inline
    def sum_columns(args, t, taps, col0, col1, v, sums, x_at, y_at, runs):
        """`taps` taps from t on over columns that all of them meet."""
        group, row, lane = place_of(args, v)
        x_first, y_first = (row, lane) if x_spread else (lane, row)
        together = min(args.together, args.groups - group)
        x_count, y_count = together * args.x_channels - x_first, together * args.y_channels - y_first
        x_first, y_first = x_first + group * args.x_channels, y_first + group * args.y_channels
        x = args.source + x_first * SIZE + (col0 * args.step_w + tap_at(args.tap_table, t).place_w) * args.x_cell
        y = args.dy + y_first * SIZE + col0 * args.y_cell
        tap_sums = args.range_vectors * rows * V * WIDE
        tile(
            taps, (x, x_at, args.step_w * args.x_cell, min(V, x_count)), (y, y_at, args.y_cell, min(V, y_count)),
            args.tap_step, sums + t * tap_sums, tap_sums, args.orders, runs, col1 - col0,
        )  # fmt: skip

    @outline
    def sum_block(args, block, first, last, sums, x_at, y_at):
        """All taps and vectors over the cells of a block."""
        stay_outline()
        c0, r0 = block % args.col_blocks * args.block_cols, block // args.col_blocks * args.block_rows
        c1, r1 = min(args.cols, c0 + args.block_cols), min(args.all_rows, r0 + args.block_rows)
        for t0 in range(0, args.taps, args.row_taps):
            runs = list_runs(args, tap_at(args.tap_table, t0), r0, r1, x_at, y_at)
            if runs == 0:
                continue
            for t in range(t0, t0 + args.row_taps, args.tile_taps):
                taps = min(args.tile_taps, t0 + args.row_taps - t)
                left, right = tap_at(args.tap_table, t), tap_at(args.tap_table, t + taps - 1)
                col0, col1 = max(c0, left.first_w, right.first_w), min(c1, left.last_w, right.last_w)
                if col0 >= col1:
                    col0, col1 = c1, c1
                for v in range(first, last):
                    to = sums + (v - first) * rows * V * WIDE
                    if col0 < col1:
                        sum_columns(args, t, taps, col0, col1, v, to, x_at, y_at, runs)
                    for i in range(t, t + taps):
                        tap = tap_at(args.tap_table, i)
                        begin, end = max(c0, tap.first_w), min(c1, tap.last_w)
                        if begin < min(col0, end):
                            sum_columns(args, i, 1, begin, min(col0, end), v, to, x_at, y_at, runs)
                        if max(begin, col1) < end:
                            sum_columns(args, i, 1, max(begin, col1), end, v, to, x_at, y_at, runs)

    @outline
    def write_sums(args, first, last, sums, target):
        """From rows of vectors to the places of a filter."""
        stay_outline()
        many, few = max(args.x_channels, args.y_channels), min(args.x_channels, args.y_channels)
        for t in range(args.taps):
            for v in range(first, last):
                group, row, lane = place_of(args, v)
                for i in range(min(args.together, args.groups - group)):
                    place = sums + ((t * args.range_vectors + v - first) * rows * V + i * many) * WIDE
                    to = target + t * args.sums_tap + (group + i) * args.y_channels * WIDE
                    to += row * args.row_distance + lane * args.lane_distance
                    for r in range(min(rows, few - row)):
                        for j in range(min(V, many - lane)):
                            value = get_wide(place + (r * V + j) * WIDE)
                            put_wide(to + r * args.row_distance + j * args.lane_distance, value)

    def products(args: PermutedFilter, piece, scratch):
        part, first = piece // args.ranges, piece % args.ranges * args.range_vectors
        last = min(args.vectors, first + args.range_vectors)
        x_at = scratch + args.table_start
        fill_zero(scratch, args.taps * args.range_vectors * rows * V * WIDE)
        for block in range(part * args.part_blocks, min(args.blocks, part * args.part_blocks + args.part_blocks)):
            sum_block(args, block, first, last, scratch, x_at, x_at + 8 * args.block_rows)
        write_sums(args, first, last, scratch, args.sums + part * args.sums_bytes)

    return {"products": products}
