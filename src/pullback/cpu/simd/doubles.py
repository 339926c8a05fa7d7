"""Sums and roots that the lanes themselves do not have: vectors of float32 as float64 and back, and square roots."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba.extending import intrinsic

from pullback.cpu.simd.lanes import Lanes, lanes_of
from pullback.cpu.simd.vectors import declare


@cache
def make_doubles(lanes: Lanes) -> tuple[Lanes, Any, Any]:
    """(double, widen, narrow): the operations on as many lanes of float64, and conversions to these and back."""
    double = lanes_of("float64", 8 * lanes.count)
    one, two = lanes.vector, double.vector

    @intrinsic
    def widen(context: Any, value: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            return args[0] if one == two else builder.fpext(args[0], two.llvm)

        return two(one), emit

    @intrinsic
    def narrow(context: Any, value: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            return args[0] if one == two else builder.fptrunc(args[0], one.llvm)

        return one(two), emit

    return double, widen, narrow


@cache
def make_square_root(lanes: Lanes) -> Any:
    """The correctly rounded square root of every lane."""
    vector = lanes.vector

    @intrinsic
    def square_root(context: Any, value: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            name = f"llvm.sqrt.v{vector.lanes}f{vector.element[-2:]}"
            return builder.call(declare(builder, name, vector.llvm, [vector.llvm]), args)

        return vector(vector), emit

    return square_root
