"""Winograd convolution at stride 1: transformed filter, and blocks of tiles transformed, multiplied and transformed back in cache.

The tiles lie over two axes (or one, its tiles being one cell high), 3 taps at a time: of a longer window, each block of 3 taps
has transformed tiles of its own. Tap blocks and the taps of a third axis, the depth, are summed between the transforms. An input
gradient is the same with the filter flipped and its channels exchanged.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.engine.records import WORD
from pullback.cpu.simd.native import call_piece, fill_zero
from pullback.cpu.simd.record_types import records_at
from pullback.cpu.simd.register_tiles import ADDED, FRESH, make_tiles
from pullback.cpu.simd.vectors import any_lane, equal, get_int, inline, invert, outline, put_int, stay_outline
from pullback.cpu.winograd.blocks_kernel import make_reader, make_writer
from pullback.cpu.winograd.records import SOURCE, TARGET, Convolve, TiledArray, TransformFilter
from pullback.cpu.winograd.stage_kernel import make_stage
from pullback.cpu.winograd.transforms_kernel import FILTER, INPUT, OUTPUT, make_gather

array_at = records_at(TiledArray)
transform_at, RECORD_BYTES = records_at(TransformFilter, changes=True), TransformFilter.BYTES


def build(
    lanes: Any,
    outputs_h: int = 4,
    outputs_w: int = 4,
    rows: int = 6,
    vectors: int = 4,
    channels_first: bool = False,
    taps_last: bool = False,
    in_channels_inner: bool = False,
) -> dict[str, Any]:
    """outputs_h, outputs_w: outputs of a tile along each axis; rows, vectors: the register tile.

    Of the filter in memory: whether its taps lie side by side, and whether input channels lie closer together than output channels.
    """
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    POINTS = len(INPUT[outputs_h]) * len(INPUT[outputs_w])
    TAPS = len(FILTER[outputs_h][0]) * len(FILTER[outputs_w][0])
    ALL_TAPS = (len(FILTER[outputs_w]) if outputs_h > 1 else 0) + 1  # a point to which every tap adds
    load_wide, splat = lanes.load_wide, lanes.splat
    PANEL, CELL = vectors * V, V * WIDE
    PANEL_BYTES = PANEL * WIDE
    staged = taps_last or in_channels_inner  # a vector's output channels do not lie side by side
    read = make_reader(lanes, INPUT[outputs_h], INPUT[outputs_w], outputs_h, outputs_w, channels_first)
    write = make_writer(lanes, OUTPUT[outputs_h], OUTPUT[outputs_w], channels_first)
    gather = make_gather(lanes, FILTER[outputs_h], FILTER[outputs_w], staged)
    stage_read, _ = make_stage(lanes)
    tiles = make_tiles(lanes, rows, vectors)

    @inline
    def transform_weights(args, b, k, k0, m, n, source, table, zeros, stage, packed):
        """The weights of k-block b and input channel k0 + k for output channels m to m + n: 0, or what is not finite of them."""
        for t in range(TAPS):
            tap = get_int(args.tap_numbers + WORD * (b * TAPS + t))
            if tap < 0:
                place = zeros
            elif not staged:
                place = source + tap * args.tap_pitch + k * args.in_channel_pitch
            elif taps_last:
                place = stage + (k * args.taps + tap) * CELL
            else:
                place = stage + (tap * args.chunk + k) * CELL
            put_int(table + WORD * t, place)
        at = packed + m // args.panel * args.panel_pitch
        at += ((b * args.in_channels + k0 + k) * args.panel + m % args.panel) * WIDE
        gather(table, 0, at, args.packed_point_pitch, V if staged else n)
        return load_wide(at + ALL_TAPS * args.packed_point_pitch, V) * splat(0.0)

    def transform_filter(args: TransformFilter, piece, scratch):
        part, k0 = piece // args.chunks, piece % args.chunks * args.chunk
        group, m0 = part // args.parts, part % args.parts * args.part_channels
        m1 = min(args.out_channels, m0 + args.part_channels)
        kc, taps = min(args.chunk, args.in_channels - k0), args.taps
        table, zeros, stage = scratch, scratch + args.stage_start, scratch + args.stage_start + CELL
        fill_zero(zeros, CELL)
        packed = args.packed + group * args.packed_group_pitch
        check = splat(0.0)
        first = args.filter + group * args.group_pitch + k0 * args.in_channel_pitch
        if staged:
            for m in range(m0, m1, V):
                n, source = min(V, m1 - m), first + m * args.out_channel_pitch
                if taps_last and in_channels_inner:
                    stage_read(source, args.out_channel_pitch, n, kc * taps, stage)
                elif taps_last:
                    for k in range(kc):
                        stage_read(source + k * args.in_channel_pitch, args.out_channel_pitch, n, taps, stage + k * taps * CELL)
                else:
                    for t in range(taps):
                        stage_read(source + t * args.tap_pitch, args.out_channel_pitch, n, kc, stage + t * args.chunk * CELL)
                for b in range(args.k_blocks):
                    for k in range(kc):
                        check = check + transform_weights(args, b, k, k0, m, n, source, table, zeros, stage, packed)
        else:  # along the output channels, which lie side by side
            for k in range(kc):
                for m in range(m0, m1, V):
                    n, source = min(V, m1 - m), first + m * args.out_channel_pitch
                    for b in range(args.k_blocks):
                        check = check + transform_weights(args, b, k, k0, m, n, source, table, zeros, stage, packed)
        if any_lane(invert(equal(check, splat(0.0)))):
            put_int(args.nonfinite, 1)

    @outline
    def multiply(args, source, point_pitch, offsets, k, packed, packed_pitch, target, product_pitch, count, how):
        """The products of all points: `count` tiles by one panel of output channels, summed over k = (k-blocks, input channels)."""
        stay_outline()
        parts = (count + rows - 1) // rows
        for point in range(POINTS):
            done = 0
            for part in range(parts):
                many = (count - done + parts - part - 1) // (parts - part)
                a = (source + point * point_pitch + done * args.tile_pitch, offsets, args.tile_pitch, WIDE)
                c = (target + point * product_pitch + done * PANEL_BYTES, PANEL_BYTES, PANEL, how)
                b = (packed + point * packed_pitch, 0, 0, PANEL_BYTES)
                tiles(many, a, b, c, k, ())
                done += many

    @inline
    def scratch_record(args, scratch):
        """A copy of the transform's record that is this thread's own."""
        at = scratch + args.record_start
        for word in range(0, RECORD_BYTES, WORD):
            put_int(at + word, get_int(args.transform_record + word))
        return transform_at(at, 0)

    @outline
    def transform_and_multiply(args, group, panel, tiles_at, point_pitch, offsets, target, product_pitch, count, depths):
        """The same with a filter of one k-block that is transformed just ahead of its products: it never leaves the cache."""
        stay_outline()
        record, packed = scratch_record(args, tiles_at), tiles_at + args.packed_start
        packed_pitch = args.k_chunk * PANEL_BYTES + CELL
        record.packed, record.packed_point_pitch, record.nonfinite = packed, packed_pitch, args.weights_nonfinite
        record.out_channels = min(PANEL, args.out_channels - panel * PANEL)
        first = args.filter + group * record.group_pitch + panel * PANEL * record.out_channel_pitch
        slot, product_slot = count * args.tile_pitch, count * PANEL_BYTES
        for k0 in range(0, args.in_channels, args.k_chunk):
            kc = min(args.k_chunk, args.in_channels - k0)
            record.filter, record.in_channels = first + k0 * record.in_channel_pitch, kc
            for chunk in range((kc + record.chunk - 1) // record.chunk):
                call_piece(args.transform, tiles_at + args.record_start, chunk, tiles_at + args.transform_start)
            for z in range(depths):
                multiply(
                    args, tiles_at + z * slot + k0 * WIDE, point_pitch, offsets, (1, kc), packed, packed_pitch,
                    target + z * product_slot, product_pitch, count, FRESH if k0 == 0 else ADDED,
                )  # fmt: skip

    def convolve(args: Convolve, piece, scratch):
        x, y = array_at(args.arrays, SOURCE), array_at(args.arrays, TARGET)
        unit, panel_block = piece // args.panel_blocks, piece % args.panel_blocks
        if args.panels_apart:  # of one group
            units = args.blocks * args.depth_blocks
            unit, panel_block = piece % units, piece // units
        first_panel = panel_block * args.panel_block
        group = unit // (args.blocks * args.depth_blocks)
        position, z0 = unit // args.depth_blocks % args.blocks * args.block, unit % args.depth_blocks * args.depth_block
        count, z1 = min(args.block, args.positions - position), min(z0 + args.depth_block, y.depth)
        tap_blocks, in_channels = args.tap_blocks_h * args.tap_blocks_w, args.in_channels
        offsets, products = scratch + args.offsets_start, scratch + args.products_start
        # Of each tap block and input depth the tiles lie in a slot. Pitches are no multiples of a large power of two: that would
        # overwork a few cache lines.
        slot, slots = count * args.tile_pitch, z1 - z0 + (args.depth_taps - 1) * args.dilation_d
        point_pitch = tap_blocks * slots * slot + CELL
        product_slot = count * PANEL_BYTES
        product_pitch = (z1 - z0) * product_slot + CELL
        fill_zero(scratch + args.zeros_start, max(in_channels * SIZE, CELL))
        for t in range(args.depth_taps):
            for b in range(tap_blocks):
                put_int(offsets + WORD * (t * tap_blocks + b), (b * slots + t * args.dilation_d) * slot)
        for s in range(slots):
            z = z0 - args.pad_d + s
            if 0 <= z < x.depth:
                source = args.x + group * x.group_pitch + z * x.depth_pitch
                for b in range(tap_blocks):
                    target = scratch + (b * slots + s) * slot
                    read(args, x, source, b, position, count, in_channels, target, point_pitch, args.tile_pitch, scratch)
        for panel in range(first_panel, min(first_panel + args.panel_block, (args.out_channels + PANEL - 1) // PANEL)):
            packed = args.packed + group * args.packed_group_pitch + panel * args.panel_pitch
            nonfinite = 0
            if args.transform != 0:
                transform_and_multiply(
                    args, group, panel, scratch, point_pitch, offsets, products, product_pitch, count, z1 - z0
                )  # fmt: skip
            for z in range(z0, z1 if args.transform == 0 else z0):
                t0, t1 = 0, args.depth_taps
                while t0 < args.depth_taps and z - args.pad_d + t0 * args.dilation_d < 0:
                    t0 += 1
                while t1 > t0 and z - args.pad_d + (t1 - 1) * args.dilation_d >= x.depth:
                    t1 -= 1
                first = t0 * tap_blocks  # k-block
                multiply(
                    args, scratch + (z - z0) * slot, point_pitch, offsets + WORD * first, ((t1 - t0) * tap_blocks, in_channels),
                    packed + first * in_channels * PANEL_BYTES, args.packed_point_pitch, products + (z - z0) * product_slot,
                    product_pitch, count, FRESH,
                )  # fmt: skip
            target = args.y + group * y.group_pitch + panel * PANEL * y.channel_pitch
            channels = min(PANEL, args.out_channels - panel * PANEL)
            for z in range(z0, z1):
                nonfinite |= write(
                    args, y, products + (z - z0) * product_slot, product_pitch, PANEL_BYTES, target + z * y.depth_pitch,
                    position, count, channels, scratch,
                )  # fmt: skip
            if nonfinite != 0:
                put_int(args.nonfinite, 1)

    return {"transform_filter": transform_filter, "convolve": convolve}
