"""The filter gradient by Winograd: tiles of x and of dy transformed, multiplied and summed over all tiles, transformed back once.

Each piece adds up one split of the tiles, in partial sums of its own; `finish` adds those of all splits, in order. Where there is
one split only, a piece calls it for its own channels: the sums never leave the cache.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.engine.records import WORD
from pullback.cpu.simd.native import call_piece, fill_zero
from pullback.cpu.simd.record_types import records_at
from pullback.cpu.simd.register_tiles import ADDED, make_tiles
from pullback.cpu.simd.vectors import get_int, outline, put_int, stay_outline
from pullback.cpu.winograd.blocks_kernel import make_reader
from pullback.cpu.winograd.records import SOURCE, TARGET, Finish, PartialSums, TiledArray
from pullback.cpu.winograd.stage_kernel import make_stage
from pullback.cpu.winograd.transforms_kernel import FILTER, INPUT, OUTPUT, make_scatter, transposed

array_at, finish_at = records_at(TiledArray), records_at(Finish, changes=True)
FINISH_BYTES = Finish.BYTES


def build(
    lanes: Any, outputs_h: int = 4, outputs_w: int = 4, rows: int = 6, vectors: int = 4, channels_first: bool = False
) -> dict[str, Any]:
    """outputs_h, outputs_w: outputs of a tile along each axis; rows, vectors: the register tile."""
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    POINTS = len(INPUT[outputs_h]) * len(INPUT[outputs_w])
    TAPS = len(FILTER[outputs_h][0]) * len(FILTER[outputs_w][0])
    PANEL, CELL = vectors * V, V * WIDE
    load_wide, store_wide = lanes.load_wide, lanes.store_wide
    both = outputs_h, outputs_w
    read_x = make_reader(lanes, *(INPUT[m] for m in both), *both, channels_first)
    read_dy = make_reader(lanes, *(transposed(OUTPUT[m]) for m in both), *both, channels_first)
    scatter = make_scatter(lanes, *(transposed(FILTER[m]) for m in both), channels_first)
    _, stage_write = make_stage(lanes)
    tiles = make_tiles(lanes, rows, vectors)

    @outline
    def multiply(args, xs, x_pitch, x_channels, dys, dy_pitch, dy_channels, depths, count, sums, scratch):
        """Add the products of all points: channels of x by those of dy, summed over `depths` slices of `count` tiles."""
        stay_outline()
        offsets, sum_pitch = scratch + args.offsets_start, args.sum_pitch
        parts = (x_channels + rows - 1) // rows
        for point in range(POINTS):
            for m in range(0, dy_channels, PANEL):
                done = 0
                for part in range(parts):
                    many = (x_channels - done + parts - part - 1) // (parts - part)
                    a = (xs + point * x_pitch + done * WIDE, offsets, WIDE, args.tile_pitch)
                    b = (dys + point * dy_pitch + m * WIDE, 0, 0, sum_pitch)
                    c = (sums + point * args.sum_point_pitch + done * sum_pitch + m * WIDE, sum_pitch, PANEL, ADDED)
                    tiles(many, a, b, c, (depths, count), ())
                    done += many

    @outline
    def finish_own(args, group, x_first, x_channels, dy_first, dy_channels, scratch):
        """The gradient of a piece's own channels."""
        stay_outline()
        at = scratch + args.record_start
        for word in range(0, FINISH_BYTES, WORD):
            put_int(at + word, get_int(args.finish_record + word))
        record = finish_at(at, 0)
        record.filter = args.filter + group * record.group_pitch
        record.filter += x_first * record.in_channel_pitch + dy_first * record.out_channel_pitch
        record.sums, record.nonfinite = scratch + args.sums_start, args.nonfinite
        record.in_channels, record.out_channels = x_channels, dy_channels
        for c in range(x_channels):
            call_piece(args.finish, at, c, scratch + args.finish_start)

    def partial_sums(args: PartialSums, piece, scratch):
        x, dy = array_at(args.arrays, SOURCE), array_at(args.arrays, TARGET)
        channel_block, split = piece // args.splits, piece % args.splits
        group, x_first = (
            channel_block // (args.x_blocks * args.dy_blocks),
            channel_block // args.dy_blocks % args.x_blocks * args.x_block,
        )
        dy_first = channel_block % args.dy_blocks * args.dy_block
        x_channels, dy_channels = (
            min(args.x_block, args.in_channels - x_first),
            min(args.dy_block, args.out_channels - dy_first),
        )
        sums, dys, offsets = args.sums + piece * args.sum_bytes, scratch + args.dy_start, scratch + args.offsets_start
        if args.finish != 0:
            sums = scratch + args.sums_start
        x_base = args.x + group * x.group_pitch + x_first * x.channel_pitch
        dy_base = args.dy + group * dy.group_pitch + dy_first * dy.channel_pitch
        fill_zero(sums, args.sum_bytes)
        fill_zero(scratch + args.zeros_start, max(max(x_channels, dy_channels) * SIZE, CELL))
        units, tap_blocks = args.blocks * args.depth_blocks, args.tap_blocks_h * args.tap_blocks_w
        for unit in range(split * units // args.splits, (split + 1) * units // args.splits):
            position, z0 = unit // args.depth_blocks * args.block, unit % args.depth_blocks * args.depth_block
            count, z1 = min(args.block, args.positions - position), min(z0 + args.depth_block, dy.depth)
            # Of each tap block and input depth the tiles of x lie in a slot, those of dy by depths. Pitches are no multiples of a
            # large power of two: that would overwork a few cache lines.
            slots, slot = z1 - z0 + (args.depth_taps - 1) * args.dilation_d, count * args.tile_pitch
            dy_slot = count * args.sum_pitch
            x_pitch, dy_pitch = tap_blocks * slots * slot + CELL, (z1 - z0) * dy_slot + CELL
            for s in range(slots):
                put_int(offsets + WORD * s, s * slot)
                z = z0 - args.pad_d + s
                if 0 <= z < x.depth:
                    source = x_base + z * x.depth_pitch
                    for b in range(tap_blocks):
                        target = scratch + (b * slots + s) * slot
                        read_x(args, x, source, b, position, count, x_channels, target, x_pitch, args.tile_pitch, scratch)
            for z in range(z0, z1):
                source, target = dy_base + z * dy.depth_pitch, dys + (z - z0) * dy_slot
                read_dy(args, dy, source, 0, position, count, dy_channels, target, dy_pitch, args.sum_pitch, scratch)
            for t in range(args.depth_taps):
                shift = t * args.dilation_d - args.pad_d  # from an output depth to the input depth that tap t reads
                low, high = max(z0, -shift), min(z1, x.depth - shift)
                if low < high:
                    for b in range(tap_blocks):
                        multiply(
                            args, scratch + (b * slots + low - z0 + t * args.dilation_d) * slot, x_pitch, x_channels,
                            dys + (low - z0) * dy_slot, dy_pitch, dy_channels, high - low, count,
                            sums + (t * tap_blocks + b) * POINTS * args.sum_point_pitch, scratch,
                        )  # fmt: skip
        if args.finish != 0:
            finish_own(args, group, x_first, x_channels, dy_first, dy_channels, scratch)

    def finish(args: Finish, piece, scratch):
        group, c = piece // args.in_channels, piece % args.in_channels
        table, dump, stage = scratch + args.table_start, scratch + args.stage_start, scratch + args.stage_start + CELL
        nonfinite = 0
        for m in range(0, args.out_channels, V):
            block = (group * args.x_blocks + c // args.x_block) * args.dy_blocks + m // args.dy_block
            sums = args.sums + block * args.splits * args.sum_bytes
            sums += c % args.x_block * args.sum_pitch + m % args.dy_block * WIDE
            target = args.filter + group * args.group_pitch + c * args.in_channel_pitch + m * args.out_channel_pitch
            n = min(V, args.out_channels - m)
            for b in range(args.k_blocks):
                for point in range(POINTS):
                    at = sums + (b * POINTS + point) * args.sum_point_pitch
                    total = load_wide(at, V)
                    for split in range(1, args.splits):
                        total = total + load_wide(at + split * args.sum_bytes, V)
                    store_wide(scratch + point * CELL, total, V)
                for i in range(TAPS):
                    tap = get_int(args.tap_numbers + WORD * (b * TAPS + i))
                    if tap < 0:
                        place = dump
                    elif channels_first:
                        place = stage + tap * CELL
                    else:
                        place = target + tap * args.tap_pitch
                    put_int(table + WORD * i, place)
                nonfinite |= scatter(scratch, CELL, table, 0, n)
            if channels_first:
                stage_write(stage, target, args.out_channel_pitch, n, args.taps)
        if nonfinite != 0:
            put_int(args.nonfinite, 1)

    return {"partial_sums": partial_sums, "finish": finish}
