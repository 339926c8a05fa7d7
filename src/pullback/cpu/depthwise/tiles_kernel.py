"""Register tiles of convolutions with few channels per group: loops over taps whose sums never leave the registers.

Each tile is one intrinsic that emits its loops in LLVM. What a tile reads is told by tables of Offsets, so the same tile serves
every stride, dilation, rank and direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.depthwise.emit_kernel import Emit, emit_choice, emit_loop, emit_permute, load_order
from pullback.cpu.depthwise.records import FEW_COLUMNS
from pullback.cpu.simd.vectors import I64

CHUNK = 3  # taps that share the source vectors they read
WHOLE_ROWS = range(1, 8)  # taps of a row for which there is a loop over rows of taps and nothing within it
NEAR_PLACES = 8  # of a row that are told from one address by indices: those of more would not fit into the registers
CELLS_AT_ONCE = 4  # of a products tile, which share the source vectors they read


@cache
def make_cells_tile(lanes: Any, cells: int, reach: int, registers: int, permuted: bool = False) -> Any:
    """`tiles` times `cells` target columns of n channels: sums over taps of source vectors times weight vectors.

    `registers` vectors are made at a time.

    args is a record of CellsGather, phase the ColumnPhase; entries e0 .. e1 of row_offsets are the source rows. Column p reads
    source p * reach + i by tap i. A reach of 0 stands for any: columns then share no sources. Only n channels of targets,
    weights and source are touched. registers = 0: n is one vector at the most. permuted: part k of a source vector is its lanes in
    the order k of args.
    """

    @intrinsic
    def tile(
        context: Any, args: Any, phase: Any, source: Any, target: Any, weights: Any, n: Any, e0: Any, e1: Any, taps: Any, tiles: Any
    ) -> Any:  # fmt: skip
        def emit(ctx: Any, builder: Any, sig: Any, values: Any) -> Any:
            args_at, phase_at, *starts, n, e0, e1, taps, tiles = values
            one = Emit(lanes, builder)
            outer, parts, inner, stream = one.fields(ctx, args, args_at, "row_offsets parts part_offsets stream")
            steps_of_phase = one.fields(ctx, phase, phase_at, "tap_step weight_step source_step target_step")
            tap_step, weight_step, source_step, target_step = steps_of_phase
            tap_steps, source_steps = one.steps(tap_step, (cells - 1) * reach + CHUNK), one.steps(source_step, cells)
            weight_steps, target_steps = one.steps(weight_step, CHUNK), one.steps(target_step, cells)
            whole, rest = builder.sdiv(taps, one.number(CHUNK)), builder.srem(taps, one.number(CHUNK))
            runs = [(whole, CHUNK)]
            for size in range(CHUNK - 1, 0, -1):
                runs.append((builder.zext(builder.icmp_signed("==", rest, one.number(size)), I64), size))
            zero = one.number(0)
            orders, given = zero, None
            if permuted:
                orders, each_in, each_out = one.fields(ctx, args, args_at, "orders group_in_channels group_out_channels")
                given = one.mask(builder.mul(builder.sdiv(n, each_out), each_in))

            def load(emitter: Emit, place: Any, mask: Any, order: Any) -> Any:
                value = emitter.load(place, True, given if permuted else mask)
                return emit_permute(builder, value, order, lanes.compute_size) if permuted else value

            def chunk(emitter: Emit, mask: Any, at: Any, weight_at: Any, sums: Any, size: int, order: Any) -> list[Any]:
                found = list(sums)
                factors = [emitter.load(builder.add(weight_at, weight_steps[i]), True, mask) for i in range(size)]
                if reach == 0 and cells > 1:
                    for i, p in product(range(size), range(cells)):
                        place = builder.add(builder.add(at, tap_steps[i]), source_steps[p])
                        found[p] = emitter.fma(load(emitter, place, mask, order), factors[i], found[p])
                    return found
                for place in range((cells - 1) * reach + size):
                    users = [(p, place - p * reach) for p in range(cells) if 0 <= place - p * reach < size]
                    if users:
                        cell = load(emitter, builder.add(at, tap_steps[place]), mask, order)
                        for p, i in users:
                            found[p] = emitter.fma(cell, factors[i], found[p])
                return found

            def vectors(emitter: Emit, mask: Any, source: Any, target: Any, weights: Any) -> None:
                """All columns of as many channels as the emitter's lanes."""
                forward = [emitter.times(step, cells) for step in (source_step, target_step)]

                def one_tile(_: Any, now: Any) -> list[Any]:
                    columns(emitter, mask, *now, weights)
                    return [builder.add(place, step) for place, step in zip(now, forward, strict=True)]

                emit_loop(builder, zero, tiles, [source, target], one_tile)

            def columns(emitter: Emit, mask: Any, source: Any, target: Any, weights: Any) -> None:

                def body(at: Any, weight_at: Any, sums: Any, part: Any) -> Any:
                    carried = [at, weight_at, *sums]
                    order = None
                    if permuted:
                        place = builder.add(orders, one.times(part, lanes.count * lanes.compute_size))
                        order = load_order(builder, place, lanes.count, lanes.compute_size)
                    for count, size in runs:

                        def some(_: Any, now: Any, size: int = size) -> Any:
                            forward = [emitter.times(step, size) for step in (tap_step, weight_step)]
                            following = [builder.add(place, step) for place, step in zip(now, forward, strict=False)]
                            return [*following, *chunk(emitter, mask, now[0], now[1], now[2:], size, order)]

                        carried = emit_loop(builder, zero, count, carried, some)
                    return carried[2:]

                def whole_rows(size: int) -> list[Any]:
                    """Sums over rows of so many taps. Loops within a loop would cost as much as what such short ones do."""
                    apart = reach == 0 and cells > 1  # columns share no sources
                    count = size if apart else (cells - 1) * reach + size
                    near = emitter.indices(tap_step, min(count, NEAR_PLACES))
                    next_places = emitter.times(tap_step, NEAR_PLACES)
                    far = emitter.indices(weight_step, size)

                    def one_row(e: Any, now: Any) -> list[Any]:
                        offsets = emitter.pair(outer, e)
                        at, weight_at = builder.add(source, offsets[0]), builder.add(weights, offsets[1])
                        found = list(now)
                        factors = [emitter.load(emitter.at(weight_at, far[i]), True, mask) for i in range(size)]
                        if apart:
                            for i, p in product(range(size), range(cells)):
                                place = emitter.at(builder.add(at, source_steps[p]), near[i])
                                found[p] = emitter.fma(emitter.load(place, True, mask), factors[i], found[p])
                            return found
                        for place in range(count):
                            if place and place % NEAR_PLACES == 0:
                                at = builder.add(at, next_places)
                            cell = emitter.load(emitter.at(at, near[place % NEAR_PLACES]), True, mask)
                            for p in range(cells):
                                if 0 <= place - p * reach < size:
                                    found[p] = emitter.fma(cell, factors[place - p * reach], found[p])
                        return found

                    return emit_loop(builder, e0, e1, [emitter.zero] * cells, one_row)

                def any_rows() -> list[Any]:
                    zeros = [emitter.zero] * cells
                    return emitter.over_taps((e0, e1, zero, parts), (outer, inner), (source, weights), zeros, body)

                if registers:
                    totals = emit_choice(builder, taps, {size: partial(whole_rows, size) for size in WHOLE_ROWS}, any_rows)
                else:
                    totals = any_rows()
                places = [builder.add(target, step) for step in target_steps]
                with builder.if_else(builder.icmp_signed("!=", stream, zero)) as (past_cache, into_cache):
                    with past_cache:
                        for place, total in zip(places, totals, strict=True):
                            emitter.stream(place, total)
                    with into_cache:
                        for place, total in zip(places, totals, strict=True):
                            emitter.store(place, total, False, mask)

            def over_channels(emitter: Emit, masked: bool, count: Any, carried: Sequence[Any]) -> list[Any]:
                """`count` times as many channels as the emitter's lanes. carried: source, target, weights, channels left."""
                channels = emitter.lanes.count
                forward = [emitter.number(channels * size) for size in (lanes.compute_size, lanes.size, lanes.compute_size, -1)]

                def body(_: Any, now: Any) -> list[Any]:
                    vectors(emitter, emitter.mask(now[3]) if masked else None, *now[:3])
                    return [builder.add(place, step) for place, step in zip(now, forward, strict=True)]

                return emit_loop(builder, zero, count, carried, body)

            def last(emitter: Emit, left: list[Any]) -> list[Any]:
                """The channels that are left as whole vectors, where enough others lie before them; what is left then."""
                count = emitter.number(emitter.lanes.count)
                wanted = builder.and_(builder.icmp_signed(">", left[3], zero), builder.icmp_signed(">=", n, count))
                back = builder.sub(left[3], count)
                sizes = (lanes.compute_size, lanes.size, lanes.compute_size)
                earlier = [builder.add(at, one.times(back, size)) for at, size in zip(left, sizes, strict=False)]
                over_channels(emitter, False, builder.zext(wanted, I64), [*earlier, n])
                return [*left[:3], builder.select(wanted, zero, left[3])]

            if registers:
                many = Emit(lanes.times(registers), builder)
                left = over_channels(many, False, builder.sdiv(n, one.number(many.lanes.count)), [*starts, n])
                if cells < FEW_COLUMNS:  # such vectors wait for each other's sums: several take no longer than one
                    left = last(many, left)
                if registers > 1:
                    left = over_channels(one, False, builder.sdiv(left[3], one.number(lanes.count)), left)
                left = last(one, left)
                over_channels(one, True, builder.zext(builder.icmp_signed(">", left[3], zero), I64), left)
            else:
                vectors(one, one.mask(n), *starts)
            return ctx.get_dummy_value()

        return types.void(args, phase, *(types.int64,) * 8), emit

    return tile


