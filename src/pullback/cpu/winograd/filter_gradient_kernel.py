"""The filter gradient by Winograd: tiles of x and of dy transformed, multiplied and summed over all tiles, turned back once.

Each piece adds its share of the tiles to sums of its own; `finish` adds those of all shares, in order, and makes the gradient.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.simd.native import fill_zero
from pullback.cpu.simd.register_tiles import make_tiles
from pullback.cpu.simd.vectors import get_int, outline, put_int, stay_outline
from pullback.cpu.winograd.blocks_kernel import make_reader, make_transforms
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

    def share(
        piece, scratch, x, dy, sums, sum_bytes, sum_step, sum_pitch, shares, x_blocks, dy_blocks, x_block, dy_block,
        blocks, depth_blocks, block, depth_block, positions, tiles_h, tiles_w,
        in_depth, in_rows, in_columns, out_depth, out_rows, out_columns, depth, stretches_h, stretches_w,
        d_d, d_h, d_w, pad_d, pad_h, pad_w,
        channels, made, x_group, x_image, x_depth, x_row, x_column, x_channel,
        dy_group, dy_image, dy_depth, dy_row, dy_column, dy_channel,
        x_pitch, dy_start, offset_start, table_start, zeros_start, stage_start, stage_row,
    ):  # fmt: skip
        """One share of the tiles for one block of channels of x and one of dy, of one group."""
        number, part = piece // shares, piece % shares
        group, x_first, dy_first = (
            number // (x_blocks * dy_blocks), number // dy_blocks % x_blocks * x_block, number % dy_blocks * dy_block
        )  # fmt: skip
        x_count, dy_count = min(x_block, channels - x_first), min(dy_block, made - dy_first)
        own = sums + piece * sum_bytes
        dys, offsets, table = scratch + dy_start, scratch + offset_start, scratch + table_start
        zeros, stage = scratch + zeros_start, scratch + stage_start
        x_base, dy_base = x + group * x_group + x_first * x_channel, dy + group * dy_group + dy_first * dy_channel
        fill_zero(own, sum_bytes)
        fill_zero(zeros, max(max(x_count, dy_count) * SIZE, CELL))
        units, stretches = blocks * depth_blocks, stretches_h * stretches_w
        for unit in range(part * units // shares, (part + 1) * units // shares):
            position, z0 = unit // depth_blocks * block, unit % depth_blocks * depth_block
            count, z1 = min(block, positions - position), min(z0 + depth_block, out_depth)
            slots, slot = z1 - z0 + (depth - 1) * d_d, count * x_pitch
            # Steps are no multiples of a large power of two: that would overwork a few cache lines.
            x_step, dy_step = stretches * slots * slot + CELL, (z1 - z0) * count * sum_pitch + CELL
            for s in range(slots):
                put_int(offsets + 8 * s, s * slot)
                z = z0 - pad_d + s
                if 0 <= z < in_depth:
                    for e in range(stretches):
                        read_x(
                            x_base + z * x_depth, position, count, tiles_h, tiles_w, x_image, x_row, x_column, x_channel,
                            in_rows, in_columns, d_h, d_w, pad_h - e // stretches_w * 3 * d_h, pad_w - e % stretches_w * 3 * d_w,
                            x_count, scratch + (e * slots + s) * slot, x_step, x_pitch, zeros, table, stage, stage_row,
                        )  # fmt: skip
            for z in range(z0, z1):
                read_dy(
                    dy_base + z * dy_depth, position, count, tiles_h, tiles_w, dy_image, dy_row, dy_column, dy_channel,
                    out_rows, out_columns, d_h, d_w, 0, 0, dy_count, dys + (z - z0) * count * sum_pitch, dy_step, sum_pitch,
                    zeros, table, stage, stage_row,
                )  # fmt: skip
            for t in range(depth):
                low, high = max(z0, pad_d - t * d_d), min(z1, in_depth + pad_d - t * d_d)
                if low < high:
                    for e in range(stretches):
                        multiply(
                            scratch + (e * slots + low - z0 + t * d_d) * slot, x_step, x_pitch, offsets,
                            dys + (low - z0) * count * sum_pitch, dy_step, sum_pitch, high - low, count, x_count, dy_count,
                            own + (t * stretches + e) * NUMBERS * sum_step, sum_step, sum_pitch,
                        )  # fmt: skip

    def finish(
        piece, scratch, sums, df, faults, sum_bytes, sum_step, sum_pitch, shares, x_blocks, dy_blocks, x_block, dy_block,
        depth, taps, channels, made, tap_at, tap_bytes, channel_bytes, made_bytes, group_bytes, table_start, stage_start,
    ):  # fmt: skip
        """The gradient of one channel of x with all channels of dy, of one group.

        depth: how many sets of taps there are; tap_at: the numbers of the taps of each, -1 where there is none; taps: all in the
        filter.
        """
        group, c = piece // channels, piece % channels
        table, dump, stage = scratch + table_start, scratch + stage_start, scratch + stage_start + CELL
        target = df + group * group_bytes + c * channel_bytes
        odd = 0
        for m in range(0, made, V):
            block = (group * x_blocks + c // x_block) * dy_blocks + m // dy_block
            base = sums + block * shares * sum_bytes + c % x_block * sum_pitch + m % dy_block * WIDE
            n = min(V, made - m)
            for t in range(depth):
                for number in range(NUMBERS):
                    at = base + (t * NUMBERS + number) * sum_step
                    total = load_wide(at, V)
                    for part in range(1, shares):
                        total = total + load_wide(at + part * sum_bytes, V)
                    store_wide(scratch + number * CELL, total, V)
                for i in range(TAPS):
                    tap = get_int(tap_at + 8 * (t * TAPS + i))
                    if tap < 0:
                        place = dump
                    elif first:
                        place = stage + tap * CELL
                    else:
                        place = target + tap * tap_bytes + m * made_bytes
                    put_int(table + 8 * i, place)
                odd |= scatter(scratch, CELL, table, 0, n)
            if first:
                for w in range(0, taps, V):
                    some = min(V, taps - w)
                    write_block(stage + w * CELL, target + m * made_bytes + w * SIZE, made_bytes, n, some)
        if odd != 0:
            put_int(faults, 1)

    return {"share": share, "finish": finish}
