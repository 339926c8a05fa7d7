"""Filter gradient with vectors over output channels: tiles of input channels by output channels, summed over output cells.

A piece owns a range of input channels, a range of output channels and a part of the cells, and takes its cells block by block. x
and dy are read in place, and while a block is summed the next one is asked for. Packed are: what must be widened, vectors that
would reach past the channels of a cell, dy in channels_first, and x where its cells would crowd a few sets of a cache. Cells whose
tap falls outside x are left out, not multiplied by zero. The sums of all parts are added in order by a second job.

Few input channels would not fill a tile. Then (`merged` > 1) the taps of a row, whose cells lie side by side, count as channels; a
packed x is padded with zeros, which a dy that is not finite turns into sums that are not. For such a dy the table of taps has
entries of their own for the outputs at the ends of a row, with the taps that meet a cell there.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.conv.records import FilterGradientFinish, FilterGradientSums
from pullback.cpu.conv.source_kernel import make_area
from pullback.cpu.simd.native import LINE
from pullback.cpu.simd.register_tiles import make_asking_tiles, tile_size
from pullback.cpu.simd.transpose import make_transpose
from pullback.cpu.simd.vectors import get_int, inline, outline, put_int, stay_outline

LONGEST, SHORTEST = 16, 7  # cells of a stretch while memory is asked for, where rows can be cut evenly
TURNED = 64  # rows of sums that are transposed at once

# An entry of the table of taps: place read first, first and last output, by axis; the tap whose sums it adds to, the first of its
# channels and how many, whether other entries have made these sums before.
ENTRY = 8 * 13


def build(lanes: Any, first: bool) -> dict[str, Any]:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    load, load_some, store_some, load_wide_some = lanes.load, lanes.load_some, lanes.store_some, lanes.load_wide_some
    store_wide = lanes.store_wide
    pack_row = make_area(lanes, first=first)
    transpose, turn_back = make_transpose(lanes, widen=True), make_transpose(lanes, widen=False)
    ROWS = tile_size(lanes, 2)
    tiles2, tiles1 = make_asking_tiles(lanes, ROWS, 2), make_asking_tiles(lanes, ROWS, 1)

    @outline
    def pack_panel(source, channel_bytes, cell_bytes, cells, n, target, width):
        """A run of cells, `width` channels of each side by side; channels past n are rubbish that is never stored."""
        stay_outline()
        if first:
            transpose(source, channel_bytes, target, width * WIDE, n, cells)
        elif n == 2 * V:
            for q in range(cells):
                store_wide(target + q * 2 * V * WIDE, load(source + q * cell_bytes, V), V)
                store_wide(target + (q * 2 + 1) * V * WIDE, load(source + q * cell_bytes + V * SIZE, V), V)
        else:
            for q in range(cells):
                for j in range(0, width, V):
                    value = load_some(source + q * cell_bytes + j * SIZE, max(0, min(V, n - j)))
                    store_wide(target + (q * width + j) * WIDE, value, V)

    @inline
    def list_lines(shape, table):
        """The offsets of the lines of an area into a table. shape: count, distance, count, distance and bytes of its runs."""
        count = 0
        for i in range(get_int(shape)):
            for j in range(get_int(shape + 16)):
                place = i * get_int(shape + 8) + j * get_int(shape + 24)
                for at in range(place, place + get_int(shape + 32), LINE):
                    put_int(table + 8 * count, at)
                    count += 1
        return count

    @inline
    def tile_channels(
        channels, a, a_at, count, depth, a_row, a_step, b, b_at, b_tap, b_step, width, c, c_row, n, add, step, steps,
        ahead_x, x_lines, ahead_y, y_lines, lines_at,
    ):  # fmt: skip
        """All input channels of a piece, in tiles of nearly equal height; meanwhile a part of the next block is asked for."""
        parts = (channels + ROWS - 1) // ROWS
        least, more = channels // parts, channels % parts
        lines = x_lines + y_lines
        for part in range(parts):
            rows = least + 1 if part < more else least
            begin = lines * (step * parts + part) // (steps * parts)
            end = lines * (step * parts + part + 1) // (steps * parts)
            ahead = ahead_x if begin < x_lines else ahead_y
            end = min(end, x_lines) if begin < x_lines else end
            each = (end - begin + count - 1) // max(1, count)
            if width > V:
                tiles2(
                    rows, a, a_at, count, depth, a_row, a_step, b, b_at, b_tap, b_step, c, c_row, n, add,
                    ahead, lines_at + 8 * begin, each,
                )  # fmt: skip
            else:
                tiles1(
                    rows, a, a_at, count, depth, a_row, a_step, b, b_at, b_tap, b_step, c, c_row, n, add,
                    ahead, lines_at + 8 * begin, each,
                )  # fmt: skip
            a += rows * a_row
            c += rows * c_row

    @outline
    def sum_taps(
        x, channels, first_n, last_n, dy, dy_in_place, panels, panel_bytes, n_count, n_padded, tables, table_bytes, images,
        h0, h1, w0, w1, depths, hop_d, hop_h, hop_w, x_image, x_plane, x_row, x_cell, x_channel, taps, tap_table,
        y_image, y_plane, y_row, y_cell, sums, c_tap, c_row, add, ahead_x, x_lines, ahead_y, y_lines, lines_at,
    ):  # fmt: skip
        """Every tap over the cells of a block.

        dy: the block's cells where they are; vectors that would reach past a cell's channels are in panels instead.
        """
        stay_outline()
        a_at, y_at, cell_at = tables, tables + table_bytes, tables + 2 * table_bytes
        blocks = (last_n - first_n + 2 * V - 1) // (2 * V)
        for t in range(taps):
            words = tap_table + ENTRY * t
            number, first_row, rows, more = get_int(words + 72), get_int(words + 80), get_int(words + 88), get_int(words + 96)
            off_d, off_h, off_w = get_int(words), get_int(words + 24), get_int(words + 48)
            row0, row1 = max(h0, get_int(words + 32)), min(h1, get_int(words + 40))
            col0, col1 = max(w0, get_int(words + 56)), min(w1, get_int(words + 64))
            count, depth = 0, col1 - col0
            if x_lines:  # the shorter the stretches, the more evenly spread
                for length in range(LONGEST, SHORTEST - 1, -1):
                    if depth % length == 0:
                        depth = length
                        break
            for i in range(images if col1 > col0 else 0):
                for d in range(get_int(words + 8), get_int(words + 16)):
                    for h in range(row0, row1):
                        x_place = i * x_image + (d * hop_d + off_d) * x_plane + (h * hop_h + off_h) * x_row
                        y_place = i * y_image + d * y_plane + (h - h0) * y_row
                        cell = ((i * depths + d) * (h1 - h0) + h - h0) * (w1 - w0) - w0
                        for col in range(col0, col1, depth):
                            put_int(a_at + 8 * count, x_place + (col * hop_w + off_w) * x_cell)
                            put_int(y_at + 8 * count, y_place + (col - w0) * y_cell)
                            put_int(cell_at + 8 * count, cell + col)
                            count += 1
            for block in range(blocks):
                n0 = first_n + block * 2 * V
                width = min(2 * V, n_padded - n0)
                if dy_in_place and n0 + width <= n_count:
                    b, b_at, b_tap, b_step = dy + n0 * WIDE, y_at, 1, y_cell
                else:
                    b, b_at, b_tap, b_step = panels + block * panel_bytes, cell_at, width * WIDE, width * WIDE
                some, added = min(rows, channels - first_row), add | more
                tile_channels(
                    some, x, a_at, count, depth, x_channel, hop_w * x_cell, b, b_at, b_tap, b_step, width,
                    sums + number * c_tap + first_row * c_row + n0 * WIDE, c_row, min(2 * V, last_n - n0), added,
                    t * blocks + block, taps * blocks,
                    ahead_x, x_lines, ahead_y, y_lines, lines_at,
                )  # fmt: skip

    def sums(args: FilterGradientSums, piece, scratch):
        n_range, rest = piece % args.n_ranges, piece // args.n_ranges
        c0, rest = rest % args.channel_ranges * args.range_channels, rest // args.channel_ranges
        group, part = rest % args.groups, rest // args.groups
        size = min(args.range_channels, args.channels - c0)
        first_n = n_range * args.range_blocks * 2 * V
        last_n = min(args.n_count, first_n + args.range_blocks * 2 * V)
        to = args.target + part * args.c_part + group * args.c_group + c0 * args.c_row
        cells = args.x + (group * args.x_channels + c0) * args.x_channel
        source = args.dy + group * args.n_count * args.y_channel
        tables = scratch + args.table_start
        lines_at, x_lines, y_lines = tables + 3 * args.table_bytes, 0, 0
        if args.fetch:
            x_lines = list_lines(args.ahead, lines_at)
            y_lines = list_lines(args.ahead + 40, lines_at + 8 * x_lines)
        end = min(args.blocks, part * args.part_blocks + args.part_blocks)
        for block in range(part * args.part_blocks, end):
            w0, rest = block % args.col_blocks * args.block_cols, block // args.col_blocks
            h0, i0 = rest % args.row_blocks * args.block_rows, rest // args.row_blocks * args.block_images
            i1, h1, w1 = (
                min(args.images, i0 + args.block_images),
                min(args.rows, h0 + args.block_rows),
                min(args.cols, w0 + args.block_cols),
            )
            here = source + i0 * args.y_image + h0 * args.y_row + w0 * args.y_cell
            panels = scratch + args.panel_start
            whole_rows = w1 - w0 == args.cols
            run, runs = ((h1 - h0) * args.cols, 1) if whole_rows else (w1 - w0, h1 - h0)
            for n0 in range(first_n, last_n, 2 * V):
                width = min(2 * V, args.n_padded - n0)
                if not args.dy_in_place or n0 + width > args.n_count:
                    panel = panels + (n0 - first_n) // (2 * V) * args.panel_bytes
                    for i in range(i1 - i0):
                        for d in range(args.depths):
                            for h in range(runs):
                                line = here + i * args.y_image + d * args.y_plane + h * args.y_row + n0 * args.y_channel
                                pack_panel(line, args.y_channel, args.y_cell, run, min(2 * V, last_n - n0), panel, width)
                                panel += run * width * WIDE
            if args.in_place:
                a, a_image, a_plane, a_row, a_cell, a_channel = (
                    cells + i0 * args.x_image,
                    args.x_image,
                    args.x_plane,
                    args.x_row,
                    args.x_cell,
                    args.x_channel,
                )
            else:
                a = scratch - h0 * args.hop_h * args.line_bytes - w0 * args.hop_w * args.place_bytes
                a_image, a_plane, a_row, a_cell, a_channel = (
                    args.volume_bytes,
                    args.plane_bytes,
                    args.line_bytes,
                    args.place_bytes,
                    WIDE,
                )
                top, left = h0 * args.step_h + args.low_h, w0 * args.step_w + args.low_w
                for i in range(i1 - i0):
                    for d in range(args.in_depth):
                        for h in range((h1 - h0 - 1) * args.hop_h + args.reach_h):
                            row = top + h * args.grid_h
                            if 0 <= row < args.in_rows:
                                pack_row(
                                    cells + (i0 + i) * args.x_image + d * args.x_plane + row * args.x_row, args.x_channel, args.x_cell, args.in_cols, left,
                                    args.grid_w, (w1 - w0 - 1) * args.hop_w + args.reach_w, size // args.merged,
                                    scratch + i * args.volume_bytes + d * args.plane_bytes + h * args.line_bytes, args.place_bytes,
                                )  # fmt: skip
            ahead_x, ahead_y, more = 0, 0, 0
            if args.fetch:
                next_piece, next_block = piece, block + 1
                if next_block == end:  # likely this thread's next
                    next_piece = piece + 1
                    next_block = next_piece // (args.n_ranges * args.channel_ranges * args.groups) * args.part_blocks
                more = int(next_block < args.blocks)
                rest = next_piece // args.n_ranges
                next_c, next_group = rest % args.channel_ranges * args.range_channels, rest // args.channel_ranges % args.groups
                ahead_x = args.x + (next_group * args.x_channels + next_c) * args.x_channel
                ahead_y = (
                    args.dy
                    + (next_group * args.n_count + next_piece % args.n_ranges * args.range_blocks * 2 * V) * args.y_channel
                )
                next_w, rest = next_block % args.col_blocks * args.block_cols, next_block // args.col_blocks
                next_h, next_i = rest % args.row_blocks * args.block_rows, rest // args.row_blocks * args.block_images
                left, top = max(0, next_w * args.step_w + args.low_w), max(0, next_h * args.step_h + args.low_h)
                ahead_x += next_i * args.x_image + top * args.x_row + left * args.x_cell
                ahead_y += next_i * args.y_image + next_h * args.y_row + next_w * args.y_cell
            sum_taps(
                a, size, first_n, last_n, here, args.dy_in_place, panels, args.panel_bytes, args.n_count, args.n_padded, tables, args.table_bytes,
                i1 - i0, h0, h1, w0, w1, args.depths, args.hop_d, args.hop_h, args.hop_w, a_image, a_plane, a_row, a_cell, a_channel, args.taps,
                args.tap_table, args.y_image, args.y_plane, args.y_row, args.y_cell, to, args.c_tap, args.c_row, block > part * args.part_blocks,
                ahead_x, more * x_lines, ahead_y, more * y_lines, lines_at,
            )  # fmt: skip

    @inline
    def add_parts(place, parts, part_bytes, n):
        value = load_wide_some(place, n)
        for p in range(1, parts):
            value = value + load_wide_some(place + p * part_bytes, n)
        return value

    def finish(args: FilterGradientFinish, piece, scratch):
        """The parts added up in order, then stored as the layout has it. Sums are (group, tap, channel, n) in wide elements."""
        row_bytes = args.n_count * WIDE
        row, end = piece * args.rows_each, min(args.groups * args.channels, piece * args.rows_each + args.rows_each)
        while row < end:
            group, c = row // args.channels, row % args.channels
            count = min(end - row, args.channels - c, max(1, TURNED // args.taps)) if first else 1
            line = args.sums + (group * args.taps * args.channels + c) * row_bytes
            if first:  # a block of sums with its channels and taps side by side is turned at once
                for t0 in range(0, args.taps, TURNED):
                    some_taps = min(TURNED, args.taps - t0)
                    for j0 in range(0, args.n_count, 4 * V):
                        width = min(4 * V, args.n_count - j0)
                        for k in range(count):
                            for t in range(some_taps):
                                here = line + ((t0 + t) * args.channels + k) * row_bytes + j0 * WIDE
                                for j in range(0, width, V):
                                    value = add_parts(here + j * WIDE, args.parts, args.part_bytes, min(V, width - j))
                                    store_wide(scratch + ((k * some_taps + t) * 4 * V + j) * WIDE, value, V)
                        to = args.target + (((group * args.n_count + j0) * args.channels + c) * args.taps + t0) * SIZE
                        turn_back(scratch, 4 * V * WIDE, to, args.channels * args.taps * SIZE, count * some_taps, width)
            else:
                for t in range(args.taps):
                    here = line + t * args.channels * row_bytes
                    to = args.target + ((t * args.channels + c) * args.groups + group) * args.n_count * SIZE
                    for j in range(0, args.n_count, V):
                        n = min(V, args.n_count - j)
                        store_some(to + j * SIZE, add_parts(here + j * WIDE, args.parts, args.part_bytes, n), n)
            row += count

    return {"sums": sums, "finish": finish}
