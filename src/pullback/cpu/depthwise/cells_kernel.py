"""Grouped convolution and its input gradient, channels_last, with vectors of output channels.

Both are the same gather: a target cell sums source cells times weights over the taps that exist, told by lists of Offsets. Source
rows are read where they are, or where many columns reach beyond their ends first copied into scratch with their halo, a block of
target rows at a time (cells_scratch_kernel.py). `one_channel` (per group) copies whole rows; `several_channels` always copies, one
vector of output channels at a time, spread over groups; `permuted_channels` never does, and spreads vectors in registers.

Target columns come in phases whose neighbours read neighbouring sources. Where weights are not finite, and so must not meet the
zeros, the columns at the ends of a row have a range of taps of their own.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.depthwise.cells_scratch_kernel import (
    copy_narrow,
    image_start,
    make_copy_block,
    make_spread_block,
    own_taps,
    phase_at,
    place_of,
)
from pullback.cpu.depthwise.emit_kernel import word
from pullback.cpu.depthwise.records import (
    CELL_VECTORS,
    FEW_CHANNELS,
    FEW_COLUMNS,
    MANY_COLUMNS,
    CellsOneChannel,
    CellsPermuted,
    CellsSeveralChannels,
)
from pullback.cpu.depthwise.tiles_kernel import make_cells_tile
from pullback.cpu.simd.native import fence, stream_bytes
from pullback.cpu.simd.vectors import inline, outline, stay_outline


def _make_columns(lanes: Any, cells: int, reach: int, registers: int, permuted: bool = False) -> Any:
    tile = make_cells_tile(lanes, cells, reach, registers, permuted)

    @outline
    def columns(args, phase, source, target, weights, channels, e0, e1, taps, tiles):
        stay_outline()
        tile(args, phase, source, target, weights, channels, e0, e1, taps, tiles)

    return columns


def _make_middle(make_columns: Any) -> Any:
    """Columns that meet all taps, by the reach of their phase; make_columns(reach) makes what does those of one."""
    dense, double, any_reach = (make_columns(reach) for reach in (1, 2, 0))

    @inline
    def middle(args, phase, source, target, weights, channels, e0, e1, tiles):
        if phase.reach == 1:
            dense(args, phase, source, target, weights, channels, e0, e1, phase.taps, tiles)
        elif phase.reach == 2:
            double(args, phase, source, target, weights, channels, e0, e1, phase.taps, tiles)
        else:
            any_reach(args, phase, source, target, weights, channels, e0, e1, phase.taps, tiles)

    return middle


def _make_row(many: Any, few: Any, two: Any, one: Any) -> Any:
    """Of functions that do MANY_COLUMNS, FEW_COLUMNS or two columns of the middle, and one column at the ends."""

    @outline
    def row(args, table, source, target, weights, channels, r):
        """One target row. Middle columns left over by whole tiles are computed again by a tile that overlaps the one before.

        Few channels are taken along the row, with all its tiles; many of them tile by tile, as they lie in memory.
        """
        stay_outline()
        e0, e1 = word(args.row_ptr, r), word(args.row_ptr, r + 1)
        for number in range(args.phases):
            phase = phase_at(table, number)
            out, base, factors = target + phase.target_start, source + phase.source_start, weights + phase.weight_start
            middle, end = phase.middle, phase.end
            j = 0
            while j < phase.count:
                if middle <= j < end:
                    columns = MANY_COLUMNS if end - j > FEW_COLUMNS and end - middle >= MANY_COLUMNS else FEW_COLUMNS
                    if end - middle < FEW_COLUMNS:
                        columns = 2
                    j = min(j, end - columns)
                    at, to = base + j * phase.source_step, out + j * phase.target_step
                    if columns == MANY_COLUMNS:
                        tiles = (end - j) // MANY_COLUMNS if channels <= FEW_CHANNELS else 1
                        many(args, phase, at, to, factors, channels, e0, e1, tiles)
                        columns *= tiles
                    elif columns == FEW_COLUMNS:
                        few(args, phase, at, to, factors, channels, e0, e1, 1)
                    else:
                        two(args, phase, at, to, factors, channels, e0, e1, phase.taps, 1)
                else:
                    columns, taps = 1, own_taps(args, phase, j)
                    at, to = base + j * phase.source_step + taps.first * phase.tap_step, out + j * phase.target_step
                    own = factors + taps.first * phase.weight_step
                    one(args, phase, at, to, own, channels, e0, e1, taps.end - taps.first, 1)
                j += columns

    return row


def build(lanes: Any) -> dict[str, Any]:
    SIZE, WIDE = lanes.size, lanes.compute_size
    one_channel_row = _make_row(
        _make_middle(lambda reach: _make_columns(lanes, MANY_COLUMNS, reach, 2 if reach > 0 else 1)),
        _make_middle(lambda reach: _make_columns(lanes, FEW_COLUMNS, reach, 2)),
        _make_columns(lanes, 2, 0, CELL_VECTORS),
        _make_columns(lanes, 1, 1, CELL_VECTORS),
    )
    several_channels_row = _make_row(
        _make_middle(lambda reach: _make_columns(lanes, MANY_COLUMNS, reach, 0)),
        _make_middle(lambda reach: _make_columns(lanes, FEW_COLUMNS, reach, 0)),
        _make_columns(lanes, 2, 0, 0),
        _make_columns(lanes, 1, 1, 0),
    )
    permuted_row = _make_row(
        _make_middle(lambda reach: _make_columns(lanes, MANY_COLUMNS, reach, 0, True)),
        _make_middle(lambda reach: _make_columns(lanes, FEW_COLUMNS, reach, 0, True)),
        _make_columns(lanes, 2, 0, 0, True),
        _make_columns(lanes, 1, 1, 0, True),
    )
    copy_block, spread_block = make_copy_block(lanes), make_spread_block(lanes)

    def one_channel(args: CellsOneChannel, piece, scratch):
        image, block, segment, phases = place_of(args, piece)
        area = copy_block(args, segment, image, block, scratch)
        first_row, end_row, n = word(args.block_rows, block), word(args.block_rows, block + 1), args.block_channels
        for at in range(0, args.out_channels, n):
            c = min(at, args.out_channels - n)  # the last block begins earlier
            for r in range(first_row, end_row):
                out = args.target + (image * args.rows + r) * args.target_pitch
                to = scratch + args.stage if args.stage else out + c * SIZE
                one_channel_row(args, phases, area + c * WIDE, to, args.weights + c * WIDE, n, r)
                if args.stage:
                    stream_bytes(out, scratch + args.stage, args.target_pitch)
        if args.stage or args.stream:
            fence()

    def several_channels(args: CellsSeveralChannels, piece, scratch):
        image, block, segment, phases = place_of(args, piece)
        copies = scratch + args.copy_start
        copy_narrow(args, segment, image, block, copies)
        for c in range(0, args.out_channels, args.step):
            n = min(args.step, args.out_channels - c)
            spread_block(args, segment, block, copies, scratch, c, n)
            for r in range(word(args.block_rows, block), word(args.block_rows, block + 1)):
                out = args.target + (image * args.rows + r) * args.target_pitch + c * SIZE
                several_channels_row(args, phases, scratch, out, args.weights + c * WIDE, n, r)
        if args.stream:
            fence()

    def permuted_channels(args: CellsPermuted, piece, scratch):
        image, block, _, phases = place_of(args, piece)
        area = image_start(args, image)
        for r in range(word(args.block_rows, block), word(args.block_rows, block + 1)):
            out = args.target + (image * args.rows + r) * args.target_pitch
            for c in range(0, args.out_channels, args.step):
                n = min(args.step, args.out_channels - c)
                first = c // args.group_out_channels * args.group_in_channels
                permuted_row(args, phases, area + first * SIZE, out + c * SIZE, args.weights + c * WIDE, n, r)
        if args.stream:
            fence()

    return {"one_channel": one_channel, "several_channels": several_channels, "permuted_channels": permuted_channels}
