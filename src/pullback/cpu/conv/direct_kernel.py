"""Direct convolution with vectors over the output channels: tiles of target cells by channels, summed over (tap, channel).

A piece is a block of base positions (see sweep.py), some groups and a range of output channels. Its source cells are packed into
scratch with their halo, a block of channels at a time (tap by tap, where these lie far apart), or read in place where few columns
are padded. Results go straight to the target, or through a block in scratch where they must be narrowed or transposed into
channels_first. With lanes of pairs, the channels of the source are counted in pairs, and tiles round what goes straight to the
target.

Taps above, below and beside the source are left out, but for those of a run along a row, which meet zeros there. Where weights are
not finite, and so must not meet them, a row is cut into runs of cells with the same taps.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.conv.records import CELLS_OF_IMAGES, MIDDLES_AND_COLUMNS, ROWS_OF_CELLS, DirectSweep, TapList
from pullback.cpu.conv.source_kernel import make_pack_row, places_inside
from pullback.cpu.conv.tap_ranges_kernel import axes_of, phase_at, tap_range, whole_range
from pullback.cpu.engine.sizes import tile_rows
from pullback.cpu.simd.native import fence, fill_zero
from pullback.cpu.simd.record_types import records_at
from pullback.cpu.simd.register_tiles import ADDED, FRESH, ROUNDED, STREAMED, make_tiles
from pullback.cpu.simd.runs import make_runs
from pullback.cpu.simd.transpose import make_transpose
from pullback.cpu.simd.vectors import any_lane, equal, inline, invert, outline, put_int, stay_outline

list_at, LIST_BYTES = records_at(TapList), TapList.BYTES


def build(lanes: Any, channels_first: bool) -> dict[str, Any]:
    V, SIZE, WIDE, PAIRS = lanes.count, lanes.size, lanes.compute_size, lanes.pairs
    load_some, splat = lanes.load_some, lanes.splat
    _, narrow_run = make_runs(lanes)
    pack_row = make_pack_row(lanes, channels_first=channels_first)
    transpose_back = make_transpose(lanes, widen=False)
    ROWS = tile_rows()
    tiles2, tiles1 = make_tiles(lanes, ROWS, 2), make_tiles(lanes, ROWS, 1)

    @inline
    def tile_run(args, cells, a, a_row, taps, depth, b, term, c, c_row, n, how):
        """A run of target cells that the taps of a list make, in tiles of nearly equal height.

        All n channels of the same cells are made before the next cells: so cells are written as long runs, and the next ones can
        be prefetched while these are summed.
        """
        a_at = taps.above_at + LIST_BYTES
        b_at, k = a_at + 8 * taps.count, (taps.count, depth)
        parts = (cells + ROWS - 1) // ROWS
        least, more = cells // parts, cells % parts
        made_size = SIZE if PAIRS and how in (ROUNDED, STREAMED) else WIDE
        for part in range(parts):
            rows = least + 1 if part < more else least
            ahead, ahead_at = a + rows * a_row, args.prefetch_table
            for n0 in range(0, n, 2 * V):
                some = min(2 * V, n - n0)
                step = 2 * V * WIDE if some > V else V * WIDE
                panel = b + n0 * args.terms * WIDE + term * step
                made = (c + n0 * made_size, c_row, some, how)
                lines = (ahead, ahead_at, args.prefetch_lines)
                if some > V:
                    tiles2(rows, (a, a_at, a_row, WIDE), (panel, b_at, depth * step, step), made, k, lines)
                else:
                    tiles1(rows, (a, a_at, a_row, WIDE), (panel, b_at, depth * step, step), made, k, lines)
                ahead_at += 8 * taps.count * args.prefetch_lines
            a += rows * a_row
            c += rows * c_row

    @outline
    def list_taps(args, taps, axes, columns, d0, d1):
        """Write the places and numbers of the taps of a list; each may be cut into several, which begin cut_bytes further."""
        stay_outline()
        depth_axis, row_axis, col_axis = axes
        taps.count = (d1 - d0) * (taps.below - taps.above) * (taps.right - taps.left) * args.cuts
        place = taps.above_at + LIST_BYTES
        number = place + 8 * taps.count
        for p in range(d0, d1):
            for q in range(taps.above, taps.below):
                row = depth_axis.place + p * depth_axis.tap_pitch + row_axis.place + q * row_axis.tap_pitch
                for r in range(taps.left, taps.right):
                    for i in range(args.cuts):
                        put_int(place, row + col_axis.place + r * col_axis.tap_pitch + i * args.cut_bytes)
                        put_int(number, ((p * row_axis.taps + q) * columns + r) * args.cuts + i)
                        place += 8
                        number += 8

    @inline
    def is_listed(taps, above, below, left, right):
        """Whether a list holds these taps; if not, it is going to."""
        if taps.above == above and taps.below == below and taps.left == left and taps.right == right:
            return True
        taps.above = above
        taps.below = below
        taps.left = left
        taps.right = right
        return False

    @inline
    def listed(args, lists, axes, columns, d0, d1, above, below, left, right):
        """The list of these taps, made now if there is none."""
        slot = above + 3 * below + 2 * left + 5 * right & args.list_slots - 1
        taps = list_at(lists + slot * args.list_bytes, 0)
        if not is_listed(taps, above, below, left, right):
            list_taps(args, taps, axes, columns, d0, d1)
        return taps

    @outline
    def tile_phase(args, phase, images, depth_cell, rows, cols, lists, area, b, c, n, how):
        """All cells of one phase in a block, run by run.

        rows, cols: (first, end) of its bases. lists: scratch for as many lists of taps as there are list slots: few are made twice.
        b = (panel, first term, terms of a k-block); c = (address, pitches of images, rows and columns).
        """
        stay_outline()
        (row0, row1), (col0, col1), (panel, term, depth), (c_base, c_image, c_row, c_col) = rows, cols, b, c
        axes = axes_of(phase)
        depth_axis, row_axis, col_axis = axes
        columns = args.columns if args.columns else col_axis.taps  # of which several may be one
        d0, d1 = tap_range(depth_axis, depth_cell, args.in_depth)
        top, bottom = whole_range(row_axis, args.step_h, args.in_rows)
        whole0, whole1 = col0, col1
        outer, inner = images, 1
        if args.runs != ROWS_OF_CELLS:
            whole0, whole1 = whole_range(col_axis, args.step_w, args.in_cols)
            outer, inner = 1, images
        for slot in range(args.list_slots):
            list_at(lists + slot * args.list_bytes, 0).above = -1
        if args.runs == MIDDLES_AND_COLUMNS:
            whole0, whole1 = max(col0, whole0), min(col1, whole1)
            if whole0 >= whole1:
                whole0 = whole1 = col1
            for i in range(images):
                at, to = area + i * args.volume_bytes, c_base + i * c_image
                if whole0 < whole1:
                    for h in range(row0, row1):
                        above, below = 0, row_axis.taps
                        if h < top or h >= bottom:
                            above, below = tap_range(row_axis, h * args.step_h, args.in_rows)
                        taps = listed(args, lists, axes, columns, d0, d1, above, below, 0, columns)
                        middle = at + (h - row0) * args.base_row + (whole0 - col0) * args.base_col
                        made = to + (h - row0) * c_row + (whole0 - col0) * c_col
                        tile_run(
                            args, whole1 - whole0, middle, args.base_col, taps, depth, panel, term, made, c_col, n, how
                        )  # fmt: skip
                for w in range(col0, col1):
                    if w < whole0 or w >= whole1:
                        left, right = tap_range(col_axis, w * args.step_w, args.in_cols)
                        h = row0
                        while h < row1:
                            end, above, below = h + 1, 0, row_axis.taps
                            if top <= h < bottom:
                                end = min(bottom, row1)
                            else:
                                above, below = tap_range(row_axis, h * args.step_h, args.in_rows)
                            taps = listed(args, lists, axes, columns, d0, d1, above, below, left, right)
                            cell = at + (h - row0) * args.base_row + (w - col0) * args.base_col
                            made = to + (h - row0) * c_row + (w - col0) * c_col
                            tile_run(args, end - h, cell, args.base_row, taps, depth, panel, term, made, c_row, n, how)
                            h = end
            return
        for i0 in range(outer):
            for h in range(row0, row1):
                above, below = 0, row_axis.taps
                if h < top or h >= bottom:
                    above, below = tap_range(row_axis, h * args.step_h, args.in_rows)
                w = col0
                while w < col1:
                    end, left, right = w + 1, 0, columns
                    if whole0 <= w < whole1:
                        end = min(whole1, col1)
                    else:
                        left, right = tap_range(col_axis, w * args.step_w, args.in_cols)
                    taps = listed(args, lists, axes, columns, d0, d1, above, below, left, right)
                    at = area + i0 * args.volume_bytes + (h - row0) * args.base_row + (w - col0) * args.base_col
                    to = c_base + i0 * c_image + (h - row0) * c_row + (w - col0) * c_col
                    cells, a_row, c_next, more, a_more, c_more = (
                        end - w,
                        args.base_col,
                        c_col,
                        inner,
                        args.volume_bytes,
                        c_image,
                    )
                    if args.runs == CELLS_OF_IMAGES:
                        cells, more = images, end - w
                        a_row, c_next, a_more, c_more = args.volume_bytes, c_image, args.base_col, c_col
                    for i in range(more):
                        tile_run(
                            args, cells, at + i * a_more, a_row, taps, depth, panel, term, to + i * c_more, c_next, n, how
                        )  # fmt: skip
                    w = end

    @outline
    def has_faults(args, place, images, depths, rows, cols, channels):
        """Whether a block of the target holds anything that is not finite."""
        stay_outline()
        count, others, other_bytes = (channels, cols, args.target_cell)
        if channels_first:
            count, others, other_bytes = cols, channels, args.target_channel
        zero = splat(0.0)
        sums = zero
        for i in range(images):
            for d in range(depths):
                for h in range(rows):
                    for k in range(others):
                        at = place + i * args.target_image + d * args.target_plane + h * args.target_row + k * other_bytes
                        for j in range(0, count, V):
                            sums = sums + load_some(at + j * SIZE, min(V, count - j)) * zero
        return any_lane(invert(equal(sums, zero)))

    @inline
    def pack_block(args, x, area, images, d0, h0, h1, w0, w1, channels):
        """The source cells of a block, with their halo, into scratch."""
        channel = args.source_channel // 2 if PAIRS else args.source_channel
        pitches = (channel, args.source_cell, args.place_bytes)
        first_row, lines = h0 * args.step_h + args.low_h, (h1 - h0 - 1) * args.hop_h + args.reach_h
        first_cell, places = w0 * args.step_w + args.low_w, (w1 - w0 - 1) * args.hop_w + args.reach_w
        # Rows that follow each other here and there are packed at once.
        whole = first_cell == 0 and places == args.in_cols and args.grid_w == 1 and args.parts_w == 1
        run = max(0, min(lines, args.in_rows - first_row)) if whole and args.grid_h == 1 and first_row >= 0 else 0
        for q in range(args.parts_w):
            cell0 = first_cell + q * args.apart_w
            met = places_inside(args.in_cols, cell0, args.grid_w, places)
            for i in range(images):
                for d in range(args.reach_d):
                    depth = d0 * args.step_d + args.low_d + d * args.grid_d
                    plane = x + i * args.source_image + depth * args.source_plane
                    to_plane = area + i * args.volume_bytes + d * args.plane_bytes + q * args.part_w
                    for part in range(args.parts_h):
                        begin = 0
                        if run > 1 and args.parts_h == 1 and 0 <= depth < args.in_depth:
                            begin, cells = run, run * places
                            source = plane + first_row * args.source_row
                            pack_row(source, pitches, (0, cells), 0, 1, cells, channels, to_plane)
                        for h in range(begin, lines):
                            row = first_row + part * args.apart_h + h * args.grid_h
                            inside = (0, 0)
                            if 0 <= depth < args.in_depth and 0 <= row < args.in_rows:
                                inside = met
                            to = to_plane + part * args.part_h + h * args.line_bytes
                            source = plane + row * args.source_row
                            pack_row(source, pitches, inside, cell0, args.grid_w, places, channels, to)

    @inline
    def copy_out(args, made, c_image, c_plane, c_row, c_cell, origin, images, depths, rows, cols, n):
        """A buffered block of results to the target: whole planes at once where rows follow each other, else row by row."""
        run_rows = rows if channels_first and cols == args.out_cols else 1
        for i in range(images):
            for d in range(depths):
                for h in range(0, rows, run_rows):
                    block = made + i * c_image + d * c_plane + h * c_row
                    out = origin + i * args.target_image + d * args.target_plane + h * args.target_row
                    if channels_first:
                        transpose_back(block, c_cell, out, args.target_channel, run_rows * cols, n)
                    else:
                        for w in range(cols):
                            narrow_run(block + w * c_cell, out + w * args.target_cell, n)

    @inline
    def sweep_group(args, group, n_range, images, i0, d0, h0, h1, w0, w1, scratch):
        """A block of one group, and a range of its output channels."""
        x = args.source + group * args.source_group + i0 * args.source_image
        # The target cells of the block: in the target, or in scratch with the channels of a cell side by side.
        td0, th0, tw0 = d0 * args.to_d, h0 * args.to_h, w0 * args.to_w
        depths = min(args.out_depth - td0, args.to_d)
        rows, cols = min(args.out_rows, h1 * args.to_h) - th0, min(args.out_cols, w1 * args.to_w) - tw0
        origin = args.target + group * args.target_group + i0 * args.target_image
        origin += td0 * args.target_plane + th0 * args.target_row + tw0 * args.target_cell
        if args.buffered:
            c_cell = args.buffer_n * WIDE
            c_row = cols * c_cell
            c_plane = rows * c_row
            c_image = depths * c_plane
            c_base = scratch + args.buffer_start
        else:
            c_cell, c_row, c_plane, c_image = args.target_cell, args.target_row, args.target_plane, args.target_image
            c_base = origin
        first_n = n_range * args.range_blocks * 2 * V
        last_n = min(args.out_channels, first_n + args.range_blocks * 2 * V)
        made_at = origin + first_n * args.target_channel
        if args.redo and not has_faults(args, made_at, images, depths, rows, cols, last_n - first_n):
            return
        for c0 in range(0, args.channels, args.block_channels):
            size = min(args.block_channels, args.channels - c0)
            area, channels = scratch, x + c0 * args.source_channel
            if args.in_place:
                area = channels + (d0 * args.step_d + args.low_d) * args.source_plane
                area += (h0 * args.step_h + args.low_h) * args.source_row + (w0 * args.step_w + args.low_w) * args.source_cell
            else:
                count = size
                if PAIRS:
                    count = 2 * size - (args.odd if c0 + size == args.channels else 0)
                pack_block(args, channels, area, images, d0, h0, h1, w0, w1, count)
            depth, how = args.k_block if args.k_block else size * args.merged, FRESH
            if c0 > 0:
                how = ADDED
            elif args.stream:
                how = STREAMED
            elif PAIRS and not args.buffered:
                how = ROUNDED
            for n0 in range(first_n, last_n, args.panels * 2 * V):
                n = min(args.panels * 2 * V, last_n - n0)
                panel = args.packed + (group * args.padded_channels + n0) * args.terms * WIDE
                c_block = c_base
                if not args.buffered:
                    c_block += n0 * SIZE
                elif args.buffer_n > 2 * V:
                    c_block += (n0 - first_n) * WIDE
                for p in range(args.phases):
                    phase = phase_at(args.phase_table, p)
                    row1, col1 = min(h1, phase.bases_h), min(w1, phase.bases_w)
                    if d0 < phase.bases_d and row1 > h0 and col1 > w0 and (phase.taps or not args.zeroed):
                        c = c_block + phase.start_d * c_plane + phase.start_h * c_row + phase.start_w * c_cell
                        term = phase.earlier_taps * args.channels + phase.taps * c0
                        tile_phase(
                            args, phase, images, d0 * args.step_d, (h0, row1), (w0, col1), scratch + args.list_start, area,
                            (panel, term, depth), (c, c_image, args.to_h * c_row, args.to_w * c_cell), n, how,
                        )  # fmt: skip
                if args.buffered and c0 + size == args.channels:
                    out = origin + n0 * args.target_channel
                    copy_out(args, c_block, c_image, c_plane, c_row, c_cell, out, images, depths, rows, cols, n)

    @outline
    def zero_cells(args, phase, target, images, rows, cols, count):
        """`count` elements of each cell of a phase in a block: zeros."""
        stay_outline()
        for i in range(images):
            for h in range(rows):
                for w in range(cols):
                    at = i * args.target_image + (h * args.to_h + phase.start_h) * args.target_row
                    fill_zero(target + at + (w * args.to_w + phase.start_w) * args.target_cell, count * SIZE)

    @inline
    def zero_idle_phases(args, groups, n_range, images, i0, d0, h0, h1, w0, w1):
        """The cells of a block that no tap makes, of all groups at once."""
        group0, group1 = groups
        first, count, runs = 0, (group1 - group0) * args.out_channels, 1
        if args.ranges > 1:
            first, runs = n_range * args.range_blocks * 2 * V, group1 - group0
            count = min(args.out_channels - first, args.range_blocks * 2 * V)
        for p in range(args.phases):
            phase = phase_at(args.phase_table, p)
            rows, cols = min(h1, phase.bases_h) - h0, min(w1, phase.bases_w) - w0
            if phase.taps == 0 and d0 < phase.bases_d and rows > 0 and cols > 0:
                to = args.target + i0 * args.target_image + (d0 * args.to_d + phase.start_d) * args.target_plane
                to += h0 * args.to_h * args.target_row + w0 * args.to_w * args.target_cell + first * SIZE
                for group in range(group0, group0 + runs):
                    zero_cells(args, phase, to + group * args.target_group, images, rows, cols, count)

    def sweep(args: DirectSweep, piece, scratch):
        n_range, rest = piece % args.ranges, piece // args.ranges
        if args.range_pieces:
            n_range, rest = piece // args.range_pieces, piece % args.range_pieces
        part, rest = rest % args.group_parts, rest // args.group_parts
        w0, rest = rest % args.col_blocks * args.block_cols, rest // args.col_blocks
        h0, rest = rest % args.row_blocks * args.block_rows, rest // args.row_blocks
        d0, i0 = rest % args.depths, rest // args.depths * args.block_images
        images = min(args.images - i0, args.block_images)
        h1, w1 = min(args.rows, h0 + args.block_rows), min(args.cols, w0 + args.block_cols)
        group0, group1 = part * args.part_groups, min(args.groups, (part + 1) * args.part_groups)
        if args.zeroed and not args.redo:
            zero_idle_phases(args, (group0, group1), n_range, images, i0, d0, h0, h1, w0, w1)
        for group in range(group0, group1):
            sweep_group(args, group, n_range, images, i0, d0, h0, h1, w0, w1, scratch)
        if args.stream:
            fence()

    return {"sweep": sweep}
