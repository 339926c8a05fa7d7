"""The filter gradient by Winograd: tiles of x and of dy transformed, multiplied and summed over all tiles, turned back once.

Each piece adds its share of the tiles to sums of its own; `finish` adds those of all shares, in order, and makes the gradient.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.simd.native import fill_zero
from pullback.cpu.simd.register_tiles import make_tiles
from pullback.cpu.simd.vectors import get_int, outline, put_int, stay_outline
from pullback.cpu.winograd.blocks_kernel import make_reader, make_transforms
from pullback.cpu.winograd.records import FilterGradientFinish, FilterGradientShare
from pullback.cpu.winograd.transforms_kernel import FILTER, INPUT, OUTPUT, make_scatter, make_transpose, transposed


def build(
    lanes: Any, outputs_h: int = 4, outputs_w: int = 4, rows: int = 6, vectors: int = 4, first: bool = False
) -> dict[str, Any]:
    """outputs_h, outputs_w: outputs of a tile along each axis. rows, vectors: the register tile."""
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    NUMBERS = len(INPUT[outputs_h]) * len(INPUT[outputs_w])
    TAPS = len(FILTER[outputs_h][0]) * len(FILTER[outputs_w][0])
    PANEL, CELL = vectors * V, V * WIDE
    load_wide, store_wide = lanes.load_wide, lanes.store_wide
    read_x = make_reader(lanes, INPUT[outputs_h], INPUT[outputs_w], outputs_h, outputs_w, first)
    read_dy = make_reader(
        lanes, transposed(OUTPUT[outputs_h]), transposed(OUTPUT[outputs_w]), outputs_h, outputs_w, first
    )  # fmt: skip
    scatter = make_transforms(make_scatter, lanes, transposed(FILTER[outputs_h]), transposed(FILTER[outputs_w]), first)
    _, write_block = make_transpose(lanes)
    tiles = make_tiles(lanes, rows, vectors)

    @outline
    def multiply(
        xs, x_step, x_pitch, offsets, dys, dy_step, dy_pitch, depths, count, channels, made, sums, sum_step, sum_pitch
    ):  # fmt: skip
        """Add the products of all numbers: channels of x by those of dy, summed over `depths` slices of `count` tiles."""
        stay_outline()
        parts = (channels + rows - 1) // rows
        for number in range(NUMBERS):
            for m in range(0, made, PANEL):
                done = 0
                for part in range(parts):
                    many = (channels - done + parts - part - 1) // (parts - part)
                    tiles(
                        many, xs + number * x_step + done * WIDE, offsets, depths, count, WIDE, x_pitch,
                        dys + number * dy_step + m * WIDE, dy_pitch,
                        sums + number * sum_step + done * sum_pitch + m * WIDE, sum_pitch, PANEL, 1,
                    )  # fmt: skip
                    done += many

    def share(args: FilterGradientShare, piece, scratch):
        """One share of the tiles for one block of channels of x and one of dy, of one group."""
        number, part = piece // args.shares, piece % args.shares
        group, x_first, dy_first = (
            number // (args.x_blocks * args.dy_blocks), number // args.dy_blocks % args.x_blocks * args.x_block, number % args.dy_blocks * args.dy_block
        )  # fmt: skip
        x_count, dy_count = min(args.x_block, args.channels - x_first), min(args.dy_block, args.made - dy_first)
        own = args.sums + piece * args.sum_bytes
        dys, offsets, table = scratch + args.dy_start, scratch + args.offset_start, scratch + args.table_start
        zeros, stage = scratch + args.zeros_start, scratch + args.stage_start
        x_base, dy_base = (
            args.x + group * args.x_group + x_first * args.x_channel,
            args.dy + group * args.dy_group + dy_first * args.dy_channel,
        )
        fill_zero(own, args.sum_bytes)
        fill_zero(zeros, max(max(x_count, dy_count) * SIZE, CELL))
        units, stretches = args.blocks * args.depth_blocks, args.stretches_h * args.stretches_w
        for unit in range(part * units // args.shares, (part + 1) * units // args.shares):
            position, z0 = unit // args.depth_blocks * args.block, unit % args.depth_blocks * args.depth_block
            count, z1 = min(args.block, args.positions - position), min(z0 + args.depth_block, args.out_depth)
            slots, slot = z1 - z0 + (args.depth - 1) * args.d_d, count * args.x_pitch
            # Steps are no multiples of a large power of two: that would overwork a few cache lines.
            x_step, dy_step = stretches * slots * slot + CELL, (z1 - z0) * count * args.sum_pitch + CELL
            for s in range(slots):
                put_int(offsets + 8 * s, s * slot)
                z = z0 - args.pad_d + s
                if 0 <= z < args.in_depth:
                    for e in range(stretches):
                        read_x(
                            x_base + z * args.x_depth, position, count, args.tiles_h, args.tiles_w, args.x_image, args.x_row, args.x_column, args.x_channel,
                            args.in_rows, args.in_columns, args.d_h, args.d_w, args.pad_h - e // args.stretches_w * 3 * args.d_h, args.pad_w - e % args.stretches_w * 3 * args.d_w,
                            x_count, scratch + (e * slots + s) * slot, x_step, args.x_pitch, zeros, table, stage, args.stage_row,
                        )  # fmt: skip
            for z in range(z0, z1):
                read_dy(
                    dy_base + z * args.dy_depth, position, count, args.tiles_h, args.tiles_w, args.dy_image, args.dy_row, args.dy_column, args.dy_channel,
                    args.out_rows, args.out_columns, args.d_h, args.d_w, 0, 0, dy_count, dys + (z - z0) * count * args.sum_pitch, dy_step, args.sum_pitch,
                    zeros, table, stage, args.stage_row,
                )  # fmt: skip
            for t in range(args.depth):
                low, high = max(z0, args.pad_d - t * args.d_d), min(z1, args.in_depth + args.pad_d - t * args.d_d)
                if low < high:
                    for e in range(stretches):
                        multiply(
                            scratch + (e * slots + low - z0 + t * args.d_d) * slot, x_step, args.x_pitch, offsets,
                            dys + (low - z0) * count * args.sum_pitch, dy_step, args.sum_pitch, high - low, count, x_count, dy_count,
                            own + (t * stretches + e) * NUMBERS * args.sum_step, args.sum_step, args.sum_pitch,
                        )  # fmt: skip

    def finish(args: FilterGradientFinish, piece, scratch):
        """The gradient of one channel of x with all channels of dy, of one group.

        depth: how many sets of taps there are; tap_at: the numbers of the taps of each, -1 where there is none; taps: all in the
        filter.
        """
        group, c = piece // args.channels, piece % args.channels
        table, dump, stage = scratch + args.table_start, scratch + args.stage_start, scratch + args.stage_start + CELL
        target = args.df + group * args.group_bytes + c * args.channel_bytes
        odd = 0
        for m in range(0, args.made, V):
            block = (group * args.x_blocks + c // args.x_block) * args.dy_blocks + m // args.dy_block
            base = (
                args.sums + block * args.shares * args.sum_bytes + c % args.x_block * args.sum_pitch + m % args.dy_block * WIDE
            )
            n = min(V, args.made - m)
            for t in range(args.depth):
                for number in range(NUMBERS):
                    at = base + (t * NUMBERS + number) * args.sum_step
                    total = load_wide(at, V)
                    for part in range(1, args.shares):
                        total = total + load_wide(at + part * args.sum_bytes, V)
                    store_wide(scratch + number * CELL, total, V)
                for i in range(TAPS):
                    tap = get_int(args.tap_at + 8 * (t * TAPS + i))
                    if tap < 0:
                        place = dump
                    elif first:
                        place = stage + tap * CELL
                    else:
                        place = target + tap * args.tap_bytes + m * args.made_bytes
                    put_int(table + 8 * i, place)
                odd |= scatter(scratch, CELL, table, 0, n)
            if first:
                for w in range(0, args.taps, V):
                    some = min(V, args.taps - w)
                    write_block(stage + w * CELL, target + m * args.made_bytes + w * SIZE, args.made_bytes, n, some)
        if odd != 0:
            put_int(args.faults, 1)

    return {"share": share, "finish": finish}