@cache
def make_places_tile(lanes: Any, outs: int) -> Any:
    """One vector of an unpacked plane for `outs` output channels: sums over the taps of a PlanePhase times one scalar weight each.

    args is a PlanesGather; area_list holds the Offsets of `areas` areas.
    """

    @intrinsic
    def tile(
        context: Any, args: Any, phase: Any, source: Any, target: Any, weights: Any, areas: Any, area_list: Any
    ) -> Any:  # fmt: skip
        def emit(ctx: Any, builder: Any, sig: Any, values: Any) -> Any:
            args_at, phase_at, source, target, weights, areas, area_list = values
            emitter = Emit(lanes, builder)
            inner, weight_step, out_pitch = emitter.fields(ctx, args, args_at, "tap_offsets out_weights out_pitch")
            first, end = emitter.fields(ctx, phase, phase_at, "first_tap end_tap")
            offsets = emitter.steps(weight_step, outs)

            def body(at: Any, weight_at: Any, sums: Any, _: Any) -> Any:
                places = emitter.load(at, True)
                return [
                    emitter.fma(places, emitter.splat(builder.add(weight_at, offset)), total)
                    for offset, total in zip(offsets, sums, strict=True)
                ]

            bounds, tables, zeros = (emitter.number(0), areas, first, end), (area_list, inner), [emitter.zero] * outs
            totals = emitter.over_taps(bounds, tables, (source, weights), zeros, body)
            for step, total in zip(emitter.steps(out_pitch, outs), totals, strict=True):
                emitter.store(builder.add(target, step), total, True)
            return ctx.get_dummy_value()

        return types.void(args, phase, *(types.int64,) * 5), emit

    return tile


