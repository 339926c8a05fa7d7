"""Normalizing channels in one pass: (x - mean) * inv_std * scale + bias, plus something, and a ReLU with or without a top."""

from __future__ import annotations

from typing import Any

from pullback.cpu.norm.coefficients_kernel import make_spread
from pullback.cpu.norm.records import NormalizePlanes, NormalizeRows
from pullback.cpu.simd.vectors import choose, greater, inline

AT_ONCE = 4  # registers of a step


def build(lanes: Any) -> dict[str, Any]:
    V, SIZE = lanes.count, lanes.size
    load, load_some, get, splat = lanes.load, lanes.load_some, lanes.get, lanes.splat
    many = lanes.times(AT_ONCE)
    M, load_many, splats = many.count, many.load, many.splat
    spread = make_spread(lanes)

    def make_cell(some, load, store):
        """One vector of y, with whole vectors or the first n lanes."""
        zero, fma = some.splat, some.fma

        @inline
        def cell(args, at, n, mean, factor, bias):
            value = fma(load(args.x + at, n) - mean, factor, bias)
            if args.add:
                value = value + load(args.add + at, n)
            if args.relu:
                value = choose(greater(zero(0.0), value), zero(0.0), value)
                value = choose(greater(value, zero(args.top)), zero(args.top), value)
            store(args.y + at, value, n)

        return cell

    cell_some = make_cell(lanes, load_some, lanes.store_some)
    cell_whole, cells = make_cell(lanes, load, lanes.store), make_cell(many, many.load, many.store)

    def rows(args: NormalizeRows, piece, scratch):
        width, pitch = args.width, args.width * SIZE
        means, factors, biases = scratch, scratch + args.row_bytes, scratch + 2 * args.row_bytes
        for c in range(0, args.channels, V):
            n, at = min(V, args.channels - c), c * SIZE
            spread(args, means + at, load_some(args.mean + at, n), n)
            spread(args, factors + at, load_some(args.inv_std + at, n) * load_some(args.scale + at, n), n)
            spread(args, biases + at, load_some(args.bias + at, n), n)
        first = piece * args.per_piece
        end = min(first + args.per_piece, args.rows)
        for row in range(first, end):
            j, place = 0, row * pitch
            while j + M <= width:
                at = j * SIZE
                mean, factor, bias = load_many(means + at, M), load_many(factors + at, M), load_many(biases + at, M)
                cells(args, place + at, M, mean, factor, bias)
                j += M
            while j < width:
                at = j * SIZE
                mean, factor, bias = load(means + at, V), load(factors + at, V), load(biases + at, V)
                if j + V <= width:  # masked stores take longer
                    cell_whole(args, place + at, V, mean, factor, bias)
                else:
                    cell_some(args, place + at, width - j, mean, factor, bias)
                j += V

    def planes(args: NormalizePlanes, piece, scratch):
        for unit in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.units)):
            plane, start = unit // args.blocks, unit % args.blocks * args.block
            n, at, c = min(args.block, args.inner - start), plane * args.inner + start, plane % args.channels * SIZE
            mean, factor, bias = get(args.mean + c), get(args.inv_std + c) * get(args.scale + c), get(args.bias + c)
            j = 0
            while j + M <= n:
                cells(args, (at + j) * SIZE, M, splats(mean), splats(factor), splats(bias))
                j += M
            while j < n:
                cell_some(args, (at + j) * SIZE, min(V, n - j), splat(mean), splat(factor), splat(bias))
                j += V

    return {"rows": rows, "planes": planes}
