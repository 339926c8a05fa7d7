"""Filter gradient with vectors over output channels: tiles of input channels by output channels, summed over output cells.

A piece owns a range of input channels, a range of output channels and a part of the cells, and takes its cells block by block. x
and dy are read in place, and while a block is summed the next one is prefetched. Packed are: what must be widened, vectors that
would reach past the channels of a cell, dy in channels_first, and x where its cells would crowd a few sets of a cache. Cells whose
tap falls outside x are left out, not multiplied by zero. The sums of all parts are added in order by a second job.

Few input channels would not fill a tile. Then (`merged` > 1) the taps of a row, whose cells lie side by side, count as channels; a
packed x is padded with zeros, which a dy that is not finite turns into sums that are not. For such a dy the table of taps has
entries of their own for the outputs at the ends of a row, with the taps that meet a cell there.

With lanes of pairs, cells of a row are multiplied two at a time, all of a row for each tap: zeros beside x and past the last cell.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.conv.cell_pairs_kernel import make_pack_cell_pairs
from pullback.cpu.conv.records import (
    LONGEST_K_BLOCK,
    SHORTEST_K_BLOCK,
    TRANSPOSED_ROWS,
    FilterGradientFinish,
    FilterGradientSums,
    FilterTap,
    Runs,
)
from pullback.cpu.conv.source_kernel import make_pack_row, places_inside
from pullback.cpu.engine.sizes import tile_rows
from pullback.cpu.simd.native import LINE
from pullback.cpu.simd.record_types import records_at
from pullback.cpu.simd.register_tiles import make_tiles
from pullback.cpu.simd.transpose import make_transpose
from pullback.cpu.simd.vectors import inline, outline, put_int, stay_outline

tap_at, runs_at = records_at(FilterTap), records_at(Runs)


def build(lanes: Any, channels_first: bool) -> dict[str, Any]:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    load, load_some, store_some, load_wide_some = lanes.load, lanes.load_some, lanes.store_some, lanes.load_wide_some
    store_wide, splat = lanes.store_wide, lanes.splat
    PAIRS = lanes.pairs
    pack_row = make_pack_row(lanes, channels_first=channels_first)
    pack_pairs, pack_pair_panel = make_pack_cell_pairs(lanes, channels_first=channels_first)
    transpose, transpose_back = make_transpose(lanes, widen=True), make_transpose(lanes, widen=False)
    ROWS, TALL = tile_rows(), tile_rows(1)
    tiles2, tiles1 = make_tiles(lanes, ROWS, 2), make_tiles(lanes, TALL, 1)

    @outline
    def pack_panel(source, channel_bytes, cell_bytes, cells, n, target, width):
        """A run of cells, `width` channels of each side by side; channels past n are zeros, though never stored: what scratch
        held may be denormal as numbers, each of which costs some CPUs a hundred cycles.
        """
        stay_outline()
        if channels_first:
            if n < width:
                zero = splat(0.0)
                for q in range(cells):
                    for j in range(n // V * V, width, V):
                        store_wide(target + (q * width + j) * WIDE, zero, V)
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
    def list_lines(runs, table):
        """Write the offsets of the lines of some runs of memory into a table; how many there are."""
        count = 0
        for i in range(runs.outer):
            for j in range(runs.inner):
                place = i * runs.outer_pitch + j * runs.inner_pitch
                for at in range(place, place + runs.bytes, LINE):
                    put_int(table + 8 * count, at)
                    count += 1
        return count

    @inline
    def tile_channels(channels, a, b, width, c, k, step, steps, ahead):
        """All input channels of a piece, in tiles of nearly equal height; meanwhile a part of the next block is prefetched.

        ahead = (x, lines of it, dy, lines of it, table of lines); step of `steps`: which part.
        """
        (a_base, a_at, a_row, a_step), (c_base, c_row, n, how) = a, c
        ahead_x, x_lines, ahead_y, y_lines, lines_at = ahead
        most = TALL if width <= V else ROWS
        parts = (channels + most - 1) // most
        least, more = channels // parts, channels % parts
        lines = x_lines + y_lines
        for part in range(parts):
            rows = least + 1 if part < more else least
            begin = lines * (step * parts + part) // (steps * parts)
            end = lines * (step * parts + part + 1) // (steps * parts)
            base = ahead_x if begin < x_lines else ahead_y
            end = min(end, x_lines) if begin < x_lines else end
            each = (end - begin + k[0] - 1) // max(1, k[0])
            fetched = (base, lines_at + 8 * begin, each)
            if width > V:
                tiles2(rows, (a_base, a_at, a_row, a_step), b, (c_base, c_row, n, how), k, fetched)
            else:
                tiles1(rows, (a_base, a_at, a_row, a_step), b, (c_base, c_row, n, how), k, fetched)
            a_base += rows * a_row
            c_base += rows * c_row

    @outline
    def sum_taps(args, x, channels, first_n, last_n, dy, scratch, block, sums, adds, ahead):
        """Every tap over the cells of a block.

        x = (address, pitches of images, planes, rows, cells and channels). dy: the block's cells where they are; vectors that would
        reach past a cell's channels are in panels instead. block = (images, first row and end, first column and end).
        """
        stay_outline()
        (x_base, x_image, x_plane, x_row, x_cell, x_channel), (images, h0, h1, w0, w1) = x, block
        a_at = scratch + args.table_start
        y_at, cell_at = a_at + args.table_bytes, a_at + 2 * args.table_bytes
        blocks = (last_n - first_n + 2 * V - 1) // (2 * V)
        for t in range(args.taps):
            tap = tap_at(args.tap_table, t)
            row0, row1 = max(h0, tap.first_h), min(h1, tap.last_h)
            col0, col1 = max(w0, tap.first_w), min(w1, tap.last_w)
            count, depth, row_terms = 0, col1 - col0, w1 - w0
            if PAIRS:
                depth, row_terms = (depth + 1) // 2, (row_terms + 1) // 2
            if ahead[1]:  # the shorter the k-blocks, the more evenly spread
                for length in range(LONGEST_K_BLOCK, SHORTEST_K_BLOCK - 1, -1):
                    if depth % length == 0:
                        depth = length
                        break
            for i in range(images if col1 > col0 else 0):
                for d in range(tap.first_d, tap.last_d):
                    for h in range(row0, row1):
                        x_place = (
                            i * x_image + (d * args.hop_d + tap.place_d) * x_plane + (h * args.hop_h + tap.place_h) * x_row
                        )
                        y_place = i * args.y_image + d * args.y_plane + (h - h0) * args.y_row
                        cell = ((i * args.depths + d) * (h1 - h0) + h - h0) * row_terms - w0
                        for col in range(col0, col1 if not PAIRS else col0 + 1, depth):
                            put_int(a_at + 8 * count, x_place + (col * args.hop_w + tap.place_w) * x_cell)
                            put_int(y_at + 8 * count, y_place + (col - w0) * args.y_cell)
                            put_int(cell_at + 8 * count, cell + col)
                            count += 1
            a = (x_base, a_at, x_channel, (2 if PAIRS else 1) * args.hop_w * x_cell)
            made = sums + tap.number * args.sums_tap + tap.first_row * args.sums_row
            for number in range(blocks):
                n0 = first_n + number * 2 * V
                width = min(2 * V, args.padded_channels - n0)
                b = (dy + n0 * WIDE, y_at, 1, args.y_cell)
                if not args.dy_in_place or n0 + width > args.out_channels:
                    b = (scratch + args.panel_start + number * args.panel_bytes, cell_at, width * WIDE, width * WIDE)
                c = (made + n0 * WIDE, args.sums_row, min(2 * V, last_n - n0), adds | tap.adds)
                step, steps = t * blocks + number, args.taps * blocks
                tile_channels(min(tap.rows, channels - tap.first_row), a, b, width, c, (count, depth), step, steps, ahead)

    @inline
    def block_of(args, number):
        """Images, rows and columns of a block begin here."""
        w0, rest = number % args.col_blocks * args.block_cols, number // args.col_blocks
        return rest // args.row_blocks * args.block_images, rest % args.row_blocks * args.block_rows, w0

    @inline
    def pack_dy(args, scratch, here, block, first_n, last_n):
        """The blocks of output channels of dy that are not read in place, into panels."""
        images, h0, h1, w0, w1 = block
        together = w1 - w0 == args.cols and (not PAIRS or args.cols % 2 == 0)  # no pair has cells of two rows
        run, runs = ((h1 - h0) * args.cols, 1) if together else (w1 - w0, h1 - h0)
        for n0 in range(first_n, last_n, 2 * V):
            width = min(2 * V, args.padded_channels - n0)
            if not args.dy_in_place or n0 + width > args.out_channels:
                panel = scratch + args.panel_start + (n0 - first_n) // (2 * V) * args.panel_bytes
                for i in range(images):
                    for d in range(args.depths):
                        for h in range(runs):
                            line = here + i * args.y_image + d * args.y_plane + h * args.y_row + n0 * args.y_channel
                            some = min(2 * V, last_n - n0)
                            if PAIRS:
                                pack_pair_panel(line, args.y_channel, args.y_cell, run, some, panel, width)
                                panel += (run + 1) // 2 * width * WIDE
                            else:
                                pack_panel(line, args.y_channel, args.y_cell, run, some, panel, width)
                                panel += run * width * WIDE

    @inline
    def pack_x(args, scratch, cells, i0, block, channels):
        """The cells of x that a block reads, with their halo, into scratch."""
        images, h0, h1, w0, w1 = block
        top, left, places = (
            h0 * args.step_h + args.low_h,
            w0 * args.step_w + args.low_w,
            (w1 - w0 - 1) * args.hop_w + args.reach_w,
        )
        pitches = (args.x_channel, args.x_cell, args.place_bytes)
        inside = places_inside(args.in_cols, left, args.grid_w, places)
        for i in range(images):
            for d in range(args.in_depth):
                for h in range((h1 - h0 - 1) * args.hop_h + args.reach_h):
                    row = top + h * args.grid_h
                    if 0 <= row < args.in_rows:
                        source = cells + (i0 + i) * args.x_image + d * args.x_plane + row * args.x_row
                        to = scratch + i * args.volume_bytes + d * args.plane_bytes + h * args.line_bytes
                        if PAIRS:
                            every = 1 if args.reach_w > 1 else 2
                            pack_pairs(
                                source, pitches, args.in_cols, left, args.grid_w, places, channels, to, args.step_w, every
                            )  # fmt: skip
                        else:
                            pack_row(source, pitches, inside, left, args.grid_w, places, channels, to)

    @inline
    def next_block(args, piece, number, end):
        """(where x and dy of the next block begin, 1 or 0 if there is none): of this piece, or likely this thread's next."""
        if number + 1 == end:
            piece += 1
            number = piece // (args.n_ranges * args.channel_ranges * args.groups) * args.part_blocks
        else:
            number += 1
        rest = piece // args.n_ranges
        channel, group = rest % args.channel_ranges * args.range_channels, rest // args.channel_ranges % args.groups
        i0, h0, w0 = block_of(args, number)
        left, top = max(0, w0 * args.step_w + args.low_w), max(0, h0 * args.step_h + args.low_h)
        x = args.x + (group * args.x_channels + channel) * args.x_channel
        x += i0 * args.x_image + top * args.x_row + left * args.x_cell
        dy = args.dy + (group * args.out_channels + piece % args.n_ranges * args.range_blocks * 2 * V) * args.y_channel
        dy += i0 * args.y_image + h0 * args.y_row + w0 * args.y_cell
        return x, dy, int(number < args.blocks)

    def sums(args: FilterGradientSums, piece, scratch):
        n_range, rest = piece % args.n_ranges, piece // args.n_ranges
        c0, rest = rest % args.channel_ranges * args.range_channels, rest // args.channel_ranges
        group, part = rest % args.groups, rest // args.groups
        size = min(args.range_channels, args.channels - c0)
        first_n = n_range * args.range_blocks * 2 * V
        last_n = min(args.out_channels, first_n + args.range_blocks * 2 * V)
        to = args.target + part * args.sums_part + group * args.sums_group + c0 * args.sums_row
        cells = args.x + (group * args.x_channels + c0) * args.x_channel
        source = args.dy + group * args.out_channels * args.y_channel
        lines_at, x_lines, y_lines = scratch + args.table_start + 3 * args.table_bytes, 0, 0
        if args.prefetches:
            x_lines = list_lines(runs_at(args.block_runs, 0), lines_at)
            y_lines = list_lines(runs_at(args.block_runs, 1), lines_at + 8 * x_lines)
        begin, end = part * args.part_blocks, min(args.blocks, part * args.part_blocks + args.part_blocks)
        for number in range(begin, end):
            i0, h0, w0 = block_of(args, number)
            h1, w1 = min(args.rows, h0 + args.block_rows), min(args.cols, w0 + args.block_cols)
            block = (min(args.images - i0, args.block_images), h0, h1, w0, w1)
            here = source + i0 * args.y_image + h0 * args.y_row + w0 * args.y_cell
            pack_dy(args, scratch, here, block, first_n, last_n)
            x = (cells + i0 * args.x_image, args.x_image, args.x_plane, args.x_row, args.x_cell, args.x_channel)
            if not args.in_place:
                pack_x(args, scratch, cells, i0, block, size // args.merged)
                base = scratch - h0 * args.hop_h * args.line_bytes - w0 * args.hop_w * args.place_bytes
                x = (base, args.volume_bytes, args.plane_bytes, args.line_bytes, args.place_bytes, WIDE)
            ahead = (0, 0, 0, 0, lines_at)
            if args.prefetches:
                ahead_x, ahead_y, exists = next_block(args, piece, number, end)
                ahead = (ahead_x, exists * x_lines, ahead_y, exists * y_lines, lines_at)
            sum_taps(args, x, size, first_n, last_n, here, scratch, block, to, number > begin, ahead)

    @inline
    def add_parts(place, parts, part_bytes, n):
        value = load_wide_some(place, n)
        for p in range(1, parts):
            value = value + load_wide_some(place + p * part_bytes, n)
        return value

    def finish(args: FilterGradientFinish, piece, scratch):
        """The parts added up, then stored as the layout has it. Sums are (group, tap, channel, n) in wide elements."""
        row_bytes = args.out_channels * WIDE
        row, end = piece * args.rows_each, min(args.groups * args.channels, piece * args.rows_each + args.rows_each)
        while row < end:
            group, c = row // args.channels, row % args.channels
            count = min(end - row, args.channels - c, max(1, TRANSPOSED_ROWS // args.taps)) if channels_first else 1
            line = args.sums + (group * args.taps * args.channels + c) * row_bytes
            if channels_first:  # a block of sums with its channels and taps side by side is transposed at once
                for t0 in range(0, args.taps, TRANSPOSED_ROWS):
                    some_taps = min(TRANSPOSED_ROWS, args.taps - t0)
                    for j0 in range(0, args.out_channels, 4 * V):
                        width = min(4 * V, args.out_channels - j0)
                        for k in range(count):
                            for t in range(some_taps):
                                here = line + ((t0 + t) * args.channels + k) * row_bytes + j0 * WIDE
                                for j in range(0, width, V):
                                    value = add_parts(here + j * WIDE, args.parts, args.part_bytes, min(V, width - j))
                                    store_wide(scratch + ((k * some_taps + t) * 4 * V + j) * WIDE, value, V)
                        to = args.target + (((group * args.out_channels + j0) * args.channels + c) * args.taps + t0) * SIZE
                        transpose_back(scratch, 4 * V * WIDE, to, args.channels * args.taps * SIZE, count * some_taps, width)
            else:
                for t in range(args.taps):
                    here = line + t * args.channels * row_bytes
                    to = args.target + ((t * args.channels + c) * args.groups + group) * args.out_channels * SIZE
                    for j in range(0, args.out_channels, V):
                        n = min(V, args.out_channels - j)
                        store_some(to + j * SIZE, add_parts(here + j * WIDE, args.parts, args.part_bytes, n), n)
            row += count

    return {"sums": sums, "finish": finish}
