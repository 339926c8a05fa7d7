"""Matrices transposed from one array into another, in bands of rows."""

from __future__ import annotations

from typing import Any

from pullback.cpu.conv.records import TransposeTranspose
from pullback.cpu.simd.transpose import make_transpose

BAND = 64  # rows of a piece, and columns taken at a time: whole lines on both sides, few enough rows for the TLB


def build(lanes: Any) -> dict[str, Any]:
    SIZE = lanes.size
    turn = make_transpose(lanes, widen=True)

    def transpose(args: TransposeTranspose, piece, scratch):
        """`bands` pieces to a matrix."""
        source, target = args.source, args.target
        matrix, first = piece // args.bands * args.rows * args.cols * SIZE, piece % args.bands * BAND
        source, target = source + matrix, target + matrix
        count = min(BAND, args.rows - first)
        for at in range(0, args.cols, BAND):
            turn(
                source + (first * args.cols + at) * SIZE, args.cols * SIZE, target + (at * args.rows + first) * SIZE, args.rows * SIZE,
                count, min(BAND, args.cols - at),
            )  # fmt: skip

    return {"transpose": transpose}
