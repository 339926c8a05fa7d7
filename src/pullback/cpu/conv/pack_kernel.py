"""The filter of a convolution packed into panels: for each block of output channels, one row of vectors per summed term.

Panel rows are in the order in which the tiles consume them (a table of the plan says where each filter element goes), the last
vector is filled up with zeros. For lanes of pairs, each two rows become one of pairs at the end, the last with zeros where channels
are odd. A filter that holds infinities or NaN is reported, because padding made of zeros would turn them
into NaN where nothing should be added at all.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.conv.records import Pack
from pullback.cpu.simd.bfloat16_pairs import upper_halves
from pullback.cpu.simd.lanes import lanes_of
from pullback.cpu.simd.native import fill_zero
from pullback.cpu.simd.transpose import make_transpose
from pullback.cpu.simd.vectors import any_lane, equal, get_int, inline, invert, put_int


def build(lanes: Any) -> dict[str, Any]:
    pairs, lanes = lanes.pairs, lanes_of(lanes.dtype, lanes.vector_bytes)
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    load_some, load_wide, store_wide, splat = lanes.load_some, lanes.load_wide, lanes.store_wide, lanes.splat
    transpose = make_transpose(lanes, widen=True)

    @inline
    def has_faults(panel, count):
        """Whether some of `count` wide elements (whole vectors) are not finite."""
        sums = splat(0.0)
        zero = splat(0.0)
        for j in range(0, count, V):
            sums = sums + load_wide(panel + j * WIDE, V) * zero
        return any_lane(invert(equal(sums, zero)))

    @inline
    def pair_rows(rows, panel, terms, width):
        """Rows of wide bfloat16, each two of which become one of pairs."""
        for row in range(terms):
            for j in range(0, width, V):
                first = load_wide(rows + (2 * row * width + j) * WIDE, V)
                second = load_wide(rows + ((2 * row + 1) * width + j) * WIDE, V)
                store_wide(panel + (row * width + j) * WIDE, upper_halves(first, second), V)

    def pack(args: Pack, piece, scratch):
        """One panel."""
        group, n0 = piece // args.blocks, piece % args.blocks * args.block
        width, n = min(args.block, args.padded_channels - n0), min(args.block, args.out_channels - n0)
        packed = args.packed + (group * args.padded_channels + n0) * args.terms * (SIZE if pairs else WIDE)
        panel = scratch if pairs else packed
        source = args.filter + group * args.group_bytes + n0 * args.n_bytes
        row_bytes = width * WIDE
        if args.odd or (n < width and not args.run_row):
            fill_zero(panel, args.terms * row_bytes)
        if args.run_row:
            for run in range(args.runs):
                row = get_int(args.place + 8 * run)
                if row >= 0:
                    for j in range(0, width, V):
                        target = panel + row * row_bytes + j * WIDE
                        store_wide(target, load_some(source + run * args.run_bytes + j * SIZE, max(0, min(V, n - j))), V)
        else:
            for run in range(args.runs):
                start = source + run * args.run_bytes
                at = args.place + 8 * run * args.run_length
                j = 0
                while j < args.run_length:
                    # The longest run of terms that lie at even distances in the panel is transposed at once.
                    first = get_int(at + 8 * j)
                    step = get_int(at + 8 * j + 8) - first if j + 1 < args.run_length else 1
                    k = j + 1
                    while k < args.run_length and get_int(at + 8 * k) == first + (k - j) * step and first >= 0 and step > 0:
                        k += 1
                    if first >= 0:
                        transpose(start + j * SIZE, args.n_bytes, panel + first * row_bytes, step * row_bytes, n, k - j)
                    j = k
        if args.check and has_faults(panel, args.terms * width):
            put_int(args.faults, 1)
        if pairs:
            pair_rows(panel, packed, args.terms // 2, width)

    return {"pack": pack}
