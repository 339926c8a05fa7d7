"""Grouped convolution and its gradients in channels_first, with vectors along the columns of planes.

The source planes of a block are unpacked into scratch (rows.py), split by the strides and padded with zeros, one area for each
channel of the group and each depth: then each tap reads every target of the block at one constant distance, and the block is one
long run of places, row after row. Places past the end of a row hold rubbish that is not copied out. The forward direction splits
its source by the stride; the input gradient makes one plane for each phase of the stride and weaves them.

The kernels that end in _skipping are for numbers that are not finite, and so must not meet the zeros (depthwise_skipping).
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.depthwise.records import PlanesGather, PlanesProducts
from pullback.cpu.depthwise.skipping_kernel import PHASE, SUMS, make_sum_products, make_sum_rows
from pullback.cpu.depthwise.strips_kernel import ROWS, make_strips
from pullback.cpu.depthwise.tiles_kernel import PAIR, make_places_tile, make_products_tile
from pullback.cpu.simd.interleave import make_rows
from pullback.cpu.simd.native import LINE, fence, fill_zero, prefetch, stream_bytes
from pullback.cpu.simd.runs import make_runs
from pullback.cpu.simd.vectors import get_int, inline, outline, put_int, stay_outline

OUTS = 4  # targets that share the places they read


def _make_unpack(lanes: Any, fill: Any, unpack: Any) -> Any:
    SIZE, WIDE = lanes.size, lanes.compute_size
    widen_run, _ = make_runs(lanes)

    @outline
    def unpack_plane(
        plane, area, rows, width, stride_h, stride_w, low_h, places_h, low_w, places_w, pitch, distance, row0, limit
    ):
        """The rows that target rows from row0 on read: planes of places_h rows, `distance` bytes apart."""
        stay_outline()
        if stride_h == 1 and stride_w == 1:
            begin, start = max(0, -low_w), max(0, low_w)
            count = min(places_w - begin, width - start)
            fill_zero(area, places_h * pitch)
            for row in range(max(0, row0 + low_h), min(rows, row0 + low_h + places_h)):
                line = area + (row - row0 - low_h) * pitch + begin * WIDE
                widen_run(plane + (row * width + start) * SIZE, line, count)
            return
        for q in range(places_h):
            for r in range(stride_h):
                row = (row0 + low_h + q) * stride_h + r
                line = area + r * stride_w * distance + q * pitch
                if 0 <= row < rows:
                    unpack(plane + row * width * SIZE, line, width, 1, stride_w, low_w, places_w, distance, 0.0, limit)
                else:
                    for w in range(stride_w):
                        fill(line + w * distance, places_w, 0.0)

    return unpack_plane


def build(lanes: Any) -> dict[str, Any]:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    fill, unpack, pack = make_rows(lanes, shuffles=True)
    widen_run, narrow_run = make_runs(lanes)
    unpack_plane = _make_unpack(lanes, fill, unpack)
    quad = lanes.times(4)
    Q = quad.count

    def make_run(outs: int) -> Any:
        tile = make_places_tile(quad, outs)

        @outline
        def run(source, target, weights, count, areas, area_pairs, k0, k1, tap_pairs, weight_step, target_step, ahead, end):
            """`count` places of `outs` targets; memory from `ahead` to `end` is asked for meanwhile."""
            stay_outline()
            step = ((end - ahead) // max(1, (count + Q - 1) // Q) + LINE - 1) // LINE * LINE
            for j in range(0, count, Q):
                for line in range(ahead, min(end, ahead + step), LINE):
                    prefetch(line)
                ahead += step
                tile(
                    source + j * WIDE, target + j * WIDE, weights, 0, areas, area_pairs, k0, k1, tap_pairs,
                    weight_step, target_step,
                )  # fmt: skip

        return run

    strips = make_strips(lanes)
    run_one, run_two, run_four = (make_run(outs) for outs in (1, 2, OUTS))

    @inline
    def unpack_group(
        source, areas, list_at, channels, depths, area_bytes, d0, d1, d_src, d_tap, plane_taps, channel_weights, rows, width,
        stride_h, stride_w, low_h, places_h, low_w, places_w, pitch, distance, row0, limit,
    ):  # fmt: skip
        """The areas of all channels of a group for one target depth, and the list of their (area, weight) offsets."""
        count = 0
        for i in range(channels):
            for e in range(d0, d1):
                plane = source + (i * depths + get_int(d_src + 8 * e)) * rows * width * SIZE
                unpack_plane(
                    plane, areas + count * area_bytes, rows, width, stride_h, stride_w, low_h, places_h, low_w, places_w, pitch,
                    distance, row0, limit,
                )  # fmt: skip
                put_int(list_at + count * PAIR, count * area_bytes)
                put_int(list_at + count * PAIR + 8, i * channel_weights + get_int(d_tap + 8 * e) * plane_taps)
                count += 1
        return count

    @inline
    def sum_phase(
        areas, to, factors, outs, rows, row0, cols, count, area_pairs, words, tap_pairs, tap_ends, weight_step, step, pitch,
        entries, most, columns, column_pairs, weight_row, ahead, end,
    ):  # fmt: skip
        """The places of one phase of a block, as one run."""
        k0, k1, length = get_int(words), get_int(words + 8), rows * pitch // WIDE
        if outs == OUTS:
            run_four(areas, to, factors, length, count, area_pairs, k0, k1, tap_pairs, weight_step, step, ahead, end)
        elif outs == 2:
            run_two(areas, to, factors, length, count, area_pairs, k0, k1, tap_pairs, weight_step, step, ahead, end)
        else:
            rows_done = 0
            if columns:
                rows_done = rows // ROWS * ROWS
                strips(areas, to, factors, rows_done, count, area_pairs, columns, column_pairs, pitch, weight_row, ahead, end)
                ahead = end
            done = rows_done * pitch
            run_one(
                areas + done, to + done, factors, length - done // WIDE, count, area_pairs, k0, k1, tap_pairs, weight_step, step,
                ahead, end,
            )  # fmt: skip

    sum_rows = make_sum_rows(lanes, OUTS)

    @inline
    def skip_phase(
        areas, to, factors, outs, rows, row0, cols, count, area_pairs, words, tap_pairs, tap_ends, weight_step, step, pitch,
        entries, most, columns, column_pairs, weight_row, ahead, end,
    ):  # fmt: skip
        sum_rows(
            areas, to, factors, outs, rows, row0, cols, count, area_pairs, words, tap_pairs, tap_ends, weight_step, step, pitch,
            entries, most,
        )  # fmt: skip

    def make_gather(sum_phase: Any) -> Any:
        def gather(args: PlanesGather, piece, scratch):
            """phases_h, phases_w: how many target planes are woven. stage: whether results go through scratch, past the cache."""
            areas, sums = scratch + args.area_start, scratch + args.sum_start
            limit = (
                args.source
                + args.units
                // args.blocks
                * args.sources_each
                * args.source_depths
                * args.source_rows
                * args.source_cols
                * SIZE
            )
            unit_bytes = args.sources_each * args.source_depths * args.source_rows * args.source_cols * SIZE // args.blocks
            ahead_bytes = unit_bytes // (args.phases_h * args.phases_w * ((args.targets_each + OUTS - 1) // OUTS))
            for unit in range(piece * args.group, min(piece * args.group + args.group, args.units)):
                ahead = args.source + (unit + 1) * unit_bytes  # about where the source of the next unit is
                owner, b = unit // args.blocks, unit % args.blocks  # owner: an image's group
                depth, first = b // args.per_depth, b % args.per_depth * args.block_rows
                last = min(first + args.block_rows, args.rows)
                d0, d1 = get_int(args.d_ptr + 8 * depth), get_int(args.d_ptr + 8 * depth + 8)
                count = unpack_group(
                    args.source + owner * args.sources_each * args.source_depths * args.source_rows * args.source_cols * SIZE, areas, scratch, args.sources_each,
                    args.source_depths, args.area_bytes, d0, d1, args.d_src, args.d_tap, args.plane_taps, args.source_weights, args.source_rows, args.source_cols,
                    args.stride_h, args.stride_w, args.low_h, args.places_h, args.low_w, args.places_w, args.pitch, args.distance, first // args.phases_h, limit,
                )  # fmt: skip
                own = args.weights + owner % args.groups * args.group_weights
                o = 0
                while o < args.targets_each:
                    outs = OUTS if args.targets_each - o >= OUTS else (2 if args.targets_each - o >= 2 else 1)
                    for phase in range(args.phases_h * args.phases_w):
                        words = args.phase_table + PHASE * phase
                        plane_rows = (last - first - phase // args.phases_w + args.phases_h - 1) // args.phases_h
                        plane_cols = (args.cols - phase % args.phases_w + args.phases_w - 1) // args.phases_w
                        to, factors = sums + phase * args.sum_plane, own + o * args.target_weights
                        step, end = args.phases_h * args.phases_w * args.sum_plane, ahead + ahead_bytes
                        sum_phase(
                            areas, to, factors, outs, plane_rows, first // args.phases_h, plane_cols, count, scratch, words, args.tap_pairs,
                            args.tap_ends, args.target_weights, step, args.pitch, scratch + args.entry_start, args.entries, args.columns, args.column_pairs,
                            args.weight_row, ahead, end,
                        )  # fmt: skip
                        ahead = end
                    for i in range(outs):
                        plane = ((owner * args.targets_each + o + i) * args.depths + depth) * args.rows + first
                        place = args.target + plane * args.cols * SIZE
                        out = scratch + args.stage if args.stage else place
                        made = sums + i * args.phases_h * args.phases_w * args.sum_plane
                        if args.phases_h == 1 and args.phases_w == 1:
                            for r in range(last - first):
                                narrow_run(made + r * args.pitch, out + r * args.cols * SIZE, args.cols)
                        else:
                            for r in range(last - first):
                                line = (
                                    made
                                    + (r % args.phases_h * args.phases_w) * args.sum_plane
                                    + r // args.phases_h * args.pitch
                                )
                                pack(line, out + r * args.cols * SIZE, args.cols, 1, args.phases_w, args.sum_plane)
                        if args.stage:
                            stream_bytes(place, out, (last - first) * args.cols * SIZE)
                    o += outs
            if args.stage:
                fence()

        return gather

    def make_products(taps: int) -> Any:
        tile = make_products_tile(lanes, taps, 1, False, True)

        @outline
        def products(source, other, sums, entries, count):
            stay_outline()
            tile(source, other, sums, V, entries, count, 0, 0, V * WIDE, V * WIDE, 0, 1, 0)

        return products

    products_one, products_three, products_nine = (make_products(taps) for taps in (1, 3, SUMS))
    load_wide, put_wide, add_lanes = lanes.load_wide, lanes.put_wide, lanes.add_lanes

    @inline
    def sum_block(
        areas, other, sums, rows, row0, cols, count, area_pairs, phase, tap_pairs, tap_ends, pitch, entries, ranges, spare
    ):  # fmt: skip
        """The products of a block of dy with what its taps meet, as one run. spare: for what a tile does beyond the last tap."""
        total, taps = 0, get_int(phase + 8)
        for a in range(count):
            for t in range(taps):
                put_int(entries + total * PAIR, get_int(area_pairs + a * PAIR) + get_int(tap_pairs + t * PAIR))
                at = get_int(area_pairs + a * PAIR + 8) + get_int(tap_pairs + t * PAIR + 8)
                put_int(entries + total * PAIR + 8, at * V)
                total += 1
        for more in range(total, total + 2):
            put_int(entries + more * PAIR, 0)
            put_int(entries + more * PAIR + 8, spare)
        length = (rows * pitch + V * WIDE - 1) // (V * WIDE)
        t = 0
        while t < total:
            at = entries + t * PAIR
            if total - t >= SUMS:
                products_nine(areas, other, sums, at, length)
                t += SUMS
            elif total - t > 1:
                products_three(areas, other, sums, at, length)
                t += 3
            else:
                products_one(areas, other, sums, at, length)
                t += 1

    def make_products_of(sum_block: Any) -> Any:
        def products(args: PlanesProducts, piece, scratch):
            """The filter gradient of some groups over some of their (image, block) units; a vector of sums for each weight."""
            areas, other, entries, own = (
                scratch + args.area_start,
                scratch + args.other_start,
                scratch + args.entry_start,
                scratch + args.own_start,
            )
            vector = V * WIDE
            fill_zero(areas, args.entry_start - args.area_start)  # what lies beyond the planes is multiplied by zero
            part, chunk = piece // args.chunks, piece % args.chunks
            for g in range(part * args.group_block, min(part * args.group_block + args.group_block, args.groups)):
                fill_zero(own, args.end - args.own_start)
                for unit in range(chunk * args.group, min(chunk * args.group + args.group, args.units)):
                    image, b = unit // args.blocks, unit % args.blocks
                    owner = image * args.groups + g
                    depth, first = b // args.per_depth, b % args.per_depth * args.block_rows
                    last = min(first + args.block_rows, args.rows)
                    d0, d1 = get_int(args.d_ptr + 8 * depth), get_int(args.d_ptr + 8 * depth + 8)
                    count = unpack_group(
                        args.source + owner * args.sources_each * args.source_depths * args.source_rows * args.source_cols * SIZE, areas, scratch,
                        args.sources_each, args.source_depths, args.area_bytes, d0, d1, args.d_src, args.d_tap, args.plane_taps, args.source_weights,
                        args.source_rows, args.source_cols, args.stride_h, args.stride_w, args.low_h, args.places_h, args.low_w, args.places_w, args.pitch, args.distance, first, 0,
                    )  # fmt: skip
                    for o in range(args.targets_each):
                        to = own + o * args.target_weights * V
                        plane = ((owner * args.targets_each + o) * args.depths + depth) * args.rows + first
                        fill_zero(other, (last - first) * args.pitch)
                        for r in range(last - first):
                            widen_run(args.dy + (plane + r) * args.cols * SIZE, other + r * args.pitch, args.cols)
                        fill(other + (last - first) * args.pitch, V, 0.0)
                        sum_block(
                            areas, other, to, last - first, first, args.cols, count, scratch, args.phase_table, args.tap_pairs, args.tap_ends, args.pitch,
                            entries, scratch + args.range_start, scratch + args.end - 2 * vector - to,
                        )  # fmt: skip
                each = args.targets_each * args.target_weights // WIDE
                result = args.sums + chunk * args.sums_bytes + g * each * WIDE
                for i in range(each):
                    put_wide(result + i * WIDE, add_lanes(load_wide(own + i * vector, V)))

        return products

    return {
        "gather": make_gather(sum_phase),
        "gather_skipping": make_gather(skip_phase),
        "products": make_products_of(sum_block),
        "products_skipping": make_products_of(make_sum_products(lanes)),
    }
