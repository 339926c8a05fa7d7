"""Direct convolution with vectors over the produced channels: tiles of target cells by channels, summed over (tap, channel).

A piece is a block of base positions (see conv_sweep) and a range of produced channels. Its source cells are packed into scratch,
a block of channels at a time (tap by tap, where these lie far apart), or read in place where nothing is padded. Results go straight
to the target, or through a block in scratch where they must be narrowed or turned into channels_first.

Taps above, below and beside the source are left out, but for those of a run along a row, which meet zeros there. Where weights are
not finite, and so must not meet them, a row is cut into runs of cells with the same taps.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.conv.records import DirectSweep
from pullback.cpu.conv.source_kernel import make_area
from pullback.cpu.conv.tap_ranges_kernel import AXIS_WORDS, tap_place, tap_range, whole_range
from pullback.cpu.simd.native import fence
from pullback.cpu.simd.register_tiles import ADDED, FRESH, STREAMED, make_asking_tiles, tile_size
from pullback.cpu.simd.runs import make_runs
from pullback.cpu.simd.transpose import make_transpose
from pullback.cpu.simd.vectors import any_lane, equal, get_int, inline, invert, outline, put_int, stay_outline

# Words of a phase: how many bases it has and where its target cells start, by axis; taps of earlier phases, its own taps; the words
# of each axis (tap_ranges).
AXES = 8 * 8
AXIS = 8 * AXIS_WORDS
PHASE = AXES + 3 * AXIS

# A run of target cells is a row with zeros beyond its ends, a part of a row that the same taps make, or one cell of each image.
ROWS_OF_CELLS, PARTS_OF_ROWS, CELLS_OF_IMAGES = 0, 1, 2

NO_CELLS = -(1 << 40)  # the width of a row that lies outside: no cell of it is inside


def build(lanes: Any, first: bool) -> dict[str, Any]:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    load_some, splat = lanes.load_some, lanes.splat
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
    def list_taps(table, axes, columns, d0, d1, h0, h1, w0, w1, cuts, cut_bytes):
        """The list of some taps as tile_run takes it; each tap may be cut into several, which begin so many bytes further."""
        stay_outline()
        count = (d1 - d0) * (h1 - h0) * (w1 - w0) * cuts
        put_int(table, count)
        place, number = table + 8, table + 8 + 8 * count
        for a in range(d0, d1):
            for b in range(h0, h1):
                row = tap_place(axes, a) + tap_place(axes + AXIS, b)
                for c in range(w0, w1):
                    for i in range(cuts):
                        put_int(place, row + tap_place(axes + 2 * AXIS, c) + i * cut_bytes)
                        put_int(number, ((a * get_int(axes + AXIS) + b) * columns + c) * cuts + i)
                        place += 8
                        number += 8

    @inline
    def is_listed(slot, h0, h1, w0, w1):
        """Whether a slot holds the list of these taps; if not, it is going to."""
        if get_int(slot) == h0 and get_int(slot + 8) == h1 and get_int(slot + 16) == w0 and get_int(slot + 24) == w1:
            return True
        put_int(slot, h0)
        put_int(slot + 8, h1)
        put_int(slot + 16, w0)
        put_int(slot + 24, w1)
        return False

    @outline
    def tile_block(
        images, row0, row1, col0, col1, depth_cell, in_depth, step_h, in_rows, step_w, in_cols, axes, columns, runs, lists,
        list_bytes, slots, cuts, cut_bytes, area, image_bytes, row_bytes, col_bytes, depth, b, term, terms, c, c_image, c_row,
        c_col, n, how, ahead_table, lines,
    ):  # fmt: skip
        """All cells of one phase in a block, run by run. columns: the taps of a row, of which several may be one.

        lists: memory for as many lists of taps as there are slots, so that few are made twice.
        """
        stay_outline()
        d0, d1 = tap_range(axes, depth_cell, in_depth)
        top, bottom = whole_range(axes + AXIS, step_h, in_rows)
        whole0, whole1 = col0, col1
        outer, inner = images, 1
        if runs != ROWS_OF_CELLS:
            whole0, whole1 = whole_range(axes + 2 * AXIS, step_w, in_cols)
            outer, inner = 1, images
        for slot in range(slots):
            put_int(lists + slot * list_bytes, -1)
        for i0 in range(outer):
            for h in range(row0, row1):
                above, below = 0, get_int(axes + AXIS)
                if h < top or h >= bottom:
                    above, below = tap_range(axes + AXIS, h * step_h, in_rows)
                w = col0
                while w < col1:
                    end, left, right = w + 1, 0, columns
                    if whole0 <= w < whole1:
                        end = min(whole1, col1)
                    else:
                        left, right = tap_range(axes + 2 * AXIS, w * step_w, in_cols)
                    slot = lists + (above + 3 * below + 2 * left + 5 * right & slots - 1) * list_bytes
                    table = slot + 32
                    if not is_listed(slot, above, below, left, right):
                        list_taps(table, axes, columns, d0, d1, above, below, left, right, cuts, cut_bytes)
                    at = area + i0 * image_bytes + (h - row0) * row_bytes + (w - col0) * col_bytes
                    to = c + i0 * c_image + (h - row0) * c_row + (w - col0) * c_col
                    cells, a_row, c_next, more, a_more, c_more = end - w, col_bytes, c_col, inner, image_bytes, c_image
                    if runs == CELLS_OF_IMAGES:
                        cells, a_row, c_next, more, a_more, c_more = images, image_bytes, c_image, end - w, col_bytes, c_col
                    for i in range(more):
                        tile_run(
                            cells, at + i * a_more, table, depth, a_row, b, term, terms, to + i * c_more, c_next, n, how,
                            ahead_table, lines,
                        )  # fmt: skip
                    w = end

    @outline
    def has_faults(place, image_bytes, plane_bytes, row_bytes, cell_bytes, channel_bytes, images, depths, rows, cols, channels):
        """Whether a block of the target holds anything that is not finite."""
        stay_outline()
        count, step, others, other_bytes = (channels, SIZE, cols, cell_bytes)
        if first:
            count, others, other_bytes = cols, channels, channel_bytes
        zero = splat(0.0)
        sums = zero
        for i in range(images):
            for d in range(depths):
                for h in range(rows):
                    for k in range(others):
                        at = place + i * image_bytes + d * plane_bytes + h * row_bytes + k * other_bytes
                        for j in range(0, count, V):
                            sums = sums + load_some(at + j * step, min(V, count - j)) * zero
        return any_lane(invert(equal(sums, zero)))

    def sweep(args: DirectSweep, piece, scratch):
        """redo: only where the target holds something that is not finite."""
        n_range, rest = piece % args.ranges, piece // args.ranges
        group, rest = rest % args.groups, rest // args.groups
        w0, rest = rest % args.col_blocks * args.block_cols, rest // args.col_blocks
        h0, rest = rest % args.row_blocks * args.block_rows, rest // args.row_blocks
        d0, i0 = rest % args.depths, rest // args.depths * args.block_images
        i1, h1, w1 = (
            min(args.images, i0 + args.block_images),
            min(args.rows, h0 + args.block_rows),
            min(args.cols, w0 + args.block_cols),
        )
        x = args.source + group * args.source_group + i0 * args.source_image
        # The target cells of the block: in the target, or in scratch with the channels of a cell side by side.
        td0, th0, tw0 = d0 * args.to_d, h0 * args.to_h, w0 * args.to_w
        td1, th1, tw1 = (
            min(args.out_depth, td0 + args.to_d),
            min(args.out_rows, h1 * args.to_h),
            min(args.out_cols, w1 * args.to_w),
        )
        origin = (
            args.target
            + group * args.target_group
            + i0 * args.target_image
            + td0 * args.target_plane
            + th0 * args.target_row
            + tw0 * args.target_cell
        )
        if args.buffered:
            c_cell = args.buffer_n * WIDE
            c_row = (tw1 - tw0) * c_cell
            c_plane = (th1 - th0) * c_row
            c_image = (td1 - td0) * c_plane
            c_base = scratch + args.buffer_start
        else:
            c_cell, c_row, c_plane, c_image, c_base = (
                args.target_cell,
                args.target_row,
                args.target_plane,
                args.target_image,
                origin,
            )
        first_n = n_range * args.range_blocks * 2 * V
        last_n = min(args.n_count, first_n + args.range_blocks * 2 * V)
        if args.redo and not has_faults(
            origin + first_n * args.target_channel, args.target_image, args.target_plane, args.target_row, args.target_cell, args.target_channel,
            i1 - i0, td1 - td0, th1 - th0, tw1 - tw0, last_n - first_n,
        ):  # fmt: skip
            return
        for c0 in range(0, args.channels, args.block_channels):
            size = min(args.block_channels, args.channels - c0)
            last_block = c0 + size == args.channels
            if args.in_place:
                area = (
                    x + (d0 * args.step_d + args.low_d) * args.source_plane + (h0 * args.step_h + args.low_h) * args.source_row
                )
                area += (w0 * args.step_w + args.low_w) * args.source_cell + c0 * args.source_channel
            else:
                area = scratch
                for i in range(i1 - i0):
                    for d in range(args.reach_d):
                        depth = d0 * args.step_d + args.low_d + d * args.grid_d
                        for part in range(args.parts_h):
                            for h in range((h1 - h0 - 1) * args.hop_h + args.reach_h):
                                row = h0 * args.step_h + args.low_h + part * args.apart_h + h * args.grid_h
                                inside = 0 <= depth < args.in_depth and 0 <= row < args.in_rows
                                cells = args.in_cols if inside else NO_CELLS
                                from_row = (
                                    x
                                    + i * args.source_image
                                    + depth * args.source_plane
                                    + row * args.source_row
                                    + c0 * args.source_channel
                                )
                                to = (
                                    area
                                    + i * args.volume_bytes
                                    + d * args.plane_bytes
                                    + part * args.part_h
                                    + h * args.line_bytes
                                )
                                for q in range(args.parts_w):
                                    pack_row(
                                        from_row, args.source_channel, args.source_cell, cells, w0 * args.step_w + args.low_w + q * args.apart_w, args.grid_w,
                                        (w1 - w0 - 1) * args.hop_w + args.reach_w, size, to + q * args.part_w, args.place_bytes,
                                    )  # fmt: skip
            for n0 in range(first_n, last_n, args.panels * 2 * V):
                n = min(args.panels * 2 * V, last_n - n0)
                panel = args.packed + (group * args.n_padded + n0) * args.terms * WIDE
                c_block = c_base
                if not args.buffered:
                    c_block += n0 * WIDE
                elif args.buffer_n > 2 * V:
                    c_block += (n0 - first_n) * WIDE
                for p in range(args.phases):
                    words = args.phase_table + PHASE * p
                    row1, col1 = min(h1, get_int(words + 8)), min(w1, get_int(words + 16))
                    if d0 < get_int(words) and row1 > h0 and col1 > w0:
                        cell = (
                            c_block + get_int(words + 24) * c_plane + get_int(words + 32) * c_row + get_int(words + 40) * c_cell
                        )
                        term = get_int(words + 48) * args.channels + get_int(words + 56) * c0
                        row_taps = args.columns if args.columns else get_int(words + AXES + 2 * AXIS)
                        length = args.stretch if args.stretch else size * args.merged
                        how = ADDED if c0 > 0 else STREAMED if args.stream else FRESH
                        tile_block(
                            i1 - i0, h0, row1, w0, col1, d0 * args.step_d, args.in_depth, args.step_h, args.in_rows, args.step_w, args.in_cols, words + AXES,
                            row_taps, args.runs, scratch + args.list_start, args.list_bytes, args.slots, args.cuts, args.cut_bytes,
                            area, args.volume_bytes, args.base_row, args.base_col, length, panel, term, args.terms, cell, c_image, args.to_h * c_row,
                            args.to_w * c_cell, n, how, args.ahead_table, args.lines,
                        )  # fmt: skip
                if args.buffered and last_block:
                    # On its way out: whole planes at once where rows follow each other, else row by row.
                    run_rows = th1 - th0 if first and tw1 - tw0 == args.out_cols else 1
                    for i in range(i1 - i0):
                        for d in range(td1 - td0):
                            for h in range(0, th1 - th0, run_rows):
                                made = c_block + i * c_image + d * c_plane + h * c_row
                                out = (
                                    origin
                                    + i * args.target_image
                                    + d * args.target_plane
                                    + h * args.target_row
                                    + n0 * args.target_channel
                                )
                                if first:
                                    turn_back(made, c_cell, out, args.target_channel, run_rows * (tw1 - tw0), n)
                                else:
                                    for w in range(tw1 - tw0):
                                        narrow_run(made + w * c_cell, out + w * args.target_cell, n)
        if args.stream:
            fence()

    return {"sweep": sweep}
