"""Direct convolution with vectors over target cells, for few output channels: tiles of channels by cells.

The source cells of a block lie in scratch as planes, one for each summed channel, padded with zeros and split by the steps of
their rows and columns. So a tap reads the cells of all bases of the block at one distance, as one long run, row after row; what
lies between the rows is rubbish that is not copied out. The packed filter (pack_kernel.py) supplies the scalars.

`skip` is `sweep` for weights that are not finite, and so must not meet the zeros: row by row, each with the taps that meet a cell
there, in the lanes that do.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.conv.records import CellsSweep, LaneRange
from pullback.cpu.conv.tap_ranges_kernel import axes_of, base_range, phase_at, tap_range
from pullback.cpu.engine.sizes import tile_rows
from pullback.cpu.simd.interleave import make_every, make_rows
from pullback.cpu.simd.native import fill_zero
from pullback.cpu.simd.record_types import records_at
from pullback.cpu.simd.register_tiles import make_tiles
from pullback.cpu.simd.runs import make_runs
from pullback.cpu.simd.transpose import make_transpose
from pullback.cpu.simd.vectors import get_int, inline, outline, put_int, stay_outline

range_at, RANGE_BYTES = records_at(LaneRange), LaneRange.BYTES


def build(lanes: Any, channels_first: bool) -> dict[str, Any]:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    widen_run, narrow_run = make_runs(lanes)
    get_wide, put = lanes.get_wide, lanes.put
    every, (_, _, interleave) = make_every(lanes), make_rows(lanes, shuffles=True)
    transpose, transpose_back = make_transpose(lanes, widen=True), make_transpose(lanes, widen=False)
    ROWS, FEW = tile_rows(), tile_rows(4)
    tiles, few_tiles = make_tiles(lanes, ROWS, 2), make_tiles(lanes, FEW, 4)

    @outline
    def pack_cells(source, channel_bytes, step_bytes, cells, channels, target, plane_bytes):
        """Cells `step_bytes` apart, as runs in the planes of their channels."""
        stay_outline()
        if not channels_first:
            transpose(source, step_bytes, target, plane_bytes, cells, channels)
        elif step_bytes == SIZE:
            for c in range(channels):
                widen_run(source + c * channel_bytes, target + c * plane_bytes, cells)
        else:
            for c in range(channels):
                every(source + c * channel_bytes, target + c * plane_bytes, cells, step_bytes // SIZE)

    @inline
    def pack_block(args, x, scratch, d0, h0, h1, w0, w1, channels):
        """The source cells of a block, with their halo, into the planes of their channels."""
        # Also where nothing is padded: between rows lies what scratch held, and as numbers that may be denormal, which some CPUs
        # take a hundred cycles for.
        fill_zero(scratch, channels * args.plane_bytes)
        step, hop_w = args.grid_w * args.hop_w, args.hop_w
        for d in range(args.reach_d):
            depth = d0 * args.step_d + args.low_d + d * args.grid_d
            for h in range((h1 - h0 - 1) * args.hop_h + args.reach_h):
                row = h0 * args.step_h + args.low_h + h * args.grid_h
                if 0 <= depth < args.in_depth and 0 <= row < args.in_rows:
                    for split in range(hop_w):
                        # Places split, split + hop_w, ... of the row: the cells from cell0 on that lie inside it.
                        cell0 = w0 * args.step_w + args.low_w + split * args.grid_w
                        count = ((w1 - w0 - 1) * hop_w + args.reach_w - split + hop_w - 1) // hop_w
                        begin = max(0, (step - 1 - cell0) // step)
                        end = min(count, (args.in_cols - cell0 + step - 1) // step)
                        if end > begin:
                            at = ((d * args.hop_h + h % args.hop_h) * hop_w + split) * args.split_places
                            at += h // args.hop_h * args.line_places + begin
                            source = x + depth * args.source_plane + row * args.source_row
                            source += (cell0 + begin * step) * args.source_cell
                            to, step_bytes = scratch + at * WIDE, step * args.source_cell
                            pack_cells(source, args.source_channel, step_bytes, end - begin, channels, to, args.plane_bytes)

    def make_sum(is_masked):
        @outline
        def sum_cells(cells, n, a, b, c, k, ranges):
            """A run of cells of n channels. Unless masked, the last vectors may run past its end.

            a, b = (address, table, step); c = (address, pitch, how). ranges: of each tap the cells that it adds to (masked).
            """
            stay_outline()
            (a_base, a_at, a_step), (b_base, b_at, b_step), (c_base, c_row, how) = a, b, c
            j = 0
            while j < cells:
                cells_of_b = (b_base + j * WIDE, b_at, 1, b_step)
                if n <= FEW and cells - j > 2 * V:
                    weights = (a_base, a_at, WIDE, a_step)
                    if is_masked:
                        few_tiles(
                            n, weights, cells_of_b, (c_base + j * WIDE, c_row, min(4 * V, cells - j), how), k, (ranges, j)
                        )
                    else:
                        few_tiles(n, weights, cells_of_b, (c_base + j * WIDE, c_row, 4 * V, how), k, ())
                    j += 4 * V
                    continue
                parts, r = (n + ROWS - 1) // ROWS, 0
                for part in range(parts):
                    rows = n // parts + (1 if part < n % parts else 0)
                    weights, made = (a_base + r * WIDE, a_at, WIDE, a_step), c_base + r * c_row + j * WIDE
                    if is_masked:
                        tiles(rows, weights, cells_of_b, (made, c_row, min(2 * V, cells - j), how), k, (ranges, j))
                    else:
                        tiles(rows, weights, cells_of_b, (made, c_row, 2 * V, how), k, ())
                    r += rows
                j += 2 * V

        return sum_cells

    sum_cells, sum_masked_cells = make_sum(False), make_sum(True)

    @outline
    def list_taps(row_axis, places, depths, rows, columns, panel_bytes, a_at, b_at, ranges, column_ranges):
        """The taps of some depths and rows: where their weights and cells lie and which lanes they add to; how many there are."""
        stay_outline()
        count = 0
        for p in range(depths[0], depths[1]):
            for q in range(rows[0], rows[1]):
                for r in range(columns):
                    tap = (p * row_axis.taps + q) * columns + r
                    put_int(a_at + 8 * count, tap * panel_bytes)
                    put_int(b_at + 8 * count, get_int(places + 8 * tap))
                    meets, here = range_at(column_ranges, r), range_at(ranges, count)
                    here.first = meets.first
                    here.count = meets.count
                    count += 1
        return count

    @inline
    def sum_phase(args, phase, scratch, d0, rows, cols, size, weights, width, n, c):
        """The cells of one phase in a block, of n channels: one run. c = (address, pitch, how)."""
        (h0, row1), (w0, col1) = rows, cols
        table = scratch + args.table_start
        for t in range(phase.taps):
            put_int(table + 8 * t, t * size * width * WIDE)
        cells = (row1 - h0 - 1) * args.line_places + col1 - w0
        a, b = (weights, table, width * WIDE), (scratch, phase.places, args.plane_bytes)
        sum_cells(cells, n, a, b, c, (phase.taps, size), 0)

    @inline
    def skip_phase(args, phase, scratch, d0, rows, cols, size, weights, width, n, c):
        """The same, row by row, of the taps that meet a cell there."""
        (h0, row1), (w0, col1), (c_base, c_row, how) = rows, cols, c
        depth_axis, row_axis, col_axis = axes_of(phase)
        table, columns, b_at = scratch + args.table_start, col_axis.taps, scratch + args.range_start
        ranges = b_at + 8 * args.most_taps
        column_ranges = ranges + RANGE_BYTES * args.most_taps
        for t in range(columns):
            base, end = base_range(col_axis, t, args.step_w, args.in_cols)
            base, meets = max(base, w0), range_at(column_ranges, t)
            meets.first = base - w0
            meets.count = max(0, min(end, col1) - base)
        depths = tap_range(depth_axis, d0 * args.step_d, args.in_depth)
        taps, known = 0, (-1, -1)
        for h in range(h0, row1):
            met = tap_range(row_axis, h * args.step_h, args.in_rows)
            if met != known:
                known, step = met, size * width * WIDE
                taps = list_taps(row_axis, phase.places, depths, met, columns, step, table, b_at, ranges, column_ranges)
            line = (h - h0) * args.line_places * WIDE
            a, b = (weights, table, width * WIDE), (scratch + line, b_at, args.plane_bytes)
            sum_masked_cells(col1 - w0, n, a, b, (c_base + line, c_row, how), (taps, size), ranges)

    @inline
    def copy_out(args, phase, made, origin, h0, row1, w0, cols):
        """The results of one phase of a block to the target."""
        for h in range(h0, row1):
            out = (
                origin + (h * args.to_h + phase.start_h) * args.target_row + (w0 * args.to_w + phase.start_w) * args.target_cell
            )
            line = made + (h - h0) * args.line_places * WIDE
            if not channels_first:
                transpose_back(line, args.buffer_row, out, args.to_w * args.target_cell, args.out_channels, cols)
            else:
                for n in range(args.out_channels):
                    channel, to = line + n * args.buffer_row, out + n * args.target_channel
                    if args.to_w == 1:
                        narrow_run(channel, to, cols)
                    else:
                        for q in range(cols):
                            put(to + q * args.to_w * SIZE, get_wide(channel + q * WIDE))

    @inline
    def copy_rows_out(args, phase, made, origin, h0, row1, w0, w1):
        """channels_first: the results of all phases of the same rows, interleaved. phase: the first of them."""
        width = min(args.out_cols, w1 * args.to_w) - w0 * args.to_w
        for h in range(h0, row1):
            out = origin + (h * args.to_h + phase.start_h) * args.target_row + w0 * args.to_w * SIZE
            line = made + (h - h0) * args.line_places * WIDE
            for n in range(args.out_channels):
                interleave(
                    line + n * args.buffer_row, out + n * args.target_channel, width, 1, args.to_w,
                    args.out_channels * args.buffer_row,
                )  # fmt: skip

    def make_sweep(sum_phase: Any) -> Any:
        def sweep(args: CellsSweep, piece, scratch):
            group, rest = piece % args.groups, piece // args.groups
            w0, rest = rest % args.col_blocks * args.block_cols, rest // args.col_blocks
            h0, rest = rest % args.row_blocks * args.block_rows, rest // args.row_blocks
            d0, image = rest % args.depths, rest // args.depths
            h1, w1 = min(args.rows, h0 + args.block_rows), min(args.cols, w0 + args.block_cols)
            x = args.source + group * args.source_group + image * args.source_image
            buffer = scratch + args.buffer_start
            for c0 in range(0, args.channels, args.block_channels):
                size = min(args.block_channels, args.channels - c0)
                pack_block(args, x + c0 * args.source_channel, scratch, d0, h0, h1, w0, w1, size)
                for p in range(args.phases):
                    phase = phase_at(args.phase_table, p)
                    row1, col1 = min(h1, phase.bases_h), min(w1, phase.bases_w)
                    if d0 < phase.bases_d and row1 > h0 and col1 > w0:
                        term = phase.earlier_taps * args.channels + phase.taps * c0
                        for n0 in range(0, args.out_channels, 2 * V):
                            width, n = min(2 * V, args.padded_channels - n0), min(2 * V, args.out_channels - n0)
                            panel = args.packed + ((group * args.padded_channels + n0) * args.terms + term * width) * WIDE
                            made = (buffer + (p * args.out_channels + n0) * args.buffer_row, args.buffer_row, c0 > 0)
                            sum_phase(args, phase, scratch, d0, (h0, row1), (w0, col1), size, panel, width, n, made)
            together = args.to_w if channels_first and args.row_phases == args.to_w else 1
            for p in range(0, args.phases, together):
                phase = phase_at(args.phase_table, p)
                if d0 < phase.bases_d:
                    origin = args.target + group * args.target_group + image * args.target_image
                    origin += (d0 * args.to_d + phase.start_d) * args.target_plane
                    made = buffer + p * args.out_channels * args.buffer_row
                    if together > 1:
                        copy_rows_out(args, phase, made, origin, h0, min(h1, phase.bases_h), w0, w1)
                    else:
                        copy_out(args, phase, made, origin, h0, min(h1, phase.bases_h), w0, min(w1, phase.bases_w) - w0)

        return sweep

    return {"sweep": make_sweep(sum_phase), "skip": make_sweep(skip_phase)}
