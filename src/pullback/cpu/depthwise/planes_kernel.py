"""Grouped convolution and its gradients in channels_first, with vectors along the columns of planes.

The source planes of a block are unpacked into scratch (simd/interleave.py), split by the strides and padded with zeros, one area
for each channel of the group and each depth: then each tap reads every target of the block at one constant distance, and the block
is one long run, row after row. What lies past the end of a row is not copied out. The forward direction splits its source by the
stride; the input gradient computes one plane for each phase of the stride and interleaves them.

The kernels that end in _skipping are for numbers that are not finite, and so must not meet the zeros (skipping_kernel.py).
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.depthwise.emit_kernel import word
from pullback.cpu.depthwise.partial_sums_kernel import make_store_sums
from pullback.cpu.depthwise.records import (
    PLANE_OUTS,
    ListedOffsets,
    Offsets,
    PlanePhase,
    PlanesGather,
    PlanesProducts,
)
from pullback.cpu.depthwise.skipping_kernel import make_products_of_taps, make_sum_products, make_sum_rows, put_spare
from pullback.cpu.depthwise.strips_kernel import ROWS, make_strips, prefetch_lines, prefetch_step
from pullback.cpu.depthwise.tiles_kernel import make_places_tile
from pullback.cpu.simd.interleave import make_rows
from pullback.cpu.simd.native import fence, fill_zero, stream_bytes
from pullback.cpu.simd.record_types import records_at
from pullback.cpu.simd.runs import make_runs
from pullback.cpu.simd.vectors import inline, outline, stay_outline

offsets_at, listed_at, phase_at = (records_at(record) for record in (Offsets, ListedOffsets, PlanePhase))


@inline
def owner_bytes(args, size):
    """Of the source of a group of an image."""
    return args.group_in_channels * args.source_depths * args.source_rows * args.source_cols * size


@inline
def block_of(args, b):
    """Depth of block b of a group, its first row and the row behind its last."""
    first = b % args.depth_blocks * args.block_rows
    return b // args.depth_blocks, first, min(first + args.block_rows, args.rows)


def _make_unpack(lanes: Any, fill: Any, unpack: Any) -> Any:
    """unpack_group: the areas of all channels of a group for one target depth, and the list of their Offsets."""
    SIZE, WIDE = lanes.size, lanes.compute_size
    widen_run, _ = make_runs(lanes)

    @outline
    def unpack_plane(args, plane, area, row0, limit):
        """The rows that target rows from row0 on read, with their halo. limit: where the source ends, or 0."""
        stay_outline()
        rows, width, low_h, low_w, pitch = args.source_rows, args.source_cols, args.low_h, args.low_w, args.pitch
        stride_w = args.stride_w
        if args.stride_h == 1 and stride_w == 1:
            begin, start = max(0, -low_w), max(0, low_w)
            count = min(args.area_cols - begin, width - start)
            fill_zero(area, args.area_rows * pitch)
            for row in range(max(0, row0 + low_h), min(rows, row0 + low_h + args.area_rows)):
                line = area + (row - row0 - low_h) * pitch + begin * WIDE
                widen_run(plane + (row * width + start) * SIZE, line, count)
            return
        for q in range(args.area_rows):
            for r in range(args.stride_h):
                row = (row0 + low_h + q) * args.stride_h + r
                line = area + r * stride_w * args.plane_pitch + q * pitch
                if 0 <= row < rows:
                    at = plane + row * width * SIZE
                    unpack(at, line, width, 1, stride_w, low_w, args.area_cols, args.plane_pitch, 0.0, limit)
                else:
                    for w in range(stride_w):
                        fill(line + w * args.plane_pitch, args.area_cols, 0.0)

    @inline
    def unpack_group(args, scratch, source, depth, row0, limit):
        """How many areas there are; source: of the group."""
        count = 0
        for i in range(args.group_in_channels):
            for e in range(word(args.depth_ptr, depth), word(args.depth_ptr, depth + 1)):
                plane = i * args.source_depths + word(args.depth_sources, e)
                at, offset = source + plane * args.source_rows * args.source_cols * SIZE, count * args.area_bytes
                unpack_plane(args, at, scratch + args.area_start + offset, row0, limit)
                area = listed_at(scratch, count)
                area.source = offset
                area.weight = i * args.in_weights + word(args.depth_taps, e) * args.depth_weights
                count += 1
        return count

    return unpack_group


def _make_sum_phase(lanes: Any) -> Any:
    """sum_phase: one phase of a block for `outs` output channels, as one run of rows."""
    WIDE = lanes.compute_size
    quad = lanes.times(4)
    Q = quad.count

    def make_run(outs: int) -> Any:
        tile = make_places_tile(quad, outs)

        @outline
        def run(args, phase, source, target, weights, count, areas, area_list, ahead, end):
            """`count` elements; memory from `ahead` to `end` is prefetched meanwhile."""
            stay_outline()
            step = prefetch_step(ahead, end, (count + Q - 1) // Q)
            for j in range(0, count, Q):
                prefetch_lines(ahead, min(end, ahead + step))
                ahead += step
                tile(args, phase, source + j * WIDE, target + j * WIDE, weights, areas, area_list)

        return run

    strips = make_strips(lanes)
    run_one, run_two, run_four = (make_run(outs) for outs in (1, 2, PLANE_OUTS))

    @inline
    def sum_phase(args, phase, scratch, target, weights, outs, rows, row0, cols, areas, ahead, end):
        source, length = scratch + args.area_start, rows * args.pitch // WIDE
        if outs == PLANE_OUTS:
            run_four(args, phase, source, target, weights, length, areas, scratch, ahead, end)
        elif outs == 2:
            run_two(args, phase, source, target, weights, length, areas, scratch, ahead, end)
        else:
            rows_done = 0
            if args.columns:
                rows_done = rows // ROWS * ROWS
                strips(args, source, target, weights, rows_done, areas, scratch, ahead, end)
                ahead = end
            done = rows_done * args.pitch
            run_one(
                args, phase, source + done, target + done, weights, length - done // WIDE, areas, scratch, ahead, end
            )  # fmt: skip

    return sum_phase


def build(lanes: Any) -> dict[str, Any]:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    fill, unpack, pack = make_rows(lanes, shuffles=True)
    widen_run, narrow_run = make_runs(lanes)
    unpack_group = _make_unpack(lanes, fill, unpack)
    sum_rows, store_sums = make_sum_rows(lanes, PLANE_OUTS), make_store_sums(lanes)

    @inline
    def skip_phase(args, phase, scratch, target, weights, outs, rows, row0, cols, areas, ahead, end):
        sum_rows(args, phase, scratch, target, weights, outs, rows, row0, cols, areas)

    @inline
    def store_block(args, sums, out, rows):
        """The rows of a block of one output channel, from its planes of sums."""
        if args.phases == 1:
            for r in range(rows):
                narrow_run(sums + r * args.pitch, out + r * args.cols * SIZE, args.cols)
        else:
            for r in range(rows):
                line = sums + r % args.phases_h * args.phases_w * args.sum_pitch + r // args.phases_h * args.pitch
                pack(line, out + r * args.cols * SIZE, args.cols, 1, args.phases_w, args.sum_pitch)

    def make_gather(sum_phase: Any) -> Any:
        def gather(args: PlanesGather, piece, scratch):
            sums, owned = scratch + args.sum_start, owner_bytes(args, SIZE)
            limit = args.source + args.units // args.blocks * owned
            unit_bytes = owned // args.blocks
            ahead_bytes = unit_bytes // (args.phases * ((args.group_out_channels + PLANE_OUTS - 1) // PLANE_OUTS))
            # Between rows lies what scratch held: as numbers that may be denormal, which some CPUs take a hundred cycles for.
            fill_zero(scratch + args.area_start, args.sum_start - args.area_start)
            for unit in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.units)):
                ahead = args.source + (unit + 1) * unit_bytes  # about where the source of the next unit is
                owner = unit // args.blocks  # an image's group
                depth, first, last = block_of(args, unit % args.blocks)
                row0 = first // args.phases_h
                areas = unpack_group(args, scratch, args.source + owner * owned, depth, row0, limit)
                o = 0
                while o < args.group_out_channels:
                    left = args.group_out_channels - o
                    outs = PLANE_OUTS if left >= PLANE_OUTS else (2 if left >= 2 else 1)
                    weights = args.weights + owner % args.groups * args.group_weights + o * args.out_weights
                    for number in range(args.phases):
                        rows = (last - first - number // args.phases_w + args.phases_h - 1) // args.phases_h
                        cols = (args.cols - number % args.phases_w + args.phases_w - 1) // args.phases_w
                        phase, to, end = phase_at(args.phase_table, number), sums + number * args.sum_pitch, ahead + ahead_bytes
                        sum_phase(args, phase, scratch, to, weights, outs, rows, row0, cols, areas, ahead, end)
                        ahead = end
                    for i in range(outs):
                        row = ((owner * args.group_out_channels + o + i) * args.depths + depth) * args.rows + first
                        place = args.target + row * args.cols * SIZE
                        out = scratch + args.stage if args.stage else place
                        store_block(args, sums + i * args.out_pitch, out, last - first)
                        if args.stage:
                            stream_bytes(place, out, (last - first) * args.cols * SIZE)
                    o += outs
            if args.stage:
                fence()

        return gather

    products_of_taps = make_products_of_taps(lanes, False)

    @inline
    def sum_block(args, scratch, sums, rows, row0, areas, spare):
        """The products of a block of dy with what its taps meet, as one run. spare: for what a tile does beyond the last tap."""
        entries, total = scratch + args.entry_start, 0
        for a in range(areas):
            for t in range(phase_at(args.phase_table, 0).end_tap):
                area, tap, entry = listed_at(scratch, a), offsets_at(args.tap_offsets, t), listed_at(entries, total)
                entry.source = area.source + tap.source
                entry.weight = (area.weight + tap.weight) * V
                total += 1
        put_spare(entries, total, spare)
        source, dy, length = (
            scratch + args.area_start,
            scratch + args.dy_start,
            (rows * args.pitch + V * WIDE - 1) // (V * WIDE),
        )
        products_of_taps(source, dy, sums, entries, total, length, 0, 1, 0)

    def make_products(sum_block: Any) -> Any:
        def products(args: PlanesProducts, piece, scratch):
            dy, own, owned = scratch + args.dy_start, scratch + args.own_start, owner_bytes(args, SIZE)
            # What lies beyond the planes is multiplied by zero.
            fill_zero(scratch + args.area_start, args.entry_start - args.area_start)
            part, chunk = piece // args.chunks, piece % args.chunks
            for g in range(part * args.group_block, min(part * args.group_block + args.group_block, args.groups)):
                fill_zero(own, args.own_bytes)
                for unit in range(chunk * args.per_piece, min(chunk * args.per_piece + args.per_piece, args.units)):
                    owner = unit // args.blocks * args.groups + g
                    depth, first, last = block_of(args, unit % args.blocks)
                    rows = last - first
                    areas = unpack_group(args, scratch, args.source + owner * owned, depth, first, 0)
                    for o in range(args.group_out_channels):
                        to = own + o * args.out_weights * V
                        row = ((owner * args.group_out_channels + o) * args.depths + depth) * args.rows + first
                        fill_zero(dy, rows * args.pitch)
                        for r in range(rows):
                            widen_run(args.dy + (row + r) * args.cols * SIZE, dy + r * args.pitch, args.cols)
                        fill(dy + rows * args.pitch, V, 0.0)
                        sum_block(args, scratch, to, rows, first, areas, scratch + args.spare_start - to)
                each = args.group_out_channels * args.out_weights // WIDE
                store_sums(own, args.sums + chunk * args.sums_bytes + g * each * WIDE, each)

        return products

    return {
        "gather": make_gather(_make_sum_phase(lanes)),
        "gather_skipping": make_gather(skip_phase),
        "products": make_products(sum_block),
        "products_skipping": make_products(make_sum_products(lanes)),
    }
