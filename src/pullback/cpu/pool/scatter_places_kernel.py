"""Winners as places in a block of dx, many at once in registers; what is no place there becomes NOWHERE."""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.pool.records import MANY, NOWHERE
from pullback.cpu.simd.masked_memory import masked_load
from pullback.cpu.simd.vectors import I8, I32, I64, pointer, some_lanes, splat_lanes


@cache
def make_many_places(looks_at: str) -> Any:
    """looks_at: on which axes beside columns taps outside the input are looked for, since they may meet a cell of another plane or
    image: on none, on "rows" (all windows begin in one row), on "all" (each begins in a row and a plane of its own).
    """

    @intrinsic
    def many_places(
        context: Any, target: Any, codes: Any, n: Any, firsts: Any, base: Any, cells: Any, cell: Any, row_cell: Any, steps: Any,
        size: Any,
    ) -> Any:  # fmt: skip
        """Write the places of n neighbours (at most MANY) as int32s; up to MANY of them are written.

        codes: winners of one byte. firsts: where each window begins, from `base` on; cells: its column, from `cell` on (both
        int32). row_cell: its row; of "all" the bytes from the table of columns to that of rows, and from there to that of planes.
        steps: the taps, columns and rows, then the fields of CodeSteps.
        """
        numbers = ir.VectorType(I32, MANY)

        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            target, code_at, n, first_at, base, cell_at, cell, row_cell, steps, size = args

            def splat(number: Any) -> Any:
                return splat_lanes(builder, builder.trunc(number, I32), MANY)

            def table(address: Any) -> Any:
                return builder.load(pointer(builder, address, numbers), align=4)

            (
                taps, cols, rows, by_cols, by_rows, kernel_cols, kernel_rows, dilation, row_dilation,
                code_step, row_step, plane_step, plane_dilation, planes,
            ) = (splat(builder.extract_value(steps, i)) for i in range(14))  # fmt: skip
            code = builder.zext(masked_load(builder, code_at, ir.VectorType(I8, MANY), some_lanes(builder, n, MANY)), numbers)
            sixteen = ir.Constant(numbers, [16] * MANY)
            row = builder.lshr(builder.mul(code, by_cols), sixteen)  # code // columns of the window, by a reciprocal
            plane = builder.lshr(builder.mul(row, by_rows), sixteen)
            place = builder.add(table(first_at), splat(base))
            for count, step in ((code, code_step), (row, row_step), (plane, plane_step)):
                place = builder.add(place, builder.mul(count, step))
            tap_col = builder.mul(builder.sub(code, builder.mul(row, kernel_cols)), dilation)
            limits = [(builder.add(builder.add(table(cell_at), splat(cell)), tap_col), cols), (code, taps)]
            if looks_at != "none":
                row_at, plane_at = (builder.add(cell_at, builder.mul(row_cell, ir.Constant(I64, n))) for n in (1, 2))
                tap_row = builder.mul(builder.sub(row, builder.mul(plane, kernel_rows)), row_dilation)
                limits.append((builder.add(table(row_at) if looks_at == "all" else splat(row_cell), tap_row), rows))
                if looks_at == "all":
                    limits.append((builder.add(table(plane_at), builder.mul(plane, plane_dilation)), planes))
            inside = builder.icmp_unsigned("<", place, splat(size))
            for number, limit in limits:
                inside = builder.and_(inside, builder.icmp_unsigned("<", number, limit))
            place = builder.select(inside, place, ir.Constant(numbers, [NOWHERE] * MANY))
            builder.store(place, pointer(builder, target, numbers), align=4)
            return ctx.get_dummy_value()

        number = types.int64
        return types.void(*[number] * 8, steps, number), emit

    return many_places


many_places = make_many_places("none")
many_places_in_rows = make_many_places("rows")
many_places_in_images = make_many_places("all")
