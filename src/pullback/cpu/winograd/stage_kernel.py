"""Rows of elements transposed into vectors of scratch (the stage) and back: a cell's channels, or a tap's, side by side."""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.simd.transpose import emit_memory, transposed_registers
from pullback.cpu.simd.vectors import I64, outline, stay_outline


@cache
def make_stage(lanes: Any) -> Any:
    """(read, write) of at most as many rows as a vector has lanes, and any number of cells.

    read(source, row_pitch, rows, cells, stage): missing rows repeat the last one, so that every lane holds a number of the array.
    write(stage, target, row_pitch, rows, cells): the reverse; only `rows` rows are written.
    """
    V, SIZE, CELL = lanes.count, lanes.size, lanes.count * lanes.compute_size

    @intrinsic
    def read_block(context: Any, source: Any, row_pitch: Any, rows: Any, n: Any, stage: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            source, row_pitch, rows, n, stage = args
            values = []
            for i in range(V):
                values.append(emit_memory(lanes.load_some, ctx, builder, [source, n]))
                more = builder.icmp_signed("<", ir.Constant(I64, i + 1), rows)
                source = builder.select(more, builder.add(source, row_pitch), source)
            for i, value in enumerate(transposed_registers(builder, values)):
                emit_memory(lanes.store_wide, ctx, builder, [builder.add(stage, ir.Constant(I64, i * CELL)), value, n])
            return ctx.get_dummy_value()

        return types.void(*[types.int64] * 5), emit

    @intrinsic
    def write_block(context: Any, stage: Any, target: Any, row_pitch: Any, rows: Any, n: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            stage, target, row_pitch, rows, n = args
            places = (builder.add(stage, ir.Constant(I64, i * CELL)) for i in range(V))
            values = [emit_memory(lanes.load_wide, ctx, builder, [place, n]) for place in places]
            for i, value in enumerate(transposed_registers(builder, values)):
                wanted = builder.icmp_signed("<", ir.Constant(I64, i), rows)
                count = builder.select(wanted, n, ir.Constant(I64, 0))
                emit_memory(lanes.store_some, ctx, builder, [target, value, count])
                target = builder.add(target, row_pitch)
            return ctx.get_dummy_value()

        return types.void(*[types.int64] * 5), emit

    @outline
    def read(source, row_pitch, rows, cells, stage):
        stay_outline()
        for w in range(0, cells, V):
            read_block(source + w * SIZE, row_pitch, rows, min(V, cells - w), stage + w * CELL)

    @outline
    def write(stage, target, row_pitch, rows, cells):
        stay_outline()
        for w in range(0, cells, V):
            write_block(stage + w * CELL, target + w * SIZE, row_pitch, rows, min(V, cells - w))

    return read, write
