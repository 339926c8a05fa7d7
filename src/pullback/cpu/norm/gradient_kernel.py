"""The gradient of batch normalization: two sums of each channel, and what they make of dy; dy may be masked by a ReLU's result.

That result is read, or made again of x as `normalize_kernel.py` has made it: a multiplication costs less than to read an array.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.norm.coefficients_kernel import make_spread
from pullback.cpu.norm.records import (
    GradientApplyPlanes,
    GradientApplyRows,
    GradientSumsPlanes,
    GradientSumsRows,
    MergeGradient,
)
from pullback.cpu.simd.doubles import make_doubles
from pullback.cpu.simd.vectors import choose, greater_equal, inline

TOGETHER = 4  # rows for which sums and coefficients stay in registers
AT_ONCE = 2  # registers of a step along a plane


def build(lanes: Any) -> dict[str, Any]:
    V, SIZE = lanes.count, lanes.size
    load, load_some, store, store_some = lanes.load, lanes.load_some, lanes.store, lanes.store_some
    splat, add_lanes, get, put = lanes.splat, lanes.add_lanes, lanes.get, lanes.put
    double, widen, narrow = make_doubles(lanes)
    wide, many = double.splat, lanes.times(AT_ONCE)
    M, load_many, splats, add_many = many.count, many.load, many.splat, many.add_lanes
    spread = make_spread(lanes)

    def make_cells(some, load, store):
        """(add_cell, apply_cell) of one vector, with whole vectors or the first n lanes."""
        zero, fma = some.splat, some.fma

        @inline
        def passed(args, dy, y):
            dy = choose(greater_equal(zero(0.0), y), zero(0.0), dy)  # a NaN passes, as in PyTorch
            return choose(greater_equal(y, zero(args.top)), zero(0.0), dy)

        @inline
        def gradient(args, at, n, centred, factor, bias):
            dy = load(args.dy + at, n)
            if args.y:
                dy = passed(args, dy, load(args.y + at, n))
            if args.bias:
                dy = passed(args, dy, fma(centred, factor, bias))
            return dy

        @inline
        def add_cell(args, at, n, mean, factor, bias, total, products):
            centred = load(args.x + at, n) - mean
            dy = gradient(args, at, n, centred, factor, bias)
            if args.masked:
                store(args.masked + at, dy, n)
            return total + dy, fma(dy, centred, products)

        @inline
        def apply_cell(args, at, n, mean, factor, bias, slope, offset):
            centred = load(args.x + at, n) - mean
            dy = gradient(args, at, n, centred, factor, bias)
            store(args.dx + at, fma(factor, dy, fma(slope, centred, offset)), n)

        return add_cell, apply_cell

    add_cell, apply_cell = make_cells(lanes, load, store)
    add_some, apply_some = make_cells(lanes, load_some, store_some)
    add_cells, apply_cells = make_cells(many, many.load, many.store)

    def make_row_sums(add, load, store):
        @inline
        def row_sums(args, first, rows, pitch, at, n, means, sums):
            mean, total, products = load(means + at, n), load(sums + at, n), load(sums + pitch + at, n)
            factor = bias = splat(0.0)
            if args.bias:
                factor, bias = load(means + args.row_bytes + at, n), load(means + 2 * args.row_bytes + at, n)
            if rows == TOGETHER:
                place, zero = first * pitch + at, splat(0.0)
                total, products = add(args, place, n, mean, factor, bias, total, products)
                b, bs = add(args, place + pitch, n, mean, factor, bias, zero, zero)
                c, cs = add(args, place + 2 * pitch, n, mean, factor, bias, zero, zero)
                d, ds = add(args, place + 3 * pitch, n, mean, factor, bias, c, cs)
                total, products = total + (b + d), products + (bs + ds)
            else:
                for row in range(first, first + rows):
                    total, products = add(args, row * pitch + at, n, mean, factor, bias, total, products)
            store(sums + at, total, n)
            store(sums + pitch + at, products, n)

        return row_sums

    row_sums, row_sums_some = make_row_sums(add_cell, load, store), make_row_sums(add_some, load_some, store_some)

    def sums_rows(args: GradientSumsRows, piece, scratch):
        width, pitch = args.width, args.width * SIZE
        for c in range(0, args.channels, V):
            n, at = min(V, args.channels - c), c * SIZE
            spread(args, scratch + at, load_some(args.mean + at, n), n)
            if args.bias:
                factor = load_some(args.inv_std + at, n) * load_some(args.scale + at, n)
                spread(args, scratch + args.row_bytes + at, factor, n)
                spread(args, scratch + 2 * args.row_bytes + at, load_some(args.bias + at, n), n)
        sums = args.partials + piece * 2 * pitch
        for j in range(0, 2 * width, V):
            store_some(sums + j * SIZE, splat(0.0), min(V, 2 * width - j))
        first = piece * args.per_piece
        end, whole = min(first + args.per_piece, args.rows), width // V * V
        for r in range(first, end, TOGETHER):
            some = min(TOGETHER, end - r)
            for j in range(0, whole, V):
                row_sums(args, r, some, pitch, j * SIZE, V, scratch, sums)
            if whole < width:
                row_sums_some(args, r, some, pitch, whole * SIZE, width - whole, scratch, sums)

    @inline
    def mask_line(args, c):
        """(factor, bias) of a channel, of which a mask is made; unused where there is none."""
        if args.bias:
            return get(args.inv_std + c) * get(args.scale + c), get(args.bias + c)
        return get(args.mean + c), get(args.mean + c)

    def sums_planes(args: GradientSumsPlanes, piece, scratch):
        for unit in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.units)):
            plane, block = unit // args.blocks, unit % args.blocks
            outer, channel, start = plane // args.channels, plane % args.channels, block * args.block
            n, at = min(args.block, args.inner - start), plane * args.inner + start
            mean = get(args.mean + channel * SIZE)
            factor, bias = mask_line(args, channel * SIZE)
            totals = products = splats(0.0)
            j = 0
            while j + M <= n:
                totals, products = add_cells(
                    args, (at + j) * SIZE, M, splats(mean), splats(factor), splats(bias), totals, products
                )
                j += M
            total = product = splat(0.0)
            while j < n:  # lanes beyond the end have a dy of 0
                total, product = add_some(
                    args, (at + j) * SIZE, min(V, n - j), splat(mean), splat(factor), splat(bias), total, product
                )
                j += V
            target = args.partials + ((outer * args.blocks + block) * 2 * args.channels + channel) * SIZE
            put(target, add_many(totals) + add_lanes(total))
            put(target + args.channels * SIZE, add_many(products) + add_lanes(product))

    def merge(args: MergeGradient, piece, scratch):
        pitch = args.width * SIZE
        for c in range(piece * args.block, min(piece * args.block + args.block, args.channels), V):
            n = min(V, args.channels - c)
            total = products = wide(0.0)
            for group in range(args.groups):
                at = args.partials + group * 2 * pitch + c * SIZE
                for _ in range(args.copies):
                    total = total + widen(load_some(at, n))
                    products = products + widen(load_some(at + pitch, n))
                    at += args.channels * SIZE
            store_some(args.sum_dy + c * SIZE, narrow(total), n)
            products = products * widen(load_some(args.inv_std + c * SIZE, n))
            store_some(args.sum_dy_xhat + c * SIZE, narrow(products), n)

    def apply_rows(args: GradientApplyRows, piece, scratch):
        width, pitch = args.width, args.width * SIZE
        means, factors = scratch, scratch + args.row_bytes
        slopes, offsets, biases = factors + args.row_bytes, factors + 2 * args.row_bytes, factors + 3 * args.row_bytes
        for c in range(0, args.channels, V):
            n, at = min(V, args.channels - c), c * SIZE
            inv_std = load_some(args.inv_std + at, n)
            factor = inv_std * load_some(args.scale + at, n)
            share = factor * splat(-1.0 / args.count)
            spread(args, means + at, load_some(args.mean + at, n), n)
            spread(args, factors + at, factor, n)
            spread(args, slopes + at, share * inv_std * load_some(args.sum_dy_xhat + at, n), n)
            spread(args, offsets + at, share * load_some(args.sum_dy + at, n), n)
            if args.bias:
                spread(args, biases + at, load_some(args.bias + at, n), n)
        first = piece * args.per_piece
        end = min(first + args.per_piece, args.rows)
        for row in range(first, end):
            j, place = 0, row * pitch
            while j + M <= width:
                at = j * SIZE
                mean, factor = load_many(means + at, M), load_many(factors + at, M)
                slope, offset = load_many(slopes + at, M), load_many(offsets + at, M)
                bias = splats(0.0)
                if args.bias:
                    bias = load_many(biases + at, M)
                apply_cells(args, place + at, M, mean, factor, bias, slope, offset)
                j += M
            while j < width:
                at = j * SIZE
                mean, factor = load(means + at, V), load(factors + at, V)
                slope, offset = load(slopes + at, V), load(offsets + at, V)
                bias = splat(0.0)
                if args.bias:
                    bias = load(biases + at, V)
                if j + V <= width:  # masked stores take longer
                    apply_cell(args, place + at, V, mean, factor, bias, slope, offset)
                else:
                    apply_some(args, place + at, width - j, mean, factor, bias, slope, offset)
                j += V

    def apply_planes(args: GradientApplyPlanes, piece, scratch):
        for unit in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.units)):
            plane, start = unit // args.blocks, unit % args.blocks * args.block
            n, at, c = min(args.block, args.inner - start), plane * args.inner + start, plane % args.channels * SIZE
            mean, inv_std, bias = get(args.mean + c), get(args.inv_std + c), mask_line(args, c)[1]
            factor = inv_std * get(args.scale + c)
            share = factor * (-1.0 / args.count)
            slope, offset = share * inv_std * get(args.sum_dy_xhat + c), share * get(args.sum_dy + c)
            j = 0
            while j + M <= n:
                apply_cells(args, (at + j) * SIZE, M, splats(mean), splats(factor), splats(bias), splats(slope), splats(offset))
                j += M
            while j < n:
                some = min(V, n - j)
                apply_some(args, (at + j) * SIZE, some, splat(mean), splat(factor), splat(bias), splat(slope), splat(offset))
                j += V

    return {
        "sums_rows": sums_rows,
        "sums_planes": sums_planes,
        "merge": merge,
        "apply_rows": apply_rows,
        "apply_planes": apply_planes,
    }
