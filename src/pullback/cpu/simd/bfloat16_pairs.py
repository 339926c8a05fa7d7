"""The instructions of AVX512-BF16: two products of bfloat16 added to a float32 at once, and float32 rounded to bfloat16.

A pair is two elements side by side in 32 bits, the first in the lower half. The sum of a lane becomes, with one rounding each,
sum + second * second, then that + first * first. Numbers below the smallest normal one (2**-126) count as zero, given or made.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.simd.masked_memory import masked_store
from pullback.cpu.simd.vectors import F32, I1, I16, I32, declare

PAIR_LANES = 16
_SUMS, _PAIRS = ir.VectorType(F32, PAIR_LANES), ir.VectorType(I32, PAIR_LANES)


def add_products(builder: Any, sums: Any, a: Any, b: Any) -> Any:
    """sums + the products of pairs."""
    function = declare(builder, "llvm.x86.avx512bf16.dpbf16ps.512", _SUMS, [_SUMS, _PAIRS, _PAIRS])
    return builder.call(function, [sums, a, b])


def rounded_to_bfloat16(builder: Any, value: Any) -> Any:
    """The bits of float32 lanes rounded to nearest, ties to even."""
    kind = ir.VectorType(I16, PAIR_LANES)
    return builder.call(declare(builder, "llvm.x86.avx512bf16.cvtneps2bf16.512", kind, [_SUMS]), [value])


def both_rounded_to_bfloat16(builder: Any, first: Any, second: Any) -> Any:
    """The same of two vectors, one after the other in one."""
    kind = ir.VectorType(I16, 2 * PAIR_LANES)
    return builder.call(declare(builder, "llvm.x86.avx512bf16.cvtne2ps2bf16.512", kind, [_SUMS] * 2), [second, first])


def paired(builder: Any, first: Any, second: Any) -> Any:
    """Pairs of the lanes of two vectors of bfloat16 bits, as the float32 lanes that are moved about."""
    wide = ir.VectorType(I32, first.type.count)
    shift = ir.Constant(wide, [16] * wide.count)
    bits = builder.or_(builder.zext(first, wide), builder.shl(builder.zext(second, wide), shift))
    return builder.bitcast(bits, ir.VectorType(F32, wide.count))


def _first(builder: Any, value: Any) -> Any:
    """The bfloat16 in the upper halves of float32 lanes, moved into the lower halves."""
    wide = ir.VectorType(I32, value.type.count)
    return builder.lshr(builder.bitcast(value, wide), ir.Constant(wide, [16] * wide.count))


@intrinsic
def first_halves(context: Any, value: Any) -> Any:
    """Pairs of bfloat16, given as float32, and zeros."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(_first(builder, args[0]), sig.args[0].llvm)

    return value(value), emit


def _make_store_halves(second: bool) -> Any:
    @intrinsic
    def store_halves(context: Any, address: Any, value: Any) -> Any:
        """Bfloat16, given as float32, into the first or the second halves of pairs in memory; the others stay as they are."""

        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            bits = builder.bitcast(args[1], ir.VectorType(I32, value.lanes)) if second else _first(builder, args[1])
            halves = ir.VectorType(I16, 2 * value.lanes)
            mask = ir.Constant(ir.VectorType(I1, halves.count), [i % 2 == int(second) for i in range(halves.count)])
            masked_store(builder, args[0], builder.bitcast(bits, halves), mask)
            return ctx.get_dummy_value()

        return types.void(types.int64, value), emit

    return store_halves


store_first_halves, store_second_halves = _make_store_halves(False), _make_store_halves(True)
