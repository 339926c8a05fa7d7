"""Grouped convolution and its input gradient, channels_last, with vectors of target channels.

Both are the same gather: a target cell sums source cells times weights over the taps that exist, told by lists of byte offsets.
Target columns come in phases (residues of the stride; one for the forward direction): in the middle of a row all columns of a
phase have the same taps and go through wide tiles, at its ends each column has a range of taps of its own.

`direct` is for one source channel per target channel. `grouped` first spreads each source row in scratch (groups.py), so that
part k of a cell holds, for each target channel, the k-th source channel of its group.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.kernels.groups import make_spread
from pullback.cpu.kernels.native import fence, stream_bytes
from pullback.cpu.kernels.tiles import make_cells_tile
from pullback.cpu.kernels.vectors import get_int, outline, stay_outline

MANY, FEW = 8, 4  # columns of a tile
PHASE = 56  # bytes of a phase: start in the target, columns, first and last middle column, first and last tap, place in `ends`


def _make_columns(lanes: Any, cells: int, registers: int) -> Any:
    """`cells` columns of all channels, `registers` vectors at a time."""
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    G = registers * V
    group_tile = make_cells_tile(lanes.times(registers), cells, False, False)
    last_tile = make_cells_tile(lanes, cells, True, False)

    @outline
    def columns(source, target, weights, channels, e0, e1, row_pairs, k0, k1, col_pairs, source_step, target_step):
        stay_outline()
        c = 0
        while c + G <= channels:
            group_tile(
                source + c * SIZE, target + c * SIZE, weights + c * WIDE, G, e0, e1, row_pairs, k0, k1, col_pairs,
                source_step, target_step,
            )  # fmt: skip
            c += G
        while c < channels:
            last_tile(
                source + c * SIZE, target + c * SIZE, weights + c * WIDE, min(V, channels - c), e0, e1, row_pairs,
                k0, k1, col_pairs, source_step, target_step,
            )  # fmt: skip
            c += V

    return columns


def _make_block_columns(lanes: Any, cells: int) -> Any:
    """`cells` columns of one vector of channels whose source lies in scratch."""
    tile = make_cells_tile(lanes, cells, True, True)

    @outline
    def columns(source, target, weights, channels, e0, e1, row_pairs, k0, k1, col_pairs, source_step, target_step):
        stay_outline()
        tile(source, target, weights, channels, e0, e1, row_pairs, k0, k1, col_pairs, source_step, target_step)

    return columns


def _make_row(many: Any, few: Any, one: Any) -> Any:
    @outline
    def row(
        source, target, weights, channels, e0, e1, row_pairs, phases, phase_table, ends, col_pairs, source_step, target_step
    ):  # fmt: skip
        """One target row. Middle columns left over by whole tiles are made again by a tile that overlaps the one before."""
        stay_outline()
        for phase in range(phases):
            entry = phase_table + phase * PHASE
            first, count = target + get_int(entry), get_int(entry + 8)
            middle, end = get_int(entry + 16), get_int(entry + 24)
            k0, k1, place = get_int(entry + 32), get_int(entry + 40), ends + 16 * get_int(entry + 48)
            j = 0
            while j < count:
                if middle <= j < end and end - middle >= FEW:
                    if end - j > FEW and end - middle >= MANY:
                        j = min(j, end - MANY)
                        many(
                            source + j * source_step, first + j * target_step, weights, channels, e0, e1, row_pairs,
                            k0, k1, col_pairs, source_step, target_step,
                        )  # fmt: skip
                        j += MANY
                    else:
                        j = min(j, end - FEW)
                        few(
                            source + j * source_step, first + j * target_step, weights, channels, e0, e1, row_pairs,
                            k0, k1, col_pairs, source_step, target_step,
                        )  # fmt: skip
                        j += FEW
                else:
                    one(
                        source + j * source_step, first + j * target_step, weights, channels, e0, e1, row_pairs,
                        get_int(place + 16 * j), get_int(place + 16 * j + 8), col_pairs, source_step, target_step,
                    )  # fmt: skip
                    j += 1

    return row


def build(lanes: Any) -> dict[str, Any]:
    SIZE, WIDE = lanes.size, lanes.compute_size
    direct_row = _make_row(_make_columns(lanes, MANY, 2), _make_columns(lanes, FEW, 4), _make_columns(lanes, 1, 4))
    block_row_of = _make_row(*(_make_block_columns(lanes, cells) for cells in (MANY, FEW, 1)))
    spread = make_spread(lanes)

    def direct(
        piece, scratch, source, weights, target, block, images, rows, source_image, target_row, channels,
        row_ptr, row_pairs, phases, phase_table, ends, col_pairs, source_step, target_step, stage,
    ):  # fmt: skip
        """stage: whether the target goes through scratch and past the cache."""
        first, last = piece * block, min(piece * block + block, images * rows)
        begin = scratch if stage else target + first * target_row
        for row in range(first, last):
            image, r = row // rows, row % rows
            direct_row(
                source + image * source_image, begin + (row - first) * target_row, weights, channels,
                get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8), row_pairs, phases, phase_table, ends, col_pairs,
                source_step, target_step,
            )  # fmt: skip
        if stage:
            stream_bytes(target + first * target_row, scratch, (last - first) * target_row)
            fence()

    def grouped(
        piece, scratch, source, weights, target, units, blocks, block_rows, need_ptr, need_row, rows, source_rows,
        source_row, target_row, channels, step, source_channels, source_cols, sources_each, targets_each, parts, permuted, orders,
        low, places, area_row, row_ptr, row_pairs, phases, phase_table, ends, col_pairs, source_step, target_step,
    ):  # fmt: skip
        """A block of target rows of an image, `step` channels at a time. low: the first place of a spread row as a column."""
        image, b = piece // blocks, piece % blocks
        first, last = get_int(block_rows + 8 * b), get_int(block_rows + 8 * b + 8)
        n0, n1 = get_int(need_ptr + 8 * b), get_int(need_ptr + 8 * b + 8)
        own = source + image * source_rows * source_row
        for c in range(0, channels, step):
            for i in range(n0, n1):
                spread(
                    own + get_int(need_row + 8 * i) * source_row, scratch + (i - n0) * area_row, c, min(step, channels - c),
                    source_channels, source_cols, sources_each, targets_each, parts, permuted, orders, low, places,
                )  # fmt: skip
            for r in range(first, last):
                block_row_of(
                    scratch, target + (image * rows + r) * target_row + c * SIZE, weights + c * WIDE, min(step, channels - c),
                    get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8), row_pairs, phases, phase_table, ends, col_pairs,
                    source_step, target_step,
                )  # fmt: skip

    return {"direct": direct, "grouped": grouped}
