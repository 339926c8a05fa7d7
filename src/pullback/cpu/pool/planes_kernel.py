"""Pooling with vectors along whole planes: for channels_first arrays and for few channels.

The source rows of a block are unpacked into scratch (simd/interleave.py), split by the strides of both plane axes and padded, so
that each tap reads every output of the block at one constant distance: the block is one long run of places, row after row, and no
tap ever leaves it. Places past the end of a row hold rubbish that is not copied out. Along the depth axis of 3-D problems the
planes that exist are unpacked one behind the other. Offsets named *_at count elements, *_bytes and *_start bytes.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.pool.exact_kernel import make_exact
from pullback.cpu.pool.records import PlanesAvgForward, PlanesMaxForward
from pullback.cpu.pool.rules_kernel import MINUS_INFINITY, make_takes
from pullback.cpu.pool.windows_kernel import NO_LINES, axes_of, cells_read, lines_of, taps_inside
from pullback.cpu.simd.interleave import make_rows
from pullback.cpu.simd.native import fill_zero
from pullback.cpu.simd.vectors import (
    any_lane,
    choose,
    equal,
    get_int,
    greater,
    inline,
    invert,
)


def build(lanes: Any, ties: str = "first", nan: str = "propagate", floor: bool = False, losers: bool = False) -> dict[str, Any]:
    """The kernels for one element type and winner rule. `losers`: whether a window of cells may have no winner."""
    V, SIZE, WIDE, WINNER = lanes.count, lanes.size, lanes.compute_size, lanes.winner_size
    NONE = 256**WINNER - 1
    put = lanes.put
    load_wide, store, store_some = lanes.load_wide, lanes.store, lanes.store_some
    splat, first_lanes = lanes.splat, lanes.first_lanes
    leading = nan == "leading"
    quad = lanes.times(4)
    Q = quad.count
    fill, unpack, _ = make_rows(lanes)
    look_again, index_row = make_exact(lanes, ties, nan, floor, losers)

    @inline
    def unpack_plane(args, plane, area, row_axis, col_axis, row0, neutral, limit):
        """The rows that output rows from row0 on read, split by both strides: planes of places_h rows of places_w cells.

        Planes are `distance` bytes apart, which leaves room for what a row writes past its end.
        """
        width, channels, stride_h, stride_w = col_axis.cells, args.channels, row_axis.stride, col_axis.stride
        pitch = args.places_w * channels * WIDE
        for q in range(args.places_h):
            for r in range(stride_h):  # in the order of memory, which is read ahead
                row = (row0 + args.low_h + q) * stride_h + r
                target = area + r * stride_w * args.distance + q * pitch
                if 0 <= row < row_axis.cells:
                    source = plane + row * width * channels * SIZE
                    unpack(source, target, width, channels, stride_w, args.low_w, args.places_w, args.distance, neutral, limit)
                else:
                    for w in range(stride_w):
                        fill(target + w * args.distance, args.places_w * channels, neutral)

    @inline
    def unpack_block(args, image, depth, row0, scratch, neutral):
        """(first tap, count) of the planes of an image that outputs of a depth read; they are unpacked one behind the other."""
        depth_axis, row_axis, col_axis = axes_of(args)
        plane_bytes = row_axis.cells * col_axis.cells * args.channels * SIZE
        limit = args.x + args.units // args.blocks * depth_axis.cells * plane_bytes
        plane, tap, planes = taps_inside(depth_axis, depth)
        for e in range(planes):
            at = args.x + (image * depth_axis.cells + plane + e * depth_axis.dilation) * plane_bytes
            unpack_plane(args, at, scratch + e * args.area_bytes, row_axis, col_axis, row0, neutral, limit)
        return tap, planes

    takes = make_takes(quad, ties, "ignore" if nan == "leading" else nan)
    splat_q, splat_winner, load_q, store_q = quad.splat, quad.splat_winner, quad.load_wide, quad.store_wide
    store_winners = quad.store_winners

    @inline
    def best_places(args, areas, sums, codes, count, planes, plane_tap):
        """Value and winner at `count` places; whether a NaN was seen (asked only under "leading")."""
        odd = invert(equal(splat_q(0.0), splat_q(0.0)))
        taps, tap_at, area_bytes = args.taps, args.tap_at, args.area_bytes
        for j in range(0, count, Q):
            best, winner = splat_q(MINUS_INFINITY), splat_winner(NONE)
            for e in range(planes):
                area, base = areas + e * area_bytes + j * WIDE, (plane_tap + e) * taps
                for t in range(taps):
                    cell = load_q(area + get_int(tap_at + 8 * t) * WIDE, Q)
                    wins = takes(cell, best)
                    best = choose(wins, cell, best)
                    winner = choose(wins, splat_winner(base + t), winner)
                    if leading:
                        odd = odd | invert(equal(cell, cell))
            store_q(sums + j * WIDE, best, Q)
            store_winners(codes + j * WINNER, winner, Q)
        return any_lane(odd)

    load_codes, store_codes_all, store_codes_some = lanes.load_codes, lanes.store_codes, lanes.store_codes_some

    @inline
    def settle(sums, codes, y, winners, j, n, above, put_values, put_codes):
        """Copy n results out; the lanes of them that may have no winner."""
        best = load_wide(sums + j * WIDE, V)
        if y:
            put_values(y + j * SIZE, best, n)
        if winners:
            put_codes(winners + j * WINNER, load_codes(codes + j * WINNER, V), n)
        return invert(greater(best, splat(above))) if floor else equal(best, splat(MINUS_INFINITY))

    @inline
    def settle_row(sums, codes, y, winners, length, above):
        """Copy one row of results out; whether a window of it may have no winner and must be looked at again."""
        again = invert(equal(splat(0.0), splat(0.0)))
        j = 0
        while j + V <= length:
            again = again | settle(sums, codes, y, winners, j, V, above, store, store_codes_all)
            j += V
        if j < length:
            last = settle(sums, codes, y, winners, j, length - j, above, store_some, store_codes_some)
            again = again | (last & first_lanes(length - j))
        return any_lane(again)

    def max_forward(args: PlanesMaxForward, piece, scratch):
        depth_axis, row_axis, col_axis = axes_of(args)
        out_depth, out_rows, cols = depth_axis.outputs, row_axis.outputs, col_axis.outputs
        pitch, length, in_row = args.places_w * args.channels, cols * args.channels, col_axis.cells * args.channels
        sums, codes, per_depth = scratch + args.sum_start, scratch + args.code_start, args.blocks // out_depth
        for unit in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.units)):
            image, b = unit // args.blocks, unit % args.blocks
            depth, first = b // per_depth, b % per_depth * args.block_rows
            last = min(first + args.block_rows, out_rows)
            plane_tap, planes = unpack_block(args, image, depth, first, scratch, MINUS_INFINITY)
            odd = best_places(args, scratch, sums, codes, (last - first - 1) * pitch + length, planes, plane_tap)
            for i in range(last - first):
                r = depth * out_rows + first + i
                at = (image * out_depth * out_rows + r) * length
                own = args.winners + at * WINNER if args.winners else (scratch + args.own_start if args.indices else 0)
                target = args.y + at * SIZE if args.y else 0
                again = settle_row(sums + i * pitch * WIDE, codes + i * pitch * WINNER, target, own, length, args.above)
                if again or odd:
                    line, _, lines = lines_of(scratch + args.lines_start, NO_LINES, (0, 0), args, in_row, r)
                    volume = args.x + image * depth_axis.cells * row_axis.cells * in_row * SIZE
                    look_again(args, volume + line * in_row * SIZE, target, own, args.channels, lines, col_axis)
                if args.indices:
                    index_row(args, args.indices + 8 * at, own, 0, cols, args.channels, image, r)

    @inline
    def sum_places(args, areas, sums, count, planes):
        """Sum over the taps at `count` places."""
        taps, tap_at, area_bytes = args.taps, args.tap_at, args.area_bytes
        for j in range(0, count, Q):
            total = splat_q(0.0)
            for e in range(planes):
                area = areas + e * area_bytes + j * WIDE
                for t in range(taps):
                    total = total + load_q(area + get_int(tap_at + 8 * t) * WIDE, Q)
            store_q(sums + j * WIDE, total, Q)

    @inline
    def share_row(args, line, target, length, row_divisor):
        """One row of sums divided and copied out."""
        j = 0
        while j + V <= length:
            share = load_wide(line + j * WIDE, V) / (row_divisor * load_wide(args.col_div + j * WIDE, V))
            store(target + j * SIZE, share, V)
            j += V
        if j < length:
            share = load_wide(line + j * WIDE, V) / (row_divisor * load_wide(args.col_div + j * WIDE, V))
            store_some(target + j * SIZE, share, length - j)

    def avg_forward(args: PlanesAvgForward, piece, scratch):
        depth_axis, row_axis, col_axis = axes_of(args)
        out_depth, out_rows = depth_axis.outputs, row_axis.outputs
        pitch, length = args.places_w * args.channels, col_axis.outputs * args.channels
        sums, per_depth = scratch + args.sum_start, args.blocks // out_depth
        fill_zero(
            scratch, args.sum_start
        )  # what it held between rows may be denormal as numbers: some CPUs take long for those
        for unit in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.units)):
            image, b = unit // args.blocks, unit % args.blocks
            depth, first = b // per_depth, b % per_depth * args.block_rows
            last = min(first + args.block_rows, out_rows)
            _, planes = unpack_block(args, image, depth, first, scratch, 0.0)
            sum_places(args, scratch, sums, (last - first - 1) * pitch + length, planes)
            for i in range(last - first):
                r = depth * out_rows + first + i
                target = args.y + (image * out_depth * out_rows + r) * length * SIZE
                share_row(args, sums + i * pitch * WIDE, target, length, splat(float(get_int(args.row_div + 8 * r))))
                if args.empty != 0.0:
                    in_row = col_axis.cells * args.channels
                    _, _, lines = lines_of(scratch + args.lines_start, NO_LINES, (0, 0), args, in_row, r)
                    for k in range(length):
                        if lines[1] * cells_read(col_axis, args.channels, k // args.channels)[1] == 0:
                            put(target + k * SIZE, args.empty)

    return {"max_forward": max_forward, "avg_forward": avg_forward}
