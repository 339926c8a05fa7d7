"""Blocks of bfloat16 transposed into pairs: the two of a pair lie at a distance, in neighbouring rows or further along one row."""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.simd.bfloat16_pairs import paired
from pullback.cpu.simd.linked_functions import call_part
from pullback.cpu.simd.masked_memory import masked_load
from pullback.cpu.simd.transpose import emit_memory, next_place, transposed_registers
from pullback.cpu.simd.vectors import I16, I64, outline, pointer, some_lanes, stay_outline


def load_two(builder: Any, place: Any, partner: Any, count: int, some: tuple[Any, Any] | None) -> Any:
    """Pairs of elements at a place and at a distance from there; `some`: of how many there is the first, and the second."""
    packed = ir.VectorType(I16, count)
    if some is None:
        places = (place, builder.add(place, partner))
        return paired(builder, *(builder.load(pointer(builder, at, packed), align=2) for at in places))
    firsts, seconds = some
    there = builder.icmp_signed(">", seconds, ir.Constant(I64, 0))
    second = builder.select(
        there, builder.add(place, partner), place
    )  # nothing outside is touched, not even by a load of no lane
    halves = ((place, firsts), (second, seconds))
    return paired(builder, *(masked_load(builder, at, packed, some_lanes(builder, n, count)) for at, n in halves))


@cache
def make_load_pairs(lanes: Any) -> tuple[Any, Any]:
    """(load_pairs, load_some_pairs): (place, partner, firsts, seconds) -> a vector of pairs; all of them, or so many."""

    def make(ragged: bool) -> Any:
        @intrinsic
        def load_pairs(context: Any, place: Any, partner: Any, firsts: Any, seconds: Any) -> Any:
            def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
                return load_two(builder, args[0], args[1], lanes.count, (args[2], args[3]) if ragged else None)

            return lanes.vector(*(types.int64,) * 4), emit

        return load_pairs

    return make(False), make(True)


@cache
def make_pair_transpose(lanes: Any) -> Any:
    """transpose(source, source_row, partner, target, target_row, rows, cols, partner_rows, partner_cols).

    target[j][i] is the pair of source[i][j] and what lies `partner` bytes further; of this there are partner_rows x partner_cols,
    and zeros beyond. Distances are in bytes. Nothing else is read or written.
    """
    count, size, wide = lanes.count, lanes.size, lanes.compute_size

    def make_block(write: Any, name: str, *, ragged: bool) -> Any:
        def emit_block(ctx: Any, builder: Any, args: Any) -> None:
            source, source_row, partner, target, target_row, rows, cols, partner_rows, partner_cols = args
            none, read = ir.Constant(I64, 0), []
            for i in range(count):
                has_partner = builder.icmp_signed("<", ir.Constant(I64, i), partner_rows)
                some = (cols, builder.select(has_partner, partner_cols, none)) if ragged else None
                read.append(load_two(builder, source, partner, count, some))
                source = next_place(builder, source, source_row, i, rows, ragged)
            for j, value in enumerate(transposed_registers(builder, read)):
                kept = builder.select(builder.icmp_signed("<", ir.Constant(I64, j), cols), rows, none)
                emit_memory(write, ctx, builder, [target, value, kept])
                target = next_place(builder, target, target_row, j, cols, ragged)

        @intrinsic
        def block(context, source, source_row, partner, target, target_row, rows, cols, partner_rows, partner_cols):  # type: ignore[no-untyped-def]
            def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
                call_part(builder, f"{name}_{count}", args, lambda body, given: emit_block(ctx, body, given))
                return ctx.get_dummy_value()

            return types.void(*(types.int64,) * 9), emit

        return block

    whole = make_block(lanes.store_wide, "transpose_pairs", ragged=False)
    part = make_block(lanes.store_wide_some, "transpose_some_pairs", ragged=True)

    @outline
    def transpose(source, source_row, partner, target, target_row, rows, cols, partner_rows, partner_cols):
        stay_outline()
        for i in range(0, rows, count):
            for j in range(0, cols, count):
                here, there = source + i * source_row + j * size, target + j * target_row + i * wide
                some_rows, some_cols = min(count, rows - i), min(count, cols - j)
                two_rows, two_cols = max(0, min(count, partner_rows - i)), max(0, min(count, partner_cols - j))
                if some_rows == count and some_cols == count and two_rows == count and two_cols == count:
                    whole(here, source_row, partner, there, target_row, count, count, count, count)
                else:
                    part(here, source_row, partner, there, target_row, some_rows, some_cols, two_rows, two_cols)

    return transpose
