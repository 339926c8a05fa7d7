"""What planes_kernel.py does where weights or gradients are not finite, and so must not meet the zeros beyond a plane's ends.

A block is then computed row by row, each with the taps that meet a row of the source there, in the lanes that meet a column.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pullback.cpu.depthwise.records import (
    PRODUCT_TAPS,
    TAP_ENTRIES_SPARE,
    LaneRange,
    ListedOffsets,
    Offsets,
    PlanePhase,
    Range,
)
from pullback.cpu.depthwise.tiles_kernel import make_plane_products
from pullback.cpu.engine.records import WORD
from pullback.cpu.simd.record_types import records_at
from pullback.cpu.simd.register_tiles import FRESH, make_tiles
from pullback.cpu.simd.vectors import inline, outline, put_int, stay_outline

offsets_at, listed_at, range_at, lanes_at, phase_at = (
    records_at(record) for record in (Offsets, ListedOffsets, Range, LaneRange, PlanePhase)
)
ENTRY, LANES = ListedOffsets.BYTES, LaneRange.BYTES


@inline
def meets(args, tap, row):
    rows = range_at(args.tap_ends, tap)
    return rows.first <= row < rows.end


@inline
def taps_of_row(args, phase, row):
    """First and last (exclusive) tap of a column that meets a row of the source; those between them do, too."""
    low, high = 0, phase.taps_h
    while low < high and not meets(args, phase.ends_h + low, row):
        low += 1
    while low < high and not meets(args, phase.ends_h + high - 1, row):
        high -= 1
    return low, high


@inline
def put_lanes(args, phase, ranges, number, tap):
    """The columns for which tap `tap` of a row meets one, as entry `number` of a list."""
    columns, lanes = range_at(args.tap_ends, phase.ends_w + tap), lanes_at(ranges, number)
    lanes.first = columns.first
    lanes.count = columns.end - columns.first


@inline
def put_spare(entries, total, spare):
    """Entries behind the last tap of a list, for tiles that take more taps than are left: their sums lie at `spare`."""
    for more in range(total, total + TAP_ENTRIES_SPARE):
        entry = listed_at(entries, more)
        entry.source = 0
        entry.weight = spare


@cache
def make_sum_rows(lanes: Any, most_outs: int) -> Any:
    """sum_rows: some rows of up to `most_outs` output channels."""
    V, WIDE = lanes.count, lanes.compute_size
    tiles = make_tiles(lanes, most_outs, 2)

    @outline
    def sum_rows(args, phase, scratch, target, weights, outs, rows, row0, cols, areas):
        """row0: number of the first row among the phase's."""
        stay_outline()
        source, taps_w, most = scratch + args.area_start, phase.taps_w, args.most_taps
        weights_at = scratch + args.entry_start
        sources_at, ranges = weights_at + WORD * most, weights_at + 2 * WORD * most
        count, listed_low, listed_high = 0, -1, -1
        for r in range(rows):
            low, high = taps_of_row(args, phase, row0 + r)
            if low != listed_low or high != listed_high:
                count, listed_low, listed_high = 0, low, high
                for e in range(areas):
                    for k in range(low * taps_w, high * taps_w):
                        area, tap = listed_at(scratch, e), offsets_at(args.tap_offsets, phase.first_tap + k)
                        put_int(sources_at + WORD * count, area.source + tap.source)
                        put_int(weights_at + WORD * count, area.weight + tap.weight)
                        put_lanes(args, phase, ranges, count, k % taps_w)
                        count += 1
            for j in range(0, cols, 2 * V):
                at = r * args.pitch + j * WIDE
                c = (target + at, args.out_pitch, min(2 * V, cols - j), FRESH)
                a, b = (weights, weights_at, args.out_weights, 0), (source + at, sources_at, 1, 0)
                tiles(outs, a, b, c, (count, 1), (ranges, j))

    return sum_rows


@cache
def make_products_of_taps(lanes: Any, ranged: bool) -> Any:
    """products(source, dy, sums, entries, total, count, ranges, lines, pitch): of `total` listed taps (see make_plane_products)."""

    def make(taps: int) -> Any:
        tile = make_plane_products(lanes, taps, ranged)

        @outline
        def some(source, dy, sums, entries, count, ranges, lines, pitch):
            stay_outline()
            tile(source, dy, sums, entries, count, ranges, lines, pitch)

        return some

    one, three, most = (make(taps) for taps in (1, 3, PRODUCT_TAPS))

    @inline
    def products(source, dy, sums, entries, total, count, ranges, lines, pitch):
        t = 0
        while t < total:
            entry, own = entries + t * ENTRY, ranges + t * LANES
            if total - t >= PRODUCT_TAPS:
                most(source, dy, sums, entry, count, own, lines, pitch)
                t += PRODUCT_TAPS
            elif total - t > 1:
                three(source, dy, sums, entry, count, own, lines, pitch)
                t += 3
            else:
                one(source, dy, sums, entry, count, own, lines, pitch)
                t += 1

    return products


@cache
def make_sum_products(lanes: Any) -> Any:
    """sum_products: the products of some rows of dy with what their taps meet, added to a vector of sums for each weight."""
    V = lanes.count
    products = make_products_of_taps(lanes, True)

    @outline
    def sum_products(args, scratch, sums, rows, row0, areas, spare):
        """spare: where the sums go, from `sums` on, of what a tile does beyond the last tap."""
        stay_outline()
        phase = phase_at(args.phase_table, 0)
        source, dy = scratch + args.area_start, scratch + args.dy_start
        entries, ranges = scratch + args.entry_start, scratch + args.range_start
        taps_w, length, r = phase.taps_w, (args.cols + V - 1) // V, 0
        while r < rows:
            low, high = taps_of_row(args, phase, row0 + r)
            end, alike = r + 1, 1
            while end < rows and alike:  # rows that the same taps meet
                next_low, next_high = taps_of_row(args, phase, row0 + end)
                alike = int(next_low == low and next_high == high)
                end += alike
            total = 0
            for e in range(areas):
                for k in range(low * taps_w, high * taps_w):
                    area, tap, entry = listed_at(scratch, e), offsets_at(args.tap_offsets, k), listed_at(entries, total)
                    entry.source = area.source + tap.source
                    entry.weight = (area.weight + tap.weight) * V
                    put_lanes(args, phase, ranges, total, k % taps_w)
                    total += 1
            put_spare(entries, total, spare)
            for more in range(total, total + TAP_ENTRIES_SPARE):
                lanes_of = lanes_at(ranges, more)
                lanes_of.first = 0
                lanes_of.count = 0
            down = r * args.pitch
            products(source + down, dy + down, sums, entries, total, length, ranges, end - r, args.pitch)
            r = end

    return sum_products
