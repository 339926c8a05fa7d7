"""Pool gradients phase by phase of the strides, with vectors along flat runs of cells: for channels_first and few channels.

All cells of a stride phase take what they are due from outputs at the same shifts, so a block of rows is one run over a flat
array: row after row, the phases of a row are made side by side and woven. Two sources:

max_grad reads dy and winners in place. With as many outputs as cells along every axis, rows, planes and images simply follow
each other. A shift may lead into the row before or the image behind, but never to a match: the tap that leads from there to here
lies outside the input, so it did not win. Winners from outside the library may say otherwise, so those of all windows that stick
out are looked at first; a false one is a fault, and another kernel does the work again.

avg_grad unpacks the rows of dy it needs into scratch, divided and with zeros around them.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.pool.records import PhasesAvgGrad, PhasesMaxGrad
from pullback.cpu.pool.windows_kernel import readers_in, readers_of
from pullback.cpu.simd.interleave import make_rows
from pullback.cpu.simd.native import LINE, fence
from pullback.cpu.simd.vectors import choose, equal, get_byte, get_int, get_int32, inline, outline, put_int, stay_outline


def make_won(group, safe):
    """What a group of neighbouring cells of a phase won. safe: all that is read lies inside the arrays."""
    G, SIZE, WINNER = group.count, group.size, group.winner_size
    splat, splat_code, load, load_codes = group.splat, group.splat_code, group.load, group.load_codes
    load_between, load_codes_between = group.load_between, group.load_codes_between

    @inline
    def won(at, k0, k1, shifts, dy, winners, outputs, taps):
        total = splat(0.0)
        for k in range(k0, k1):
            source = at + get_int(shifts + 8 * k)
            if safe:
                codes, values = load_codes(winners + source * WINNER, G), load(dy + source * SIZE, G)
            else:
                codes = load_codes_between(winners + source * WINNER, -source, outputs - source, splat_code(0))
                values = load_between(dy + source * SIZE, -source, outputs - source, splat(0.0))
            total = total + choose(equal(codes, splat_code(get_int(taps + 8 * k))), values, splat(0.0))
        return total

    return won


def make_summed(group):
    """The dy of all windows that cover a group of neighbouring cells of a phase, from unpacked planes of dy."""
    G, WIDE, splat, load_wide = group.count, group.compute_size, group.splat, group.load_wide

    @inline
    def summed(at, k0, k1, shifts, areas, depths, area, factor):
        total = splat(0.0)
        for e in range(depths):
            for k in range(k0, k1):
                total = total + load_wide(areas + (at + e * area + get_int(shifts + 8 * k)) * WIDE, G)
        return total * splat(factor)

    return summed


def build(lanes: Any) -> dict[str, Any]:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    quad = lanes.times(4)
    Q = quad.count
    store, store_some, stream, store_wide = quad.store, quad.store_some, quad.stream, quad.store_wide
    load_one, store_one, store_one_some, stream_one = lanes.load, lanes.store, lanes.store_some, lanes.stream
    load_wide_one, store_wide_one, splat_one = lanes.load_wide, lanes.store_wide, lanes.splat
    fill, unpack, pack = make_rows(lanes)

    def make_phases(make_due):
        due = make_due(quad)

        def make_two(group):
            pair, G, due = group.times(2), group.count, make_due(group)
            join, store_upto = pair.join, pair.store_upto

            @outline
            def two_phases(target, row_step, rows, size, at, pitch, p, ptr, shifts, streams, args):
                """Rows of `size` elements of dx, of two phases in turn; their outputs lie `pitch` elements apart."""
                stay_outline()
                k0, k1, k2 = get_int(ptr + 8 * p), get_int(ptr + 8 * p + 8), get_int(ptr + 8 * p + 16)
                for i in range(rows):
                    for j in range(0, (size + 1) // 2, G):
                        place = at + i * pitch + j
                        both = join(due(place, k0, k1, shifts, *args), due(place, k1, k2, shifts, *args))
                        store_upto(target + i * row_step + 2 * j * SIZE, both, size - 2 * j, streams)

            return two_phases

        def make_four(group):
            pair, G, due = group.times(2), group.count, make_due(group)
            four = pair.times(2)
            join_pairs, join, store_upto = four.join, pair.join, four.store_upto

            @outline
            def four_phases(target, row_step, rows, size, at, pitch, p, ptr, shifts, streams, args):
                """The same of four phases."""
                stay_outline()
                k0, k1, k2 = get_int(ptr + 8 * p), get_int(ptr + 8 * p + 8), get_int(ptr + 8 * p + 16)
                k3, k4 = get_int(ptr + 8 * p + 24), get_int(ptr + 8 * p + 32)
                for i in range(rows):
                    for j in range(0, (size + 3) // 4, G):
                        place = at + i * pitch + j
                        even = join(due(place, k0, k1, shifts, *args), due(place, k2, k3, shifts, *args))
                        odd = join(due(place, k1, k2, shifts, *args), due(place, k3, k4, shifts, *args))
                        store_upto(target + i * row_step + 4 * j * SIZE, join_pairs(even, odd), size - 4 * j, streams)

            return four_phases

        two_phases_of_short_rows, two_phases_of_rows, two_phases_of_long_rows = map(make_two, (lanes, lanes.times(2), quad))
        four_phases = make_four(lanes)

        @inline
        def woven(stride_w, target, row_step, rows, size, at, pitch, p, ptr, shifts, streams, args):
            """Whole rows of dx, of single elements of two or four phases."""
            if stride_w == 4:
                four_phases(target, row_step, rows, size, at, pitch, p, ptr, shifts, streams, args)
            elif size > 4 * V:
                two_phases_of_long_rows(target, row_step, rows, size, at, pitch, p, ptr, shifts, streams, args)
            elif size > 2 * V:
                two_phases_of_rows(target, row_step, rows, size, at, pitch, p, ptr, shifts, streams, args)
            else:
                two_phases_of_short_rows(target, row_step, rows, size, at, pitch, p, ptr, shifts, streams, args)

        @outline
        def one_phase(target, count, at, p, ptr, shifts, direct, streams, args):
            """`count` elements of one phase, to dx (direct) or as wide sums to scratch."""
            stay_outline()
            k0, k1 = get_int(ptr + 8 * p), get_int(ptr + 8 * p + 8)
            for j in range(0, count, Q):
                total = due(at + j, k0, k1, shifts, *args)
                if not direct:
                    store_wide(target + j * WIDE, total, Q)
                elif j + Q > count:
                    store_some(target + j * SIZE, total, count - j)
                elif streams:
                    stream(target + j * SIZE, total, Q)
                else:
                    store(target + j * SIZE, total, Q)

        @inline
        def phases_of_row(rows, count, at, p, ptr, shifts, stride_w, channels, direct, streams, planes, distance, args):
            """`count` elements of each phase of a row, phases p, p + 1, ..: woven into rows in scratch, or straight to dx."""
            for rw in range(stride_w):
                out = rows if direct else planes + rw * distance
                one_phase(out, count, at, p + rw, ptr, shifts, direct, streams, args)
            if not direct:
                pack(planes, rows, count // channels * stride_w, channels, stride_w, distance)

        return phases_of_row, woven

    phases_won, woven_won = make_phases(lambda group: make_won(group, True))
    phases_won_with_care, woven_won_with_care = make_phases(lambda group: make_won(group, False))
    phases_summed, woven_summed = make_phases(make_summed)

    @inline
    def copy_rows(target, scratch, row_distance, woven_row, size, count, stride_h, streams):
        """`count` rows of `size` elements out of scratch, where those of a phase of the rows follow each other."""
        for i in range(count):
            source = scratch + i % stride_h * row_distance + i // stride_h * woven_row * SIZE
            j = 0
            if streams:
                while j + V <= size:
                    stream_one(target + j * SIZE, load_one(source + j * SIZE, V), V)
                    j += V
            while j + V <= size:
                store_one(target + j * SIZE, load_one(source + j * SIZE, V), V)
                j += V
            if j < size:
                store_one_some(target + j * SIZE, load_one(source + j * SIZE, V), size - j)
            target += size * SIZE

    @outline
    def has_false_winner(winners, border, border_count, false_codes):
        """Whether a window of an image that sticks out says that a tap outside the input won.

        border: where the winner of each such output lies in its image and where the codes of its kind begin, int32, four at a
        time; false_codes: a byte for each code, 1 where the tap lies outside.
        """
        stay_outline()
        for i in range(0, border_count, 4):
            faults = 0
            for j in range(i, i + 4):  # unrolled
                faults |= get_byte(false_codes + get_int32(border + 8 * j + 4) + get_byte(winners + get_int32(border + 8 * j)))
            if faults:
                return True
        return False

    def max_grad(args: PhasesMaxGrad, piece, scratch):
        """A unit is a block of phase rows of a plane: block_rows * stride_h input rows.

        ptr: entries of each phase, shifts ascending. direct: the one phase is dx itself.
        """
        streams = args.streams
        streams = streams and args.dx % LINE == 0
        per_depth = args.blocks // args.in_depth
        if args.border_count:
            for image in range(piece * args.images // args.pieces, (piece + 1) * args.images // args.pieces):
                if has_false_winner(
                    args.winners + image * args.image_outputs, args.border, args.border_count, args.false_codes
                ):
                    put_int(args.faults, 1)
        for unit in range(piece * args.group, min(piece * args.group + args.group, args.units)):
            image, b = unit // args.blocks, unit % args.blocks
            depth, first = b // per_depth, b % per_depth * args.block_rows
            at = ((image * args.out_depth + depth // args.stride_d) * args.out_rows + first) * args.out_row
            begin = first * args.stride_h
            end = min(begin + args.block_rows * args.stride_h, args.in_rows)
            target = args.dx + ((image * args.in_depth + depth) * args.in_rows + begin) * args.in_row * SIZE
            steps = (end - begin + args.stride_h - 1) // args.stride_h
            at_once = args.channels == 1 and (args.stride_w == 2 or args.stride_w == 4)
            safe = at + args.lowest >= 0 and at + args.highest + steps * args.out_row + Q <= args.outputs
            passed = (args.dy, args.winners, args.outputs, args.taps)
            for rh in range(min(args.stride_h, end - begin)):
                count = (end - begin - rh + args.stride_h - 1) // args.stride_h * args.out_row
                p = (depth % args.stride_d * args.stride_h + rh) * args.stride_w
                rows = target if args.direct else scratch + rh * args.row_distance
                planes = scratch + args.phase_start
                if at_once:
                    to = (
                        target + rh * args.in_row * SIZE,
                        args.stride_h * args.in_row * SIZE,
                        count // args.out_row,
                        args.in_row,
                    )
                    if safe:
                        woven_won(args.stride_w, *to, at, args.out_row, p, args.ptr, args.shifts, streams, passed)
                    else:
                        woven_won_with_care(args.stride_w, *to, at, args.out_row, p, args.ptr, args.shifts, streams, passed)
                elif safe:
                    phases_won(
                        rows,
                        count,
                        at,
                        p,
                        args.ptr,
                        args.shifts,
                        args.stride_w,
                        args.channels,
                        args.direct,
                        streams,
                        planes,
                        args.distance,
                        passed,
                    )
                else:
                    phases_won_with_care(
                        rows,
                        count,
                        at,
                        p,
                        args.ptr,
                        args.shifts,
                        args.stride_w,
                        args.channels,
                        args.direct,
                        streams,
                        planes,
                        args.distance,
                        passed,
                    )
            if not args.direct and not at_once:
                copy_rows(
                    target,
                    scratch,
                    args.row_distance,
                    args.stride_w * args.out_row,
                    args.in_row,
                    end - begin,
                    args.stride_h,
                    streams,
                )
        if streams:
            fence()

    @inline
    def share_row(line, count, row_divisor, col_div):
        """Divide one unpacked row of dy by its windows' divisors."""
        for j in range(0, count, V):
            quotient = load_wide_one(line + j * WIDE, V) / (splat_one(row_divisor) * load_wide_one(col_div + j * WIDE, V))
            store_wide_one(line + j * WIDE, quotient, V)

    def avg_grad(args: PhasesAvgGrad, piece, scratch):
        """uniform: the divisor that all windows share, or 0; then each row of dy is divided before it is summed."""
        streams = args.streams
        streams = streams and args.dx % LINE == 0
        per_depth = args.blocks // args.in_depth
        areas, pitch, out_row = scratch + args.area_start, args.places_w * args.channels, args.cols * args.channels
        limit = args.dy + args.units // args.blocks * args.out_depth * args.out_rows * out_row * SIZE
        depths = readers_in(args.depth_readers)
        for unit in range(piece * args.group, min(piece * args.group + args.group, args.units)):
            image, b = unit // args.blocks, unit % args.blocks
            depth, first = b // per_depth, b % per_depth * args.block_rows
            begin = first * args.stride_h
            end = min(begin + args.block_rows * args.stride_h, args.in_rows)
            plane, _, planes = readers_of(depths, depth)
            for e in range(planes):
                for q in range(args.places_h):
                    row = first + args.low_h + q
                    line = areas + (e * args.area + q * pitch) * WIDE
                    if 0 <= row < args.out_rows:
                        r = (plane + e * depths[1]) * args.out_rows + row
                        source = args.dy + (image * args.out_depth * args.out_rows + r) * out_row * SIZE
                        unpack(source, line, args.cols, args.channels, 1, args.low_w, args.places_w, 0, 0.0, limit)
                        if not args.uniform:  # the padding is divided too, and stays 0
                            share_row(
                                line - args.low_w * args.channels * WIDE,
                                out_row,
                                float(get_int(args.row_div + 8 * r)),
                                args.col_div,
                            )
                    else:
                        fill(line, pitch, 0.0)
            passed = (areas, planes, args.area, 1.0 / float(max(args.uniform, 1)))
            target = args.dx + ((image * args.in_depth + depth) * args.in_rows + begin) * args.in_row * SIZE
            at_once = args.channels == 1 and (args.stride_w == 2 or args.stride_w == 4)
            for rh in range(min(args.stride_h, end - begin)):
                count = (end - begin - rh + args.stride_h - 1) // args.stride_h
                p = rh * args.stride_w
                if at_once:
                    to = (target + rh * args.in_row * SIZE, args.stride_h * args.in_row * SIZE, count, args.in_row)
                    woven_summed(args.stride_w, *to, 0, pitch, p, args.ptr, args.shifts, streams, passed)
                else:
                    rows, planes = scratch + rh * args.row_distance, scratch + args.phase_start
                    phases_summed(
                        rows,
                        count * pitch,
                        0,
                        p,
                        args.ptr,
                        args.shifts,
                        args.stride_w,
                        args.channels,
                        0,
                        0,
                        planes,
                        args.distance,
                        passed,
                    )
            if not at_once:
                copy_rows(
                    target, scratch, args.row_distance, args.stride_w * pitch, args.in_row, end - begin, args.stride_h, streams
                )
        if streams:
            fence()

    return {"max_grad": max_grad, "avg_grad": avg_grad}
