"""Windows of one cell in channels_first: a matrix product whose vectors run over cells, so that nothing is transposed.

A block of cells of all summed channels is copied into scratch, in panels of two vectors; each tile makes some produced channels of
a panel straight into the target. The next block of the piece is asked for meanwhile, a few lines at each stretch of terms.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.simd.native import fence
from pullback.cpu.simd.register_tiles import FRESH, STREAMED, make_asking_tiles, tile_size
from pullback.cpu.simd.vectors import outline, stay_outline


def build(lanes: Any) -> dict[str, Any]:
    V, SIZE = lanes.count, lanes.size
    pair = lanes.times(2)
    load, load_some, store = pair.load, pair.load_some, pair.store_wide
    ROWS = tile_size(lanes, 2)
    tiles = make_asking_tiles(lanes, ROWS, 2)

    @outline
    def copy_block(source, channel, channels, cells, block, panel_bytes):
        """`cells` cells of all channels, as panels: of each panel all channels, of each channel two vectors."""
        stay_outline()
        for k in range(channels):
            at, to, j = source + k * channel, block + k * 2 * V * SIZE, 0
            while j + 2 * V <= cells:
                store(to, load(at + j * SIZE, 2 * V), 2 * V)
                to += panel_bytes
                j += 2 * V
            if j < cells:
                store(to, load_some(at + j * SIZE, cells - j), 2 * V)

    def sweep(
        piece, scratch, source, target, packed, pieces_each, piece_blocks, block_cells, groups, cells, channels, n_count, n_padded,
        source_image, source_group, source_channel, target_image, target_group, target_channel,
        stretches, stretch, wide_table, narrow_table, ahead_table, lines, stream,
    ):  # fmt: skip
        part, owner = piece % pieces_each, piece // pieces_each
        group, image = owner % groups, owner // groups
        x = source + image * source_image + group * source_group
        y = target + image * target_image + group * target_group
        first = part * piece_blocks * block_cells
        last = min(cells, first + piece_blocks * block_cells)
        panel_bytes = channels * 2 * V * SIZE
        for begin in range(first, last, block_cells):
            count = min(block_cells, last - begin)
            copy_block(x + begin * SIZE, source_channel, channels, count, scratch, panel_bytes)
            ahead, asked = x + (begin + block_cells) * SIZE, ahead_table
            each = lines if begin + block_cells < last else 0
            for n0 in range(0, n_count, 2 * V):
                some = min(2 * V, n_count - n0)
                step, table = (2 * V * SIZE, wide_table) if some > V else (V * SIZE, narrow_table)
                a = packed + (group * n_padded + n0) * channels * SIZE
                parts = (some + ROWS - 1) // ROWS
                r = 0
                for p in range(parts):
                    rows = some // parts + (1 if p < some % parts else 0)
                    for j in range(0, count, 2 * V):
                        n = min(2 * V, count - j)
                        tiles(
                            rows, a + r * SIZE, table, stretches, stretch, SIZE, step, scratch + j // (2 * V) * panel_bytes, 0, 0,
                            2 * V * SIZE, y + (n0 + r) * target_channel + (begin + j) * SIZE, target_channel, n,
                            STREAMED if stream and n == 2 * V else FRESH, ahead, asked, each,
                        )  # fmt: skip
                        asked += 8 * stretches * each
                    r += rows
        if stream:
            fence()

    return {"sweep": sweep}
