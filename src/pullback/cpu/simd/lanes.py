"""The vector operations for one element type and register width: loads, stores, splats and shuffles as Numba intrinsics.

The same source gives AVX-512, AVX2, SSE or NEON: `Lanes(dtype, vector_bytes)` is all a kernel is built from.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.engine.sizes import LINE
from pullback.cpu.simd.bfloat16_pairs import PAIR_LANES, rounded_to_bfloat16
from pullback.cpu.simd.masked_memory import concatenate, lanes_from, layout_of, load_of_lanes, masked_store, vector_memory
from pullback.cpu.simd.vectors import (
    F16,
    F32,
    F64,
    I16,
    I32,
    I64,
    LLVM_TYPES,
    Vector,
    bfloat16_to_float32,
    constant_vector,
    declare,
    float32_to_bfloat16,
    memory_scalar,
    pointer,
    same,
    some_lanes,
    splat_lanes,
)


@cache
def lanes_of(dtype: str, vector_bytes: int, winner: str = "uint8", pairs: bool = False) -> Lanes:
    """The operations of a type, made once: what is built from them and has been compiled serves the next kernel too."""
    return Lanes(dtype, vector_bytes, winner, pairs)


@cache
def _several(lanes: Lanes, registers: int) -> Lanes:
    group = Lanes(lanes.dtype, registers * lanes.vector_bytes, lanes.winner, lanes.pairs)
    group.register_lanes = lanes.register_lanes
    group._make_shuffles(lanes, registers)
    return group


class Lanes:
    """The vector operations for one element type: computed as float32 or float64, stored as the element type.

    pairs: of bfloat16 with the instructions for it; then scratch holds pairs of elements, each as wide as one is computed.
    """

    def __init__(self, dtype: str, vector_bytes: int, winner: str = "uint8", pairs: bool = False) -> None:
        self.dtype, self.vector_bytes, self.winner, self.pairs = dtype, vector_bytes, winner, pairs
        self.name = f"{dtype}_pairs" if pairs else dtype  # in names of functions
        self.compute = "float64" if dtype == "float64" else "float32"
        self.count = vector_bytes // (8 if self.compute == "float64" else 4)
        self.size = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}[dtype]
        self.compute_size = 8 if self.compute == "float64" else 4
        self.winner_size = {"uint8": 1, "uint16": 2, "uint32": 4}[winner]
        self.vector = Vector(self.compute, self.count)
        # In registers tap numbers are as wide as the elements they go with, so that masks serve both.
        self.winners = Vector("uint64" if self.compute == "float64" else "uint32", self.count)
        self.register_lanes = self.count
        self._make_memory()

    def times(self, registers: int) -> Lanes:
        """The same operations on several registers at once; LLVM splits them."""
        return _several(self, registers)

    def narrow(self, count: int) -> Lanes:
        """The same operations on a register of `count` lanes."""
        return lanes_of(self.dtype, count * self.compute_size, self.winner, self.pairs)

    def _storage(self) -> Any:
        return {"float64": F64, "float32": F32, "float16": F16, "bfloat16": I16}[self.dtype]

    def _widen(self, builder: Any, raw: Any, lanes: int | None) -> Any:
        wide = LLVM_TYPES[self.compute] if lanes is None else ir.VectorType(LLVM_TYPES[self.compute], lanes)
        if self.dtype == "float16":
            return builder.fpext(raw, wide)
        if self.dtype == "bfloat16":
            return bfloat16_to_float32(builder, raw, wide, I32 if lanes is None else ir.VectorType(I32, lanes))
        return raw

    def _narrow(self, builder: Any, value: Any, lanes: int | None) -> Any:
        storage = self._storage() if lanes is None else ir.VectorType(self._storage(), lanes)
        if self.dtype == "float16":
            return builder.fptrunc(value, storage)
        if self.pairs and lanes == PAIR_LANES:
            return rounded_to_bfloat16(builder, value)
        if self.dtype == "bfloat16":
            return float32_to_bfloat16(builder, value, storage, I32 if lanes is None else ir.VectorType(I32, lanes))
        return value

    def _make_memory(self) -> None:
        count, vector, winners = self.count, self.vector, self.winners
        compute = LLVM_TYPES[self.compute]
        scalar = types.float64 if self.compute == "float64" else types.float32

        def widen(builder: Any, raw: Any) -> Any:
            return self._widen(builder, raw, count)

        def narrow(builder: Any, value: Any) -> Any:
            return self._narrow(builder, value, count)

        self.load, self.load_some, self.store, self.store_some = vector_memory(self._storage(), vector, widen, narrow)
        self.load_between = load_of_lanes(self._storage(), vector, widen)
        self.load_wide, self.load_wide_some, self.store_wide, self.store_wide_some = vector_memory(compute, vector, same, same)
        winner_storage, wide_winner = LLVM_TYPES[self.winner], LLVM_TYPES[winners.element]
        packed_winners = ir.VectorType(winner_storage, count)

        def widen_winners(builder: Any, raw: Any) -> Any:
            return raw if winner_storage == wide_winner else builder.zext(raw, winners.llvm)

        def narrow_winners(builder: Any, value: Any) -> Any:
            return value if winner_storage == wide_winner else builder.trunc(value, packed_winners)

        self.load_winners, self.load_winners_some, self.store_winners, self.store_winners_some = vector_memory(
            winner_storage, winners, widen_winners, narrow_winners
        )
        self.get, self.put = memory_scalar(
            self._storage(), scalar, lambda b, raw: self._widen(b, raw, None), lambda b, v: self._narrow(b, v, None)
        )
        self.get_wide, self.put_wide = memory_scalar(compute, scalar, same, same)
        self.get_winner, self.put_winner = memory_scalar(
            winner_storage, types.int64, lambda b, raw: b.zext(raw, I64), lambda b, v: b.trunc(v, winner_storage)
        )

        @intrinsic
        def splat(context: Any, value: Any) -> Any:
            """A float in every lane."""

            def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
                return splat_lanes(builder, ctx.cast(builder, args[0], sig.args[0], scalar), count)

            return vector(value), emit

        @intrinsic
        def splat_winner(context: Any, value: Any) -> Any:
            """A tap number in every lane."""

            def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
                number = args[0] if wide_winner == I64 else builder.trunc(args[0], wide_winner)
                return splat_lanes(builder, number, count)

            return winners(types.int64), emit

        self.store_indices, self.store_indices_some = _make_index_stores(winners)

        # Winner numbers as they are in memory: enough to compare, and a register holds more of them.
        codes = self.codes = Vector(self.winner, count)
        self.load_codes, self.load_codes_some, self.store_codes, self.store_codes_some = vector_memory(
            winner_storage, codes, same, same
        )

        self.load_codes_between = load_of_lanes(winner_storage, codes, same)

        @intrinsic
        def splat_code(context: Any, value: Any) -> Any:
            """A tap number in every lane, as narrow as in memory."""

            def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
                return splat_lanes(builder, builder.trunc(args[0], winner_storage), count)

            return codes(types.int64), emit

        self.splat_code = splat_code

        @intrinsic
        def lane_numbers(context: Any) -> Any:
            """0, 1, 2, ... as tap numbers."""

            def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
                return constant_vector(winners.llvm, range(count))

            return winners(), emit

        self.lane_numbers = lane_numbers

        def make_rotate(by: int) -> Any:
            @intrinsic
            def rotate(context: Any, value: Any) -> Any:
                """The lanes moved round by a constant."""

                def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
                    order = constant_vector(ir.VectorType(I32, count), [(i + by) % count for i in range(count)])
                    return builder.shuffle_vector(args[0], ir.Constant(args[0].type, ir.Undefined), order)

                return value(value), emit

            return rotate

        # By a half, a quarter, ... of the lanes: folding a vector onto itself with each of these reaches all lanes.
        self.rotations = tuple(make_rotate(by) for by in (count >> step for step in range(1, count.bit_length())) if by)

        @intrinsic
        def add_lanes(context: Any, value: Any) -> Any:
            """The sum of all lanes, by halves."""

            def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
                total, width = args[0], count
                while width > 1:
                    width //= 2
                    order = constant_vector(ir.VectorType(I32, count), [(i + width) % count for i in range(count)])
                    total = builder.fadd(total, builder.shuffle_vector(total, ir.Constant(total.type, ir.Undefined), order))
                return builder.extract_element(total, ir.Constant(I32, 0))

            return scalar(vector), emit

        self.add_lanes = add_lanes
        packed, stream_align = ir.VectorType(self._storage(), count), min(count * self.size, LINE)

        @intrinsic
        def stream(context: Any, address: Any, value: Any, n: Any) -> Any:
            """Store past the cache; the address must be aligned to the vector or to a cache line."""

            def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
                place = pointer(builder, args[0], packed)
                stored = builder.store(narrow(builder, args[1]), place, align=stream_align)
                stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))
                return ctx.get_dummy_value()

            return types.void(types.int64, vector, types.int64), emit

        self.stream = stream
        suffix = f"v{count}f{64 if self.compute == 'float64' else 32}"

        @intrinsic
        def fma(context: Any, a: Any, b: Any, c: Any) -> Any:
            """a * b + c with one rounding."""

            def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
                return builder.call(declare(builder, f"llvm.fma.{suffix}", vector.llvm, [vector.llvm] * 3), args)

            return vector(vector, vector, vector), emit

        self.fma = fma

        @intrinsic
        def first_lanes(context: Any, n: Any) -> Any:
            """Mask of the first n lanes."""

            def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
                return some_lanes(builder, args[0], count)

            return Vector("bool", count)(types.int64), emit

        self.splat, self.splat_winner, self.first_lanes = splat, splat_winner, first_lanes

    def _make_shuffles(self, one: Lanes, registers: int) -> None:
        """takes: one function for each first lane, every registers-th lane of a group; interleave: planes in memory."""
        total, part, pointee = self.count, one.count, one.vector.llvm
        group_type, one_type = self.vector, one.vector

        def make_take(first: int) -> Any:
            @intrinsic
            def take(context: Any, group: Any) -> Any:
                def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
                    order = constant_vector(ir.VectorType(I32, part), range(first, total, registers))
                    return builder.shuffle_vector(args[0], ir.Constant(args[0].type, ir.Undefined), order)

                return one_type(group_type), emit

            return take

        @intrinsic
        def interleave(context: Any, address: Any, distance: Any) -> Any:
            def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
                joined, place = None, args[0]
                for plane in range(registers):
                    value = builder.load(pointer(builder, place, pointee), align=one.compute_size)
                    joined = value if joined is None else concatenate(builder, joined, value)
                    if plane + 1 < registers:
                        place = builder.add(place, args[1])
                order = [(i % registers) * part + i // registers for i in range(total)]
                undefined = ir.Constant(joined.type, ir.Undefined)
                return builder.shuffle_vector(joined, undefined, constant_vector(ir.VectorType(I32, total), order))

            return group_type(types.int64, types.int64), emit

        @intrinsic
        def join(context: Any, first: Any, second: Any) -> Any:
            """A lane of each in turn, of two registers."""

            def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
                order = [i % 2 * part + i // 2 for i in range(2 * part)]
                return builder.shuffle_vector(*args, constant_vector(ir.VectorType(I32, 2 * part), order))

            return group_type(one_type, one_type), emit

        each = self.register_lanes
        register = ir.VectorType(one._storage(), each)

        @intrinsic
        def store_upto(context: Any, address: Any, value: Any, n: Any, past_cache: Any) -> Any:
            """The first n lanes, register by register, the whole ones past the cache if asked (which needs whole lines)."""

            def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
                address, value, n, past_cache = args
                narrow = self._narrow(builder, value, total)
                past = builder.icmp_signed("!=", past_cache, ir.Constant(I64, 0))
                for first in range(0, total, each):
                    piece = lanes_from(builder, narrow, first, each)
                    at = builder.add(address, ir.Constant(I64, first * self.size))
                    place = pointer(builder, at, register)
                    left = builder.sub(n, ir.Constant(I64, first))
                    with builder.if_else(builder.icmp_signed(">=", left, ir.Constant(I64, each))) as (whole, ragged):
                        with whole, builder.if_else(past) as (yes, no):
                            with yes:
                                stored = builder.store(piece, place, align=each * self.size)
                                stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))
                            with no:
                                builder.store(piece, place, align=layout_of(register)[0])
                        with ragged, builder.if_then(builder.icmp_signed(">", left, ir.Constant(I64, 0))):
                            masked_store(builder, at, piece, some_lanes(builder, left, each))
                return ctx.get_dummy_value()

            return types.void(types.int64, group_type, types.int64, types.int64), emit

        self.store_upto = store_upto
        if registers == 2:
            self.join = join
        self.takes, self.interleave = tuple(make_take(first) for first in range(registers)), interleave


def _make_index_stores(winners: Vector) -> tuple[Any, Any]:
    """(store_indices, store_indices_some) of distances as wide as tap numbers are in registers."""
    count = winners.lanes
    wide = ir.VectorType(I64, count)

    def indices(builder: Any, distances: Any, first: Any) -> Any:
        near = distances if distances.type == wide else builder.zext(distances, wide)
        lanes = builder.add(splat_lanes(builder, first, count), constant_vector(wide, range(count)))
        none = builder.icmp_signed("==", distances, ir.Constant(distances.type, [-1] * count))
        return builder.select(none, ir.Constant(wide, [-1] * count), builder.add(near, lanes))

    @intrinsic
    def store_indices(context: Any, address: Any, distances: Any, first: Any, n: Any) -> Any:
        """first + lane + distance as int64 in each lane, -1 where the distance is -1."""

        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            builder.store(indices(builder, args[1], args[2]), pointer(builder, args[0], wide), align=8)
            return ctx.get_dummy_value()

        return types.void(types.int64, winners, types.int64, types.int64), emit

    @intrinsic
    def store_indices_some(context: Any, address: Any, distances: Any, first: Any, n: Any) -> Any:
        """The same in the first n lanes."""

        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            masked_store(builder, args[0], indices(builder, args[1], args[2]), some_lanes(builder, args[3], count))
            return ctx.get_dummy_value()

        return types.void(types.int64, winners, types.int64, types.int64), emit

    return store_indices, store_indices_some
