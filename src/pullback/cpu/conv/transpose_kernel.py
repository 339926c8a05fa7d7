"""Matrices transposed from one array into another, in bands of rows."""

from __future__ import annotations

from typing import Any

from pullback.cpu.conv.records import TRANSPOSED_ROWS, Transpose
from pullback.cpu.simd.transpose import make_transpose
from pullback.cpu.simd.vectors import any_lane, equal, invert, outline, put_int, stay_outline


def build(lanes: Any) -> dict[str, Any]:
    V, SIZE, BAND = lanes.count, lanes.size, TRANSPOSED_ROWS
    transpose_block = make_transpose(lanes, widen=True)
    load_some, splat = lanes.load_some, lanes.splat

    @outline
    def has_faults(source, count):
        """Whether a run of numbers has one that is not finite."""
        stay_outline()
        zero = splat(0.0)
        sums = zero
        for i in range(0, count, V):
            sums = sums + load_some(source + i * SIZE, min(V, count - i)) * zero
        return any_lane(invert(equal(sums, zero)))

    def transpose(args: Transpose, piece, scratch):
        rows, cols = args.rows, args.cols
        matrix, first = piece // args.bands * rows * cols * SIZE, piece % args.bands * BAND
        source, target = args.source + matrix, args.target + matrix
        for at in range(0, cols, BAND):
            from_, to = source + (first * cols + at) * SIZE, target + (at * rows + first) * SIZE
            transpose_block(from_, cols * SIZE, to, rows * SIZE, min(BAND, rows - first), min(BAND, cols - at))
        if args.faults != 0 and has_faults(source + first * cols * SIZE, min(BAND, rows - first) * cols):
            put_int(args.faults, 1)

    return {"transpose": transpose}
