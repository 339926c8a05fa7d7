"""Matrices transposed from one array into another, in bands of rows."""

from __future__ import annotations

from typing import Any

from pullback.cpu.simd.transpose import make_transpose

BAND = 64  # rows of a piece, and columns taken at a time: whole lines on both sides, few enough rows for the TLB


def build(lanes: Any) -> dict[str, Any]:
    SIZE = lanes.size
    turn = make_transpose(lanes, widen=True)

    def transpose(piece, scratch, source, target, bands, rows, cols):
        """`bands` pieces to a matrix."""
        matrix, first = piece // bands * rows * cols * SIZE, piece % bands * BAND
        source, target = source + matrix, target + matrix
        count = min(BAND, rows - first)
        for at in range(0, cols, BAND):
            turn(
                source + (first * cols + at) * SIZE, cols * SIZE, target + (at * rows + first) * SIZE, rows * SIZE,
                count, min(BAND, cols - at),
            )  # fmt: skip

    return {"transpose": transpose}
