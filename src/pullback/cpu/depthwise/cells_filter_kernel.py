"""Filter gradient of grouped convolution, channels_last, with vectors of output channels.

Each (tap, part, output channel) sums source times dy over all output cells. A piece takes a range of output rows and adds to sums
of its own, (tap and part, output channel) in the compute type; `add` then adds the pieces' sums in their order. Behind the sums
lies a spare row of taps, where tiles with more rows than are left put what nobody asked for.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.depthwise.cells_kernel import PHASE
from pullback.cpu.depthwise.groups_kernel import SEGMENT, make_lay, make_spread
from pullback.cpu.depthwise.records import CellsFilterAdd, CellsFilterDirect, CellsFilterGrouped
from pullback.cpu.depthwise.tiles_kernel import PAIR, make_products_tile
from pullback.cpu.simd.native import copy_bytes, fill_zero
from pullback.cpu.simd.vectors import get_int, inline, outline, put_int, stay_outline

ROWS, TAPS = 3, 3  # of a tile


def make_run(lanes: Any) -> Any:
    """All rows and taps over a run of cells, in tiles of 3 rows or 1 by 3, 2 or 1 taps."""

    def make(rows: int, taps: int, dense: bool) -> Any:
        tile = make_products_tile(lanes, rows, taps, dense, False)

        @outline
        def outlined(source, other, sums, n, entries, count, unit, sum_unit, source_step, other_step):
            stay_outline()
            tile(source, other, sums, n, entries, count, unit, sum_unit, source_step, other_step, 0, 1, 0)

        return outlined

    def make_rows(rows: int, dense: bool) -> Any:
        one, two, three = (make(rows, taps, dense) for taps in (1, 2, 3))

        @inline
        def of_rows(source, other, sums, n, entries, taps, count, unit, sum_unit, source_step, other_step):
            t = 0
            while t < taps:
                at, to = source + t * unit, sums + t * sum_unit
                if taps - t >= TAPS:
                    three(at, other, to, n, entries, count, unit, sum_unit, source_step, other_step)
                elif taps - t == 2:
                    two(at, other, to, n, entries, count, unit, sum_unit, source_step, other_step)
                else:
                    one(at, other, to, n, entries, count, unit, sum_unit, source_step, other_step)
                t += TAPS

        return of_rows

    dense_many, dense_one, any_many, any_one = (make_rows(rows, dense) for dense in (True, False) for rows in (ROWS, 1))

    @inline
    def run(source, other, sums, n, entries, rows, taps, count, unit, sum_unit, source_step, other_step):
        """The entry after the last must be one whose sums nobody wants."""
        r = 0
        while r < rows:
            at, alone = entries + r * PAIR, rows - r == 1
            if source_step == unit:
                if alone:
                    dense_one(source, other, sums, n, at, taps, count, unit, sum_unit, source_step, other_step)
                else:
                    dense_many(source, other, sums, n, at, taps, count, unit, sum_unit, source_step, other_step)
            elif alone:
                any_one(source, other, sums, n, at, taps, count, unit, sum_unit, source_step, other_step)
            else:
                any_many(source, other, sums, n, at, taps, count, unit, sum_unit, source_step, other_step)
            r += ROWS

    return run


@inline
def list_rows(entries: int, e0: int, e1: int, row_pairs: int, parts: int, part_pairs: int, spare: int) -> int:
    """Write the (source, sum) offsets of all source rows and parts of an output row, then a spare one; how many there are."""
    rows = 0
    for e in range(e0, e1):
        for k in range(parts):
            put_int(entries + rows * PAIR, get_int(row_pairs + e * PAIR) + get_int(part_pairs + k * PAIR))
            put_int(entries + rows * PAIR + 8, get_int(row_pairs + e * PAIR + 8) + get_int(part_pairs + k * PAIR + 8))
            rows += 1
    if rows:
        put_int(entries + rows * PAIR, get_int(entries))
        put_int(entries + rows * PAIR + 8, spare)
    return rows


def make_add(lanes: Any) -> Any:
    """The job that adds the sums of all pieces."""
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    load_wide_some, store_some, splat = lanes.load_wide_some, lanes.store_some, lanes.splat

    def add(args: CellsFilterAdd, piece, scratch):
        for j in range(piece * args.block, min(piece * args.block + args.block, args.count), V):
            n = min(V, args.count - j)
            total = splat(0.0)
            for p in range(args.pieces):
                total = total + load_wide_some(args.sums + p * args.distance + j * WIDE, n)
            store_some(args.result + j * SIZE, total, n)

    return add


def build(lanes: Any) -> dict[str, Any]:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    run = make_run(lanes)
    lay, spread = make_lay(lanes), make_spread(lanes)

    @outline
    def one_row(source, other, sums, channels, entries, rows, phases, phase_table, ends):
        """The products of one output row with all the source rows it reads. Columns that are not in the middle have a range of
        taps of their own: a dy that is not finite must not meet the zeros beyond the ends.
        """
        stay_outline()
        for phase in range(phases):
            entry = phase_table + phase * PHASE
            x, dy, count, taps = source + get_int(entry + 8), other + get_int(entry), get_int(entry + 24), get_int(entry + 48)
            unit, sum_unit, other_step = get_int(entry + 56), get_int(entry + 64), get_int(entry + 80)
            middle, end, place = get_int(entry + 32), get_int(entry + 40), ends + 16 * get_int(entry + 88)
            step = get_int(entry + 96)
            j = 0
            while j < count:
                many, t0, t1 = end - j, 0, taps
                if j < middle or j >= end:
                    known = place + 16 * (j if j < middle else j - (end - middle))
                    many, t0, t1 = 1, get_int(known), get_int(known + 8)
                at, to = x + j * step + t0 * unit, sums + t0 * sum_unit
                for c in range(0, channels, V):
                    n = min(V, channels - c)
                    run(
                        at + c * WIDE, dy + j * other_step + c * SIZE, to + c * WIDE, n, entries, rows, t1 - t0, many, unit,
                        sum_unit, step, other_step,
                    )  # fmt: skip
                j += many

    def direct(args: CellsFilterDirect, piece, scratch):
        own, area = args.sums + piece * args.sums_bytes, scratch + args.area_start
        fill_zero(own, args.sums_bytes)
        for unit in range(piece * args.group, min(piece * args.group + args.group, args.units)):
            image, b = unit // args.segments // args.blocks, unit // args.segments % args.blocks
            part = args.segment_table + unit % args.segments * SEGMENT
            table = args.phase_table + unit % args.segments * args.phases * PHASE
            n0, n1 = get_int(args.need_ptr + 8 * b), get_int(args.need_ptr + 8 * b + 8)
            for i in range(n0, n1):
                row = args.source + (image * args.source_rows + get_int(args.need_row + 8 * i)) * args.source_row
                lay(row, area + (i - n0) * args.area_row, args.channels, args.cell, part)
            for r in range(get_int(args.block_rows + 8 * b), get_int(args.block_rows + 8 * b + 8)):
                e0, e1 = get_int(args.row_ptr + 8 * r), get_int(args.row_ptr + 8 * r + 8)
                entries = list_rows(scratch, e0, e1, args.row_pairs, 1, args.part_pairs, args.spare)
                other = scratch + args.other_start
                begin, count = get_int(part + 32), get_int(part + 40)
                copy_bytes(
                    other, args.dy + (image * args.rows + r) * args.target_row + begin, count
                )  # read in order, and aligned
                one_row(area, other - begin, own, args.channels, scratch, entries, args.phases, table, args.ends)

    def grouped(args: CellsFilterGrouped, piece, scratch):
        own, area = args.sums + piece * args.sums_bytes, scratch + args.area_start
        copies = area + args.copy_start
        fill_zero(own, args.sums_bytes)
        for unit in range(piece * args.group, min(piece * args.group + args.group, args.units)):
            image, b = unit // args.segments // args.blocks, unit // args.segments % args.blocks
            part = args.segment_table + unit % args.segments * SEGMENT
            table = args.phase_table + unit % args.segments * args.phases * PHASE
            n0, n1 = get_int(args.need_ptr + 8 * b), get_int(args.need_ptr + 8 * b + 8)
            for i in range(n0, n1):
                row = args.source + (image * args.source_rows + get_int(args.need_row + 8 * i)) * args.source_row
                copy_bytes(copies + (i - n0) * args.copy_row, row + get_int(part + 16), get_int(part + 24))
            for c in range(0, args.channels, args.step):
                n = min(args.step, args.channels - c)
                for i in range(n1 - n0):
                    spread(
                        copies + i * args.copy_row, area + i * args.area_row, c, n,
                        args.source_channels, args.sources_each, args.targets_each, args.parts, args.permuted, args.orders, part,
                    )  # fmt: skip
                for r in range(get_int(args.block_rows + 8 * b), get_int(args.block_rows + 8 * b + 8)):
                    e0, e1 = get_int(args.row_ptr + 8 * r), get_int(args.row_ptr + 8 * r + 8)
                    entries = list_rows(scratch, e0, e1, args.row_pairs, args.parts, args.part_pairs, args.spare)
                    other = args.dy + (image * args.rows + r) * args.target_row + c * SIZE
                    one_row(area, other, own + c * WIDE, n, scratch, entries, args.phases, table, args.ends)

    return {"direct": direct, "grouped": grouped, "add": make_add(lanes)}