@dataclass(frozen=True)
class Products:
    """`rows` times `taps` sums of source * dy over a run of cells, added to sums in memory.

    Addresses are LLVM values. `entries` holds the Offsets of source and sums for each row; taps are tap_step apart in the source,
    sum_step in the sums. dense: source_step is tap_step, so that neighbouring cells share what they read. wide_dy: dy lies in
    scratch in the compute type, and is read beyond the first n lanes.
    """

    lanes: Any
    rows: int
    taps: int
    dense: bool
    wide_dy: bool

    def emit(self, builder: Any, addresses: Sequence[Any], steps: Sequence[Any], n: Any, count: Any, lines: Any = None) -> None:
        """addresses: of source, dy, sums, entries. steps: of source, dy, taps, sums.

        lines: (ranges, lines, pitch): not one run of cells but `lines`, `pitch` bytes apart; a row adds only the lanes of a line,
        through all its vectors, that its LaneRange in `ranges` holds.
        """
        lanes, rows, taps = self.lanes, self.rows, self.taps
        source, dy, sums, entries = addresses
        source_step, dy_step, tap_step, sum_step = steps
        emitter = Emit(lanes, builder)
        mask = emitter.mask(n)
        dy_mask = None if self.wide_dy else mask
        tap_steps, sum_steps = emitter.steps(tap_step, CELLS_AT_ONCE + taps), emitter.steps(sum_step, taps)
        source_steps, dy_steps = emitter.steps(source_step, CELLS_AT_ONCE), emitter.steps(dy_step, CELLS_AT_ONCE)
        pairs = [emitter.pair(entries, emitter.number(r)) for r in range(rows)]
        places = [builder.add(builder.add(sums, pair[1]), step) for pair in pairs for step in sum_steps]
        bounds = [emitter.pair(lines[0], emitter.number(r)) for r in range(rows)] if lines else []

        def cells(size: int) -> Any:
            def body(_: Any, carried: Any) -> Any:
                at, dy_at, lane, *totals = carried
                factors = [emitter.load(builder.add(dy_at, step), self.wide_dy, dy_mask) for step in dy_steps[:size]]
                for r in range(rows):
                    line = builder.add(at, pairs[r][0])
                    seen: dict[int, Any] = {}
                    for u, i in product(range(size), range(taps)):
                        key = u + i if self.dense else u * taps + i
                        if key not in seen:
                            place = tap_steps[key] if self.dense else builder.add(source_steps[u], tap_steps[i])
                            seen[key] = emitter.load(builder.add(line, place), True, dy_mask)
                        total = totals[r * taps + i]
                        if lines:
                            met = emitter.between(builder.add(lane, emitter.number(u * lanes.count)), *bounds[r])
                            totals[r * taps + i] = emitter.fma_where(met, seen[key], factors[u], total)
                        else:
                            totals[r * taps + i] = emitter.fma(seen[key], factors[u], total)
                forward = [emitter.times(step, size) for step in (source_step, dy_step)]
                lane = builder.add(lane, emitter.number(size * lanes.count))
                return [builder.add(at, forward[0]), builder.add(dy_at, forward[1]), lane, *totals]

            return body

        zero, size = emitter.number(0), emitter.number(CELLS_AT_ONCE)

        def line(number: Any, totals: Any) -> list[Any]:
            down = builder.mul(number, lines[2]) if lines else zero
            carried = [builder.add(source, down), builder.add(dy, down), zero, *totals]
            carried = emit_loop(builder, zero, builder.sdiv(count, size), carried, cells(CELLS_AT_ONCE))
            return emit_loop(builder, zero, builder.srem(count, size), carried, cells(1))[3:]

        totals = [emitter.load(place, True, mask) for place in places]
        totals = emit_loop(builder, zero, lines[1], totals, line) if lines else line(zero, totals)
        for place, total in zip(places, totals, strict=True):
            emitter.store(place, total, True, mask)


