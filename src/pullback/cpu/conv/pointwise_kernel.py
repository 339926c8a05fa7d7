"""Windows of one cell in channels_first: a matrix product whose vectors run over cells, so that nothing is transposed.

A block of cells of all summed channels is copied into scratch, in panels of two vectors; each tile makes some output channels of a
panel straight into the target. The next block of the piece is prefetched meanwhile, a few lines at each k-block.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.conv.records import PointwiseSweep
from pullback.cpu.engine.sizes import tile_rows
from pullback.cpu.simd.native import fence
from pullback.cpu.simd.register_tiles import FRESH, STREAMED, make_tiles
from pullback.cpu.simd.vectors import outline, stay_outline


def build(lanes: Any) -> dict[str, Any]:
    V, SIZE = lanes.count, lanes.size
    pair = lanes.times(2)
    load, load_some, store = pair.load, pair.load_some, pair.store_wide
    ROWS = tile_rows()
    tiles = make_tiles(lanes, ROWS, 2)

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

    def sweep(args: PointwiseSweep, piece, scratch):
        part, owner = piece % args.pieces_each, piece // args.pieces_each
        group, image = owner % args.groups, owner // args.groups
        x = args.source + image * args.source_image + group * args.source_group
        y = args.target + image * args.target_image + group * args.target_group
        first = part * args.piece_blocks * args.block_cells
        last = min(args.cells, first + args.piece_blocks * args.block_cells)
        panel_bytes = args.channels * 2 * V * SIZE
        for begin in range(first, last, args.block_cells):
            count = min(args.block_cells, last - begin)
            copy_block(x + begin * SIZE, args.source_channel, args.channels, count, scratch, panel_bytes)
            ahead, ahead_at = x + (begin + args.block_cells) * SIZE, args.prefetch_table
            lines = args.prefetch_lines if begin + args.block_cells < last else 0
            for n0 in range(0, args.out_channels, 2 * V):
                some = min(2 * V, args.out_channels - n0)
                step, table = (2 * V * SIZE, args.wide_table) if some > V else (V * SIZE, args.narrow_table)
                weights = args.packed + (group * args.padded_channels + n0) * args.channels * SIZE
                parts = (some + ROWS - 1) // ROWS
                r = 0
                for p in range(parts):
                    rows = some // parts + (1 if p < some % parts else 0)
                    for j in range(0, count, 2 * V):
                        n = min(2 * V, count - j)
                        a = (weights + r * SIZE, table, SIZE, step)
                        b = (scratch + j // (2 * V) * panel_bytes, 0, 0, 2 * V * SIZE)
                        how = STREAMED if args.stream and n == 2 * V else FRESH
                        c = (y + (n0 + r) * args.target_channel + (begin + j) * SIZE, args.target_channel, n, how)
                        tiles(rows, a, b, c, (args.k_blocks, args.k_block), (ahead, ahead_at, lines))
                        ahead_at += 8 * args.k_blocks * lines
                    r += rows
        if args.stream:
            fence()

    return {"sweep": sweep}
