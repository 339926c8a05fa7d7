"""Source rows of channels_last arrays, copied with their halo into scratch: cell by cell, or spread over the output channels.

Spread, part k of a cell is, in each lane, the k-th input channel of the group of the lane's output channel: channel c belongs to
group c // group_out_channels, whose input channels begin at group * group_in_channels. Cells beyond the ends of a row are zeros.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import types
from numba.extending import intrinsic

from pullback.cpu.depthwise.emit_kernel import emit_permute, load_order, word
from pullback.cpu.depthwise.records import ColumnPhase, Range, Segment
from pullback.cpu.simd.native import copy_bytes, fill_zero
from pullback.cpu.simd.record_types import records_at
from pullback.cpu.simd.vectors import inline, outline, stay_outline

segment_at, phase_at, range_at = (records_at(record) for record in (Segment, ColumnPhase, Range))
PHASE = ColumnPhase.BYTES


@inline
def place_of(args, unit):
    """Image and block of a unit (a segment of a block), its segment, and the address of its table of phases."""
    image, block = unit // args.segments // args.blocks, unit // args.segments % args.blocks
    number = unit % args.segments
    return image, block, segment_at(args.segment_table, number), args.phase_table + number * args.phases * PHASE


@inline
def own_taps(args, phase, j):
    """The range of taps of column j of a phase, which is not in the middle."""
    return range_at(args.ends, phase.ends + (j if j < phase.middle else j - (phase.end - phase.middle)))


@inline
def halo_of(args, block):
    """First and last (exclusive) entry in halo_rows of the source rows that a block of target rows reads."""
    return word(args.halo_ptr, block), word(args.halo_ptr, block + 1)


@inline
def image_start(args, image):
    return args.source + image * args.source_rows * args.source_pitch


@inline
def source_row(args, image, entry):
    return image_start(args, image) + word(args.halo_rows, entry) * args.source_pitch


@cache
def make_permute(lanes: Any) -> Any:
    """permute(vector, order): lane i of the result is lane order[i], int32 in memory (int64 beside float64)."""

    @intrinsic
    def permute(context: Any, vector: Any, order: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            order = load_order(builder, args[1], lanes.count, lanes.compute_size)
            return emit_permute(builder, args[0], order, lanes.compute_size)

        return lanes.vector(lanes.vector, types.int64), emit

    return permute


@inline
def fill_halo(area, cell, segment):
    """Zeros before and behind the cells of a segment, each of `cell` bytes; where the cells themselves begin."""
    cells = area + segment.zeros_before * cell
    fill_zero(area, segment.zeros_before * cell)
    fill_zero(cells + segment.cells * cell, segment.zeros_after * cell)
    return cells


@cache
def make_copy_block(lanes: Any) -> Any:
    """copy_block: all source rows of a block with all their channels, in the compute type (records of CellsCopied); where they lie:
    in `area`, or where they are if they need no copy."""
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    load, load_some, store_wide = lanes.load, lanes.load_some, lanes.store_wide
    quad = lanes.times(4)
    Q, load_quad, store_quad = quad.count, quad.load, quad.store_wide

    @inline
    def copy_run(source, target, count):
        """The last vector is filled up with zeros."""
        j = 0
        while j + Q <= count:
            store_quad(target + j * WIDE, load_quad(source + j * SIZE, Q), Q)
            j += Q
        while j + V <= count:
            store_wide(target + j * WIDE, load(source + j * SIZE, V), V)
            j += V
        if j < count:
            store_wide(target + j * WIDE, load_some(source + j * SIZE, count - j), V)

    @outline
    def copy_row(args, segment, source, area):
        """The cells of a segment of a row, and their halo."""
        stay_outline()
        channels, cell = args.out_channels, args.cell
        cells = fill_halo(area, cell, segment)
        source += segment.source_start
        if cell == channels * WIDE:
            copy_run(source, cells, segment.cells * channels)
        else:
            for col in range(segment.cells):
                copy_run(source + col * channels * SIZE, cells + col * cell, channels)

    @inline
    def copy_block(args, segment, image, block, area):
        if args.in_place:
            return image_start(args, image)
        n0, n1 = halo_of(args, block)
        for i in range(n0, n1):
            copy_row(args, segment, source_row(args, image, i), area + (i - n0) * args.area_pitch)
        return area

    return copy_block


@inline
def copy_narrow(args, segment, image, block, copies):
    """The source rows of a block as they are: spread_block reads them once for every `step` output channels."""
    n0, n1 = halo_of(args, block)
    for i in range(n0, n1):
        row = source_row(args, image, i) + segment.source_start
        copy_bytes(copies + (i - n0) * args.copy_pitch, row, segment.source_bytes)


@cache
def make_spread_block(lanes: Any) -> Any:
    """spread_block: all source rows of a block for `count` output channels from `channel` on (records of CellsSpread)."""
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    load, load_some, store_wide = lanes.load, lanes.load_some, lanes.store_wide
    get, put_wide = lanes.get, lanes.put_wide
    permute = make_permute(lanes)

    @outline
    def spread_row(args, segment, source, area, channel, count):
        """permuted: the input channels they need fill one vector at most, and the output channels begin with a group."""
        stay_outline()
        parts, in_channels = args.parts, args.in_channels
        cell = parts * V * WIDE
        cells = fill_halo(area, cell, segment)
        begin = channel // args.group_out_channels * args.group_in_channels
        if args.permuted:
            n = min(V, in_channels - begin)
            for col in range(segment.cells):
                at = source + (col * in_channels + begin) * SIZE
                value = load(at, V) if n == V else load_some(at, n)
                for k in range(parts):
                    store_wide(cells + col * cell + k * V * WIDE, permute(value, args.orders + k * V * WIDE), V)
        else:
            for i in range(count):
                first = (channel + i) // args.group_out_channels * args.group_in_channels
                for col in range(segment.cells):
                    for k in range(parts):
                        value = get(source + (col * in_channels + first + k) * SIZE)
                        put_wide(cells + col * cell + (k * V + i) * WIDE, value)

    @inline
    def spread_block(args, segment, block, copies, area, channel, count):
        n0, n1 = halo_of(args, block)
        for i in range(n1 - n0):
            spread_row(args, segment, copies + i * args.copy_pitch, area + i * args.area_pitch, channel, count)

    return spread_block
