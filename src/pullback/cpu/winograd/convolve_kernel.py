"""Winograd convolution at stride 1: transformed filter, and blocks of tiles transformed, multiplied and transformed back in cache.

The tiles lie over two axes (or one, its tiles being one cell high), 3 taps at a time: of a longer window, each block of 3 taps
has transformed tiles of its own. Tap blocks and the taps of a third axis, the depth, are summed between the transforms. An input
gradient is the same with the filter flipped and its channels exchanged.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.engine.records import WORD
from pullback.cpu.simd.native import fill_zero
from pullback.cpu.simd.record_types import records_at
from pullback.cpu.simd.register_tiles import FRESH, make_tiles
from pullback.cpu.simd.vectors import any_lane, equal, get_int, invert, outline, put_int, stay_outline
from pullback.cpu.winograd.blocks_kernel import make_reader, make_writer
from pullback.cpu.winograd.records import SOURCE, TARGET, Convolve, TiledArray, TransformFilter
from pullback.cpu.winograd.stage_kernel import make_stage
from pullback.cpu.winograd.transforms_kernel import FILTER, INPUT, OUTPUT, make_gather

array_at = records_at(TiledArray)


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

    def transform_filter(args: TransformFilter, piece, scratch):
        group, k0 = piece // args.chunks, piece % args.chunks * args.chunk
        kc, taps, panel = min(args.chunk, args.in_channels - k0), args.taps, args.panel
        table, zeros, stage = scratch, scratch + args.stage_start, scratch + args.stage_start + CELL
        fill_zero(zeros, CELL)
        packed = args.packed + group * args.packed_group_pitch
        none = splat(0.0)
        check = none
        for m in range(0, args.out_channels, V):
            n = min(V, args.out_channels - m)
            source = args.filter + group * args.group_pitch + k0 * args.in_channel_pitch + m * args.out_channel_pitch
            if taps_last and in_channels_inner:
                stage_read(source, args.out_channel_pitch, n, kc * taps, stage)
            elif taps_last:
                for k in range(kc):
                    stage_read(source + k * args.in_channel_pitch, args.out_channel_pitch, n, taps, stage + k * taps * CELL)
            elif in_channels_inner:
                for t in range(taps):
                    stage_read(source + t * args.tap_pitch, args.out_channel_pitch, n, kc, stage + t * args.chunk * CELL)
            for b in range(args.k_blocks):
                target = packed + m // panel * args.panel_pitch + ((b * args.in_channels + k0) * panel + m % panel) * WIDE
                for k in range(kc):
                    for t in range(TAPS):
                        tap = get_int(args.tap_numbers + WORD * (b * TAPS + t))
                        if tap < 0:
                            place = zeros
                        elif not staged:
                            place = source + tap * args.tap_pitch + k * args.in_channel_pitch
                        elif taps_last:
                            place = stage + (k * taps + tap) * CELL
                        else:
                            place = stage + (tap * args.chunk + k) * CELL
                        put_int(table + WORD * t, place)
                    at = target + k * panel * WIDE
                    gather(table, 0, at, args.packed_point_pitch, V if staged else n)
                    check = check + load_wide(at + ALL_TAPS * args.packed_point_pitch, V) * none
        if any_lane(invert(equal(check, none))):
            put_int(args.nonfinite, 1)

    @outline
    def multiply(args, source, point_pitch, offsets, k_blocks, packed, target, product_pitch, count):
        """The products of all points: `count` tiles by one panel of output channels, summed over k-blocks of input channels."""
        stay_outline()
        parts = (count + rows - 1) // rows
        for point in range(POINTS):
            done = 0
            for part in range(parts):
                many = (count - done + parts - part - 1) // (parts - part)
                a = (source + point * point_pitch + done * args.tile_pitch, offsets, args.tile_pitch, WIDE)
                c = (target + point * product_pitch + done * PANEL_BYTES, PANEL_BYTES, PANEL, FRESH)
                b = (packed + point * args.packed_point_pitch, 0, 0, PANEL_BYTES)
                tiles(many, a, b, c, (k_blocks, args.in_channels), ())
                done += many

    def convolve(args: Convolve, piece, scratch):
        x, y = array_at(args.arrays, SOURCE), array_at(args.arrays, TARGET)
        unit, first_panel = piece // args.panel_blocks, piece % args.panel_blocks * args.panel_block
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
            for z in range(z0, z1):
                t0, t1 = 0, args.depth_taps
                while t0 < args.depth_taps and z - args.pad_d + t0 * args.dilation_d < 0:
                    t0 += 1
                while t1 > t0 and z - args.pad_d + (t1 - 1) * args.dilation_d >= x.depth:
                    t1 -= 1
                first = t0 * tap_blocks  # k-block
                multiply(
                    args, scratch + (z - z0) * slot, point_pitch, offsets + WORD * first, (t1 - t0) * tap_blocks,
                    packed + first * in_channels * PANEL_BYTES, products + (z - z0) * product_slot, product_pitch, count,
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