@cache
def make_phase_products(lanes: Any, rows: int, taps: int, dense: bool) -> Any:
    """tile(phase, source, dy, sums, n, entries, count): products over `count` columns of a ColumnPhase, in n channels."""
    products = Products(lanes, rows, taps, dense, False)

    @intrinsic
    def tile(context: Any, phase: Any, source: Any, dy: Any, sums: Any, n: Any, entries: Any, count: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, values: Any) -> Any:
            phase_at, source, dy, sums, n, entries, count = values
            names = "source_step target_step tap_step weight_step"
            steps = Emit(lanes, builder).fields(ctx, phase, phase_at, names)
            products.emit(builder, (source, dy, sums, entries), steps, n, count)
            return ctx.get_dummy_value()

        return types.void(phase, *(types.int64,) * 6), emit

    return tile


@cache
def make_plane_products(lanes: Any, taps: int, ranged: bool) -> Any:
    """Products of `taps` taps over `count` vectors of an unpacked plane.

    ranged: over so many vectors of each of `lines` rows, in the lanes of `ranges`; else these three are not looked at.
    """
    products, vector = Products(lanes, taps, 1, False, True), ir.Constant(I64, lanes.count * lanes.compute_size)
    steps, n = (vector, vector, ir.Constant(I64, 0), ir.Constant(I64, 0)), ir.Constant(I64, lanes.count)

    @intrinsic
    def tile(
        context: Any, source: Any, dy: Any, sums: Any, entries: Any, count: Any, ranges: Any, lines: Any, pitch: Any
    ) -> Any:  # fmt: skip
        def emit(ctx: Any, builder: Any, sig: Any, values: Any) -> Any:
            products.emit(builder, values[:4], steps, n, values[4], values[5:] if ranged else None)
            return ctx.get_dummy_value()

        return types.void(*(types.int64,) * 8), emit

    return tile
