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

    def transform_filter(
        piece, scratch, f, packed, faults, chunk, chunks, depth, taps, made, summed, tap_bytes, summed_bytes, made_bytes,
        group_bytes, tap_at, panel, step, panel_bytes, packed_group, stage_start,
    ):  # fmt: skip
        """One chunk of summed channels of one group. made: channels of the result, which the vectors run over.

        depth: how many sets of taps are transformed; tap_at: the numbers of the taps of each, -1 where there is none; taps: all
        there are in the filter, where they lie *_bytes apart. Weights that are not finite are reported.
        """
        group, k0 = piece // chunks, piece % chunks * chunk
        kc = min(chunk, summed - k0)
        table, zeros, stage = scratch, scratch + stage_start, scratch + stage_start + CELL
        fill_zero(zeros, CELL)
        own = packed + group * packed_group
        none = splat(0.0)
        check = none
        for m in range(0, made, V):
            n = min(V, made - m)
            source = f + group * group_bytes + k0 * summed_bytes + m * made_bytes
            if staged:
                if first and flipped:
                    for k in range(kc):
                        turn_over(source + k * summed_bytes, made_bytes, n, taps, stage + k * taps * CELL)
                elif first:
                    turn_over(source, made_bytes, n, kc * taps, stage)
                else:
                    for t in range(taps):
                        turn_over(source + t * tap_bytes, made_bytes, n, kc, stage + t * chunk * CELL)
            for d in range(depth):
                target = own + m // panel * panel_bytes + ((d * summed + k0) * panel + m % panel) * WIDE
                for k in range(kc):
                    for t in range(TAPS):
                        tap = get_int(tap_at + 8 * (d * TAPS + t))
                        if tap < 0:
                            place = zeros
                        elif not staged:
                            place = source + tap * tap_bytes + k * summed_bytes
                        elif first:
                            place = stage + (k * taps + tap) * CELL
                        else:
                            place = stage + (tap * chunk + k) * CELL
                        put_int(table + 8 * t, place)
                    gather(table, 0, target + k * panel * WIDE, step, V if staged else n)
                    check = check + load_wide(target + k * panel * WIDE + ALL_TAPS * step, V) * none
        if any_lane(invert(equal(check, none))):
            put_int(faults, 1)

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

    def forward(
        piece, scratch, x, packed, y, faults, blocks, depth_blocks, panel_blocks, block, depth_block, panel_block,
        positions, tiles_h, tiles_w,
        in_depth, in_rows, in_columns, out_depth, out_rows, out_columns, depth, stretches_h, stretches_w,
        d_d, d_h, d_w, pad_d, pad_h, pad_w,
        summed, made, x_group, x_image, x_depth, x_row, x_column, x_channel, y_group, y_image, y_depth, y_row, y_column, y_channel,
        filter_step, panel_bytes, packed_group, pitch, offset_start, table_start, zeros_start, stage_start, stage_row,
        product_start,
    ):  # fmt: skip
        """One block of tile positions through a few output depths, of one group: all panels of results, or a block of them."""
        unit, first_panel = piece // panel_blocks, piece % panel_blocks * panel_block
        group = unit // (blocks * depth_blocks)
        position, z0 = unit // depth_blocks % blocks * block, unit % depth_blocks * depth_block
        count, z1 = min(block, positions - position), min(z0 + depth_block, out_depth)
        offsets, table, zeros, stage = (
            scratch + offset_start,
            scratch + table_start,
            scratch + zeros_start,
            scratch + stage_start,
        )
        products = scratch + product_start
        slot = count * pitch
        slots = z1 - z0 + (depth - 1) * d_d
        stretches = stretches_h * stretches_w
        step = stretches * slots * slot + CELL  # not a multiple of a large power of two: that would overwork a few cache lines
        product_slot = count * PANEL * WIDE
        product_step = (z1 - z0) * product_slot + CELL
        fill_zero(zeros, max(summed * SIZE, CELL))
        for t in range(depth):
            for e in range(stretches):
                put_int(offsets + 8 * (t * stretches + e), (e * slots + t * d_d) * slot)
        for s in range(slots):
            z = z0 - pad_d + s
            if 0 <= z < in_depth:
                for e in range(stretches):
                    read(
                        x + group * x_group + z * x_depth, position, count, tiles_h, tiles_w, x_image, x_row, x_column, x_channel,
                        in_rows, in_columns, d_h, d_w, pad_h - e // stretches_w * 3 * d_h, pad_w - e % stretches_w * 3 * d_w,
                        summed, scratch + (e * slots + s) * slot, step, pitch, zeros, table, stage, stage_row,
                    )  # fmt: skip
        dump = zeros  # where nothing is read any more when results are written
        for panel in range(first_panel, min(first_panel + panel_block, (made + PANEL - 1) // PANEL)):
            own = packed + group * packed_group + panel * panel_bytes
            odd = 0
            for z in range(z0, z1):
                t0, t1 = 0, depth
                while t0 < depth and z - pad_d + t0 * d_d < 0:
                    t0 += 1
                while t1 > t0 and z - pad_d + (t1 - 1) * d_d >= in_depth:
                    t1 -= 1
                multiply(
                    scratch + (z - z0) * slot, step, pitch, offsets + 8 * t0 * stretches, (t1 - t0) * stretches, summed,
                    own + t0 * stretches * summed * PANEL * WIDE, filter_step,
                    products + (z - z0) * product_slot, product_step, count,
                )  # fmt: skip
            for z in range(z0, z1):
                odd |= write(
                    products + (z - z0) * product_slot, product_step, PANEL * WIDE,
                    y + group * y_group + z * y_depth + panel * PANEL * y_channel, position, count, tiles_h, tiles_w,
                    y_image, y_row, y_column, y_channel, out_rows, out_columns, d_h, d_w, min(PANEL, made - panel * PANEL),
                    dump, table, stage, stage_row,
                )  # fmt: skip
            if odd != 0:
                put_int(faults, 1)

    return {"transform_filter": transform_filter, "forward": forward}
