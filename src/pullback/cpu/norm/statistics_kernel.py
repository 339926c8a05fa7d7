"""Means and variances of channels, in two jobs: sums of each piece, which are then merged in a fixed order, in float64.

A piece sums x - s and (x - s)^2, where the shift s is the mean of its first few terms. By Cauchy's inequality n (mean - s)^2 is at
most n / few times the sum of squared deviations, so subtracting it costs few digits whatever the mean is, and one pass is enough.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.norm.records import MergeStatistics, StatisticsPlanes, StatisticsRows
from pullback.cpu.simd.doubles import make_doubles, make_square_root
from pullback.cpu.simd.vectors import choose, greater, inline

FEW = 8  # rows that make a shift
TOGETHER = 4  # rows for which sums stay in registers
AT_ONCE = 4  # registers of a step along a plane


def build(lanes: Any) -> dict[str, Any]:
    V, SIZE = lanes.count, lanes.size
    load, load_some, store, store_some = lanes.load, lanes.load_some, lanes.store, lanes.store_some
    splat, fma, first_lanes, add_lanes, get, put = (
        lanes.splat,
        lanes.fma,
        lanes.first_lanes,
        lanes.add_lanes,
        lanes.get,
        lanes.put,
    )
    double, widen, narrow = make_doubles(lanes)
    wide, wide_fma, root = double.splat, double.fma, make_square_root(double)
    many = lanes.times(AT_ONCE)
    M, load_many, load_many_some, splats, fmas, add_many = (
        many.count,
        many.load,
        many.load_some,
        many.splat,
        many.fma,
        many.add_lanes,
    )

    def make_rows(load, store):
        """(begin, accumulate) for a vector of a row: with whole vectors, or the first n lanes."""

        @inline
        def begin(source, pitch, few, shifts, n):
            total = load(source, n)
            for r in range(1, few):
                total = total + load(source + r * pitch, n)
            store(shifts, total * splat(1.0 / few), n)
            store(shifts + pitch, splat(0.0), n)
            store(shifts + 2 * pitch, splat(0.0), n)

        @inline
        def accumulate(source, pitch, rows, shifts, n):
            shift, total, squares = load(shifts, n), load(shifts + pitch, n), load(shifts + 2 * pitch, n)
            if rows == TOGETHER:
                a, b = load(source, n) - shift, load(source + pitch, n) - shift
                c, d = load(source + 2 * pitch, n) - shift, load(source + 3 * pitch, n) - shift
                total = total + ((a + b) + (c + d))
                squares = squares + (fma(a, a, b * b) + fma(c, c, d * d))
            else:
                for r in range(rows):
                    beyond = load(source + r * pitch, n) - shift
                    total, squares = total + beyond, fma(beyond, beyond, squares)
            store(shifts + pitch, total, n)
            store(shifts + 2 * pitch, squares, n)

        return begin, accumulate

    begin, accumulate = make_rows(load, store)
    begin_some, accumulate_some = make_rows(load_some, store_some)

    def rows(args: StatisticsRows, piece, scratch):
        first, width = piece * args.per_piece, args.width
        count, pitch = min(args.per_piece, args.rows - first), width * SIZE
        source, shifts = args.x + first * pitch, args.partials + piece * 3 * pitch
        whole = width // V * V
        few = min(count, FEW)
        for j in range(0, whole, V):
            begin(source + j * SIZE, pitch, few, shifts + j * SIZE, V)
        if whole < width:
            begin_some(source + whole * SIZE, pitch, few, shifts + whole * SIZE, width - whole)
        for r in range(0, count, TOGETHER):
            row, some = source + r * pitch, min(TOGETHER, count - r)
            for j in range(0, whole, V):
                accumulate(row + j * SIZE, pitch, some, shifts + j * SIZE, V)
            if whole < width:
                accumulate_some(row + whole * SIZE, pitch, some, shifts + whole * SIZE, width - whole)

    def planes(args: StatisticsPlanes, piece, scratch):
        for unit in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.units)):
            plane, block = unit // args.blocks, unit % args.blocks
            outer, channel = plane // args.channels, plane % args.channels
            start = block * args.block
            n = min(args.block, args.inner - start)
            source = args.x + (plane * args.inner + start) * SIZE
            target = args.partials + ((outer * args.blocks + block) * 3 * args.channels + channel) * SIZE
            few = min(M, n)
            put(target, add_many(load_many_some(source, few)) / few)
            shift = get(target)
            totals = squares = splats(0.0)
            j = 0
            while j + M <= n:
                beyond = load_many(source + j * SIZE, M) - splats(shift)
                totals, squares = totals + beyond, fmas(beyond, beyond, squares)
                j += M
            total, square = splat(0.0), splat(0.0)
            while j < n:
                left = min(V, n - j)
                some = choose(first_lanes(left), load_some(source + j * SIZE, left) - splat(shift), splat(0.0))
                total, square = total + some, fma(some, some, square)
                j += V
            put(target + args.channels * SIZE, add_many(totals) + add_lanes(total))
            put(target + 2 * args.channels * SIZE, add_many(squares) + add_lanes(square))

    @inline
    def move(running, new, momentum, n):
        old = widen(load_some(running, n)) * wide(1.0 - momentum)
        store_some(running, narrow(wide_fma(new, wide(momentum), old)), n)

    def merge(args: MergeStatistics, piece, scratch):
        pitch = args.width * SIZE
        for c in range(piece * args.block, min(piece * args.block + args.block, args.channels), V):
            n = min(V, args.channels - c)
            total = wide(0.0)
            for group in range(args.groups):
                terms = args.last if group % args.blocks == args.blocks - 1 else args.full
                at = args.partials + group * 3 * pitch + c * SIZE
                for _ in range(args.copies):
                    total = wide_fma(wide(terms), widen(load_some(at, n)), total + widen(load_some(at + pitch, n)))
                    at += args.channels * SIZE
            mean = total / wide(args.count)
            deviations = wide(0.0)
            for group in range(args.groups):
                terms = args.last if group % args.blocks == args.blocks - 1 else args.full
                at = args.partials + group * 3 * pitch + c * SIZE
                for _ in range(args.copies):
                    beyond = widen(load_some(at + pitch, n)) * wide(1.0 / terms)
                    away = widen(load_some(at, n)) + beyond - mean
                    own = widen(load_some(at + 2 * pitch, n)) - beyond * beyond * wide(terms)
                    deviations = deviations + wide_fma(away * away, wide(terms), own)
                    at += args.channels * SIZE
            variance = deviations / wide(args.count)
            variance = choose(greater(wide(0.0), variance), wide(0.0), variance)
            store_some(args.mean + c * SIZE, narrow(mean), n)
            store_some(args.variance + c * SIZE, narrow(variance), n)
            if args.inv_std:
                store_some(args.inv_std + c * SIZE, narrow(wide(1.0) / root(variance + wide(args.eps))), n)
            if args.running_mean:
                unbiased = variance * wide(args.count / max(args.count - 1, 1))
                move(args.running_mean + c * SIZE, mean, args.momentum, n)
                move(args.running_variance + c * SIZE, unbiased, args.momentum, n)

    return {"rows": rows, "planes": planes, "merge": merge}
