"""Sums of squares over flat memory, in float64: one of each piece."""

from __future__ import annotations

from typing import Any

from pullback.cpu.elementwise.records import SquareSums
from pullback.cpu.simd.doubles import make_doubles
from pullback.cpu.simd.vectors import inline

AT_ONCE = 2  # registers of a step


def build(lanes: Any) -> dict[str, Any]:
    V, SIZE = lanes.count, lanes.size
    many = lanes.times(AT_ONCE)
    M, load_many, load_some = many.count, many.load, lanes.load_some
    doubles, widen_many, _ = make_doubles(many)
    double, widen, _ = make_doubles(lanes)
    fma_many, zeros, add_many = doubles.fma, doubles.splat, doubles.add_lanes
    fma, zero, add, put = double.fma, double.splat, double.add_lanes, double.put_wide

    @inline
    def squares(g, total):
        wide = widen_many(g)
        return fma_many(wide, wide, total)

    def sum_of_squares(args: SquareSums, piece, scratch):
        j = piece * args.per_piece
        end = min(j + args.per_piece, args.count)
        first = second = zeros(0.0)
        while j + 2 * M <= end:
            first = squares(load_many(args.g + j * SIZE, M), first)
            second = squares(load_many(args.g + (j + M) * SIZE, M), second)
            j += 2 * M
        rest = zero(0.0)
        while j < end:
            wide = widen(load_some(args.g + j * SIZE, min(V, end - j)))
            rest = fma(wide, wide, rest)
            j += V
        put(args.sums + piece * 8, add_many(first + second) + add(rest))

    return {"sum_of_squares": sum_of_squares}
