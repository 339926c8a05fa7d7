"""Filter gradient of grouped convolution, channels_last, with vectors of output channels.

Each (tap, part, output channel) sums source times dy over all output cells. A piece takes a range of output rows and adds to sums
of its own, (tap and part, output channel) in the compute type (see partial_sums_kernel.py). Behind the sums lies a spare row of
taps, for tiles with more rows than are left.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.depthwise.cells_scratch_kernel import (
    copy_narrow,
    make_copy_block,
    make_spread_block,
    own_taps,
    phase_at,
    place_of,
)
from pullback.cpu.depthwise.emit_kernel import word
from pullback.cpu.depthwise.records import CellsFilterOneChannel, CellsFilterSeveralChannels, ListedOffsets, Offsets
from pullback.cpu.depthwise.tiles_kernel import make_phase_products
from pullback.cpu.simd.native import copy_bytes, fill_zero
from pullback.cpu.simd.record_types import records_at
from pullback.cpu.simd.vectors import inline, outline, stay_outline

ROWS, TAPS = 3, 3  # of a tile
ENTRY = ListedOffsets.BYTES
offsets_at, listed_at = records_at(Offsets), records_at(ListedOffsets)


def _make_run(lanes: Any) -> Any:
    """All rows and taps over a run of cells, in tiles of 3 rows or 1 by 3, 2 or 1 taps."""

    def make(rows: int, taps: int, dense: bool) -> Any:
        tile = make_phase_products(lanes, rows, taps, dense)

        @outline
        def outlined(phase, source, dy, sums, n, entries, count):
            stay_outline()
            tile(phase, source, dy, sums, n, entries, count)

        return outlined

    def make_rows(rows: int, dense: bool) -> Any:
        one, two, three = (make(rows, taps, dense) for taps in (1, 2, TAPS))

        @inline
        def of_rows(phase, source, dy, sums, n, entries, taps, count):
            t = 0
            while t < taps:
                at, to = source + t * phase.tap_step, sums + t * phase.weight_step
                if taps - t >= TAPS:
                    three(phase, at, dy, to, n, entries, count)
                elif taps - t == 2:
                    two(phase, at, dy, to, n, entries, count)
                else:
                    one(phase, at, dy, to, n, entries, count)
                t += TAPS

        return of_rows

    dense_many, dense_one, any_many, any_one = (make_rows(rows, dense) for dense in (True, False) for rows in (ROWS, 1))

    @inline
    def run(phase, source, dy, sums, n, entries, rows, taps, count):
        """The entry after the last must be one whose sums nobody wants."""
        dense = phase.source_step == phase.tap_step
        r = 0
        while r < rows:
            at, alone = entries + r * ENTRY, rows - r == 1
            if dense:
                if alone:
                    dense_one(phase, source, dy, sums, n, at, taps, count)
                else:
                    dense_many(phase, source, dy, sums, n, at, taps, count)
            elif alone:
                any_one(phase, source, dy, sums, n, at, taps, count)
            else:
                any_many(phase, source, dy, sums, n, at, taps, count)
            r += ROWS

    return run


@inline
def list_rows(args, entries, r):
    """Write the Offsets of all source rows and parts of output row r, then a spare one; how many there are."""
    rows = 0
    for e in range(word(args.row_ptr, r), word(args.row_ptr, r + 1)):
        for k in range(args.parts):
            row, part, entry = offsets_at(args.row_offsets, e), offsets_at(args.part_offsets, k), listed_at(entries, rows)
            entry.source = row.source + part.source
            entry.weight = row.weight + part.weight
            rows += 1
    if rows:
        spare = listed_at(entries, rows)
        spare.source = listed_at(entries, 0).source
        spare.weight = args.spare
    return rows


def build(lanes: Any) -> dict[str, Any]:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    run = _make_run(lanes)
    copy_block, spread_block = make_copy_block(lanes), make_spread_block(lanes)

    @outline
    def one_row(args, table, source, dy, sums, channels, entries, rows):
        """The products of one output row with all the source rows it reads. Columns that are not in the middle have a range of
        taps of their own: a dy that is not finite must not meet the zeros beyond the ends.
        """
        stay_outline()
        for number in range(args.phases):
            phase = phase_at(table, number)
            x, other, count = source + phase.source_start, dy + phase.target_start, phase.count
            middle, end = phase.middle, phase.end
            j = 0
            while j < count:
                many, t0, t1 = end - j, 0, phase.taps
                if j < middle or j >= end:
                    taps = own_taps(args, phase, j)
                    many, t0, t1 = 1, taps.first, taps.end
                at, to = x + j * phase.source_step + t0 * phase.tap_step, sums + t0 * phase.weight_step
                for c in range(0, channels, V):
                    n, there = min(V, channels - c), other + j * phase.target_step + c * SIZE
                    run(phase, at + c * WIDE, there, to + c * WIDE, n, entries, rows, t1 - t0, many)
                j += many

    def one_channel(args: CellsFilterOneChannel, piece, scratch):
        own, area, dy = args.sums + piece * args.sums_bytes, scratch + args.area_start, scratch + args.dy_start
        fill_zero(own, args.sums_bytes)
        for unit in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.units)):
            image, block, segment, phases = place_of(args, unit)
            source = copy_block(args, segment, image, block, area)
            for r in range(word(args.block_rows, block), word(args.block_rows, block + 1)):
                rows = list_rows(args, scratch, r)
                row, begin = args.dy + (image * args.rows + r) * args.target_pitch, segment.target_start
                if not args.in_place:
                    copy_bytes(dy, row + begin, segment.target_bytes)  # read in order, and aligned
                    row = dy - begin
                one_row(args, phases, source, row, own, args.out_channels, scratch, rows)

    def several_channels(args: CellsFilterSeveralChannels, piece, scratch):
        own, area = args.sums + piece * args.sums_bytes, scratch + args.area_start
        copies = area + args.copy_start
        fill_zero(own, args.sums_bytes)
        for unit in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.units)):
            image, block, segment, phases = place_of(args, unit)
            copy_narrow(args, segment, image, block, copies)
            for c in range(0, args.out_channels, args.step):
                n = min(args.step, args.out_channels - c)
                spread_block(args, segment, block, copies, area, c, n)
                for r in range(word(args.block_rows, block), word(args.block_rows, block + 1)):
                    rows = list_rows(args, scratch, r)
                    dy = args.dy + (image * args.rows + r) * args.target_pitch + c * SIZE
                    one_row(args, phases, area, dy, own + c * WIDE, n, scratch, rows)

    return {"one_channel": one_channel, "several_channels": several_channels}
