"""Rows of the source of a convolution packed into scratch with their halo: cells at even distances, channels side by side.

Lanes of pairs pack pairs of channels, the last one with a zero where channels are odd.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pullback.cpu.simd.interleave import SHUFFLED_STRIDES, make_every
from pullback.cpu.simd.lanes import lanes_of
from pullback.cpu.simd.native import fill_zero
from pullback.cpu.simd.pair_transpose import make_pair_transpose
from pullback.cpu.simd.runs import make_runs
from pullback.cpu.simd.transpose import make_transpose
from pullback.cpu.simd.vectors import inline, outline, stay_outline, widen_word


@inline
def places_inside(width, cell0, grid, places):
    """(begin, end) of the places whose cells, cell0, cell0 + grid, ..., are of 0 .. width-1."""
    begin = min(places, max(0, (grid - 1 - cell0) // grid))
    return begin, max(begin, min(places, (width - cell0 + grid - 1) // grid))


@cache
def make_pack_row(lanes: Any, *, channels_first: bool) -> Any:
    """pack_row for channels_last arrays, or channels_first ones (`channels_first`)."""
    if lanes.pairs:
        return _make_pack_pairs(lanes, channels_first)
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    widen_run, _ = make_runs(lanes)
    get, put_wide = lanes.get, lanes.put_wide
    transpose, every = make_transpose(lanes, widen=True), make_every(lanes)

    def make_join(channels):
        group = lanes.times(channels)
        interleave, store = group.interleave, group.store

        @inline
        def join(source, channel_bytes, target, cells):
            """Whole vectors of cells of a few channels, by shuffles; how many cells these are."""
            q = 0
            while q + V <= cells:
                store(target + q * channels * SIZE, interleave(source + q * SIZE, channel_bytes), V)
                q += V
            return q

        return join

    def make_move(width):
        part = lanes_of(lanes.dtype, min(width, lanes.vector_bytes))
        load, store, count = part.load, part.store, part.count

        @inline
        def move(source, step, target, place_bytes, cells, cell_bytes):
            """Cells of at most `width` bytes, all in whole vectors: what these hold beyond a cell the next one overwrites, and the
            last ones, whose vectors would reach beyond the row, are left; how many are moved."""
            q, last, last_place = 0, (cells - 1) * step + cell_bytes - width, cells * place_bytes - width
            while q * step <= last and q * place_bytes <= last_place:
                store(target + q * place_bytes, load(source + q * step, count), count)
                q += 1
            return q

        return move

    move16, move32, move64 = (make_move(width) for width in (16, 32, 64))
    join2, join3, join4 = (make_join(channels) for channels in SHUFFLED_STRIDES)

    @outline
    def pack_row(source, pitches, inside, cell0, grid, places, channels, target):
        """Cells cell0, cell0 + grid, ... of one row of a source into `places` places; those that are not `inside` are zeros.

        pitches: bytes between channels of a cell, between cells (one of them is the size of an element), between places.
        """
        stay_outline()
        (channel_bytes, cell_bytes, place_bytes), (begin, end) = pitches, inside
        if begin > 0:
            fill_zero(target, begin * place_bytes)
        if end < places:
            fill_zero(target + end * place_bytes, (places - end) * place_bytes)
        start, to = source + (cell0 + begin * grid) * cell_bytes, target + begin * place_bytes
        if channels_first:
            if channels == 1 and place_bytes == WIDE:
                every(start, to, end - begin, grid)
            elif grid == 1:
                q = 0
                if SIZE == WIDE and place_bytes == channels * SIZE:
                    if channels == 2:
                        q = join2(start, channel_bytes, to, end - begin)
                    elif channels == 3:
                        q = join3(start, channel_bytes, to, end - begin)
                    elif channels == 4:
                        q = join4(start, channel_bytes, to, end - begin)
                transpose(start + q * SIZE, channel_bytes, to + q * place_bytes, place_bytes, channels, end - begin - q)
            else:
                for q in range(end - begin):
                    for c in range(channels):
                        put_wide(to + q * place_bytes + c * WIDE, get(start + q * grid * cell_bytes + c * channel_bytes))
        elif grid == 1 and place_bytes == channels * WIDE and cell_bytes == channels * SIZE:
            widen_run(start, to, (end - begin) * channels)
        else:
            q, cells, step = 0, end - begin, grid * cell_bytes
            if SIZE == WIDE:
                if channels * SIZE <= 16:
                    q = move16(start, step, to, place_bytes, cells, channels * SIZE)
                elif channels * SIZE <= 32:
                    q = move32(start, step, to, place_bytes, cells, channels * SIZE)
                elif channels * SIZE <= 64:
                    q = move64(start, step, to, place_bytes, cells, channels * SIZE)
            while q < cells:
                widen_run(start + q * step, to + q * place_bytes, channels)
                q += 1

    return pack_row


def _make_pack_pairs(lanes: Any, channels_first: bool) -> Any:
    """The same, with `channels` channels as pairs."""
    SIZE, WIDE = lanes.size, lanes.compute_size
    words = lanes_of("float32", lanes.vector_bytes)  # pairs are moved as they are
    copy_run, _ = make_runs(words)
    transpose = make_pair_transpose(lanes)

    @outline
    def pack_row(source, pitches, inside, cell0, grid, places, channels, target):
        stay_outline()
        (channel_bytes, cell_bytes, place_bytes), (begin, end) = pitches, inside
        fill_zero(target, begin * place_bytes)
        fill_zero(target + end * place_bytes, (places - end) * place_bytes)
        start, to = source + (cell0 + begin * grid) * cell_bytes, target + begin * place_bytes
        pairs = channels // 2
        if channels_first:
            # Where cells are picked one by one, each is a transpose of its own.
            count = end - begin if grid == 1 else 1
            for q in range(0, end - begin, max(1, count)):
                at, there = start + q * grid * cell_bytes, to + q * place_bytes
                transpose(at, 2 * channel_bytes, channel_bytes, there, place_bytes, channels - pairs, count, pairs, count)
        elif grid == 1 and place_bytes == pairs * WIDE and cell_bytes == channels * SIZE:
            copy_run(start, to, (end - begin) * pairs)
        else:
            for q in range(end - begin):
                copy_run(start + q * grid * cell_bytes, to + q * place_bytes, pairs)
                if channels % 2:
                    widen_word(start + q * grid * cell_bytes + pairs * WIDE, to + q * place_bytes + pairs * WIDE)

    return pack_row
