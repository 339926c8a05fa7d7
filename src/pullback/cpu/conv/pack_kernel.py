"""The filter of a convolution packed into panels: for each block of output channels, one row of vectors per summed term.

Panel rows are in the order in which the tiles consume them (a table of the plan says where each filter element goes), the last
vector is filled up with zeros. With lanes of pairs, two terms are one row. A filter that holds infinities or NaN is reported,
because padding made of zeros would turn them into NaN where nothing should be added at all.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.conv.records import PACKED_TERMS, Pack
from pullback.cpu.simd.bfloat16_pairs import first_halves, store_first_halves, store_second_halves
from pullback.cpu.simd.interleave import SHUFFLED_STRIDES, make_every
from pullback.cpu.simd.lanes import lanes_of
from pullback.cpu.simd.native import fill_zero, prefetch
from pullback.cpu.simd.transpose import make_transpose
from pullback.cpu.simd.vectors import any_lane, equal, get_int, inline, invert, put_int

MOST_SHUFFLED = max(SHUFFLED_STRIDES)
# What lies so far ahead is prefetched: the channels of a filter are often more than a page apart, which no processor foresees.
AHEAD_TERMS, AHEAD_BYTES = 32, 256


def build(lanes: Any) -> dict[str, Any]:
    pairs, lanes = lanes.pairs, lanes_of(lanes.dtype, lanes.vector_bytes)
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    load_some, load_wide, store_wide, splat = lanes.load_some, lanes.load_wide, lanes.store_wide, lanes.splat
    transpose, every = make_transpose(lanes, widen=True), make_every(lanes)

    @inline
    def put(panel, row, row_bytes, j, value):
        """A vector of a term of a panel."""
        if not pairs:
            store_wide(panel + row * row_bytes + j * WIDE, value, V)
            return
        place = panel + (row if row >= 0 else -2 - row) // 2 * row_bytes + j * WIDE
        if row < 0:
            store_wide(place, first_halves(value), V)
        elif row % 2:
            store_second_halves(place, value)
        else:
            store_first_halves(place, value)

    def pack(args: Pack, piece, scratch):
        """Some terms of one panel: single ones of all output channels, or several at a time, through scratch."""
        part, panel_number = piece % args.parts, piece // args.parts
        group, n0 = panel_number // args.blocks, panel_number % args.blocks * args.block
        width, n = min(args.block, args.padded_channels - n0), min(args.block, args.out_channels - n0)
        panel = args.packed + (group * args.padded_channels + n0) * args.terms * (SIZE if pairs else WIDE)
        source = args.filter + group * args.group_bytes + n0 * args.n_bytes
        row_bytes = width * WIDE
        zero = splat(0.0)
        faults = zero  # 0 as long as everything is finite
        side_by_side = args.run_length <= MOST_SHUFFLED and args.n_bytes == args.run_length * SIZE
        if not args.run_row:
            fill_zero(scratch, PACKED_TERMS * row_bytes)
        for unit in range(part * args.part_units, min(args.units, part * args.part_units + args.part_units)):
            if args.run_row:
                row = get_int(args.place + 8 * unit)
                for j in range(0, width, V):
                    prefetch(source + (unit + AHEAD_TERMS) * args.run_bytes + j * SIZE)
                if row != -1:
                    for j in range(0, width, V):
                        value = load_some(source + unit * args.run_bytes + j * SIZE, max(0, min(V, n - j)))
                        faults = faults + value * zero
                        put(panel, row, row_bytes, j, value)
                continue
            run, first = unit // args.run_units, unit % args.run_units * PACKED_TERMS
            start, count = source + run * args.run_bytes + first * SIZE, min(PACKED_TERMS, args.run_length - first)
            for r in range(n):
                prefetch(start + r * args.n_bytes + AHEAD_BYTES)
            if side_by_side:
                for t in range(count):
                    every(start + t * SIZE, scratch + t * row_bytes, n, args.run_length)
            else:
                transpose(start, args.n_bytes, scratch, row_bytes, n, count)
            for t in range(count):
                row = get_int(args.place + 8 * (run * args.run_length + first + t))
                if row != -1:
                    for j in range(0, width, V):
                        value = load_wide(scratch + t * row_bytes + j * WIDE, V)
                        faults = faults + value * zero
                        put(panel, row, row_bytes, j, value)
        if args.check and any_lane(invert(equal(faults, zero))):
            put_int(args.faults, 1)

    return {"pack": pack}
