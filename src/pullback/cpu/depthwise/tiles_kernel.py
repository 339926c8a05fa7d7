"""Register tiles of convolutions with few channels per group: loops over taps whose sums never leave the registers.

Each tile is one intrinsic that emits its loops in LLVM. What a tile reads is told by tables of (source, weight) byte offsets, so
the same tile serves every stride, dilation, rank and direction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.simd.native import LINE
from pullback.cpu.simd.vectors import I32, I64, LLVM_TYPES, constant_vector, declare, pointer, some_lanes, splat_lanes

WORD = 8
PAIR = 16  # bytes of an entry of a table: source offset, weight offset


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

    def load(self, address: Any, wide: bool, mask: Any = None) -> Any:
        """A vector kept in the compute type (`wide`) or in the storage type."""
        lanes, builder = self.lanes, self.builder
        storage, align = (self.wide_type, lanes.compute_size) if wide else (lanes._storage(), lanes.size)
        packed = ir.VectorType(storage, lanes.count)
        place = pointer(builder, address, packed)
        if mask is None:
            raw = builder.load(place, align=align)
        else:
            kind = "i" if isinstance(storage, ir.IntType) else "f"
            name = f"llvm.masked.load.v{lanes.count}{kind}{align * 8}.p0"
            function = declare(builder, name, packed, [packed.as_pointer(), I32, mask.type, packed])
            raw = builder.call(function, [place, ir.Constant(I32, align), mask, ir.Constant(packed, [0] * lanes.count)])
        return raw if wide else lanes._widen(builder, raw, lanes.count)

    def store(self, address: Any, value: Any, wide: bool, mask: Any = None) -> None:
        lanes, builder = self.lanes, self.builder
        storage, align = (self.wide_type, lanes.compute_size) if wide else (lanes._storage(), lanes.size)
        packed = ir.VectorType(storage, lanes.count)
        raw = value if wide else lanes._narrow(builder, value, lanes.count)
        place = pointer(builder, address, packed)
        if mask is None:
            builder.store(raw, place, align=align)
            return
        kind = "i" if isinstance(storage, ir.IntType) else "f"
        name = f"llvm.masked.store.v{lanes.count}{kind}{align * 8}.p0"
        function = declare(builder, name, ir.VoidType(), [packed, packed.as_pointer(), I32, mask.type])
        builder.call(function, [raw, place, ir.Constant(I32, align), mask])

    def stream(self, address: Any, value: Any) -> None:
        """Store past the cache; the address must be a multiple of the vector's size, which that of a cache line divides."""
        packed = ir.VectorType(self.lanes._storage(), self.lanes.count)
        raw = self.lanes._narrow(self.builder, value, self.lanes.count)
        store = self.builder.store(
            raw, pointer(self.builder, address, packed), align=min(LINE, self.lanes.count * self.lanes.size)
        )
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

    def pair(self, table: Any, index: Any) -> tuple[Any, Any]:
        place = self.builder.add(table, self.builder.mul(index, ir.Constant(I64, PAIR)))
        return self.word(place), self.word(self.builder.add(place, ir.Constant(I64, WORD)))

    def steps(self, step: Any, count: int) -> list[Any]:
        return [self.builder.mul(step, ir.Constant(I64, p)) for p in range(count)]

    def over_taps(
        self, bounds: Sequence[Any], tables: Sequence[Any], starts: Sequence[Any], totals: Sequence[Any], body: Any
    ) -> list[Any]:
        """totals = body(source, weight, totals) for every entry of an outer and an inner table of offsets."""
        builder = self.builder

        def outer(e: Any, carried: Any) -> Any:
            source, weight = (builder.add(*both) for both in zip(starts, self.pair(tables[0], e), strict=True))

            def inner(k: Any, sums: Any) -> Any:
                more = self.pair(tables[1], k)
                return body(builder.add(source, more[0]), builder.add(weight, more[1]), sums)

            return emit_loop(builder, bounds[2], bounds[3], carried, inner)

        return emit_loop(builder, bounds[0], bounds[1], totals, outer)


CHUNK = 3  # taps that share the source vectors they read


