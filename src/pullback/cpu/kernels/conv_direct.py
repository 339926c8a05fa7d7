"""Direct convolution with vectors over the produced channels: tiles of target cells by channels, summed over (tap, channel).

A piece is a block of base positions (see conv_sweep) and a range of produced channels. Its source cells are packed into scratch,
a block of channels at a time, or read in place where nothing is padded. Results go straight to the target, or through a block in
scratch where they must be narrowed or turned into channels_first.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.kernels.conv_area import make_area
from pullback.cpu.kernels.native import fence
from pullback.cpu.kernels.runs import make_runs
from pullback.cpu.kernels.tiles import ADDED, FRESH, STREAMED, make_asking_tiles, tile_size
from pullback.cpu.kernels.transpose import make_transpose
from pullback.cpu.kernels.vectors import get_int, inline, outline, stay_outline

# Words of a phase: how many bases it has and where its target cells start, by axis; taps of earlier phases, its own taps; the class
# of each depth; the lists of taps by (depth, row, column) class; classes of rows and how many there are, the same of columns.
PHASE_WORDS = 14

NO_CELLS = -(1 << 40)  # the width of a row that lies outside: no cell of it is inside


def build(lanes: Any, first: bool) -> dict[str, Any]:
    V, WIDE = lanes.count, lanes.compute_size
    _, narrow_run = make_runs(lanes)
    pack_row = make_area(lanes, first=first)
    turn_back = make_transpose(lanes, widen=False)
    ROWS = tile_size(lanes, 2)
    tiles2, tiles1 = make_asking_tiles(lanes, ROWS, 2), make_asking_tiles(lanes, ROWS, 1)

    @inline
    def tile_run(cells, a, taps, depth, a_row, b, term, terms, c, c_row, n, how, ahead_table, lines):
        """A run of target cells that the same taps make, in tiles of nearly equal height. `taps`: count, offsets, numbers.

        All n channels of the same cells are made before the next cells: so cells are written as long runs, and the next ones can
        be asked for while these are summed: each stretch of terms asks for `lines` lines of the table.
        """
        count, a_at = get_int(taps), taps + 8
        b_at = a_at + 8 * count
        parts = (cells + ROWS - 1) // ROWS
        least, more = cells // parts, cells % parts
        for part in range(parts):
            rows = least + 1 if part < more else least
            ahead, asked = a + rows * a_row, ahead_table
            for n0 in range(0, n, 2 * V):
                panel, to, some = b + n0 * terms * WIDE, c + n0 * WIDE, min(2 * V, n - n0)
                step = 2 * V * WIDE if some > V else V * WIDE
                panel += term * step
                if some > V:
                    tiles2(
                        rows, a, a_at, count, depth, a_row, WIDE, panel, b_at, depth * step, step, to, c_row, some, how,
                        ahead, asked, lines,
                    )  # fmt: skip
                else:
                    tiles1(
                        rows, a, a_at, count, depth, a_row, WIDE, panel, b_at, depth * step, step, to, c_row, some, how,
                        ahead, asked, lines,
                    )  # fmt: skip
                asked += 8 * count * lines
            a += rows * a_row
            c += rows * c_row

    @outline
    def tile_block(
        images, row0, row1, col0, col1, lists, row_class, row_kinds, col_class, col_kinds, by_images, area, image_bytes,
        row_bytes, col_bytes, depth, b, term, terms, c, c_image, c_row, c_col, n, how, ahead_table, lines,
    ):  # fmt: skip
        """All cells of one phase in a block. Runs are rows of cells, or (by_images) one cell of each image.

        Bases at the ends of an axis are made by fewer taps; a class of bases by each list of them. A run along a row must have all
        its taps, the missing cells being zeros.
        """
        stay_outline()
        if by_images:
            for h in range(row0, row1):
                line = lists + 8 * col_kinds * get_int(row_class + 8 * h)
                for w in range(col0, col1):
                    taps = get_int(line + 8 * get_int(col_class + 8 * w))
                    tile_run(
                        images, area + (h - row0) * row_bytes + (w - col0) * col_bytes, taps, depth,
                         image_bytes, b, term, terms, c + (h - row0) * c_row + (w - col0) * c_col, c_image, n, how, 0, 0,
                    )  # fmt: skip
        else:
            for i in range(images):
                for h in range(row0, row1):
                    taps = get_int(lists + 8 * get_int(row_class + 8 * h))
                    tile_run(
                        col1 - col0, area + i * image_bytes + (h - row0) * row_bytes, taps, depth,
                         col_bytes, b, term, terms, c + i * c_image + (h - row0) * c_row, c_col, n, how, ahead_table, lines,
                    )  # fmt: skip

    def sweep(
        piece, scratch, source, target, packed,
        groups, ranges, range_blocks, depths, row_blocks, col_blocks, block_images, block_rows, block_cols,
        images, rows, cols, in_depth, in_rows, in_cols, source_cell, source_channel, source_row, source_plane, source_image,
        source_group, step_d, step_h, step_w, low_d, low_h, low_w, grid_d, grid_h, grid_w, hop_h, hop_w, reach_d, reach_h,
        reach_w,
        in_place, place_bytes, line_bytes, plane_bytes, volume_bytes, base_row, base_col, channels, block_channels, merged,
        n_count, n_padded, terms, phases, phase_table, by_images, panels, stream, stretch, ahead_table, lines,
        out_depth, out_rows, out_cols, to_d, to_h, to_w, target_cell, target_row, target_plane, target_image, target_group,
        target_channel, buffered, buffer_start, buffer_n,
    ):  # fmt: skip
        n_range, rest = piece % ranges, piece // ranges
        group, rest = rest % groups, rest // groups
        w0, rest = rest % col_blocks * block_cols, rest // col_blocks
        h0, rest = rest % row_blocks * block_rows, rest // row_blocks
        d0, i0 = rest % depths, rest // depths * block_images
        i1, h1, w1 = min(images, i0 + block_images), min(rows, h0 + block_rows), min(cols, w0 + block_cols)
        x = source + group * source_group + i0 * source_image
        # The target cells of the block: in the target, or in scratch with the channels of a cell side by side.
        td0, th0, tw0 = d0 * to_d, h0 * to_h, w0 * to_w
        td1, th1, tw1 = min(out_depth, td0 + to_d), min(out_rows, h1 * to_h), min(out_cols, w1 * to_w)
        origin = target + group * target_group + i0 * target_image + td0 * target_plane + th0 * target_row + tw0 * target_cell
        if buffered:
            c_cell = buffer_n * WIDE
            c_row = (tw1 - tw0) * c_cell
            c_plane = (th1 - th0) * c_row
            c_image = (td1 - td0) * c_plane
            c_base = scratch + buffer_start
        else:
            c_cell, c_row, c_plane, c_image, c_base = target_cell, target_row, target_plane, target_image, origin
        first_n = n_range * range_blocks * 2 * V
        last_n = min(n_count, first_n + range_blocks * 2 * V)
        for c0 in range(0, channels, block_channels):
            size = min(block_channels, channels - c0)
            last_block = c0 + size == channels
            if in_place:
                area = x + (d0 * step_d + low_d) * source_plane + (h0 * step_h + low_h) * source_row
                area += (w0 * step_w + low_w) * source_cell + c0 * source_channel
            else:
                area = scratch
                for i in range(i1 - i0):
                    for d in range(reach_d):
                        depth = d0 * step_d + low_d + d * grid_d
                        for h in range((h1 - h0 - 1) * hop_h + reach_h):
                            row = h0 * step_h + low_h + h * grid_h
                            inside = 0 <= depth < in_depth and 0 <= row < in_rows
                            pack_row(
                                x + i * source_image + depth * source_plane + row * source_row + c0 * source_channel,
                                source_channel, source_cell, in_cols if inside else NO_CELLS, w0 * step_w + low_w, grid_w,
                                (w1 - w0 - 1) * hop_w + reach_w, size,
                                area + i * volume_bytes + d * plane_bytes + h * line_bytes, place_bytes,
                            )  # fmt: skip
            for n0 in range(first_n, last_n, panels * 2 * V):
                n = min(panels * 2 * V, last_n - n0)
                panel = packed + (group * n_padded + n0) * terms * WIDE
                c_block = c_base
                if not buffered:
                    c_block += n0 * WIDE
                elif buffer_n > 2 * V:
                    c_block += (n0 - first_n) * WIDE
                for p in range(phases):
                    words = phase_table + 8 * PHASE_WORDS * p
                    row1, col1 = min(h1, get_int(words + 8)), min(w1, get_int(words + 16))
                    if d0 < get_int(words) and row1 > h0 and col1 > w0:
                        cell = (
                            c_block + get_int(words + 24) * c_plane + get_int(words + 32) * c_row + get_int(words + 40) * c_cell
                        )
                        term = get_int(words + 48) * channels + get_int(words + 56) * c0
                        kind = get_int(get_int(words + 64) + 8 * d0)
                        lists = get_int(words + 72) + 8 * kind * get_int(words + 88) * get_int(words + 104)
                        tile_block(
                            i1 - i0, h0, row1, w0, col1, lists, get_int(words + 80), get_int(words + 88),
                            get_int(words + 96), get_int(words + 104), by_images,
                            area, volume_bytes, base_row, base_col, stretch if stretch else size * merged, panel, term, terms,
                            cell, c_image, to_h * c_row, to_w * c_cell, n, ADDED if c0 > 0 else STREAMED if stream else FRESH,
                            ahead_table, lines,
                        )  # fmt: skip
                if buffered and last_block:
                    # On its way out: whole planes at once where rows follow each other, else row by row.
                    run_rows = th1 - th0 if first and tw1 - tw0 == out_cols else 1
                    for i in range(i1 - i0):
                        for d in range(td1 - td0):
                            for h in range(0, th1 - th0, run_rows):
                                made = c_block + i * c_image + d * c_plane + h * c_row
                                out = origin + i * target_image + d * target_plane + h * target_row + n0 * target_channel
                                if first:
                                    turn_back(made, c_cell, out, target_channel, run_rows * (tw1 - tw0), n)
                                else:
                                    for w in range(tw1 - tw0):
                                        narrow_run(made + w * c_cell, out + w * target_cell, n)
        if stream:
            fence()

    return {"sweep": sweep}
