"""Grouped convolution and its gradients in channels_first, with vectors along the columns of planes.

The source planes of a block are unpacked into scratch (rows.py), split by the strides and padded with zeros, one area for each
channel of the group and each depth: then each tap reads every target of the block at one constant distance, and the block is one
long run of places, row after row. Places past the end of a row hold rubbish that is not copied out. The forward direction splits
its source by the stride; the input gradient makes one plane for each phase of the stride and weaves them.

The kernels that end in _skipping are for numbers that are not finite, and so must not meet the zeros (depthwise_skipping).
"""

from __future__ import annotations

from typing import Any

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
        def gather(
            piece, scratch, source, weights, target, group, units, groups, blocks, per_depth, sources_each, targets_each,
            source_depths, source_rows, source_cols, depths, rows, cols, stride_h, stride_w, phases_h, phases_w,
            low_h, places_h, low_w, places_w, pitch, distance, area_bytes, area_start, sum_start, sum_plane, block_rows, stage,
            d_ptr, d_src, d_tap, phase_table, tap_pairs, plane_taps, group_weights, source_weights, target_weights,
            columns, column_pairs, weight_row, tap_ends, entry_start, entries,
        ):  # fmt: skip
            """phases_h, phases_w: how many target planes are woven. stage: whether results go through scratch, past the cache."""
            areas, sums = scratch + area_start, scratch + sum_start
            limit = source + units // blocks * sources_each * source_depths * source_rows * source_cols * SIZE
            unit_bytes = sources_each * source_depths * source_rows * source_cols * SIZE // blocks
            ahead_bytes = unit_bytes // (phases_h * phases_w * ((targets_each + OUTS - 1) // OUTS))
            for unit in range(piece * group, min(piece * group + group, units)):
                ahead = source + (unit + 1) * unit_bytes  # about where the source of the next unit is
                owner, b = unit // blocks, unit % blocks  # owner: an image's group
                depth, first = b // per_depth, b % per_depth * block_rows
                last = min(first + block_rows, rows)
                d0, d1 = get_int(d_ptr + 8 * depth), get_int(d_ptr + 8 * depth + 8)
                count = unpack_group(
                    source + owner * sources_each * source_depths * source_rows * source_cols * SIZE, areas, scratch, sources_each,
                    source_depths, area_bytes, d0, d1, d_src, d_tap, plane_taps, source_weights, source_rows, source_cols,
                    stride_h, stride_w, low_h, places_h, low_w, places_w, pitch, distance, first // phases_h, limit,
                )  # fmt: skip
                own = weights + owner % groups * group_weights
                o = 0
                while o < targets_each:
                    outs = OUTS if targets_each - o >= OUTS else (2 if targets_each - o >= 2 else 1)
                    for phase in range(phases_h * phases_w):
                        words = phase_table + PHASE * phase
                        plane_rows = (last - first - phase // phases_w + phases_h - 1) // phases_h
                        plane_cols = (cols - phase % phases_w + phases_w - 1) // phases_w
                        to, factors = sums + phase * sum_plane, own + o * target_weights
                        step, end = phases_h * phases_w * sum_plane, ahead + ahead_bytes
                        sum_phase(
                            areas, to, factors, outs, plane_rows, first // phases_h, plane_cols, count, scratch, words, tap_pairs,
                            tap_ends, target_weights, step, pitch, scratch + entry_start, entries, columns, column_pairs,
                            weight_row, ahead, end,
                        )  # fmt: skip
                        ahead = end
                    for i in range(outs):
                        plane = ((owner * targets_each + o + i) * depths + depth) * rows + first
                        place = target + plane * cols * SIZE
                        out = scratch + stage if stage else place
                        made = sums + i * phases_h * phases_w * sum_plane
                        if phases_h == 1 and phases_w == 1:
                            for r in range(last - first):
                                narrow_run(made + r * pitch, out + r * cols * SIZE, cols)
                        else:
                            for r in range(last - first):
                                line = made + (r % phases_h * phases_w) * sum_plane + r // phases_h * pitch
                                pack(line, out + r * cols * SIZE, cols, 1, phases_w, sum_plane)
                        if stage:
                            stream_bytes(place, out, (last - first) * cols * SIZE)
                    o += outs
            if stage:
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
        def products(
            piece, scratch, source, dy, sums, group, units, groups, group_block, chunks, sums_bytes, blocks, per_depth,
            sources_each, targets_each,
            source_depths, source_rows, source_cols, depths, rows, cols, stride_h, stride_w,
            low_h, places_h, low_w, places_w, pitch, distance, area_bytes, area_start, other_start, entry_start, own_start, end,
            block_rows, d_ptr, d_src, d_tap, phase_table, tap_pairs, tap_ends, range_start, plane_taps, source_weights,
            target_weights,
        ):  # fmt: skip
            """The filter gradient of some groups over some of their (image, block) units; a vector of sums for each weight."""
            areas, other, entries, own = scratch + area_start, scratch + other_start, scratch + entry_start, scratch + own_start
            vector = V * WIDE
            fill_zero(areas, entry_start - area_start)  # what lies beyond the planes is multiplied by zero
            part, chunk = piece // chunks, piece % chunks
            for g in range(part * group_block, min(part * group_block + group_block, groups)):
                fill_zero(own, end - own_start)
                for unit in range(chunk * group, min(chunk * group + group, units)):
                    image, b = unit // blocks, unit % blocks
                    owner = image * groups + g
                    depth, first = b // per_depth, b % per_depth * block_rows
                    last = min(first + block_rows, rows)
                    d0, d1 = get_int(d_ptr + 8 * depth), get_int(d_ptr + 8 * depth + 8)
                    count = unpack_group(
                        source + owner * sources_each * source_depths * source_rows * source_cols * SIZE, areas, scratch,
                        sources_each, source_depths, area_bytes, d0, d1, d_src, d_tap, plane_taps, source_weights,
                        source_rows, source_cols, stride_h, stride_w, low_h, places_h, low_w, places_w, pitch, distance, first, 0,
                    )  # fmt: skip
                    for o in range(targets_each):
                        to = own + o * target_weights * V
                        plane = ((owner * targets_each + o) * depths + depth) * rows + first
                        fill_zero(other, (last - first) * pitch)
                        for r in range(last - first):
                            widen_run(dy + (plane + r) * cols * SIZE, other + r * pitch, cols)
                        fill(other + (last - first) * pitch, V, 0.0)
                        sum_block(
                            areas, other, to, last - first, first, cols, count, scratch, phase_table, tap_pairs, tap_ends, pitch,
                            entries, scratch + range_start, scratch + end - 2 * vector - to,
                        )  # fmt: skip
                each = targets_each * target_weights // WIDE
                result = sums + chunk * sums_bytes + g * each * WIDE
                for i in range(each):
                    put_wide(result + i * WIDE, add_lanes(load_wide(own + i * vector, V)))

        return products

    return {
        "gather": make_gather(sum_phase),
        "gather_skipping": make_gather(skip_phase),
        "products": make_products_of(sum_block),
        "products_skipping": make_products_of(make_sum_products(lanes)),
    }
