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
from pullback.cpu.kernels.native import LINE, fence, stream_bytes
from pullback.cpu.kernels.tiles import fetch, make_cells_tile, prefetch_read, prefetch_write
from pullback.cpu.kernels.vectors import get_int, inline, outline, stay_outline

MANY, FEW = 8, 4  # columns of a tile
PHASE = 12 * 8  # bytes of an entry of the phase table


def _make_columns(lanes: Any, cells: int, reach: int, registers: int) -> Any:
    """`cells` columns of all channels, `registers` vectors at a time."""
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    G = registers * V
    lines = registers * max(1, V * SIZE // LINE)
    group_tile = make_cells_tile(lanes.times(registers), cells, reach, False, False)
    last_tile = make_cells_tile(lanes, cells, reach, True, False)

    @inline
    def ask_ahead(source, unit, fresh, f0, f1, target, target_step):
        """Ask for what lies below this tile in the rows that come next, so that memory works while we compute."""
        for f in range(f0, f1):
            line = source + get_int(fresh + 8 * f)
            for p in range(cells * max(reach, 1)):
                for i in range(lines):
                    prefetch_read(line + p * unit + i * LINE)
        if target:
            for p in range(cells):
                for i in range(lines):
                    prefetch_write(target + p * target_step + i * LINE)

    @outline
    def columns(
        source, target, weights, channels, e0, e1, row_pairs, k0, k1, part_pairs, taps, unit, weight_unit, source_step, target_step,
        fresh, f0, f1, below, stream,
    ):  # fmt: skip
        """fresh: offsets of the source rows that the next target row reads and this one does not. below: where that is, or 0."""
        stay_outline()
        c = 0
        while c + G <= channels:
            if cells > 1:
                ask_ahead(source + c * SIZE, unit, fresh, f0, f1, below + c * SIZE if below else 0, target_step)
            group_tile(
                source + c * SIZE, target + c * SIZE, weights + c * WIDE, G, e0, e1, row_pairs, k0, k1, part_pairs,
                taps, unit, weight_unit, source_step, target_step, stream,
            )  # fmt: skip
            c += G
        while c < channels:
            last_tile(
                source + c * SIZE, target + c * SIZE, weights + c * WIDE, min(V, channels - c), e0, e1, row_pairs,
                k0, k1, part_pairs, taps, unit, weight_unit, source_step, target_step, stream,
            )  # fmt: skip
            c += V

    return columns


def _make_block_columns(lanes: Any, cells: int, reach: int) -> Any:
    """`cells` columns of one vector of channels whose source lies in scratch."""
    tile = make_cells_tile(lanes, cells, reach, True, True)

    @outline
    def columns(
        source, target, weights, channels, e0, e1, row_pairs, k0, k1, part_pairs, taps, unit, weight_unit, source_step, target_step,
        fresh, f0, f1, below, stream,
    ):  # fmt: skip
        stay_outline()
        tile(
            source, target, weights, channels, e0, e1, row_pairs, k0, k1, part_pairs,
            taps, unit, weight_unit, source_step, target_step, stream,
        )  # fmt: skip

    return columns


def _make_row(many: Any, few: Any, one: Any) -> Any:
    """many, few: by reach 1, 2, any."""
    many_dense, many_double, many_any = many
    few_dense, few_double, few_any = few

    @outline
    def row(
        source, target, weights, channels, e0, e1, row_pairs, phases, phase_table, ends, k0, k1, part_pairs,
        fresh, f0, f1, once, next_row, stream,
    ):  # fmt: skip
        """One target row. Middle columns left over by whole tiles are made again by a tile that overlaps the one before.

        once: whether every phase reads the same source columns. next_row: bytes to the next target row, 0 in scratch.
        """
        stay_outline()
        for phase in range(phases):
            entry = phase_table + phase * PHASE
            out, base, factors = target + get_int(entry), source + get_int(entry + 8), weights + get_int(entry + 16)
            count, middle, end = get_int(entry + 24), get_int(entry + 32), get_int(entry + 40)
            taps, unit, weight_unit = get_int(entry + 48), get_int(entry + 56), get_int(entry + 64)
            reach, target_step, place = get_int(entry + 72), get_int(entry + 80), ends + 16 * get_int(entry + 88)
            step = reach * unit
            j = 0
            while j < count:
                if middle <= j < end and end - middle >= FEW:
                    more = MANY if end - j > FEW and end - middle >= MANY else FEW
                    j = min(j, end - more)
                    at, to = base + j * step, out + j * target_step
                    below = to + next_row if next_row else 0
                    if more == MANY:
                        if reach == 1:
                            many_dense(
                                at, to, factors, channels, e0, e1, row_pairs, k0, k1, part_pairs, taps, unit, weight_unit,
                                step, target_step, fresh, f0, f1, below, stream,
                            )  # fmt: skip
                        elif reach == 2:
                            many_double(
                                at, to, factors, channels, e0, e1, row_pairs, k0, k1, part_pairs, taps, unit, weight_unit,
                                step, target_step, fresh, f0, f1, below, stream,
                            )  # fmt: skip
                        else:
                            many_any(
                                at, to, factors, channels, e0, e1, row_pairs, k0, k1, part_pairs, taps, unit, weight_unit,
                                step, target_step, fresh, f0, f1, below, stream,
                            )  # fmt: skip
                    elif reach == 1:
                        few_dense(
                            at, to, factors, channels, e0, e1, row_pairs, k0, k1, part_pairs, taps, unit, weight_unit,
                            step, target_step, fresh, f0, f1, below, stream,
                        )  # fmt: skip
                    elif reach == 2:
                        few_double(
                            at, to, factors, channels, e0, e1, row_pairs, k0, k1, part_pairs, taps, unit, weight_unit,
                            step, target_step, fresh, f0, f1, below, stream,
                        )  # fmt: skip
                    else:
                        few_any(
                            at, to, factors, channels, e0, e1, row_pairs, k0, k1, part_pairs, taps, unit, weight_unit,
                            step, target_step, fresh, f0, f1, below, stream,
                        )  # fmt: skip
                else:
                    more = 1
                    t0, t1 = get_int(place + 16 * j), get_int(place + 16 * j + 8)
                    one(
                        base + j * step + t0 * unit, out + j * target_step, factors + t0 * weight_unit, channels,
                        e0, e1, row_pairs, k0, k1, part_pairs, t1 - t0, unit, weight_unit, step, target_step, 0, 0, 0, 0, stream,
                    )  # fmt: skip
                j += more
            f1 = f0 if once else f1

    return row


def build(lanes: Any) -> dict[str, Any]:
    SIZE, WIDE = lanes.size, lanes.compute_size
    REACHES = (1, 2, 0)
    direct_row = _make_row(
        [_make_columns(lanes, MANY, reach, 2 if reach == 1 else 1) for reach in REACHES],
        [_make_columns(lanes, FEW, reach, 2) for reach in REACHES],
        _make_columns(lanes, 1, 1, 4),
    )
    block_row_of = _make_row(
        [_make_block_columns(lanes, MANY, reach) for reach in REACHES],
        [_make_block_columns(lanes, FEW, reach) for reach in REACHES],
        _make_block_columns(lanes, 1, 1),
    )
    spread = make_spread(lanes)

    def direct(
        piece, scratch, source, weights, target, block, images, rows, source_image, target_row, channels,
        row_ptr, row_pairs, phases, phase_table, ends, part_pairs, stage,
        fresh_ptr, fresh, once, stream,
    ):  # fmt: skip
        """The target goes past the cache if `stream` (where every vector is whole lines), and by way of scratch if `stage`."""
        first, last = piece * block, min(piece * block + block, images * rows)
        begin = scratch if stage else target + first * target_row
        for row in range(first, last):
            image, r = row // rows, row % rows
            own = begin + (row - first) * target_row
            direct_row(
                source + image * source_image, own, weights, channels,
                get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8), row_pairs, phases, phase_table, ends,
                0, 1, part_pairs, fresh, get_int(fresh_ptr + 8 * r), get_int(fresh_ptr + 8 * r + 8), once,
                0 if stage or stream else target_row, stream,
            )  # fmt: skip
        if stage:
            stream_bytes(target + first * target_row, scratch, (last - first) * target_row)
        if stage or stream:
            fence()

    def grouped(
        piece, scratch, source, weights, target, units, blocks, block_rows, need_ptr, need_row, rows, source_rows,
        source_row, target_row, channels, step, source_channels, source_cols, sources_each, targets_each, parts, permuted, orders,
        low, places, area_row, row_ptr, row_pairs, phases, phase_table, ends, part_pairs,
    ):  # fmt: skip
        """A block of target rows of an image, `step` channels at a time. low: the first place of a spread row as a column."""
        image, b = piece // blocks, piece % blocks
        first, last = get_int(block_rows + 8 * b), get_int(block_rows + 8 * b + 8)
        n0, n1 = get_int(need_ptr + 8 * b), get_int(need_ptr + 8 * b + 8)
        own = source + image * source_rows * source_row
        for i in range(n0, n1):
            fetch(own + get_int(need_row + 8 * i) * source_row, source_row)
        for c in range(0, channels, step):
            for i in range(n0, n1):
                spread(
                    own + get_int(need_row + 8 * i) * source_row, scratch + (i - n0) * area_row, c, min(step, channels - c),
                    source_channels, source_cols, sources_each, targets_each, parts, permuted, orders, low, places,
                )  # fmt: skip
            for r in range(first, last):
                block_row_of(
                    scratch, target + (image * rows + r) * target_row + c * SIZE, weights + c * WIDE, min(step, channels - c),
                    get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8), row_pairs, phases, phase_table, ends,
                    0, parts, part_pairs, 0, 0, 0, 0, 0, 0,
                )  # fmt: skip

    return {"direct": direct, "grouped": grouped}
