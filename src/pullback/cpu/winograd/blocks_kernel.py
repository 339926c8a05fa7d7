"""Blocks of Winograd tiles between an array and scratch: where the cells of a tile lie, and the loops over tiles and channels.

With dilation d each axis is d interleaved undilated ones, and tile i of an axis belongs to residue i % d. Cells outside the array
are read from zeros, and written over these, so every tile is whole. Rows of channels_first arrays are transposed in the stage, as
many channels at a time as a vector has lanes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pullback.cpu.engine.records import WORD
from pullback.cpu.simd.vectors import inline, outline, put_int, stay_outline
from pullback.cpu.winograd.records import TAPS
from pullback.cpu.winograd.stage_kernel import make_stage
from pullback.cpu.winograd.transforms_kernel import Matrix, make_gather, make_scatter


@inline
def tile_start(i, outputs, d):
    """First output cell of tile i of an axis."""
    return i // d * outputs * d + i % d


@cache
def make_place(height: int, width: int) -> Any:
    """place(args, array, table, base, row, row_pitch, column, column_pitch, outside): a table of the addresses of a tile's cells.

    Rows of cells are `row_pitch` apart from the tile's first row on, columns `column_pitch` from the array's first column on.
    """

    @outline
    def place(args, array, table, base, row, row_pitch, column, column_pitch, outside):
        stay_outline()
        d_h, d_w, rows, columns = (
            args.dilation_h,
            args.dilation_w,
            array.rows,
            array.columns,
        )  # loads in conditions would branch
        for i in range(height):
            inside = 0 <= row + i * d_h < rows
            at, entry = base + i * row_pitch + column * column_pitch, table + WORD * i * width
            for j in range(width):
                here = inside and 0 <= column + j * d_w < columns
                put_int(entry + WORD * j, at + j * d_w * column_pitch if here else outside)

    return place


@cache
def make_reader(lanes: Any, rows: Matrix, columns: Matrix, outputs_h: int, outputs_w: int, channels_first: bool) -> Any:
    """read(args, array, source, tap_block, position, count, channels, target, point_pitch, tile_pitch, scratch): transformed tiles.

    args: a record of Tiles; array: the TiledArray, whose depth and channels begin at `source`. Point f of tile k from `position` on
    goes to target + f * point_pitch + k * tile_pitch, channel after channel.
    """
    height, width = len(rows[0]), len(columns[0])
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    CELL, TABLE = V * WIDE, WORD * height * width
    place = make_place(height, width)
    gather = make_gather(lanes, rows, columns, channels_first)
    stage_read, _ = make_stage(lanes)

    @inline
    def first_cell(args, array, tap_block):
        """Of a tile, from its first output on, down and across."""
        down, across = tap_block // args.tap_blocks_w, tap_block % args.tap_blocks_w
        return down * TAPS * args.dilation_h - array.pad_h, across * TAPS * args.dilation_w - array.pad_w

    @outline
    def read_last(args, array, source, tap_block, position, count, channels, target, point_pitch, tile_pitch, scratch):
        stay_outline()
        tiles_h, tiles_w, d_h, d_w = args.tiles_h, args.tiles_w, args.dilation_h, args.dilation_w
        table, zeros = scratch + args.table_start, scratch + args.zeros_start
        down, across = first_cell(args, array, tap_block)
        for k in range(count):
            p = position + k
            row = tile_start(p // tiles_w % tiles_h, outputs_h, d_h) + down
            column = tile_start(p % tiles_w, outputs_w, d_w) + across
            base = source + p // (tiles_h * tiles_w) * array.image_pitch + row * array.row_pitch
            place(args, array, table, base, row, d_h * array.row_pitch, column, array.column_pitch, zeros)
            for c in range(0, channels, V):
                gather(table, c * SIZE, target + k * tile_pitch + c * WIDE, point_pitch, channels - c)

    @outline
    def read_first(args, array, source, tap_block, position, count, channels, target, point_pitch, tile_pitch, scratch):
        """By runs of tiles of one row, whose cells from `low` to `high` are staged."""
        stay_outline()
        tiles_h, tiles_w, d_h, d_w = args.tiles_h, args.tiles_w, args.dilation_h, args.dilation_w
        table, zeros, stage = scratch + args.table_start, scratch + args.zeros_start, scratch + args.stage_start
        down, across = first_cell(args, array, tap_block)
        k = 0
        while k < count:
            p = position + k
            j = p % tiles_w
            run = min(count - k, tiles_w - j)
            row = tile_start(p // tiles_w % tiles_h, outputs_h, d_h) + down
            low = max(0, j // d_w * outputs_w * d_w + across)
            high = min(array.columns, ((j + run - 1) // d_w * outputs_w + width) * d_w + across)
            for q in range(run):
                column = tile_start(j + q, outputs_w, d_w) + across
                place(args, array, table + q * TABLE, stage - low * CELL, row, args.stage_pitch, column, CELL, zeros)
            image = source + p // (tiles_h * tiles_w) * array.image_pitch + low * SIZE
            for c in range(0, channels, V):
                for i in range(height):
                    y = row + i * d_h
                    if 0 <= y < array.rows:
                        at = image + y * array.row_pitch + c * array.channel_pitch
                        stage_read(at, array.channel_pitch, min(V, channels - c), high - low, stage + i * args.stage_pitch)
                for q in range(run):
                    gather(table + q * TABLE, 0, target + (k + q) * tile_pitch + c * WIDE, point_pitch, V)
            k += run

    return read_first if channels_first else read_last


@cache
def make_writer(lanes: Any, rows: Matrix, columns: Matrix, channels_first: bool) -> Any:
    """write(args, array, source, point_pitch, tile_pitch, target, position, count, channels, scratch): the reverse.

    Gives 0 if all results are finite. The zeros of scratch are overwritten.
    """
    height, width = len(rows), len(columns)
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    CELL, TABLE = V * WIDE, WORD * height * width
    place = make_place(height, width)
    scatter = make_scatter(lanes, rows, columns, channels_first)
    _, stage_write = make_stage(lanes)

    @outline
    def write_last(args, array, source, point_pitch, tile_pitch, target, position, count, channels, scratch):
        stay_outline()
        tiles_h, tiles_w, d_h, d_w = args.tiles_h, args.tiles_w, args.dilation_h, args.dilation_w
        table, dump = scratch + args.table_start, scratch + args.zeros_start
        nonfinite = 0
        for k in range(count):
            p = position + k
            row = tile_start(p // tiles_w % tiles_h, height, d_h)
            column = tile_start(p % tiles_w, width, d_w)
            base = target + p // (tiles_h * tiles_w) * array.image_pitch + row * array.row_pitch
            place(args, array, table, base, row, d_h * array.row_pitch, column, array.column_pitch, dump)
            for c in range(0, channels, V):
                nonfinite |= scatter(source + k * tile_pitch + c * WIDE, point_pitch, table, c * SIZE, channels - c)
        return nonfinite

    @outline
    def write_first(args, array, source, point_pitch, tile_pitch, target, position, count, channels, scratch):
        """Blocks begin and end between groups of d_w tiles, so that all cells from `low` to `high` are theirs."""
        stay_outline()
        tiles_h, tiles_w, d_h, d_w = args.tiles_h, args.tiles_w, args.dilation_h, args.dilation_w
        table, dump, stage = scratch + args.table_start, scratch + args.zeros_start, scratch + args.stage_start
        nonfinite = k = 0
        while k < count:
            p = position + k
            j = p % tiles_w
            run = min(count - k, tiles_w - j)
            row = tile_start(p // tiles_w % tiles_h, height, d_h)
            low = j // d_w * width * d_w
            high = min(array.columns, (j + run) // d_w * width * d_w)
            for q in range(run):
                column = tile_start(j + q, width, d_w)
                place(args, array, table + q * TABLE, stage - low * CELL, row, args.stage_pitch, column, CELL, dump)
            image = target + p // (tiles_h * tiles_w) * array.image_pitch + low * SIZE
            for c in range(0, channels, V):
                for q in range(run):
                    nonfinite |= scatter(source + (k + q) * tile_pitch + c * WIDE, point_pitch, table + q * TABLE, 0, V)
                for i in range(height):
                    y = row + i * d_h
                    if y < array.rows:
                        at = image + y * array.row_pitch + c * array.channel_pitch
                        stage_write(stage + i * args.stage_pitch, at, array.channel_pitch, min(V, channels - c), high - low)
            k += run
        return nonfinite

    return write_first if channels_first else write_last
