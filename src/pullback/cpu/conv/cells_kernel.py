"""Direct convolution with vectors over target cells, for few produced channels: tiles of channels by cells.

The source cells of a block lie in scratch as planes, one for each summed channel, padded with zeros and split by the steps of
their rows and columns. So a tap reads the cells of all bases of the block at one distance, as one long run, row after row; what
lies between the rows is rubbish that is not copied out. The packed filter (conv_panels) supplies the scalars.

`skip` is `sweep` for weights that are not finite, and so must not meet the zeros: row by row, each with the taps that meet a cell
there, in the lanes that do.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.conv.records import CellsSweep
from pullback.cpu.conv.tap_ranges_kernel import AXIS_WORDS, base_range, tap_range
from pullback.cpu.simd.native import fill_zero
from pullback.cpu.simd.register_tiles import make_masked_tiles, make_table_tiles, tile_size
from pullback.cpu.simd.runs import make_runs
from pullback.cpu.simd.transpose import make_transpose
from pullback.cpu.simd.vectors import get_int, inline, outline, put_int, stay_outline

# Words of a phase: bases and first target cell by axis (depth, rows, columns), taps of earlier phases, own taps, the words of each
# axis (tap_ranges), where the places of its taps are listed.
AXES = 8 * 8
AXIS = 8 * AXIS_WORDS
PLACES = AXES + 3 * AXIS
PHASE = PLACES + 8


def build(lanes: Any, first: bool) -> dict[str, Any]:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    widen_run, narrow_run = make_runs(lanes)
    get, put_wide = lanes.get, lanes.put_wide
    turn, turn_back = make_transpose(lanes, widen=True), make_transpose(lanes, widen=False)
    ROWS, FEW = tile_size(lanes, 2), tile_size(lanes, 4)
    tiles, few_tiles = make_table_tiles(lanes, ROWS, 2), make_table_tiles(lanes, FEW, 4)
    masked_tiles, few_masked_tiles = make_masked_tiles(lanes, ROWS, 2), make_masked_tiles(lanes, FEW, 4)

    @outline
    def pack_cells(source, channel_bytes, step_bytes, cells, channels, target, plane_bytes):
        """Cells `step_bytes` apart, as runs in the planes of their channels."""
        stay_outline()
        if not first:
            turn(source, step_bytes, target, plane_bytes, cells, channels)
        elif step_bytes == SIZE:
            for c in range(channels):
                widen_run(source + c * channel_bytes, target + c * plane_bytes, cells)
        else:
            for c in range(channels):
                for q in range(cells):
                    put_wide(target + c * plane_bytes + q * WIDE, get(source + c * channel_bytes + q * step_bytes))

    @outline
    def sum_cells(cells, n, a, a_step, taps, a_at, b, b_at, depth, plane_bytes, c, c_row, add):
        """A run of cells of n channels; the last vectors may run past its end."""
        stay_outline()
        j = 0
        while j < cells:
            r = 0
            if n <= FEW and cells - j > 2 * V:
                few_tiles(
                    n, a, a_at, taps, depth, WIDE, a_step, b + j * WIDE, b_at, 1, plane_bytes, c + j * WIDE, c_row, 4 * V, add
                )
                j += 4 * V
            else:
                parts = (n + ROWS - 1) // ROWS
                for part in range(parts):
                    rows = n // parts + (1 if part < n % parts else 0)
                    tiles(
                        rows, a + r * WIDE, a_at, taps, depth, WIDE, a_step, b + j * WIDE, b_at, 1, plane_bytes,
                        c + r * c_row + j * WIDE, c_row, 2 * V, add,
                    )  # fmt: skip
                    r += rows
                j += 2 * V

    @outline
    def sum_lanes(cells, n, a, a_step, taps, a_at, b, b_at, ranges, depth, plane_bytes, c, c_row, add):
        """As sum_cells, for part of a row: each tap adds to the cells of its range only."""
        stay_outline()
        j = 0
        while j < cells:
            r = 0
            if n <= FEW and cells - j > 2 * V:
                few_masked_tiles(
                    n, a, a_at, taps, depth, WIDE, a_step, b + j * WIDE, b_at, 1, plane_bytes, c + j * WIDE, c_row,
                    min(4 * V, cells - j), add, ranges, j,
                )  # fmt: skip
                j += 4 * V
            else:
                parts = (n + ROWS - 1) // ROWS
                for part in range(parts):
                    rows = n // parts + (1 if part < n % parts else 0)
                    masked_tiles(
                        rows, a + r * WIDE, a_at, taps, depth, WIDE, a_step, b + j * WIDE, b_at, 1, plane_bytes,
                        c + r * c_row + j * WIDE, c_row, min(2 * V, cells - j), add, ranges, j,
                    )  # fmt: skip
                    r += rows
                j += 2 * V

    @outline
    def list_taps(axes, places, d0, d1, h0, h1, columns, panel_bytes, a_at, b_at, ranges, column_ranges):
        """The taps of some depths and rows: where their weights and cells lie and which lanes they add to; how many there are."""
        stay_outline()
        count = 0
        for a in range(d0, d1):
            for b in range(h0, h1):
                for c in range(columns):
                    tap = (a * get_int(axes + AXIS) + b) * columns + c
                    put_int(a_at + 8 * count, tap * panel_bytes)
                    put_int(b_at + 8 * count, get_int(places + 8 * tap))
                    put_int(ranges + 16 * count, get_int(column_ranges + 16 * c))
                    put_int(ranges + 16 * count + 8, get_int(column_ranges + 16 * c + 8))
                    count += 1
        return count

    @inline
    def sum_phase(
        words, scratch, table, ranges, most_taps, h0, row1, w0, col1, depth_cell, in_depth, step_h, in_rows, step_w, in_cols,
        line_places, size, plane_bytes, a, width, n, c, c_row, add,
    ):  # fmt: skip
        """The cells of one phase in a block, of n channels: one run."""
        taps = get_int(words + 56)
        for t in range(taps):
            put_int(table + 8 * t, t * size * width * WIDE)
        cells = (row1 - h0 - 1) * line_places + col1 - w0
        sum_cells(
            cells, n, a, width * WIDE, taps, table, scratch, get_int(words + PLACES), size, plane_bytes, c, c_row, add
        )  # fmt: skip

    @inline
    def skip_phase(
        words, scratch, table, ranges, most_taps, h0, row1, w0, col1, depth_cell, in_depth, step_h, in_rows, step_w, in_cols,
        line_places, size, plane_bytes, a, width, n, c, c_row, add,
    ):  # fmt: skip
        """The same, row by row. ranges: memory for lists of taps, and of the cells that each tap of a row adds to."""
        axes = words + AXES
        columns, b_at = get_int(axes + 2 * AXIS), ranges
        ranges += 8 * most_taps
        column_ranges = ranges + 16 * most_taps
        for t in range(columns):
            base, end = base_range(axes + 2 * AXIS, t, step_w, in_cols)
            base = max(base, w0)
            put_int(column_ranges + 16 * t, base - w0)
            put_int(column_ranges + 16 * t + 8, max(0, min(end, col1) - base))
        d0, d1 = tap_range(axes, depth_cell, in_depth)
        taps, h_low, h_high = 0, -1, -1
        for h in range(h0, row1):
            above, below = tap_range(axes + AXIS, h * step_h, in_rows)
            if above != h_low or below != h_high:
                h_low, h_high = above, below
                taps = list_taps(
                    axes, get_int(words + PLACES), d0, d1, above, below, columns, size * width * WIDE, table, b_at, ranges,
                    column_ranges,
                )  # fmt: skip
            line = (h - h0) * line_places * WIDE
            sum_lanes(
                col1 - w0,
                n,
                a,
                width * WIDE,
                taps,
                table,
                scratch + line,
                b_at,
                ranges,
                size,
                plane_bytes,
                c + line,
                c_row,
                add,
            )

    def make_sweep(sum_phase: Any) -> Any:
        def sweep(args: CellsSweep, piece, scratch):
            """line_places: bases in a row of places; split_places: places of one split (row residue, column residue) of a plane."""
            group, rest = piece % args.groups, piece // args.groups
            w0, rest = rest % args.col_blocks * args.block_cols, rest // args.col_blocks
            h0, rest = rest % args.row_blocks * args.block_rows, rest // args.row_blocks
            d0, image = rest % args.depths, rest // args.depths
            h1, w1 = min(args.rows, h0 + args.block_rows), min(args.cols, w0 + args.block_cols)
            x = args.source + group * args.source_group + image * args.source_image
            buffer, table = scratch + args.buffer_start, scratch + args.table_start
            for c0 in range(0, args.channels, args.block_channels):
                size = min(args.block_channels, args.channels - c0)
                if args.padded:
                    fill_zero(scratch, size * args.plane_bytes)
                for d in range(args.reach_d):
                    depth = d0 * args.step_d + args.low_d + d * args.grid_d
                    for h in range((h1 - h0 - 1) * args.hop_h + args.reach_h):
                        row = h0 * args.step_h + args.low_h + h * args.grid_h
                        if 0 <= depth < args.in_depth and 0 <= row < args.in_rows:
                            for split in range(args.hop_w):
                                # Places split, split + hop_w, ... of the row: the cells from cell0 on that lie inside it.
                                cell0, step = w0 * args.step_w + args.low_w + split * args.grid_w, args.grid_w * args.hop_w
                                count = ((w1 - w0 - 1) * args.hop_w + args.reach_w - split + args.hop_w - 1) // args.hop_w
                                begin = max(0, (step - 1 - cell0) // step)
                                end = min(count, (args.in_cols - cell0 + step - 1) // step)
                                at = (
                                    ((d * args.hop_h + h % args.hop_h) * args.hop_w + split) * args.split_places
                                    + h // args.hop_h * args.line_places
                                    + begin
                                )
                                if end > begin:
                                    pack_cells(
                                        x + depth * args.source_plane + row * args.source_row + (cell0 + begin * step) * args.source_cell
                                        + c0 * args.source_channel, args.source_channel, step * args.source_cell, end - begin, size,
                                        scratch + at * WIDE, args.plane_bytes,
                                    )  # fmt: skip
                for p in range(args.phases):
                    words = args.phase_table + PHASE * p
                    row1, col1 = min(h1, get_int(words + 8)), min(w1, get_int(words + 16))
                    if d0 < get_int(words) and row1 > h0 and col1 > w0:
                        for n0 in range(0, args.n_count, 2 * V):
                            width = min(2 * V, args.n_padded - n0)
                            panel = args.packed + (group * args.n_padded + n0) * args.terms * WIDE
                            sum_phase(
                                words, scratch, table, scratch + args.range_start, args.most_taps, h0, row1, w0, col1, d0 * args.step_d, args.in_depth,
                                args.step_h, args.in_rows, args.step_w, args.in_cols, args.line_places, size, args.plane_bytes,
                                panel + (get_int(words + 48) * args.channels + get_int(words + 56) * c0) * width * WIDE, width,
                                min(2 * V, args.n_count - n0), buffer + (p * args.n_count + n0) * args.buffer_row, args.buffer_row, c0 > 0,
                            )  # fmt: skip
            for p in range(args.phases):
                words = args.phase_table + PHASE * p
                row1, col1 = min(h1, get_int(words + 8)), min(w1, get_int(words + 16))
                if d0 < get_int(words):
                    origin = (
                        args.target
                        + group * args.target_group
                        + image * args.target_image
                        + (d0 * args.to_d + get_int(words + 24)) * args.target_plane
                    )
                    for h in range(h0, row1):
                        out = (
                            origin
                            + (h * args.to_h + get_int(words + 32)) * args.target_row
                            + (w0 * args.to_w + get_int(words + 40)) * args.target_cell
                        )
                        made = buffer + p * args.n_count * args.buffer_row + (h - h0) * args.line_places * WIDE
                        if first and args.to_w == 1:
                            for n in range(args.n_count):
                                narrow_run(made + n * args.buffer_row, out + n * args.target_channel, col1 - w0)
                        elif first:
                            for n in range(args.n_count):
                                turn_back(
                                    made + n * args.buffer_row,
                                    0,
                                    out + n * args.target_channel,
                                    args.to_w * args.target_cell,
                                    1,
                                    col1 - w0,
                                )
                        else:
                            turn_back(made, args.buffer_row, out, args.to_w * args.target_cell, args.n_count, col1 - w0)

        return sweep

    return {"sweep": make_sweep(sum_phase), "skip": make_sweep(skip_phase)}
