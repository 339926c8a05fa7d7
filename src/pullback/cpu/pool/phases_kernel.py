"""Pool gradients phase by phase of the strides, with vectors along flat runs of cells: for channels_first and few channels.

All cells of a stride phase take what they are due from outputs at the same shifts, so a block of rows is one run over a flat
array: row after row, the phases of a row are made side by side and interleaved. Two sources:

max_grad reads dy and winners in place. With ceil(cells / stride) outputs along every axis, rows, planes and images simply follow
each other. A shift may lead into the row before or the image behind, but never to a match: the tap that leads from there to here
lies outside the input, so it did not win. Winners from outside the library may say otherwise, so those of all windows that stick
out are looked at first; a false one is a fault, and another kernel does the work again.

avg_grad unpacks the rows of dy it needs into scratch, divided and with zeros around them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pullback.cpu.pool.false_winners_kernel import has_false_winner
from pullback.cpu.pool.records import PhasesAvgGrad, PhasesMaxGrad
from pullback.cpu.pool.windows_kernel import readers_of
from pullback.cpu.simd.interleave import make_rows
from pullback.cpu.simd.native import LINE, fence, fill_zero
from pullback.cpu.simd.vectors import choose, equal, get_int, inline, outline, put_int, stay_outline


@cache
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


@cache
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
            def two_phases(args, target, rows, at, pitch, p, streams, given):
                """Rows of dx, of two phases in turn; their outputs lie `pitch` elements apart."""
                stay_outline()
                ptr, shifts, size = args.ptr + 8 * p, args.shifts, args.in_row
                k0, k1, k2 = get_int(ptr), get_int(ptr + 8), get_int(ptr + 16)
                for i in range(rows):
                    out = target + i * args.stride_h * size * SIZE
                    for j in range(0, (size + 1) // 2, G):
                        place = at + i * pitch + j
                        both = join(due(place, k0, k1, shifts, *given), due(place, k1, k2, shifts, *given))
                        store_upto(out + 2 * j * SIZE, both, size - 2 * j, streams)

            return two_phases

        def make_four(group):
            pair, G, due = group.times(2), group.count, make_due(group)
            four = pair.times(2)
            join_pairs, join, store_upto = four.join, pair.join, four.store_upto

            @outline
            def four_phases(args, target, rows, at, pitch, p, streams, given):
                """The same of four phases."""
                stay_outline()
                ptr, shifts, size = args.ptr + 8 * p, args.shifts, args.in_row
                k0, k1, k2, k3, k4 = get_int(ptr), get_int(ptr + 8), get_int(ptr + 16), get_int(ptr + 24), get_int(ptr + 32)
                for i in range(rows):
                    out = target + i * args.stride_h * size * SIZE
                    for j in range(0, (size + 3) // 4, G):
                        place = at + i * pitch + j
                        even = join(due(place, k0, k1, shifts, *given), due(place, k2, k3, shifts, *given))
                        odd = join(due(place, k1, k2, shifts, *given), due(place, k3, k4, shifts, *given))
                        store_upto(out + 4 * j * SIZE, join_pairs(even, odd), size - 4 * j, streams)

            return four_phases

        two_phases_of_short_rows, two_phases_of_rows, two_phases_of_long_rows = map(make_two, (lanes, lanes.times(2), quad))
        four_phases = make_four(lanes)

        @inline
        def interleaved(args, target, rows, at, pitch, p, streams, given):
            """Whole rows of dx, of single elements of two or four phases."""
            if args.stride_w == 4:
                four_phases(args, target, rows, at, pitch, p, streams, given)
            elif args.in_row > 4 * V:
                two_phases_of_long_rows(args, target, rows, at, pitch, p, streams, given)
            elif args.in_row > 2 * V:
                two_phases_of_rows(args, target, rows, at, pitch, p, streams, given)
            else:
                two_phases_of_short_rows(args, target, rows, at, pitch, p, streams, given)

        @outline
        def one_phase(args, target, count, at, p, direct, streams, given):
            """`count` elements of one phase, to dx (direct) or as wide sums to scratch."""
            stay_outline()
            k0, k1 = get_int(args.ptr + 8 * p), get_int(args.ptr + 8 * p + 8)
            for j in range(0, count, Q):
                total = due(at + j, k0, k1, args.shifts, *given)
                if not direct:
                    store_wide(target + j * WIDE, total, Q)
                elif j + Q > count:
                    store_some(target + j * SIZE, total, count - j)
                elif streams:
                    stream(target + j * SIZE, total, Q)
                else:
                    store(target + j * SIZE, total, Q)

        @inline
        def phases_of_row(args, rows, planes, count, at, p, direct, streams, given):
            """`count` elements of each phase of a row, phases p, p + 1, ..: interleaved in scratch, or straight to dx."""
            for rw in range(args.stride_w):
                out = rows if direct else planes + rw * args.distance
                one_phase(args, out, count, at, p + rw, direct, streams, given)
            if not direct:
                pack(planes, rows, count // args.channels * args.stride_w, args.channels, args.stride_w, args.distance)

        return phases_of_row, interleaved

    phases_won, interleaved_won = make_phases(lambda group: make_won(group, True))
    phases_won_with_care, interleaved_won_with_care = make_phases(lambda group: make_won(group, False))
    phases_summed, interleaved_summed = make_phases(make_summed)

    @inline
    def copy_rows(args, target, scratch, interleaved_row, count, streams):
        """`count` rows of dx out of scratch, where those of a phase of the rows follow each other."""
        size = args.in_row
        for i in range(count):
            source = scratch + i % args.stride_h * args.row_distance + i // args.stride_h * interleaved_row * SIZE
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

    def max_grad(args: PhasesMaxGrad, piece, scratch):
        """A unit is a block of phase rows of a plane: block_rows * stride_h input rows."""
        streams = args.streams and args.dx % LINE == 0
        per_depth = args.blocks // args.in_depth
        if args.border_count:
            for image in range(piece * args.images // args.pieces, (piece + 1) * args.images // args.pieces):
                if has_false_winner(args, args.winners + image * args.image_outputs):
                    put_int(args.faults, 1)
        at_once = args.channels == 1 and (args.stride_w == 2 or args.stride_w == 4)
        given = (args.dy, args.winners, args.outputs, args.taps)
        planes = scratch + args.phase_start
        for unit in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.units)):
            image, b = unit // args.blocks, unit % args.blocks
            depth, first = b // per_depth, b % per_depth * args.block_rows
            at = ((image * args.out_depth + depth // args.stride_d) * args.out_rows + first) * args.out_row
            begin = first * args.stride_h
            end = min(begin + args.block_rows * args.stride_h, args.in_rows)
            target = args.dx + ((image * args.in_depth + depth) * args.in_rows + begin) * args.in_row * SIZE
            steps = (end - begin + args.stride_h - 1) // args.stride_h
            safe = at + args.lowest >= 0 and at + args.highest + steps * args.out_row + Q <= args.outputs
            for rh in range(min(args.stride_h, end - begin)):
                phase_rows = (end - begin - rh + args.stride_h - 1) // args.stride_h
                p = (depth % args.stride_d * args.stride_h + rh) * args.stride_w
                if at_once:
                    to = target + rh * args.in_row * SIZE
                    if safe:
                        interleaved_won(args, to, phase_rows, at, args.out_row, p, streams, given)
                    else:
                        interleaved_won_with_care(args, to, phase_rows, at, args.out_row, p, streams, given)
                    continue
                rows, count = target if args.direct else scratch + rh * args.row_distance, phase_rows * args.out_row
                if safe:
                    phases_won(args, rows, planes, count, at, p, args.direct, streams, given)
                else:
                    phases_won_with_care(args, rows, planes, count, at, p, args.direct, streams, given)
            if not args.direct and not at_once:
                copy_rows(args, target, scratch, args.stride_w * args.out_row, end - begin, streams)
        if streams:
            fence()

    @inline
    def share_row(line, count, row_divisor, col_div):
        """Divide one unpacked row of dy by its windows' divisors."""
        for j in range(0, count, V):
            quotient = load_wide_one(line + j * WIDE, V) / (splat_one(row_divisor) * load_wide_one(col_div + j * WIDE, V))
            store_wide_one(line + j * WIDE, quotient, V)

    @inline
    def unpack_dy(args, image, depth, first, areas):
        """How many planes of dy reach a depth; the rows that phase rows from `first` on need are unpacked and divided."""
        pitch, out_row = args.places_w * args.channels, args.cols * args.channels
        limit = args.dy + args.units // args.blocks * args.out_depth * args.out_rows * out_row * SIZE
        plane, _, planes, step, _ = readers_of(args.depth_readers, depth)
        for e in range(planes):
            for q in range(args.places_h):
                row = first + args.low_h + q
                line = areas + (e * args.area + q * pitch) * WIDE
                if 0 <= row < args.out_rows:
                    r = (plane + e * step) * args.out_rows + row
                    source = args.dy + (image * args.out_depth * args.out_rows + r) * out_row * SIZE
                    unpack(source, line, args.cols, args.channels, 1, args.low_w, args.places_w, 0, 0.0, limit)
                    if not args.uniform:  # the padding is divided too, and stays 0
                        cells = line - args.low_w * args.channels * WIDE
                        share_row(cells, out_row, float(get_int(args.row_div + 8 * r)), args.col_div)
                else:
                    fill(line, pitch, 0.0)
        return planes

    def avg_grad(args: PhasesAvgGrad, piece, scratch):
        streams = args.streams and args.dx % LINE == 0
        per_depth = args.blocks // args.in_depth
        areas, pitch = scratch + args.area_start, args.places_w * args.channels
        at_once = args.channels == 1 and (args.stride_w == 2 or args.stride_w == 4)
        fill_zero(
            areas, args.areas_bytes
        )  # what they held behind rows may be denormal as numbers: some CPUs take long for those
        for unit in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.units)):
            image, b = unit // args.blocks, unit % args.blocks
            depth, first = b // per_depth, b % per_depth * args.block_rows
            begin = first * args.stride_h
            end = min(begin + args.block_rows * args.stride_h, args.in_rows)
            planes = unpack_dy(args, image, depth, first, areas)
            given = (areas, planes, args.area, 1.0 / float(max(args.uniform, 1)))
            target = args.dx + ((image * args.in_depth + depth) * args.in_rows + begin) * args.in_row * SIZE
            for rh in range(min(args.stride_h, end - begin)):
                count = (end - begin - rh + args.stride_h - 1) // args.stride_h
                p = rh * args.stride_w
                if at_once:
                    interleaved_summed(args, target + rh * args.in_row * SIZE, count, 0, pitch, p, streams, given)
                else:
                    rows, phases = scratch + rh * args.row_distance, scratch + args.phase_start
                    phases_summed(args, rows, phases, count * pitch, 0, p, 0, 0, given)
            if not at_once:
                copy_rows(args, target, scratch, args.stride_w * pitch, end - begin, streams)
        if streams:
            fence()

    return {"max_grad": max_grad, "avg_grad": avg_grad}
