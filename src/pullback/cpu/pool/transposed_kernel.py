"""Pooling in channels_first with vectors over planes: a band of planes is transposed into scratch, where kernels over channels run.

All planes (channels of all images) are alike, so a band of them, transposed, is one image in channels_last whose channels they
are: vectors are full however short the rows are, and strides cost nothing. The results are transposed back. In scratch elements
are wide. Lanes behind the last plane hold rubbish that is not copied out.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pullback.cpu.pool.exact_kernel import make_exact
from pullback.cpu.pool.records import (
    ChannelsAvgForward,
    ChannelsAvgGrad,
    ChannelsMaxForward,
    GatherMaxGrad,
    Run,
    TransposedAvgForward,
    TransposedAvgGrad,
    TransposedBlock,
    TransposedMaxForward,
    TransposedMaxGrad,
)
from pullback.cpu.simd.native import call_piece, copy_bytes, fill_zero
from pullback.cpu.simd.record_types import records_at
from pullback.cpu.simd.transpose import make_transpose
from pullback.cpu.simd.vectors import inline

block_at, run_at = records_at(TransposedBlock), records_at(Run)
max_at, mean_at, winners_at, shares_at = (
    records_at(record, changes=True) for record in (ChannelsMaxForward, ChannelsAvgForward, GatherMaxGrad, ChannelsAvgGrad)
)


class _Codes:
    """Winners as what is transposed: of the same width in arrays and in scratch."""

    def __init__(self, lanes: Any) -> None:
        self.name, self.count = f"winner_{lanes.winner}", lanes.count
        self.size = self.compute_size = lanes.winner_size
        self.load = self.load_wide = lanes.load_winners
        self.load_some = self.load_wide_some = lanes.load_winners_some
        self.store = self.store_wide = lanes.store_winners
        self.store_some = self.store_wide_some = lanes.store_winners_some


@cache
def _codes_of(lanes: Any) -> _Codes:
    return _Codes(lanes)


def build(lanes: Any) -> dict[str, Any]:
    SIZE, WIDE, WINNER = lanes.size, lanes.compute_size, lanes.winner_size
    enter, leave = make_transpose(lanes, widen=True), make_transpose(lanes, widen=False)
    move_codes = make_transpose(_codes_of(lanes), widen=True)
    _, index_row = make_exact(lanes, "first", "propagate", False, False)

    @inline
    def unit_of(args, unit):
        """(the first plane of a unit's band, its planes, its block)"""
        first = unit // args.blocks * args.lanes
        return first, min(args.lanes, args.planes - first), block_at(args.block_table, unit % args.blocks)

    @inline
    def take(args, transpose, array, size, area, wide, plane, count, block):
        """The source rows that a block needs, of `count` planes, into an area of scratch; where row 0 of the image would lie."""
        begin = area - block.first_source * args.source_row * args.lanes * wide
        for r in range(block.run, block.run + block.runs):
            run = run_at(args.runs, r)
            at = run.first * args.source_row
            transpose(
                array + (plane * args.source_cells + at) * size, args.source_cells * size,
                begin + at * args.lanes * wide, args.lanes * wide, count, run.rows * args.source_row,
            )  # fmt: skip
        return begin

    @inline
    def give(args, transpose, area, wide, array, size, plane, count, block):
        """The targets of a block out of scratch."""
        at = plane * args.target_cells + block.first_target * args.target_row
        transpose(
            area, args.lanes * wide, array + at * size, args.target_cells * size, block.targets * args.target_row, count
        )  # fmt: skip

    @inline
    def before(args, area, wide, block):
        """Where target 0 of the image would lie, if a block's first one lies at the beginning of an area."""
        return area - block.first_target * args.target_row * args.lanes * wide

    @inline
    def clear_spare_lanes(args, scratch, count):
        """What lanes behind the last plane held may be denormal as numbers, and some CPUs take a hundred cycles to add those."""
        if count < args.lanes:
            fill_zero(scratch, args.target_start)

    @inline
    def inner_of(args, scratch):
        """The arguments of the inner kernel: a copy of this thread's own, with its scratch behind."""
        copy_bytes(scratch + args.inner_start, args.inner_block, 8 * args.inner_words)
        return scratch + args.inner_start, scratch + args.inner_start + 8 * args.inner_words

    def max_forward(args: TransposedMaxForward, piece, scratch):
        arguments, rest = inner_of(args, scratch)
        inner = max_at(arguments, 0)
        values, codes, own = scratch + args.target_start, scratch + args.code_start, scratch + args.own_start
        for unit in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.units)):
            plane, count, block = unit_of(args, unit)
            inner.x = take(args, enter, args.x, SIZE, scratch, WIDE, plane, count, block)
            inner.y = before(args, values, WIDE, block)
            inner.winners = before(args, codes, WINNER, block) if args.winners or args.indices else 0
            call_piece(args.inner, arguments, unit % args.blocks, rest)
            give(args, leave, values, WIDE, args.y, SIZE, plane, count, block)
            if args.winners:
                give(args, move_codes, codes, WINNER, args.winners, WINNER, plane, count, block)
            if args.indices:
                cells = block.targets * args.target_row
                move_codes(codes, args.lanes * WINNER, own, cells * WINNER, cells, count)
                for p in range(count):
                    for i in range(block.targets):
                        row = block.first_target + i
                        at = (plane + p) * args.target_cells + row * args.target_row
                        winners = own + (p * cells + i * args.target_row) * WINNER
                        index_row(args, args.indices + 8 * at, winners, 0, args.target_row, 1, plane + p, row)

    def avg_forward(args: TransposedAvgForward, piece, scratch):
        arguments, rest = inner_of(args, scratch)
        inner = mean_at(arguments, 0)
        values = scratch + args.target_start
        for unit in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.units)):
            plane, count, block = unit_of(args, unit)
            clear_spare_lanes(args, scratch, count)
            inner.x = take(args, enter, args.x, SIZE, scratch, WIDE, plane, count, block)
            inner.y = before(args, values, WIDE, block)
            call_piece(args.inner, arguments, unit % args.blocks, rest)
            give(args, leave, values, WIDE, args.y, SIZE, plane, count, block)

    def max_grad(args: TransposedMaxGrad, piece, scratch):
        arguments, rest = inner_of(args, scratch)
        inner = winners_at(arguments, 0)
        values, codes = scratch + args.target_start, scratch + args.code_start
        for unit in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.units)):
            plane, count, block = unit_of(args, unit)
            clear_spare_lanes(args, scratch, count)
            inner.dy = take(args, enter, args.dy, SIZE, scratch, WIDE, plane, count, block)
            inner.winners = take(args, move_codes, args.winners, WINNER, codes, WINNER, plane, count, block)
            inner.dx = before(args, values, WIDE, block)
            call_piece(args.inner, arguments, unit % args.blocks, rest)
            give(args, leave, values, WIDE, args.dx, SIZE, plane, count, block)

    def avg_grad(args: TransposedAvgGrad, piece, scratch):
        arguments, rest = inner_of(args, scratch)
        inner = shares_at(arguments, 0)
        values = scratch + args.target_start
        for unit in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.units)):
            plane, count, block = unit_of(args, unit)
            clear_spare_lanes(args, scratch, count)
            inner.dy = take(args, enter, args.dy, SIZE, scratch, WIDE, plane, count, block)
            inner.dx = before(args, values, WIDE, block)
            call_piece(args.inner, arguments, unit % args.blocks, rest)
            give(args, leave, values, WIDE, args.dx, SIZE, plane, count, block)

    return {"max_forward": max_forward, "avg_forward": avg_forward, "max_grad": max_grad, "avg_grad": avg_grad}
