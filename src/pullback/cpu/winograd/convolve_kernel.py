"""Winograd convolution at stride 1: transformed filter, and blocks of tiles transformed, multiplied and transformed back in cache.

The tiles lie over two axes (or one, its tiles being one cell high), 3 taps at a time: of a longer window, each stretch of 3 taps
has transformed tiles of its own. Stretches and the taps of a third axis, the depth, are summed between the transforms. An input
gradient is the same with the filter flipped and its channels exchanged.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.simd.native import fill_zero
from pullback.cpu.simd.register_tiles import make_tiles
from pullback.cpu.simd.vectors import any_lane, equal, get_int, invert, outline, put_int, stay_outline
from pullback.cpu.winograd.blocks_kernel import make_reader, make_transforms, make_writer
from pullback.cpu.winograd.records import ConvolveForward, ConvolveTransformFilter
from pullback.cpu.winograd.transforms_kernel import FILTER, INPUT, OUTPUT, make_gather, make_transpose


def build(
    lanes: Any,
    outputs_h: int = 4,
    outputs_w: int = 4,
    rows: int = 6,
    vectors: int = 4,
    first: bool = False,
    flipped: bool = False,
) -> dict[str, Any]:
    """outputs_h, outputs_w: outputs of a tile along each axis; rows, vectors: the register tile; flipped: the input gradient."""
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    NUMBERS = len(INPUT[outputs_h]) * len(INPUT[outputs_w])
    TAPS = len(FILTER[outputs_h][0]) * len(FILTER[outputs_w][0])
    ALL_TAPS = (len(FILTER[outputs_w]) if outputs_h > 1 else 0) + 1  # a number to which every tap adds
    load_wide, splat = lanes.load_wide, lanes.splat
    PANEL = vectors * V
    CELL = V * WIDE
    staged = first or flipped  # the filter's vectors do not lie side by side
    read = make_reader(lanes, INPUT[outputs_h], INPUT[outputs_w], outputs_h, outputs_w, first)
    write = make_writer(lanes, OUTPUT[outputs_h], OUTPUT[outputs_w], first)
    gather = make_transforms(make_gather, lanes, FILTER[outputs_h], FILTER[outputs_w], staged)
    read_block, _ = make_transpose(lanes)
    tiles = make_tiles(lanes, rows, vectors)

    @outline
    def turn_over(source, row_bytes, count, cells, target):
        stay_outline()
        for w in range(0, cells, V):
            read_block(source + w * SIZE, row_bytes, count, min(V, cells - w), target + w * CELL)

    def transform_filter(args: ConvolveTransformFilter, piece, scratch):
        """One chunk of summed channels of one group. made: channels of the result, which the vectors run over.

        depth: how many sets of taps are transformed; tap_at: the numbers of the taps of each, -1 where there is none; taps: all
        there are in the filter, where they lie *_bytes apart. Weights that are not finite are reported.
        """
        group, k0 = piece // args.chunks, piece % args.chunks * args.chunk
        kc = min(args.chunk, args.summed - k0)
        table, zeros, stage = scratch, scratch + args.stage_start, scratch + args.stage_start + CELL
        fill_zero(zeros, CELL)
        own = args.packed + group * args.packed_group
        none = splat(0.0)
        check = none
        for m in range(0, args.made, V):
            n = min(V, args.made - m)
            source = args.f + group * args.group_bytes + k0 * args.summed_bytes + m * args.made_bytes
            if staged:
                if first and flipped:
                    for k in range(kc):
                        turn_over(source + k * args.summed_bytes, args.made_bytes, n, args.taps, stage + k * args.taps * CELL)
                elif first:
                    turn_over(source, args.made_bytes, n, kc * args.taps, stage)
                else:
                    for t in range(args.taps):
                        turn_over(source + t * args.tap_bytes, args.made_bytes, n, kc, stage + t * args.chunk * CELL)
            for d in range(args.depth):
                target = (
                    own + m // args.panel * args.panel_bytes + ((d * args.summed + k0) * args.panel + m % args.panel) * WIDE
                )
                for k in range(kc):
                    for t in range(TAPS):
                        tap = get_int(args.tap_at + 8 * (d * TAPS + t))
                        if tap < 0:
                            place = zeros
                        elif not staged:
                            place = source + tap * args.tap_bytes + k * args.summed_bytes
                        elif first:
                            place = stage + (k * args.taps + tap) * CELL
                        else:
                            place = stage + (tap * args.chunk + k) * CELL
                        put_int(table + 8 * t, place)
                    gather(table, 0, target + k * args.panel * WIDE, args.step, V if staged else n)
                    check = check + load_wide(target + k * args.panel * WIDE + ALL_TAPS * args.step, V) * none
        if any_lane(invert(equal(check, none))):
            put_int(args.faults, 1)

    @outline
    def multiply(source, step, pitch, offsets, taps, summed, packed, filter_step, target, target_step, count):
        """The products of all numbers: `count` tiles by the taps and channels of the sources, one panel of results."""
        stay_outline()
        parts = (count + rows - 1) // rows
        for number in range(NUMBERS):
            done = 0
            for part in range(parts):
                many = (count - done + parts - part - 1) // (parts - part)
                tiles(
                    many, source + number * step + done * pitch, offsets, taps, summed, pitch, WIDE,
                    packed + number * filter_step, PANEL * WIDE,
                    target + number * target_step + done * PANEL * WIDE, PANEL * WIDE, PANEL, 0,
                )  # fmt: skip
                done += many

    def forward(args: ConvolveForward, piece, scratch):
        """One block of tile positions through a few output depths, of one group: all panels of results, or a block of them."""
        unit, first_panel = piece // args.panel_blocks, piece % args.panel_blocks * args.panel_block
        group = unit // (args.blocks * args.depth_blocks)
        position, z0 = unit // args.depth_blocks % args.blocks * args.block, unit % args.depth_blocks * args.depth_block
        count, z1 = min(args.block, args.positions - position), min(z0 + args.depth_block, args.out_depth)
        offsets, table, zeros, stage = (
            scratch + args.offset_start,
            scratch + args.table_start,
            scratch + args.zeros_start,
            scratch + args.stage_start,
        )
        products = scratch + args.product_start
        slot = count * args.pitch
        slots = z1 - z0 + (args.depth - 1) * args.d_d
        stretches = args.stretches_h * args.stretches_w
        step = stretches * slots * slot + CELL  # not a multiple of a large power of two: that would overwork a few cache lines
        product_slot = count * PANEL * WIDE
        product_step = (z1 - z0) * product_slot + CELL
        fill_zero(zeros, max(args.summed * SIZE, CELL))
        for t in range(args.depth):
            for e in range(stretches):
                put_int(offsets + 8 * (t * stretches + e), (e * slots + t * args.d_d) * slot)
        for s in range(slots):
            z = z0 - args.pad_d + s
            if 0 <= z < args.in_depth:
                for e in range(stretches):
                    read(
                        args.x + group * args.x_group + z * args.x_depth, position, count, args.tiles_h, args.tiles_w, args.x_image, args.x_row, args.x_column, args.x_channel,
                        args.in_rows, args.in_columns, args.d_h, args.d_w, args.pad_h - e // args.stretches_w * 3 * args.d_h, args.pad_w - e % args.stretches_w * 3 * args.d_w,
                        args.summed, scratch + (e * slots + s) * slot, step, args.pitch, zeros, table, stage, args.stage_row,
                    )  # fmt: skip
        dump = zeros  # where nothing is read any more when results are written
        for panel in range(first_panel, min(first_panel + args.panel_block, (args.made + PANEL - 1) // PANEL)):
            own = args.packed + group * args.packed_group + panel * args.panel_bytes
            odd = 0
            for z in range(z0, z1):
                t0, t1 = 0, args.depth
                while t0 < args.depth and z - args.pad_d + t0 * args.d_d < 0:
                    t0 += 1
                while t1 > t0 and z - args.pad_d + (t1 - 1) * args.d_d >= args.in_depth:
                    t1 -= 1
                multiply(
                    scratch + (z - z0) * slot, step, args.pitch, offsets + 8 * t0 * stretches, (t1 - t0) * stretches, args.summed,
                    own + t0 * stretches * args.summed * PANEL * WIDE, args.filter_step,
                    products + (z - z0) * product_slot, product_step, count,
                )  # fmt: skip
            for z in range(z0, z1):
                odd |= write(
                    products + (z - z0) * product_slot, product_step, PANEL * WIDE,
                    args.y + group * args.y_group + z * args.y_depth + panel * PANEL * args.y_channel, position, count, args.tiles_h, args.tiles_w,
                    args.y_image, args.y_row, args.y_column, args.y_channel, args.out_rows, args.out_columns, args.d_h, args.d_w, min(PANEL, args.made - panel * PANEL),
                    dump, table, stage, args.stage_row,
                )  # fmt: skip
            if odd != 0:
                put_int(args.faults, 1)

    return {"transform_filter": transform_filter, "forward": forward}
