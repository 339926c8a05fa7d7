"""Filter gradient of grouped convolution, channels_last, with vectors of output channels.

Each (tap, part, output channel) sums source times dy over all output cells. A piece takes a range of output rows and adds to sums
of its own, (tap and part, output channel) in the compute type; `add` then adds the pieces' sums in their order. Behind the sums
lies a spare row of taps, where tiles with more rows than are left put what nobody asked for.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.kernels.depthwise import PHASE
from pullback.cpu.kernels.groups import make_spread
from pullback.cpu.kernels.native import fill_zero
from pullback.cpu.kernels.tiles import PAIR, fetch, make_products_tile
from pullback.cpu.kernels.vectors import get_int, inline, outline, put_int, stay_outline

ROWS, TAPS = 3, 3  # of a tile


def make_run(lanes: Any, wide_source: bool, wide_other: bool) -> Any:
    """All rows and taps over a run of cells, in tiles of 3 rows or 1 by 3, 2 or 1 taps."""

    def make(rows: int, taps: int, dense: bool) -> Any:
        tile = make_products_tile(lanes, rows, taps, dense, wide_source, wide_other)

        @outline
        def outlined(
            source, other, sums, n, entries, count, unit, sum_unit, source_step, other_step, ahead, more_ahead, other_ahead
        ):  # fmt: skip
            stay_outline()
            tile(
                source, other, sums, n, entries, count, unit, sum_unit, source_step, other_step, ahead, more_ahead, other_ahead
            )

        return outlined

    def make_rows(rows: int, dense: bool) -> Any:
        one, two, three = (make(rows, taps, dense) for taps in (1, 2, 3))

        @inline
        def of_rows(
            source, other, sums, n, entries, taps, count, unit, sum_unit, source_step, other_step, ahead, more_ahead, other_ahead
        ):  # fmt: skip
            t = 0
            while t < taps:
                at, to = source + t * unit, sums + t * sum_unit
                if taps - t >= TAPS:
                    three(
                        at, other, to, n, entries, count, unit, sum_unit, source_step, other_step, ahead, more_ahead, other_ahead
                    )
                elif taps - t == 2:
                    two(
                        at, other, to, n, entries, count, unit, sum_unit, source_step, other_step, ahead, more_ahead, other_ahead
                    )
                else:
                    one(
                        at, other, to, n, entries, count, unit, sum_unit, source_step, other_step, ahead, more_ahead, other_ahead
                    )
                ahead, more_ahead, other_ahead = 0, 0, 0  # once is enough
                t += TAPS

        return of_rows

    dense_many, dense_one, any_many, any_one = (make_rows(rows, dense) for dense in (True, False) for rows in (ROWS, 1))

    @inline
    def run(
        source, other, sums, n, entries, rows, taps, count, unit, sum_unit, source_step, other_step, ahead, more_ahead, other_ahead
    ):  # fmt: skip
        """The entry after the last must be one whose sums nobody wants."""
        r = 0
        while r < rows:
            at, alone = entries + r * PAIR, rows - r == 1
            if source_step == unit:
                if alone:
                    dense_one(
                        source, other, sums, n, at, taps, count, unit, sum_unit, source_step, other_step,
                        ahead, more_ahead, other_ahead,
                    )  # fmt: skip
                else:
                    dense_many(
                        source, other, sums, n, at, taps, count, unit, sum_unit, source_step, other_step,
                        ahead, more_ahead, other_ahead,
                    )  # fmt: skip
            elif alone:
                any_one(
                    source, other, sums, n, at, taps, count, unit, sum_unit, source_step, other_step,
                    ahead, more_ahead, other_ahead,
                )  # fmt: skip
            else:
                any_many(
                    source, other, sums, n, at, taps, count, unit, sum_unit, source_step, other_step,
                    ahead, more_ahead, other_ahead,
                )  # fmt: skip
            ahead, more_ahead, other_ahead = 0, 0, 0  # once is enough
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

    def add(piece, scratch, sums, result, pieces, distance, block, count):
        for j in range(piece * block, min(piece * block + block, count), V):
            n = min(V, count - j)
            total = splat(0.0)
            for p in range(pieces):
                total = total + load_wide_some(sums + p * distance + j * WIDE, n)
            store_some(result + j * SIZE, total, n)

    return add


def build(lanes: Any) -> dict[str, Any]:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    load_some, load_wide_some, store_wide_some, fma = lanes.load_some, lanes.load_wide_some, lanes.store_wide_some, lanes.fma
    run_direct = make_run(lanes, False, False)
    run_block = make_run(lanes, True, False)
    spread = make_spread(lanes)

    @outline
    def one_column(source, other, sums, channels, entries, rows, taps, unit, sum_unit):
        """A column at the end of a row."""
        stay_outline()
        for r in range(rows):
            for t in range(taps):
                at = source + get_int(entries + r * PAIR) + t * unit
                place = sums + get_int(entries + r * PAIR + 8) + t * sum_unit
                for c in range(0, channels, V):
                    n = min(V, channels - c)
                    total = load_wide_some(place + c * WIDE, n)
                    store_wide_some(
                        place + c * WIDE, fma(load_some(at + c * SIZE, n), load_some(other + c * SIZE, n), total), n
                    )

    def direct(
        piece, scratch, source, dy, sums, block, images, rows, source_image, target_row, channels, sums_bytes, spare,
        row_ptr, row_pairs, phases, phase_table, ends, part_pairs, fresh_ptr, fresh,
    ):  # fmt: skip
        own = sums + piece * sums_bytes
        fill_zero(own, sums_bytes)
        for row in range(piece * block, min(piece * block + block, images * rows)):
            image, r = row // rows, row % rows
            e0, e1 = get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8)
            entries = list_rows(scratch, e0, e1, row_pairs, 1, part_pairs, spare)
            f0, f1 = get_int(fresh_ptr + 8 * r), get_int(fresh_ptr + 8 * r + 8)
            ahead = get_int(fresh + 8 * (f1 - 1)) if f1 > f0 else 0
            more_ahead = get_int(fresh + 8 * (f1 - 2)) if f1 > f0 + 1 else ahead
            for phase in range(phases):
                entry = phase_table + phase * PHASE
                other, x = dy + row * target_row + get_int(entry), source + image * source_image + get_int(entry + 8)
                count, middle, end = get_int(entry + 24), get_int(entry + 32), get_int(entry + 40)
                taps, unit, sum_unit = get_int(entry + 48), get_int(entry + 56), get_int(entry + 64)
                step, other_step = get_int(entry + 72) * unit, get_int(entry + 80)
                place = ends + 16 * get_int(entry + 88)
                if end > middle:
                    for c in range(0, channels, V):
                        run_direct(
                            x + middle * step + c * SIZE, other + middle * other_step + c * SIZE, own + c * WIDE,
                            min(V, channels - c), scratch, entries, taps, end - middle, unit, sum_unit, step, other_step,
                            ahead, more_ahead, target_row,
                        )  # fmt: skip
                j = 0
                while j < count:
                    if j == middle and end > middle:
                        j = end
                    else:
                        t0, t1 = get_int(place + 16 * j), get_int(place + 16 * j + 8)
                        one_column(
                            x + j * step + t0 * unit, other + j * other_step, own + t0 * sum_unit, channels, scratch, entries,
                            t1 - t0, unit, sum_unit,
                        )  # fmt: skip
                        j += 1

    def grouped(
        piece, scratch, source, dy, sums, group, units, blocks, block_rows, need_ptr, need_row, rows, source_rows,
        source_row, target_row, channels, step, source_channels, source_cols, sources_each, targets_each, parts, permuted, orders,
        low, places, area_row, area_start, sums_bytes, spare, row_ptr, row_pairs, phases, phase_table, part_pairs,
    ):  # fmt: skip
        own, area = sums + piece * sums_bytes, scratch + area_start
        fill_zero(own, sums_bytes)
        for unit in range(piece * group, min(piece * group + group, units)):
            image, b = unit // blocks, unit % blocks
            first, last = get_int(block_rows + 8 * b), get_int(block_rows + 8 * b + 8)
            n0, n1 = get_int(need_ptr + 8 * b), get_int(need_ptr + 8 * b + 8)
            x = source + image * source_rows * source_row
            for i in range(n0, n1):
                fetch(x + get_int(need_row + 8 * i) * source_row, source_row)
            for c in range(0, channels, step):
                n = min(step, channels - c)
                for i in range(n0, n1):
                    spread(
                        x + get_int(need_row + 8 * i) * source_row, area + (i - n0) * area_row, c, n,
                        source_channels, source_cols, sources_each, targets_each, parts, permuted, orders, low, places,
                    )  # fmt: skip
                for r in range(first, last):
                    e0, e1 = get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8)
                    entries = list_rows(scratch, e0, e1, row_pairs, parts, part_pairs, spare)
                    other = dy + (image * rows + r) * target_row + c * SIZE
                    for phase in range(phases):
                        entry = phase_table + phase * PHASE
                        cell = get_int(entry + 56)
                        run_block(
                            area + get_int(entry + 8), other + get_int(entry), own + c * WIDE, n, scratch, entries,
                            get_int(entry + 48), get_int(entry + 24), cell, get_int(entry + 64),
                            get_int(entry + 72) * cell, get_int(entry + 80), 0, 0, target_row,
                        )  # fmt: skip

    return {"direct": direct, "grouped": grouped, "add": make_add(lanes)}
