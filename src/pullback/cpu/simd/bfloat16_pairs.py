"""The instructions of AVX512-BF16: two products of bfloat16 added to a float32 at once, and float32 rounded to bfloat16.

A pair is two elements side by side in 32 bits, the first in the lower half. The sum of a lane becomes, with one rounding each,
sum + second * second, then that + first * first. Numbers below the smallest normal one (2**-126) count as zero, given or made.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.extending import intrinsic

from pullback.cpu.simd.vectors import F32, I16, I32, declare

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


@intrinsic
def upper_halves(context: Any, first: Any, second: Any) -> Any:
    """Pairs of the bfloat16 in the upper halves of float32 lanes."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        wide = ir.VectorType(I32, sig.args[0].lanes)
        low, high = (builder.bitcast(value, wide) for value in args)
        low = builder.lshr(low, ir.Constant(wide, [16] * wide.count))
        high = builder.and_(high, ir.Constant(wide, [0xFFFF0000] * wide.count))
        return builder.bitcast(builder.or_(low, high), sig.args[0].llvm)

    return first(first, second), emit
