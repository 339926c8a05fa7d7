"""Vectors in memory: whole, the first few lanes, those between two numbers or those of a mask; nothing else is touched."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.simd.vectors import I32, I64, Vector, constant_vector, declare, pointer, some_lanes


def layout_of(packed: ir.VectorType) -> tuple[int, str]:
    """Bytes of an element in memory, and how LLVM spells the vector in names of intrinsics."""
    is_int = isinstance(packed.element, ir.IntType)
    size = packed.element.width // 8 if is_int else {"half": 2, "float": 4, "double": 8}[str(packed.element)]
    return size, f"v{packed.count}{'i' if is_int else 'f'}{size * 8}"


def masked_load(builder: Any, address: Any, packed: ir.VectorType, mask: Any) -> Any:
    """The lanes a mask sets, zeros elsewhere; no other lane is read."""
    align, suffix = layout_of(packed)
    function = declare(builder, f"llvm.masked.load.{suffix}.p0", packed, [packed.as_pointer(), I32, mask.type, packed])
    zeros = ir.Constant(packed, [0] * packed.count)
    return builder.call(function, [pointer(builder, address, packed), ir.Constant(I32, align), mask, zeros])


def masked_store(builder: Any, address: Any, value: Any, mask: Any) -> None:
    """Store the lanes a mask sets; no other place is touched."""
    packed = value.type
    align, suffix = layout_of(packed)
    function = declare(builder, f"llvm.masked.store.{suffix}.p0", ir.VoidType(), [packed, packed.as_pointer(), I32, mask.type])
    builder.call(function, [value, pointer(builder, address, packed), ir.Constant(I32, align), mask])


def lanes_from(builder: Any, value: Any, first: int, count: int) -> Any:
    """`count` lanes of a vector from one on; beyond its end, its last one."""
    order = [min(lane, value.type.count - 1) for lane in range(first, first + count)]
    undefined = ir.Constant(value.type, ir.Undefined)
    return builder.shuffle_vector(value, undefined, constant_vector(ir.VectorType(I32, count), order))


def concatenate(builder: Any, a: Any, b: Any) -> Any:
    """One vector of the lanes of a, then those of b (which has no more lanes than a)."""
    total = a.type.count + b.type.count
    if a.type.count != b.type.count:
        b = lanes_from(builder, b, 0, a.type.count)
    return builder.shuffle_vector(a, b, constant_vector(ir.VectorType(I32, total), range(total)))


def load_of_lanes(storage: Any, vector: Vector, widen: Any) -> Any:
    """load_between: the lanes from number `low` up to, not with, number `high`; elsewhere another value, and nothing is read."""
    count = vector.lanes
    packed, bits = ir.VectorType(storage, count), ir.IntType(max(64, 2 * count))
    ones = ir.Constant(bits, 2**count - 1)

    def from_lane(builder: Any, number: Any) -> Any:
        """A bit for every lane from a number on, which may lie far outside."""
        for limit, op in ((0, "<"), (count, ">")):
            at = ir.Constant(I64, limit)
            number = builder.select(builder.icmp_signed(op, number, at), at, number)
        return builder.shl(ones, number if bits == I64 else builder.zext(number, bits))

    @intrinsic
    def load_between(context: Any, address: Any, low: Any, high: Any, elsewhere: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            # A few scalar instructions, where comparing all lanes would take more.
            lanes = builder.and_(from_lane(builder, args[1]), builder.not_(from_lane(builder, args[2])))
            mask = builder.bitcast(builder.trunc(lanes, ir.IntType(count)), ir.VectorType(ir.IntType(1), count))
            return builder.select(mask, widen(builder, masked_load(builder, args[0], packed, mask)), args[3])

        return vector(types.int64, types.int64, types.int64, vector), emit

    return load_between


def vector_memory(storage: Any, vector: Vector, widen: Any, narrow: Any) -> tuple[Any, Any, Any, Any]:
    """(load, load_some, store, store_some) of a vector kept in memory as `storage` elements.

    The _some forms touch only the first n lanes, so that nothing beyond a row's end is read or written. All four take n, the
    full ones ignore it: a kernel body can be instantiated with either.
    """
    count = vector.lanes
    packed = ir.VectorType(storage, count)
    align, _ = layout_of(packed)
    # LLVM makes a mask of three registers lane by lane, in hundreds of instructions: each has one of its own.
    each = count & -count
    register = ir.VectorType(storage, each)

    def pieces(builder: Any, address: Any, n: Any) -> Iterator[tuple[int, Any, Any]]:
        """(first lane, address, mask) of each register, or of all lanes where they are a power of two."""
        for first in range(0, count, each):
            place = builder.add(address, ir.Constant(I64, first * align))
            yield first, place, some_lanes(builder, builder.sub(n, ir.Constant(I64, first)), each)

    @intrinsic
    def load(context: Any, address: Any, n: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            return widen(builder, builder.load(pointer(builder, args[0], packed), align=align))

        return vector(types.int64, types.int64), emit

    @intrinsic
    def load_some(context: Any, address: Any, n: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            parts = [masked_load(builder, place, register, mask) for _, place, mask in pieces(builder, *args)]
            return widen(builder, reduce(partial(concatenate, builder), parts))

        return vector(types.int64, types.int64), emit

    @intrinsic
    def store(context: Any, address: Any, value: Any, n: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            builder.store(narrow(builder, args[1]), pointer(builder, args[0], packed), align=align)
            return ctx.get_dummy_value()

        return types.void(types.int64, vector, types.int64), emit

    @intrinsic
    def store_some(context: Any, address: Any, value: Any, n: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            value = narrow(builder, args[1])
            for first, place, mask in pieces(builder, args[0], args[2]):
                masked_store(builder, place, value if each == count else lanes_from(builder, value, first, each), mask)
            return ctx.get_dummy_value()

        return types.void(types.int64, vector, types.int64), emit

    return load, load_some, store, store_some
