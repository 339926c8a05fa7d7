"""Rows of channels_last arrays in scratch: laid out as they are, or spread over the channels of the other side.

Spread, part k of a cell is, in each lane, the k-th source channel of its group.

Target channel c belongs to group c // targets_each, whose source channels are group * sources_each + k for each part k. A spread
row is (place, part, vector of target channels) in scratch; places outside the row are zeros.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.simd.native import fill_zero
from pullback.cpu.simd.vectors import I32, I64, declare, get_int, inline, outline, pointer, stay_outline

# Bytes of an entry of the segment table: zeros before, cells, source offset and bytes, target offset and bytes, zeros after.
SEGMENT = 7 * 8


def make_permute(lanes: Any) -> Any:
    """permute(vector, order): lane i of the result is lane order[i], int32 in memory (int64 beside float64)."""
    count, size = lanes.count, lanes.compute_size
    index = I64 if size == 8 else I32
    native = {(16, 4): "avx512.permvar.sf.512", (8, 8): "avx512.permvar.df.512", (8, 4): "avx2.permps"}.get((count, size))

    @intrinsic
    def permute(context: Any, vector: Any, order: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            value, place = args
            kind = ir.VectorType(index, count)
            lanes_of = builder.load(pointer(builder, place, kind), align=size)
            if native and builder.module.triple.startswith("x86_64"):
                function = declare(builder, f"llvm.x86.{native}", value.type, [value.type, kind])
                return builder.call(function, [value, lanes_of])
            result = ir.Constant(value.type, ir.Undefined)
            for i in range(count):
                number = ir.Constant(I32, i)
                lane = builder.extract_element(value, builder.extract_element(lanes_of, number))
                result = builder.insert_element(result, lane, number)
            return result

        return lanes.vector(lanes.vector, types.int64), emit

    return permute


def make_lay(lanes: Any) -> Any:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    load, load_some, store_wide = lanes.load, lanes.load_some, lanes.store_wide
    quad = lanes.times(4)
    Q, load_quad, store_quad = quad.count, quad.load, quad.store_wide

    @inline
    def run(source, target, count):
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
    def lay(source, area, channels, cell, segment):
        """A segment of a row with all its channels: places of `cell` bytes in the compute type, zeros outside the row."""
        stay_outline()
        before, cols, after = get_int(segment), get_int(segment + 8), get_int(segment + 48)
        source += get_int(segment + 16)
        line = area + before * cell
        fill_zero(area, before * cell)
        fill_zero(line + cols * cell, after * cell)
        if cell == channels * WIDE:
            run(source, line, cols * channels)
        else:
            for col in range(cols):
                run(source + col * channels * SIZE, line + col * cell, channels)

    return lay


def make_spread(lanes: Any) -> Any:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    load, load_some, store_wide = lanes.load, lanes.load_some, lanes.store_wide
    get, put_wide = lanes.get, lanes.put_wide
    permute = make_permute(lanes)

    @outline
    def spread(
        source, area, channel, count, source_channels, sources_each, targets_each, parts, permuted, orders, segment
    ):  # fmt: skip
        """A segment of a row for `count` target channels from `channel` on.

        permuted: whether the source channels they need fill one vector at most, and the channels begin with a group.
        """
        stay_outline()
        cell = parts * V * WIDE
        before, cols, after = get_int(segment), get_int(segment + 8), get_int(segment + 48)
        line = area + before * cell
        fill_zero(area, before * cell)
        fill_zero(line + cols * cell, after * cell)
        begin = channel // targets_each * sources_each
        if permuted:
            n = min(V, source_channels - begin)
            for col in range(cols):
                at = source + (col * source_channels + begin) * SIZE
                value = load(at, V) if n == V else load_some(at, n)
                for k in range(parts):
                    store_wide(line + col * cell + k * V * WIDE, permute(value, orders + k * V * WIDE), V)
        else:
            for i in range(count):
                first = (channel + i) // targets_each * sources_each
                for col in range(cols):
                    for k in range(parts):
                        value = get(source + (col * source_channels + first + k) * SIZE)
                        put_wide(line + col * cell + (k * V + i) * WIDE, value)

    return spread
