"""Matrices transposed from one array into another, in bands of rows."""

from __future__ import annotations

from typing import Any

from pullback.cpu.conv.records import TRANSPOSED_ROWS, Transpose
from pullback.cpu.simd.transpose import make_transpose


def build(lanes: Any) -> dict[str, Any]:
    SIZE, BAND = lanes.size, TRANSPOSED_ROWS
    transpose_block = make_transpose(lanes, widen=True)

    def transpose(args: Transpose, piece, scratch):
        rows, cols = args.rows, args.cols
        matrix, first = piece // args.bands * rows * cols * SIZE, piece % args.bands * BAND
        source, target = args.source + matrix, args.target + matrix
        for at in range(0, cols, BAND):
            from_, to = source + (first * cols + at) * SIZE, target + (at * rows + first) * SIZE
            transpose_block(from_, cols * SIZE, to, rows * SIZE, min(BAND, rows - first), min(BAND, cols - at))

    return {"transpose": transpose}
