"""Vector code emitted as LLVM, for the register tiles of this family: loops, vectors in memory, sums over tables of taps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llvmlite import ir

from pullback.cpu.depthwise.records import PERMUTES, Offsets
from pullback.cpu.engine.records import WORD
from pullback.cpu.simd.masked_memory import masked_load, masked_store
from pullback.cpu.simd.native import LINE
from pullback.cpu.simd.vectors import (
    I32,
    I64,
    LLVM_TYPES,
    constant_vector,
    declare,
    get_int,
    inline,
    opaque,
    pointer,
    some_lanes,
    splat_lanes,
)


@inline
def word(table: int, number: int) -> int:
    """Number `number` of a table of numbers."""
    return get_int(table + WORD * number)


def emit_loop(
    builder: Any, first: Any, last: Any, carried: Sequence[Any], body: Callable[[Any, Any], Sequence[Any]]
) -> list[Any]:
    """for index in range(first, last): carried = body(index, carried). The carried values after the loop."""
    before = builder.basic_block
    head, inside, after = (builder.append_basic_block(name) for name in ("head", "inside", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(I64)
    index.add_incoming(first, before)
    phis = [builder.phi(value.type) for value in carried]
    for phi, value in zip(phis, carried, strict=True):
        phi.add_incoming(value, before)
    builder.cbranch(builder.icmp_signed("<", index, last), inside, after)
    builder.position_at_end(inside)
    results = body(index, phis)
    index.add_incoming(builder.add(index, ir.Constant(I64, 1)), builder.basic_block)
    for phi, value in zip(phis, results, strict=True):
        phi.add_incoming(value, builder.basic_block)
    builder.branch(head)
    builder.position_at_end(after)
    return phis


def emit_choice(
    builder: Any, number: Any, cases: Mapping[int, Callable[[], Sequence[Any]]], otherwise: Callable[[], Sequence[Any]]
) -> list[Any]:
    """The values of the case of this number, or of none of them."""
    default, after = (builder.append_basic_block(name) for name in ("otherwise", "chosen"))
    switch, ends = builder.switch(number, default), []
    for value, case in [*cases.items(), (None, otherwise)]:
        block = default
        if value is not None:
            block = builder.append_basic_block(f"case{value}")
            switch.add_case(ir.Constant(I64, value), block)
        builder.position_at_end(block)
        ends.append((case(), builder.basic_block))
        builder.branch(after)
    builder.position_at_end(after)
    phis = [builder.phi(value.type) for value in ends[0][0]]
    for values, block in ends:
        for phi, value in zip(phis, values, strict=True):
            phi.add_incoming(value, block)
    return phis


def emit_permute(builder: Any, value: Any, order: Any, size: int) -> Any:
    """A vector whose lane i is lane order[i] of another; `size`: bytes of an element, which are those of its number as well."""
    count = value.type.count
    native = PERMUTES.get((count, size))
    if native and builder.module.triple.startswith("x86_64"):
        return builder.call(declare(builder, f"llvm.x86.{native}", value.type, [value.type, order.type]), [value, order])
    result = ir.Constant(value.type, ir.Undefined)
    for i in range(count):
        number = ir.Constant(I32, i)
        lane = builder.extract_element(value, builder.extract_element(order, number))
        result = builder.insert_element(result, lane, number)
    return result


def load_order(builder: Any, place: Any, count: int, size: int) -> Any:
    """The numbers of `emit_permute` in memory."""
    return builder.load(pointer(builder, place, ir.VectorType(I64 if size == 8 else I32, count)), align=size)


class Emit:
    """Vector operations on one builder for one `Lanes`, by the LLVM values of addresses and masks."""

    def __init__(self, lanes: Any, builder: Any) -> None:
        self.lanes, self.builder = lanes, builder
        self.wide_type = LLVM_TYPES[lanes.compute]
        self.zero = ir.Constant(lanes.vector.llvm, [0.0] * lanes.count)

    def number(self, value: int) -> Any:
        return ir.Constant(I64, value)

    def times(self, value: Any, factor: int) -> Any:
        return self.builder.mul(value, self.number(factor))

    def mask(self, count: Any) -> Any:
        return some_lanes(self.builder, count, self.lanes.count)

    def between(self, lane: Any, first: Any, many: Any) -> Any:
        """Mask of the lanes with numbers from `first` on, `many` of them; lane 0 has the number `lane`."""
        builder, count = self.builder, self.lanes.count
        begin, length = (splat_lanes(builder, builder.trunc(v, I32), count) for v in (builder.sub(lane, first), many))
        numbers = builder.add(constant_vector(ir.VectorType(I32, count), range(count)), begin)
        return builder.icmp_unsigned("<", numbers, length)

    def _packed(self, wide: bool) -> tuple[Any, int]:
        """The type of a vector in memory, in the compute type (`wide`) or in the storage type, and its alignment."""
        lanes = self.lanes
        storage, align = (self.wide_type, lanes.compute_size) if wide else (lanes._storage(), lanes.size)
        return ir.VectorType(storage, lanes.count), align

    def load(self, address: Any, wide: bool, mask: Any = None) -> Any:
        packed, align = self._packed(wide)
        if mask is None:
            raw = self.builder.load(pointer(self.builder, address, packed), align=align)
        else:
            raw = masked_load(self.builder, address, packed, mask)
        return raw if wide else self.lanes._widen(self.builder, raw, self.lanes.count)

    def store(self, address: Any, value: Any, wide: bool, mask: Any = None) -> None:
        packed, align = self._packed(wide)
        raw = value if wide else self.lanes._narrow(self.builder, value, self.lanes.count)
        if mask is None:
            self.builder.store(raw, pointer(self.builder, address, packed), align=align)
        else:
            masked_store(self.builder, address, raw, mask)

    def stream(self, address: Any, value: Any) -> None:
        """Non-temporal store; the address must be a multiple of the vector's size, which that of a cache line divides."""
        packed, _ = self._packed(False)
        raw, align = self.lanes._narrow(self.builder, value, self.lanes.count), min(LINE, self.lanes.count * self.lanes.size)
        store = self.builder.store(raw, pointer(self.builder, address, packed), align=align)
        store.set_metadata("nontemporal", self.builder.module.add_metadata([ir.Constant(I32, 1)]))

    def splat(self, address: Any) -> Any:
        """A wide scalar in memory, in every lane."""
        return splat_lanes(self.builder, self.builder.load(pointer(self.builder, address, self.wide_type)), self.lanes.count)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        kind = self.lanes.vector.llvm
        suffix = f"v{self.lanes.count}f{self.lanes.compute_size * 8}"
        return self.builder.call(declare(self.builder, f"llvm.fma.{suffix}", kind, [kind] * 3), [a, b, c])

    def fma_where(self, mask: Any, a: Any, b: Any, c: Any) -> Any:
        """c + a * b in the lanes that a mask sets, c elsewhere, whatever a and b are there."""
        return self.builder.select(mask, self.fma(a, b, c), c)

    def word(self, address: Any) -> Any:
        return self.builder.load(pointer(self.builder, address, I64))

    def fields(self, ctx: Any, kind: Any, record: Any, names: str) -> list[Any]:
        """Fields of a record, by its Numba type and its address."""
        return [ctx.get_getattr(kind, name)(ctx, self.builder, kind, record, name) for name in names.split()]

    def pair(self, table: Any, index: Any) -> tuple[Any, Any]:
        """The two words of an entry of a table of Offsets, or of LaneRange."""
        place = self.builder.add(table, self.times(index, Offsets.BYTES))
        return self.word(place), self.word(self.builder.add(place, self.number(WORD)))

    def steps(self, step: Any, count: int) -> list[Any]:
        return [self.builder.mul(step, ir.Constant(I64, p)) for p in range(count)]

    def indices(self, step: Any, count: int) -> list[tuple[Any, int]]:
        """Distances of 0 to count - 1 steps, for `at`: a register for each odd number, which addresses take with a power of two."""
        builder, odd = self.builder, {}
        for number in range(1, count, 2):
            odd[number] = opaque(builder, builder.mul(step, self.number(number)))
        return [(None, 0)] + [(odd[r // (r & -r)], (r & -r).bit_length() - 1) for r in range(1, count)]

    def at(self, place: Any, index: tuple[Any, int]) -> Any:
        """A place moved by one of `indices`."""
        distance, power = index
        return place if distance is None else self.builder.add(place, self.builder.shl(distance, self.number(power)))

    def over_taps(
        self, bounds: Sequence[Any], tables: Sequence[Any], starts: Sequence[Any], totals: Sequence[Any], body: Any
    ) -> list[Any]:
        """totals = body(source, weight, totals, inner entry) for every entry of an outer and an inner table of offsets."""
        builder = self.builder

        def outer(e: Any, carried: Any) -> Any:
            source, weight = (builder.add(*both) for both in zip(starts, self.pair(tables[0], e), strict=True))

            def inner(k: Any, sums: Any) -> Any:
                more = self.pair(tables[1], k)
                return body(builder.add(source, more[0]), builder.add(weight, more[1]), sums, k)

            return emit_loop(builder, bounds[2], bounds[3], carried, inner)

        return emit_loop(builder, bounds[0], bounds[1], totals, outer)
