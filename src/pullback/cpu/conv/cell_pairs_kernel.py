"""Cells of bfloat16 packed into scratch in pairs: what a filter gradient, whose sums run over cells, multiplies."""

from __future__ import annotations

from typing import Any

from pullback.cpu.simd.lanes import lanes_of
from pullback.cpu.simd.native import fill_zero
from pullback.cpu.simd.pair_transpose import make_load_pairs, make_pair_transpose
from pullback.cpu.simd.transpose import make_transpose
from pullback.cpu.simd.vectors import inline, outline, stay_outline, widen_word


def make_pack_cell_pairs(lanes: Any, *, channels_first: bool) -> tuple[Any, Any]:
    """(pack_row, pack_panel) for x and for dy."""
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    load_pairs, load_some_pairs = make_load_pairs(lanes)
    store, store_some = lanes.store_wide, lanes.store_wide_some
    transpose = make_pair_transpose(lanes)
    transpose_words = make_transpose(lanes_of("float32", lanes.vector_bytes), widen=True)

    @inline
    def pack_words(source, channel_bytes, cells, channels, target, place_bytes):
        """Pairs of neighbouring cells of channels_first, which are one word each; the last with a zero where cells are odd."""
        pairs = cells // 2
        transpose_words(source, channel_bytes, target, place_bytes, channels, pairs)
        if cells % 2:
            for c in range(channels):
                widen_word(source + c * channel_bytes + 2 * pairs * SIZE, target + pairs * place_bytes + c * WIDE)

    @outline
    def pack_row(source, pitches, width, cell0, grid, places, channels, target, apart, every):
        """As make_pack_row's, with pairs: of each `every`-th place its cell, and the one `apart` cells further; 0: outside."""
        stay_outline()
        channel_bytes, cell_bytes, place_bytes = pitches
        if channels_first and every == 2 and apart == 1 and cell0 >= 0 and cell0 + places <= width:  # pairs as they lie
            pack_words(source + cell0 * cell_bytes, channel_bytes, places, channels, target, 2 * place_bytes)
        elif channels_first:  # its grid is 1
            begin = min(places, max(0, -cell0))
            end = max(begin, min(places, width - cell0))
            early = max(0, begin - apart)  # places whose second cell alone may be inside
            fill_zero(target, early * place_bytes)
            fill_zero(target + end * place_bytes, (places - end) * place_bytes)
            for q in range(early, begin):
                cell = cell0 + q + apart
                for c in range(channels):
                    place = target + q * place_bytes + c * WIDE
                    fill_zero(place, WIDE)
                    if 0 <= cell < width:
                        widen_word(source + c * channel_bytes + cell * cell_bytes, place + SIZE)
            here, to = source + (cell0 + begin) * cell_bytes, target + begin * place_bytes
            seconds = width - apart - cell0 - begin
            transpose(here, channel_bytes, apart * SIZE, to, place_bytes, channels, end - begin, channels, seconds)
        else:
            for q in range(0, places, every):
                cell = cell0 + q * grid
                first, second = 0 <= cell < width, 0 <= cell + apart < width
                at, to, partner = source + cell * cell_bytes, target + q * place_bytes, apart * cell_bytes
                if first and second:
                    j = 0
                    while j + V <= channels:
                        store(to + j * WIDE, load_pairs(at + j * SIZE, partner, V, V), V)
                        j += V
                    if j < channels:
                        n = channels - j
                        store_some(to + j * WIDE, load_some_pairs(at + j * SIZE, partner, n, n), n)
                else:
                    if not first:  # nothing of it is read, but a cell that is there is named
                        at, partner = at + partner if second else source, 0
                    for j in range(0, channels, V):
                        n = min(V, channels - j)
                        pair = load_some_pairs(at + j * SIZE, partner, n if first else 0, n if second else 0)
                        store_some(to + j * WIDE, pair, n)

    @outline
    def pack_panel(source, channel_bytes, cell_bytes, cells, n, target, width):
        """A run of cells, each two as pairs, the last with zeros where cells are odd; channels past n are never stored."""
        stay_outline()
        pairs = cells // 2
        if channels_first:
            pack_words(source, channel_bytes, cells, n, target, width * WIDE)
        else:
            for q in range(pairs):
                at, to = source + 2 * q * cell_bytes, target + q * width * WIDE
                for j in range(0, width, V):
                    if j + V <= n:
                        store(to + j * WIDE, load_pairs(at + j * SIZE, cell_bytes, V, V), V)
                    else:
                        some = max(0, n - j)
                        store(to + j * WIDE, load_some_pairs(at + j * SIZE, cell_bytes, some, some), V)
            if cells % 2:
                at, to = source + 2 * pairs * cell_bytes, target + pairs * width * WIDE
                for j in range(0, width, V):
                    store(to + j * WIDE, load_some_pairs(at + j * SIZE, 0, max(0, min(V, n - j)), 0), V)

    return pack_row, pack_panel
