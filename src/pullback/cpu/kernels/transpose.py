"""Square blocks transposed in registers: rows of one array become columns of another."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.kernels.vectors import I32, constant_vector, inline, outline, stay_outline


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
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


def make_transpose(lanes: Any, *, widen: bool) -> Any:
    """transpose(source, source_row, target, target_row, rows, cols): target[j][i] = source[i][j], distances of rows in bytes.

    With `widen` elements are read as stored and written wide (into scratch), else the other way round. Nothing outside rows x cols
    is read or written.
    """
    count = lanes.count
    in_size, out_size = (lanes.size, lanes.compute_size) if widen else (lanes.compute_size, lanes.size)
    load_some, store_some = (
        (lanes.load_some, lanes.store_wide_some) if widen else (lanes.load_wide_some, lanes.store_some)
    )
    load, store = (lanes.load, lanes.store_wide) if widen else (lanes.load_wide, lanes.store)

    def make_block(read: Any, write: Any) -> Any:
        reads = ", ".join(f"read(source + min({i}, rows - 1) * source_row, cols)" for i in range(count))
        outs = ", ".join(f"r{i}" for i in range(count))

        def typed(context: Any, *values: Any) -> Any:
            def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
                made = _transposed(builder, list(args))
                return ctx.make_tuple(builder, sig.return_type, made)

            return types.UniTuple(lanes.vector, count)(*values), emit

        names = ", ".join(f"v{i}" for i in range(count))
        scope: dict[str, Any] = {"typed": typed}
        exec(f"def turn(context, {names}):\n    return typed(context, {names})", scope)
        turn = intrinsic(scope["turn"])
        body = f"def block(source, source_row, target, target_row, rows, cols):\n    {outs}, = turn({reads})\n"
        for j in range(count):
            body += f"    write(target + {j} * target_row, r{j}, rows if {j} < cols else 0)\n"
        scope = {"turn": turn, "read": read, "write": write}
        exec(body, scope)
        return inline(scope["block"])

    whole, part = make_block(load, store), make_block(load_some, store_some)

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