def make_cells_tile(lanes: Any, cells: int, reach: int, masked: bool) -> Any:
    """`cells` targets, each a vector of channels: sums over taps of a source vector times a weight vector.

    Target p reads source p * reach + i by tap i; sources are `unit` bytes apart. A reach of 0 stands for any: targets then
    share no sources, which are source_step bytes apart from target to target. Only the first n lanes of targets and weights
    are touched if `masked`; of the source, which lies in scratch, all lanes. stream: whether to store past the cache, where
    each vector of a target is whole cache lines.
    """

    @intrinsic
    def tile(
        context: Any, source: Any, target: Any, weights: Any, n: Any, e0: Any, e1: Any, outer: Any, k0: Any, k1: Any, inner: Any,
        taps: Any, unit: Any, weight_unit: Any, source_step: Any, target_step: Any, stream: Any,
    ) -> Any:  # fmt: skip
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            source, target, weights, n, e0, e1, outer, k0, k1, inner, taps, unit, weight_unit, source_step, target_step = args[
                :-1
            ]
            emitter = Emit(lanes, builder)
            mask = emitter.mask(n) if masked else None
            span = (cells - 1) * reach + CHUNK
            units = emitter.steps(unit, span)
            steps = emitter.steps(source_step, cells)
            weight_units = emitter.steps(weight_unit, CHUNK)

            def chunk(at: Any, weight_at: Any, sums: Any, size: int) -> list[Any]:
                found = list(sums)
                factors = [emitter.load(builder.add(weight_at, weight_units[i]), True, mask) for i in range(size)]
                if reach == 0 and cells > 1:
                    for i, p in product(range(size), range(cells)):
                        place = builder.add(builder.add(at, units[i]), steps[p])
                        found[p] = emitter.fma(emitter.load(place, True), factors[i], found[p])
                    return found
                for place in range((cells - 1) * reach + size):
                    users = [(p, place - p * reach) for p in range(cells) if 0 <= place - p * reach < size]
                    if users:
                        cell = emitter.load(builder.add(at, units[place]), True)
                        for p, i in users:
                            found[p] = emitter.fma(cell, factors[i], found[p])
                return found

            whole, rest = builder.sdiv(taps, ir.Constant(I64, CHUNK)), builder.srem(taps, ir.Constant(I64, CHUNK))
            runs = [(whole, CHUNK)]
            for size in range(CHUNK - 1, 0, -1):
                runs.append((builder.zext(builder.icmp_signed("==", rest, ir.Constant(I64, size)), I64), size))
            first = ir.Constant(I64, 0)

            def body(at: Any, weight_at: Any, sums: Any) -> Any:
                carried = [at, weight_at, *sums]
                for count, size in runs:

                    def some(_: Any, now: Any, size: int = size) -> Any:
                        forward = [builder.mul(step, ir.Constant(I64, size)) for step in (unit, weight_unit)]
                        ahead = [builder.add(place, step) for place, step in zip(now, forward, strict=False)]
                        return [*ahead, *chunk(now[0], now[1], now[2:], size)]

                    carried = emit_loop(builder, first, count, carried, some)
                return carried[2:]

            zeros = [emitter.zero] * cells
            totals = emitter.over_taps((e0, e1, k0, k1), (outer, inner), (source, weights), zeros, body)
            places = [builder.add(target, step) for step in emitter.steps(target_step, cells)]
            with builder.if_else(builder.icmp_signed("!=", args[-1], ir.Constant(I64, 0))) as (past_cache, into_cache):
                with past_cache:
                    for place, total in zip(places, totals, strict=True):
                        emitter.stream(place, total)
                with into_cache:
                    for place, total in zip(places, totals, strict=True):
                        emitter.store(place, total, False, mask)
            return ctx.get_dummy_value()

        return types.void(*(types.int64,) * 16), emit

    return tile


def make_places_tile(lanes: Any, outs: int) -> Any:
    """One run of places in scratch for `outs` targets: sums over taps of the places there times one scalar weight per target."""

    @intrinsic
    def tile(
        context: Any, source: Any, target: Any, weights: Any, e0: Any, e1: Any, outer: Any, k0: Any, k1: Any, inner: Any,
        weight_step: Any, target_step: Any,
    ) -> Any:  # fmt: skip
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            source, target, weights, e0, e1, outer, k0, k1, inner, weight_step, target_step = args
            emitter = Emit(lanes, builder)
            offsets = emitter.steps(weight_step, outs)

            def body(at: Any, weight_at: Any, sums: Any) -> Any:
                places = emitter.load(at, True)
                return [
                    emitter.fma(places, emitter.splat(builder.add(weight_at, offset)), total)
                    for offset, total in zip(offsets, sums, strict=True)
                ]

            zeros = [emitter.zero] * outs
            totals = emitter.over_taps((e0, e1, k0, k1), (outer, inner), (source, weights), zeros, body)
            for step, total in zip(emitter.steps(target_step, outs), totals, strict=True):
                emitter.store(builder.add(target, step), total, True)
            return ctx.get_dummy_value()

        return types.void(*(types.int64,) * 13), emit

    return tile


