"""Pool gradients phase by phase of the strides, with vectors along flat runs of cells: for channels_first and few channels.

All cells of a stride phase take what they are due from outputs at the same shifts, so a block of rows is one run over a flat
array: row after row, the phases of a row are made side by side and woven. Two sources:

max_grad reads dy and winners in place. With as many outputs as cells along every axis, rows, planes and images simply follow
each other. A shift may lead into the row before or the image behind, but never to a match: the tap that leads from there to here
would lie outside the input, so it did not win.

avg_grad unpacks the rows of dy it needs into scratch, divided and with zeros around them.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.kernels.native import LINE, fence
from pullback.cpu.kernels.rows import make_rows
from pullback.cpu.kernels.vectors import choose, equal, get_int, inline, outline, stay_outline


def build(lanes: Any) -> dict[str, Any]:
    V, SIZE, WIDE, WINNER = lanes.count, lanes.size, lanes.compute_size, lanes.winner_size
    quad = lanes.times(4)
    octo, Q = quad.times(2), quad.count
    splat, splat_code, load, load_codes, load_wide = quad.splat, quad.splat_code, quad.load, quad.load_codes, quad.load_wide
    load_between, load_codes_between = quad.load_between, quad.load_codes_between
    store, store_some, stream, store_wide = quad.store, quad.store_some, quad.stream, quad.store_wide
    load_one, store_one, store_one_some, stream_one = lanes.load, lanes.store, lanes.store_some, lanes.stream
    load_wide_one, store_wide_one, splat_one = lanes.load_wide, lanes.store_wide, lanes.splat
    store_octo, join = octo.store, octo.join
    fill, unpack, pack = make_rows(lanes)

    def make_won(safe):
        @inline
        def won(at, k0, k1, shifts, dy, winners, outputs, taps):
            """The dy that Q neighbouring cells of a phase won. safe: all that is read lies inside the arrays."""
            total = splat(0.0)
            for k in range(k0, k1):
                source = at + get_int(shifts + 8 * k)
                if safe:
                    codes, values = load_codes(winners + source * WINNER, Q), load(dy + source * SIZE, Q)
                else:
                    codes = load_codes_between(winners + source * WINNER, -source, outputs - source, splat_code(0))
                    values = load_between(dy + source * SIZE, -source, outputs - source, splat(0.0))
                total = total + choose(equal(codes, splat_code(get_int(taps + 8 * k))), values, splat(0.0))
            return total

        return won

    @inline
    def summed(at, k0, k1, shifts, areas, depths, area, factor):
        """The dy of all windows that cover Q neighbouring cells of a phase, from `depths` unpacked planes `area` elements apart."""
        total = splat(0.0)
        for e in range(depths):
            for k in range(k0, k1):
                total = total + load_wide(areas + (at + e * area + get_int(shifts + 8 * k)) * WIDE, Q)
        return total * splat(factor)

    def make_phases(due):
        @outline
        def two_phases(rows, count, at, p, ptr, shifts, args):
            """`count` elements each of two phases, in turn, into scratch: rows of dx one after the other."""
            stay_outline()
            k0, k1, k2 = get_int(ptr + 8 * p), get_int(ptr + 8 * p + 8), get_int(ptr + 8 * p + 16)
            for j in range(0, count, Q):
                store_octo(
                    rows + 2 * j * SIZE, join(due(at + j, k0, k1, shifts, *args), due(at + j, k1, k2, shifts, *args)), 2 * Q
                )

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
            if stride_w == 2 and channels == 1:
                two_phases(rows, count, at, p, ptr, shifts, args)
                return
            for rw in range(stride_w):
                out = rows if direct else planes + rw * distance
                one_phase(out, count, at, p + rw, ptr, shifts, direct, streams, args)
            if not direct:
                pack(planes, rows, count // channels * stride_w, channels, stride_w, distance)

        return phases_of_row

    phases_won, phases_won_with_care = make_phases(make_won(True)), make_phases(make_won(False))
    phases_summed = make_phases(summed)

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

    def max_grad(
        piece, scratch, dy, winners, dx, group, units, blocks, block_rows, in_depth, in_rows, in_row, out_depth, out_rows, out_row,
        stride_d, stride_h, stride_w, channels, ptr, shifts, taps, lowest, highest, outputs, direct, streams,
        row_distance, phase_start, distance,
    ):  # fmt: skip
        """A unit is a block of phase rows of a plane: block_rows * stride_h input rows.

        ptr: entries of each phase, shifts ascending. direct: the one phase is dx itself.
        """
        streams = streams and dx % LINE == 0
        per_depth = blocks // in_depth
        for unit in range(piece * group, min(piece * group + group, units)):
            image, b = unit // blocks, unit % blocks
            depth, first = b // per_depth, b % per_depth * block_rows
            at = ((image * out_depth + depth // stride_d) * out_rows + first) * out_row
            begin = first * stride_h
            end = min(begin + block_rows * stride_h, in_rows)
            target = dx + ((image * in_depth + depth) * in_rows + begin) * in_row * SIZE
            steps = (end - begin + stride_h - 1) // stride_h
            safe = at + lowest >= 0 and at + highest + steps * out_row + Q <= outputs
            args = (dy, winners, outputs, taps)
            for rh in range(min(stride_h, end - begin)):
                count = (end - begin - rh + stride_h - 1) // stride_h * out_row
                p = (depth % stride_d * stride_h + rh) * stride_w
                rows = target if direct else scratch + rh * row_distance
                planes = scratch + phase_start
                if safe:
                    phases_won(rows, count, at, p, ptr, shifts, stride_w, channels, direct, streams, planes, distance, args)
                else:
                    phases_won_with_care(
                        rows, count, at, p, ptr, shifts, stride_w, channels, direct, streams, planes, distance, args
                    )
            if not direct:
                copy_rows(target, scratch, row_distance, stride_w * out_row, in_row, end - begin, stride_h, streams)
        if streams:
            fence()

    @inline
    def share_row(line, count, row_divisor, col_div):
        """Divide one unpacked row of dy by its windows' divisors."""
        for j in range(0, count, V):
            quotient = load_wide_one(line + j * WIDE, V) / (splat_one(row_divisor) * load_wide_one(col_div + j * WIDE, V))
            store_wide_one(line + j * WIDE, quotient, V)

    def avg_grad(
        piece, scratch, dy, dx, group, units, blocks, block_rows, in_depth, in_rows, in_row, out_depth, out_rows, cols,
        stride_h, stride_w, channels, ptr, shifts, streams, row_distance, phase_start, distance,
        low_h, places_h, low_w, places_w, area_start, area, d_ptr, d_src, row_div, col_div, uniform,
    ):  # fmt: skip
        """uniform: the divisor that all windows share, or 0; then each row of dy is divided before it is summed."""
        streams = streams and dx % LINE == 0
        per_depth = blocks // in_depth
        areas, pitch, out_row = scratch + area_start, places_w * channels, cols * channels
        limit = dy + units // blocks * out_depth * out_rows * out_row * SIZE
        for unit in range(piece * group, min(piece * group + group, units)):
            image, b = unit // blocks, unit % blocks
            depth, first = b // per_depth, b % per_depth * block_rows
            begin = first * stride_h
            end = min(begin + block_rows * stride_h, in_rows)
            d0, d1 = get_int(d_ptr + 8 * depth), get_int(d_ptr + 8 * depth + 8)
            for e in range(d0, d1):
                plane = get_int(d_src + 8 * e)
                for q in range(places_h):
                    row = first + low_h + q
                    line = areas + ((e - d0) * area + q * pitch) * WIDE
                    if 0 <= row < out_rows:
                        r = plane * out_rows + row
                        source = dy + (image * out_depth * out_rows + r) * out_row * SIZE
                        unpack(source, line, cols, channels, 1, low_w, places_w, 0, 0.0, limit)
                        if not uniform:  # the padding is divided too, and stays 0
                            share_row(line - low_w * channels * WIDE, out_row, float(get_int(row_div + 8 * r)), col_div)
                    else:
                        fill(line, pitch, 0.0)
            args = (areas, d1 - d0, area, 1.0 / float(max(uniform, 1)))
            for rh in range(min(stride_h, end - begin)):
                count = (end - begin - rh + stride_h - 1) // stride_h * pitch
                rows, planes = scratch + rh * row_distance, scratch + phase_start
                phases_summed(rows, count, 0, rh * stride_w, ptr, shifts, stride_w, channels, 0, 0, planes, distance, args)
            target = dx + ((image * in_depth + depth) * in_rows + begin) * in_row * SIZE
            copy_rows(target, scratch, row_distance, stride_w * pitch, in_row, end - begin, stride_h, streams)
        if streams:
            fence()

    return {"max_grad": max_grad, "avg_grad": avg_grad}
