"""Filter gradient with vectors over output channels: tiles of input channels by output channels, summed over output cells.

A piece owns a range of input channels, a range of output channels and a part of the cells. It takes its cells block by block: dy
is packed into panels of vectors, x is read in place, or packed where it must be widened or lies in channels_first. Cells whose
tap falls outside x are left out, not multiplied by zero. The sums of all parts are added in order by a second job.

Few input channels would not fill a tile. Then (`merged` > 1) the taps of a row, whose cells lie side by side, count as channels; x
is padded with zeros, which a dy that is not finite turns into sums that are not.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.kernels.conv_area import make_area
from pullback.cpu.kernels.native import LINE, prefetch
from pullback.cpu.kernels.tiles import make_table_tiles, tile_size
from pullback.cpu.kernels.transpose import make_transpose
from pullback.cpu.kernels.vectors import get_int, inline, outline, put_int, stay_outline


def build(lanes: Any, first: bool) -> dict[str, Any]:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    load, load_some, store_some, load_wide_some = lanes.load, lanes.load_some, lanes.store_some, lanes.load_wide_some
    store_wide, store_wide_some = lanes.store_wide, lanes.store_wide_some
    pack_row = make_area(lanes, first=first)
    transpose, turn_back = make_transpose(lanes, widen=True), make_transpose(lanes, widen=False)
    ROWS = tile_size(lanes, 2)
    tiles2, tiles1 = make_table_tiles(lanes, ROWS, 2), make_table_tiles(lanes, ROWS, 1)

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
    def tile_channels(
        channels, a, a_at, count, depth, a_row, a_step, b, b_at, b_step, width, c, c_row, n, add, ahead, ahead_bytes
    ):  # fmt: skip
        """All input channels of a piece, in tiles of nearly equal height; `ahead_bytes` that come next are asked for meanwhile."""
        parts = (channels + ROWS - 1) // ROWS
        least, more = channels // parts, channels % parts
        for part in range(parts):
            rows = least + 1 if part < more else least
            for at in range(ahead_bytes * part // parts, ahead_bytes * (part + 1) // parts, LINE):
                prefetch(ahead + at)
            if width > V:
                tiles2(rows, a, a_at, count, depth, a_row, a_step, b, b_at, 1, b_step, c, c_row, n, add)
            else:
                tiles1(rows, a, a_at, count, depth, a_row, a_step, b, b_at, 1, b_step, c, c_row, n, add)
            a += rows * a_row
            c += rows * c_row

    @outline
    def sum_taps(
        x, channels, first_n, last_n, panels, panel_bytes, n_padded, tables, images, h0, h1, w0, w1, hop_d, hop_h, hop_w,
        x_image, x_plane, x_row, x_cell, x_channel, taps, tap_table, y_image, y_plane, y_row, y_cell, sums, c_tap, c_row, add,
        ahead, ahead_bytes,
    ):  # fmt: skip
        """Every tap over the cells of a block. tap_table: first place, first and last output by axis.

        y_*: distances in dy in bytes, or, with y_cell = 0, in cells of packed panels. ahead: what the next block will read.
        """
        stay_outline()
        steps = taps * ((last_n - first_n + 2 * V - 1) // (2 * V))
        each = ahead_bytes // steps
        for t in range(taps):
            words = tap_table + 72 * t
            off_d, off_h, off_w = get_int(words), get_int(words + 24), get_int(words + 48)
            row0, row1 = max(h0, get_int(words + 32)), min(h1, get_int(words + 40))
            col0, col1 = max(w0, get_int(words + 56)), min(w1, get_int(words + 64))
            count = 0
            for i in range(images if col1 > col0 else 0):
                for d in range(get_int(words + 8), get_int(words + 16)):
                    for h in range(row0, row1):
                        place = i * x_image + (d * hop_d + off_d) * x_plane + (h * hop_h + off_h) * x_row
                        put_int(tables + 16 * count, place + (col0 * hop_w + off_w) * x_cell)
                        place = i * y_image + d * y_plane + (h - h0) * y_row
                        put_int(tables + 16 * count + 8, place + (col0 - w0) * max(1, y_cell))
                        count += 1
            b_at = tables + 16 * count
            a_at = b_at + 8 * count
            for n0 in range(first_n, last_n, 2 * V):
                width = min(2 * V, n_padded - n0)
                unit = 1 if y_cell else width * WIDE
                for e in range(count):
                    put_int(a_at + 8 * e, get_int(tables + 16 * e))
                    put_int(b_at + 8 * e, get_int(tables + 16 * e + 8) * unit)
                panel = panels + (n0 * WIDE if y_cell else (n0 - first_n) // (2 * V) * panel_bytes)
                tile_channels(
                    channels, x, a_at, count, col1 - col0, x_channel, hop_w * x_cell, panel, b_at, max(unit, y_cell), width,
                    sums + t * c_tap + n0 * WIDE, c_row, min(2 * V, last_n - n0), add,
                    ahead, each,
                )  # fmt: skip
                ahead += each

    def sums(
        piece, scratch, x, dy, target, groups, channel_ranges, range_channels, n_ranges, range_blocks, part_blocks, blocks,
        row_blocks, col_blocks, block_images, block_rows, block_cols, images, depths, rows, cols, in_depth, in_rows, in_cols,
        x_image, x_plane, x_row, x_cell, x_channel, y_image, y_plane, y_row, y_cell, y_channel, step_h, step_w,
        hop_d, hop_h, hop_w, channels, n_count, n_padded, taps, tap_table, in_place, low_h, low_w, grid_h, grid_w, reach_h,
        reach_w, place_bytes, line_bytes, plane_bytes, volume_bytes, panel_start, panel_bytes, table_start,
        c_part, c_group, c_tap, c_row, merged, x_channels, dy_in_place, fetch,
    ):  # fmt: skip
        n_range, rest = piece % n_ranges, piece // n_ranges
        c0, rest = rest % channel_ranges * range_channels, rest // channel_ranges
        group, part = rest % groups, rest // groups
        size = min(range_channels, channels - c0)
        first_n = n_range * range_blocks * 2 * V
        last_n = min(n_count, first_n + range_blocks * 2 * V)
        to = target + part * c_part + group * c_group + c0 * c_row
        cells = x + (group * x_channels + c0) * x_channel
        source = dy + group * n_count * y_channel
        tables = scratch + table_start
        for block in range(part * part_blocks, min(blocks, part * part_blocks + part_blocks)):
            w0, rest = block % col_blocks * block_cols, block // col_blocks
            h0, i0 = rest % row_blocks * block_rows, rest // row_blocks * block_images
            i1, h1, w1 = min(images, i0 + block_images), min(rows, h0 + block_rows), min(cols, w0 + block_cols)
            if dy_in_place:
                panels = source + i0 * y_image + h0 * y_row + w0 * y_cell
                p_cell, p_row, p_plane, p_image = y_cell, y_row, y_plane, y_image
            else:
                panels = scratch + panel_start
                p_cell, p_row, p_plane = 0, w1 - w0, (h1 - h0) * (w1 - w0)
                p_image = depths * p_plane
                for n0 in range(first_n, last_n, 2 * V):
                    width = min(2 * V, n_padded - n0)
                    panel = panels + (n0 - first_n) // (2 * V) * panel_bytes
                    for i in range(i0, i1):
                        for d in range(depths):
                            for h in range(h0, h1):
                                line = source + i * y_image + d * y_plane + h * y_row + w0 * y_cell + n0 * y_channel
                                pack_panel(line, y_channel, y_cell, w1 - w0, min(2 * V, last_n - n0), panel, width)
                                panel += (w1 - w0) * width * WIDE
            if in_place:
                a, a_image, a_plane, a_row, a_cell, a_channel = cells + i0 * x_image, x_image, x_plane, x_row, x_cell, x_channel
            else:
                a = scratch - h0 * hop_h * line_bytes - w0 * hop_w * place_bytes
                a_image, a_plane, a_row, a_cell, a_channel = volume_bytes, plane_bytes, line_bytes, place_bytes, WIDE
                top, left = h0 * step_h + low_h, w0 * step_w + low_w
                for i in range(i1 - i0):
                    for d in range(in_depth):
                        for h in range((h1 - h0 - 1) * hop_h + reach_h):
                            row = top + h * grid_h
                            if 0 <= row < in_rows:
                                pack_row(
                                    cells + (i0 + i) * x_image + d * x_plane + row * x_row, x_channel, x_cell, in_cols, left,
                                    grid_w, (w1 - w0 - 1) * hop_w + reach_w, size // merged,
                                    scratch + i * volume_bytes + d * plane_bytes + h * line_bytes, place_bytes,
                                )  # fmt: skip
            ahead, ahead_bytes = 0, 0
            if fetch and block + 1 < min(blocks, part * part_blocks + part_blocks):
                next_w, rest = (block + 1) % col_blocks * block_cols, (block + 1) // col_blocks
                next_h, next_i = rest % row_blocks * block_rows, rest // row_blocks * block_images
                ahead = source + next_i * y_image + next_h * y_row + next_w * y_cell
                ahead_bytes = (block_images - 1) * y_image + (block_rows - 1) * y_row + block_cols * y_cell
            sum_taps(
                a, size, first_n, last_n, panels, panel_bytes, n_padded, tables, i1 - i0, h0, h1, w0, w1, hop_d, hop_h, hop_w,
                a_image, a_plane, a_row, a_cell, a_channel, taps, tap_table, p_image, p_plane, p_row, p_cell, to, c_tap, c_row,
                block > part * part_blocks, ahead, ahead_bytes,
            )  # fmt: skip

    def finish(piece, scratch, sums, target, parts, part_bytes, rows_each, groups, channels, n_count, taps):
        """The parts added up in order, then stored as the layout has it. Sums are (group, tap, channel, n) in wide elements."""
        row_bytes = n_count * WIDE
        total = groups * channels
        for row in range(piece * rows_each, min(total, piece * rows_each + rows_each)):
            group, c = row // channels, row % channels
            line = sums + (group * taps * channels + c) * row_bytes
            for t in range(taps):
                here = line + t * channels * row_bytes
                for j in range(0, n_count, V):
                    n = min(V, n_count - j)
                    value = load_wide_some(here + j * WIDE, n)
                    for p in range(1, parts):
                        value = value + load_wide_some(here + p * part_bytes + j * WIDE, n)
                    if first:
                        if parts > 1:
                            store_wide_some(here + j * WIDE, value, n)
                    else:
                        store_some(target + ((t * channels + c) * groups * n_count + group * n_count + j) * SIZE, value, n)
            if first:
                to = target + (group * n_count * channels + c) * taps * SIZE
                turn_back(line, channels * row_bytes, to, channels * taps * SIZE, taps, n_count)

    return {"sums": sums, "finish": finish}
