"""Blocks of Winograd tiles between an array and scratch: where the cells of a tile lie, and the loops over tiles and channels.

Positions number the tiles of all images: image, tile row, tile column. With dilation d each axis is d interleaved undilated ones,
and tile i of an axis belongs to residue i % d. Cells outside the array are read from a place of zeros and written to a dump, so
every tile is whole. channels_first rows are turned over, as many channels at a time as a vector has lanes, in `stage`.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.simd.vectors import inline, outline, put_int, stay_outline
from pullback.cpu.winograd.transforms_kernel import Matrix, make_gather, make_scatter, make_transpose


@inline
def tile_start(i, outputs, d):
    """First output cell of tile i of an axis."""
    return i // d * outputs * d + i % d


def make_place(height: int, width: int) -> Any:
    """place(table, base, row, row_bytes, rows, d_h, column, column_bytes, columns, d_w, nowhere): addresses of a tile's cells.

    Rows are `row_bytes` apart from the tile's first row on, columns `column_bytes` from the array's first column on.
    """

    @outline
    def place(table, base, row, row_bytes, rows, d_h, column, column_bytes, columns, d_w, nowhere):
        stay_outline()
        for i in range(height):
            inside = 0 <= row + i * d_h < rows
            at, entry = base + i * row_bytes + column * column_bytes, table + 8 * i * width
            for j in range(width):
                put_int(entry + 8 * j, at + j * d_w * column_bytes if inside and 0 <= column + j * d_w < columns else nowhere)

    return place


def make_transforms(make: Any, lanes: Any, rows: Matrix, columns: Matrix, first: bool) -> Any:
    """One transform of one vector of channels, outlined; whole vectors apart from the last few lanes."""
    whole, some = (make(lanes, rows, columns, first, some) for some in (False, True))
    V = lanes.count

    if make is make_gather:

        @outline
        def transform(a, b, c, d, n):
            stay_outline()
            if n >= V:
                whole(a, b, c, d, n)
            else:
                some(a, b, c, d, n)

        return transform

    @outline
    def checked_transform(a, b, c, d, n):
        stay_outline()
        return whole(a, b, c, d, n) if n >= V else some(a, b, c, d, n)

    return checked_transform


def make_reader(lanes: Any, rows: Matrix, columns: Matrix, outputs_h: int, outputs_w: int, first: bool) -> Any:
    """read(source, position, count, ..., target, step, pitch, zeros, table, stage): `count` tiles, transformed.

    Number f of tile k goes to target + f * step + k * pitch, channel after channel.
    """
    height, width = len(rows[0]), len(columns[0])
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    CELL, TABLE = V * WIDE, 8 * height * width
    place = make_place(height, width)
    gather = make_transforms(make_gather, lanes, rows, columns, first)
    read_block, _ = make_transpose(lanes)

    @outline
    def turn_over(source, channel_bytes, channels, cells, target):
        stay_outline()
        for w in range(0, cells, V):
            read_block(source + w * SIZE, channel_bytes, channels, min(V, cells - w), target + w * CELL)

    @outline
    def read_last(
        source, position, count, tiles_h, tiles_w, image_bytes, row_bytes, column_bytes, channel_bytes, in_rows, in_columns,
        d_h, d_w, pad_h, pad_w, channels, target, step, pitch, zeros, table, stage, stage_row,
    ):  # fmt: skip
        stay_outline()
        for k in range(count):
            p = position + k
            row = tile_start(p // tiles_w % tiles_h, outputs_h, d_h) - pad_h
            column = tile_start(p % tiles_w, outputs_w, d_w) - pad_w
            base = source + p // (tiles_h * tiles_w) * image_bytes + row * row_bytes
            place(table, base, row, d_h * row_bytes, in_rows, d_h, column, column_bytes, in_columns, d_w, zeros)
            for c in range(0, channels, V):
                gather(table, c * SIZE, target + k * pitch + c * WIDE, step, channels - c)

    @outline
    def read_first(
        source, position, count, tiles_h, tiles_w, image_bytes, row_bytes, column_bytes, channel_bytes, in_rows, in_columns,
        d_h, d_w, pad_h, pad_w, channels, target, step, pitch, zeros, table, stage, stage_row,
    ):  # fmt: skip
        stay_outline()
        k = 0
        while k < count:
            p = position + k
            j = p % tiles_w
            run = min(count - k, tiles_w - j)
            row = tile_start(p // tiles_w % tiles_h, outputs_h, d_h) - pad_h
            low = max(0, j // d_w * outputs_w * d_w - pad_w)
            high = min(in_columns, ((j + run - 1) // d_w * outputs_w + width) * d_w - pad_w)
            for q in range(run):
                column = tile_start(j + q, outputs_w, d_w) - pad_w
                place(table + q * TABLE, stage - low * CELL, row, stage_row, in_rows, d_h, column, CELL, in_columns, d_w, zeros)
            image = source + p // (tiles_h * tiles_w) * image_bytes + low * SIZE
            for c in range(0, channels, V):
                for i in range(height):
                    y = row + i * d_h
                    if 0 <= y < in_rows:
                        place_c = image + y * row_bytes + c * channel_bytes
                        turn_over(place_c, channel_bytes, min(V, channels - c), high - low, stage + i * stage_row)
                for q in range(run):
                    gather(table + q * TABLE, 0, target + (k + q) * pitch + c * WIDE, step, V)
            k += run

    return read_first if first else read_last


def make_writer(lanes: Any, rows: Matrix, columns: Matrix, first: bool) -> Any:
    """write(source, step, pitch, target, position, count, ..., dump, table, stage): the reverse; 0 if all results are finite."""
    height, width = len(rows), len(columns)
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    CELL, TABLE = V * WIDE, 8 * height * width
    place = make_place(height, width)
    scatter = make_transforms(make_scatter, lanes, rows, columns, first)
    _, write_block = make_transpose(lanes)

    @outline
    def turn_over(source, target, channel_bytes, channels, cells):
        stay_outline()
        for w in range(0, cells, V):
            write_block(source + w * CELL, target + w * SIZE, channel_bytes, channels, min(V, cells - w))

    @outline
    def write_last(
        source, step, pitch, target, position, count, tiles_h, tiles_w, image_bytes, row_bytes, column_bytes, channel_bytes,
        out_rows, out_columns, d_h, d_w, channels, dump, table, stage, stage_row,
    ):  # fmt: skip
        stay_outline()
        odd = 0
        for k in range(count):
            p = position + k
            row = tile_start(p // tiles_w % tiles_h, height, d_h)
            column = tile_start(p % tiles_w, width, d_w)
            base = target + p // (tiles_h * tiles_w) * image_bytes + row * row_bytes
            place(table, base, row, d_h * row_bytes, out_rows, d_h, column, column_bytes, out_columns, d_w, dump)
            for c in range(0, channels, V):
                odd |= scatter(source + k * pitch + c * WIDE, step, table, c * SIZE, channels - c)
        return odd

    @outline
    def write_first(
        source, step, pitch, target, position, count, tiles_h, tiles_w, image_bytes, row_bytes, column_bytes, channel_bytes,
        out_rows, out_columns, d_h, d_w, channels, dump, table, stage, stage_row,
    ):  # fmt: skip
        """Blocks begin and end between groups of d_w tiles, so that all cells from `low` to `high` are theirs."""
        stay_outline()
        odd = k = 0
        while k < count:
            p = position + k
            j = p % tiles_w
            run = min(count - k, tiles_w - j)
            row = tile_start(p // tiles_w % tiles_h, height, d_h)
            low = j // d_w * width * d_w
            high = min(out_columns, (j + run) // d_w * width * d_w)
            for q in range(run):
                column = tile_start(j + q, width, d_w)
                place(
                    table + q * TABLE, stage - low * CELL, row, stage_row, out_rows, d_h, column, CELL, out_columns, d_w, dump
                )
            image = target + p // (tiles_h * tiles_w) * image_bytes + low * SIZE
            for c in range(0, channels, V):
                for q in range(run):
                    odd |= scatter(source + (k + q) * pitch + c * WIDE, step, table + q * TABLE, 0, V)
                for i in range(height):
                    y = row + i * d_h
                    if y < out_rows:
                        place_c = image + y * row_bytes + c * channel_bytes
                        turn_over(stage + i * stage_row, place_c, channel_bytes, min(V, channels - c), high - low)
            k += run
        return odd

    return write_first if first else write_last
