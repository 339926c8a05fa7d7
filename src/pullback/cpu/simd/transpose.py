"""Square blocks transposed in registers: rows of one array become columns of another."""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.simd.linked_functions import call_part
from pullback.cpu.simd.vectors import I32, I64, constant_vector, outline, stay_outline


def transposed_registers(builder: Any, rows: list[Any]) -> list[Any]:
    """Exchange halves of ever smaller blocks: after the last step row i holds column i."""
    count = len(rows)
    order_type = ir.VectorType(I32, count)
    half = count // 2
    while half:
        low = [i if i % (2 * half) < half else count + i - half for i in range(count)]
        high = [i + half if i % (2 * half) < half else count + i for i in range(count)]
        for i in range(count):
            if i % (2 * half) < half:
                a, b = rows[i], rows[i + half]
                rows[i] = builder.shuffle_vector(a, b, constant_vector(order_type, low))
                rows[i + half] = builder.shuffle_vector(a, b, constant_vector(order_type, high))
        half //= 2
    return rows


def emit_memory(operation: Any, ctx: Any, builder: Any, args: Any) -> Any:
    """What a load or store of Lanes emits, outside of Numba's own functions."""
    _, emit = operation._defn(None, *(None for _ in args))
    return emit(ctx, builder, None, args)


def next_place(builder: Any, place: Any, distance: Any, number: int, total: Any, ragged: bool) -> Any:
    """Where the next row or column of a block lies. Behind the last one of a `ragged` block it is that one again: also a store of
    no lane at all must not leave the array, since one to a page that is not there takes the processor a hundred times as long.
    """
    further = builder.add(place, distance)
    if not ragged:
        return further
    last = builder.sub(total, ir.Constant(I64, 1))
    return builder.select(builder.icmp_signed("<", ir.Constant(I64, number), last), further, place)


@cache
def make_transpose(lanes: Any, *, widen: bool) -> Any:
    """transpose(source, source_row, target, target_row, rows, cols): target[j][i] = source[i][j], distances of rows in bytes.

    With `widen` elements are read as stored and written wide (into scratch), else the other way round. Nothing outside rows x cols
    is read or written.
    """
    count = lanes.count
    in_size, out_size = (lanes.size, lanes.compute_size) if widen else (lanes.compute_size, lanes.size)
    load_some, store_some = (lanes.load_some, lanes.store_wide_some) if widen else (lanes.load_wide_some, lanes.store_some)
    load, store = (lanes.load, lanes.store_wide) if widen else (lanes.load_wide, lanes.store)

    def make_block(read: Any, write: Any, name: str, *, ragged: bool) -> Any:
        """One block of count x count elements, or (`ragged`) of at most so many."""

        def emit_block(ctx: Any, builder: Any, args: Any) -> None:
            source, source_row, target, target_row, rows, cols = args
            read_rows = []
            for i in range(count):
                read_rows.append(emit_memory(read, ctx, builder, [source, cols]))
                source = next_place(builder, source, source_row, i, rows, ragged)
            for j, value in enumerate(transposed_registers(builder, read_rows)):
                kept = rows
                if ragged:
                    kept = builder.select(builder.icmp_signed("<", ir.Constant(I64, j), cols), rows, ir.Constant(I64, 0))
                emit_memory(write, ctx, builder, [target, value, kept])
                target = next_place(builder, target, target_row, j, cols, ragged)

        @intrinsic
        def block(context, source, source_row, target, target_row, rows, cols):  # type: ignore[no-untyped-def]
            def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
                name_here = f"{name}_{lanes.name}_{count}_{int(widen)}"
                call_part(builder, name_here, args, lambda body, given: emit_block(ctx, body, given))
                return ctx.get_dummy_value()

            return types.void(*(types.int64,) * 6), emit

        return block

    whole = make_block(load, store, "transpose", ragged=False)
    part = make_block(load_some, store_some, "transpose_some", ragged=True)

    @outline
    def transpose(source, source_row, target, target_row, rows, cols):
        stay_outline()
        for i in range(0, rows, count):
            for j in range(0, cols, count):
                here, there = source + i * source_row + j * in_size, target + j * target_row + i * out_size
                if i + count <= rows and j + count <= cols:
                    whole(here, source_row, there, target_row, count, count)
                else:
                    part(here, source_row, there, target_row, min(count, rows - i), min(count, cols - j))

    return transpose