AT_ONCE = 4  # cells of a products tile whose sources are shared


def make_products_tile(lanes: Any, rows: int, taps: int, dense: bool, wide_other: bool, ranged: bool = False) -> Any:
    """`rows` times `taps` sums of source * other over a run of cells, added to sums in memory.

    `entries` holds a (source, sum) pair of byte offsets for each row; taps are `unit` apart in the source, `sum_unit` in the
    sums. dense: source_step is `unit`, so that neighbouring cells share what they read. ranged: not one run of cells but `lines`,
    `pitch` bytes apart, and `ranges` holds the first lane and the lanes that each row adds of a line, through all its vectors.
    """

    @intrinsic
    def tile(
        context: Any, source: Any, other: Any, sums: Any, n: Any, entries: Any, count: Any, unit: Any, sum_unit: Any,
        source_step: Any, other_step: Any, ranges: Any, lines: Any, pitch: Any,
    ) -> Any:  # fmt: skip
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            source, other, sums, n, entries, count, unit, sum_unit, source_step, other_step, ranges, lines, pitch = args
            emitter = Emit(lanes, builder)
            mask = emitter.mask(n)
            other_mask = None if wide_other else mask
            units, sum_units = emitter.steps(unit, AT_ONCE + taps), emitter.steps(sum_unit, taps)
            steps, other_steps = emitter.steps(source_step, AT_ONCE), emitter.steps(other_step, AT_ONCE)
            pairs = [emitter.pair(entries, ir.Constant(I64, r)) for r in range(rows)]
            places = [builder.add(builder.add(sums, pair[1]), step) for pair in pairs for step in sum_units]
            bounds = [emitter.pair(ranges, ir.Constant(I64, r)) for r in range(rows)] if ranged else []

            def cells(size: int) -> Any:
                def body(_: Any, carried: Any) -> Any:
                    at, other_at, lane, *totals = carried
                    factors = [emitter.load(builder.add(other_at, step), wide_other, other_mask) for step in other_steps[:size]]
                    for r in range(rows):
                        line = builder.add(at, pairs[r][0])
                        seen: dict[int, Any] = {}
                        for u, i in product(range(size), range(taps)):
                            key = u + i if dense else u * taps + i
                            if key not in seen:
                                place = units[key] if dense else builder.add(steps[u], units[i])
                                seen[key] = emitter.load(builder.add(line, place), True)
                            total = totals[r * taps + i]
                            if ranged:
                                met = emitter.between(builder.add(lane, emitter.number(u * lanes.count)), *bounds[r])
                                totals[r * taps + i] = emitter.fma_where(met, seen[key], factors[u], total)
                            else:
                                totals[r * taps + i] = emitter.fma(seen[key], factors[u], total)
                    ahead = [builder.mul(step, ir.Constant(I64, size)) for step in (source_step, other_step)]
                    lane = builder.add(lane, emitter.number(size * lanes.count))
                    return [builder.add(at, ahead[0]), builder.add(other_at, ahead[1]), lane, *totals]

                return body

            first, size = ir.Constant(I64, 0), ir.Constant(I64, AT_ONCE)

            def line(number: Any, totals: Any) -> list[Any]:
                down = builder.mul(number, pitch)
                carried = [builder.add(source, down), builder.add(other, down), first, *totals]
                carried = emit_loop(builder, first, builder.sdiv(count, size), carried, cells(AT_ONCE))
                return emit_loop(builder, first, builder.srem(count, size), carried, cells(1))[3:]

            totals = [emitter.load(place, True, mask) for place in places]
            totals = emit_loop(builder, first, lines, totals, line) if ranged else line(first, totals)
            for place, total in zip(places, totals, strict=True):
                emitter.store(place, total, True, mask)
            return ctx.get_dummy_value()

        return types.void(*(types.int64,) * 13), emit

    return tile
