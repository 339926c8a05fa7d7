"""Filter gradient of groups of few channels, channels_last: the groups of a vector side by side, spread over it in registers.

The side of x and dy with more channels a group is read as it is (`lanes`); of the other (`spread`) a permute brings channel r of
each group to all lanes of that group. A tile sums, for one tap, the products of all r over the cells of a block. A piece takes a
part of the cells and a range of vectors, with sums of its own in scratch, and writes them as the filter lies. x and dy are read
where they are, under masks, and cells whose tap falls outside x are left out.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import types
from numba.extending import intrinsic

from pullback.cpu.conv.records import FilterTap
from pullback.cpu.depthwise.emit_kernel import Emit, emit_loop, emit_permute, load_order
from pullback.cpu.depthwise.records import PermutedFilter
from pullback.cpu.simd.native import fill_zero
from pullback.cpu.simd.record_types import records_at
from pullback.cpu.simd.vectors import inline, outline, put_int, stay_outline

tap_at = records_at(FilterTap)
CHAINS = 8  # sums that are added to in turn: a multiply-add waits for the one before


@cache
def _make_tile(lanes: Any, rows: int) -> Any:
    """tile(spread, other, sums, orders, runs, cells): sums[r] += the products of spread row r over `runs` runs of `cells` cells.

    spread, other: (address, table of offsets of the runs, bytes between cells, channels).
    """
    sets = max(1, min(4, CHAINS // rows))

    @intrinsic
    def tile(context: Any, spread: Any, other: Any, sums: Any, orders: Any, runs: Any, cells: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, values: Any) -> Any:
            sides, (sums, orders, runs, cells) = values[:2], values[2:]
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

            def products(at: Any, totals: Any) -> list[Any]:
                value, factor = (emitter.load(a, False, mask) for a, mask in zip(at, masks, strict=True))
                return [
                    emitter.fma(emit_permute(builder, value, order[r], lanes.compute_size), factor, totals[r])
                    for r in range(rows)
                ]  # fmt: skip

            def several(_: Any, carried: Any) -> list[Any]:
                at, made = list(carried[:2]), []
                for s in range(sets):
                    made += products(at, carried[2 + s * rows : 2 + (s + 1) * rows])
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
                left = emit_loop(builder, builder.mul(turns, many), cells, carried[: 2 + rows], single)
                return [*left[2:], *carried[2 + rows :]]

            totals = emit_loop(builder, none, runs, [emitter.zero] * (rows * sets), run)
            for r in range(rows):
                place = builder.add(sums, emitter.number(r * vector))
                total = emitter.load(place, True)
                for s in range(sets):
                    total = builder.fadd(total, totals[s * rows + r])
                emitter.store(place, total, True)
            return ctx.get_dummy_value()

        return types.void(spread, other, *(types.int64,) * 4), emit

    @outline
    def outlined(spread, other, sums, orders, runs, cells):
        stay_outline()
        tile(spread, other, sums, orders, runs, cells)

    return outlined


def build(lanes: Any, rows: int) -> dict[str, Any]:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    get_wide, put_wide = lanes.get_wide, lanes.put_wide
    tile = _make_tile(lanes, rows)

    @inline
    def list_runs(args, tap, first, last, col, x_at, y_at):
        """Where x and dy of the rows of a block lie that meet a tap, from column `col` on; how many there are."""
        h, rest = first % args.rows, first // args.rows
        d, image, count = rest % args.depths, rest // args.depths, 0
        for row in range(first, last):
            if tap.first_d <= d < tap.last_d and tap.first_h <= h < tap.last_h:
                x = image * args.x_image + (d * args.step_d + tap.place_d) * args.x_plane
                x += (h * args.step_h + tap.place_h) * args.x_row + (col * args.step_w + tap.place_w) * args.x_cell
                put_int(x_at + 8 * count, x)
                put_int(y_at + 8 * count, row * args.y_row + col * args.y_cell)
                count += 1
            h += 1
            if h == args.rows:
                h, d = 0, d + 1
                if d == args.depths:
                    d, image = 0, image + 1
        return count

    @outline
    def sum_block(args, block, first, last, sums, x_at, y_at):
        """All taps and vectors over the cells of a block."""
        stay_outline()
        c0, r0 = block % args.col_blocks * args.block_cols, block // args.col_blocks * args.block_rows
        c1, r1 = min(args.cols, c0 + args.block_cols), min(args.all_rows, r0 + args.block_rows)
        for t in range(args.taps):
            tap = tap_at(args.tap_table, t)
            col0, col1 = max(c0, tap.first_w), min(c1, tap.last_w)
            runs = list_runs(args, tap, r0, r1, col0, x_at, y_at) if col1 > col0 else 0
            if runs:
                for v in range(first, last):
                    groups = min(args.together, args.groups - v * args.together)
                    x_first, y_first = v * args.together * args.x_channels, v * args.together * args.y_channels
                    x = (args.source + x_first * SIZE, x_at, args.step_w * args.x_cell, groups * args.x_channels)
                    y = (args.dy + y_first * SIZE, y_at, args.y_cell, groups * args.y_channels)
                    to = sums + (t * args.range_vectors + v - first) * rows * V * WIDE
                    if args.x_spread:
                        tile(x, y, to, args.orders, runs, col1 - col0)
                    else:
                        tile(y, x, to, args.orders, runs, col1 - col0)

    @outline
    def write_sums(args, first, last, sums, target):
        """From rows of vectors to the places of a filter."""
        stay_outline()
        side_by_side = max(args.x_channels, args.y_channels)
        for t in range(args.taps):
            for v in range(first, last):
                for i in range(min(args.together, args.groups - v * args.together)):
                    place = sums + ((t * args.range_vectors + v - first) * rows * V + i * side_by_side) * WIDE
                    to = target + t * args.sums_tap + (v * args.together + i) * args.y_channels * WIDE
                    for r in range(rows):
                        for j in range(side_by_side):
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
