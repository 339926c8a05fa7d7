"""Grouped convolution and its input gradient, channels_last, with vectors of target channels.

Both are the same gather: a target cell sums source cells times weights over the taps that exist, told by lists of byte offsets.
The source rows of a block of target rows are first laid out in scratch, where cells begin on whole vectors and columns beyond
the ends are zeros: memory is read once and in order, however the taps then jump about. `direct` lays out whole rows, for one
source channel per target channel; `grouped` one vector of target channels at a time (groups.py), part k of a cell holding the
k-th source channel of each target channel's group.

Target columns come in phases whose neighbours read neighbouring sources. Where weights are not finite, and so must not meet the
zeros, the columns at the ends of a row have a range of taps of their own.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.depthwise.groups_kernel import SEGMENT, make_lay, make_spread
from pullback.cpu.depthwise.records import CellsDirect, CellsGrouped
from pullback.cpu.depthwise.tiles_kernel import make_cells_tile
from pullback.cpu.simd.native import copy_bytes, fence, stream_bytes
from pullback.cpu.simd.vectors import get_int, outline, stay_outline

MANY, FEW = 8, 4  # columns of a tile
PHASE = 13 * 8  # bytes of an entry of the phase table


def _make_columns(lanes: Any, cells: int, reach: int, registers: int) -> Any:
    """`cells` columns of all channels, `registers` vectors at a time."""
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    G = registers * V
    group_tile = make_cells_tile(lanes.times(registers), cells, reach, False)
    last_tile = make_cells_tile(lanes, cells, reach, True)

    @outline
    def columns(
        source, target, weights, channels, e0, e1, row_pairs, k0, k1, part_pairs, taps, unit, weight_unit, source_step, target_step,
        stream,
    ):  # fmt: skip
        stay_outline()
        c = 0
        while c + G <= channels:
            group_tile(
                source + c * WIDE, target + c * SIZE, weights + c * WIDE, G, e0, e1, row_pairs, k0, k1, part_pairs,
                taps, unit, weight_unit, source_step, target_step, stream,
            )  # fmt: skip
            c += G
        while c < channels:
            last_tile(
                source + c * WIDE, target + c * SIZE, weights + c * WIDE, min(V, channels - c), e0, e1, row_pairs,
                k0, k1, part_pairs, taps, unit, weight_unit, source_step, target_step, stream,
            )  # fmt: skip
            c += V

    return columns


def _make_block_columns(lanes: Any, cells: int, reach: int) -> Any:
    """`cells` columns of one vector of channels whose source lies in scratch."""
    tile = make_cells_tile(lanes, cells, reach, True)

    @outline
    def columns(
        source, target, weights, channels, e0, e1, row_pairs, k0, k1, part_pairs, taps, unit, weight_unit, source_step, target_step,
        stream,
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
        stream,
    ):  # fmt: skip
        """One target row. Middle columns left over by whole tiles are made again by a tile that overlaps the one before."""
        stay_outline()
        for phase in range(phases):
            entry = phase_table + phase * PHASE
            out, base, factors = target + get_int(entry), source + get_int(entry + 8), weights + get_int(entry + 16)
            count, middle, end = get_int(entry + 24), get_int(entry + 32), get_int(entry + 40)
            taps, unit, weight_unit = get_int(entry + 48), get_int(entry + 56), get_int(entry + 64)
            reach, target_step, place = get_int(entry + 72), get_int(entry + 80), ends + 16 * get_int(entry + 88)
            step = get_int(entry + 96)
            j = 0
            while j < count:
                if middle <= j < end:
                    more = MANY if end - j > FEW and end - middle >= MANY else FEW
                    j = min(j, end - more)
                    at, to = base + j * step, out + j * target_step
                    if more == MANY:
                        if reach == 1:
                            many_dense(
                                at, to, factors, channels, e0, e1, row_pairs, k0, k1, part_pairs, taps, unit, weight_unit,
                                step, target_step, stream,
                            )  # fmt: skip
                        elif reach == 2:
                            many_double(
                                at, to, factors, channels, e0, e1, row_pairs, k0, k1, part_pairs, taps, unit, weight_unit,
                                step, target_step, stream,
                            )  # fmt: skip
                        else:
                            many_any(
                                at, to, factors, channels, e0, e1, row_pairs, k0, k1, part_pairs, taps, unit, weight_unit,
                                step, target_step, stream,
                            )  # fmt: skip
                    elif reach == 1:
                        few_dense(
                            at, to, factors, channels, e0, e1, row_pairs, k0, k1, part_pairs, taps, unit, weight_unit,
                            step, target_step, stream,
                        )  # fmt: skip
                    elif reach == 2:
                        few_double(
                            at, to, factors, channels, e0, e1, row_pairs, k0, k1, part_pairs, taps, unit, weight_unit,
                            step, target_step, stream,
                        )  # fmt: skip
                    else:
                        few_any(
                            at, to, factors, channels, e0, e1, row_pairs, k0, k1, part_pairs, taps, unit, weight_unit,
                            step, target_step, stream,
                        )  # fmt: skip
                else:
                    more = 1
                    known = place + 16 * (j if j < middle else j - (end - middle))
                    t0, t1 = get_int(known), get_int(known + 8)
                    one(
                        base + j * step + t0 * unit, out + j * target_step, factors + t0 * weight_unit, channels,
                        e0, e1, row_pairs, k0, k1, part_pairs, t1 - t0, unit, weight_unit, step, target_step, stream,
                    )  # fmt: skip
                j += more

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
    lay, spread = make_lay(lanes), make_spread(lanes)

    def direct(args: CellsDirect, piece, scratch):
        """A block of target rows of an image. They go past the cache if `stream` (where every vector is whole lines), and by
        way of scratch if `stage`, which takes whole rows.
        """
        image, b = piece // args.segments // args.blocks, piece // args.segments % args.blocks
        part = args.segment_table + piece % args.segments * SEGMENT
        table = args.phase_table + piece % args.segments * args.phases * PHASE
        first, last = get_int(args.block_rows + 8 * b), get_int(args.block_rows + 8 * b + 8)
        n0, n1 = get_int(args.need_ptr + 8 * b), get_int(args.need_ptr + 8 * b + 8)
        for i in range(n0, n1):
            row = args.source + (image * args.source_rows + get_int(args.need_row + 8 * i)) * args.source_row
            lay(row, scratch + (i - n0) * args.area_row, args.channels, args.cell, part)
        for r in range(first, last):
            out = args.target + (image * args.rows + r) * args.target_row
            direct_row(
                scratch, scratch + args.stage if args.stage else out, args.weights, args.channels, get_int(args.row_ptr + 8 * r),
                get_int(args.row_ptr + 8 * r + 8), args.row_pairs, args.phases, table, args.ends, 0, 1, args.part_pairs, args.stream,
            )  # fmt: skip
            if args.stage:
                stream_bytes(out, scratch + args.stage, args.target_row)
        if args.stage or args.stream:
            fence()

    def grouped(args: CellsGrouped, piece, scratch):
        """A block of target rows of an image, `step` channels at a time."""
        image, b = piece // args.segments // args.blocks, piece // args.segments % args.blocks
        part = args.segment_table + piece % args.segments * SEGMENT
        table = args.phase_table + piece % args.segments * args.phases * PHASE
        first, last = get_int(args.block_rows + 8 * b), get_int(args.block_rows + 8 * b + 8)
        n0, n1 = get_int(args.need_ptr + 8 * b), get_int(args.need_ptr + 8 * b + 8)
        copies = scratch + args.copy_start
        for i in range(n0, n1):
            row = args.source + (image * args.source_rows + get_int(args.need_row + 8 * i)) * args.source_row
            copy_bytes(copies + (i - n0) * args.copy_row, row + get_int(part + 16), get_int(part + 24))
        for c in range(0, args.channels, args.step):
            for i in range(n1 - n0):
                spread(
                    copies + i * args.copy_row, scratch + i * args.area_row, c, min(args.step, args.channels - c),
                    args.source_channels, args.sources_each, args.targets_each, args.parts, args.permuted, args.orders, part,
                )  # fmt: skip
            for r in range(first, last):
                block_row_of(
                    scratch, args.target + (image * args.rows + r) * args.target_row + c * SIZE, args.weights + c * WIDE, min(args.step, args.channels - c),
                    get_int(args.row_ptr + 8 * r), get_int(args.row_ptr + 8 * r + 8), args.row_pairs, args.phases, table, args.ends,
                    0, args.parts, args.part_pairs, args.stream,
                )  # fmt: skip
        if args.stream:
            fence()

    return {"direct": direct, "grouped": grouped}
