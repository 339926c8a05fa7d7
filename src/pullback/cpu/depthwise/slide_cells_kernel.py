"""Depthwise convolution in channels_last, in place: windows slide down strips of columns, a vector of channels at a time.

Going down the rows of a strip, a cell of the source is read once for all the taps that meet it, and sums that are not complete
stay in registers. Rows beyond the ends are left out; cells beyond the ends of a row are read from a vector of zeros, and results
there are stored into a spare one. Windows are square and undilated: `taps` and `stride` are constants of the machine code. A last
vector that would leave the channels begins earlier, so none is masked.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from pullback.cpu.depthwise.columns_kernel import Strip
from pullback.cpu.depthwise.emit_kernel import emit_loop
from pullback.cpu.depthwise.records import SlideCellsGather, SlideCellsProducts
from pullback.cpu.machine_code.levels import level
from pullback.cpu.simd.native import emit_prefetch, fence, fill_zero
from pullback.cpu.simd.vectors import inline, outline, stay_outline

# Target columns of a strip, by taps and stride: their sums, cells and weights must fit 32 registers.
COLUMNS = {(3, 1): 7, (5, 1): 4, (7, 1): 3, (3, 2): 7, (5, 2): 4, (7, 2): 4}
PRODUCT_COLUMNS = {3: 4, 5: 2, 7: 2}
MOST_TOTALS = 28  # vectors of sums of a filter gradient in registers


def _fitting(columns: int) -> int:
    """For half as many registers, half as many columns."""
    return columns if level().registers >= 32 else (columns + 1) // 2


def _make_gather(lanes: Any, taps: int, stride: int) -> Any:
    """Target rows [row0, row1) of a strip of columns from `column` on, of one vector of channels."""
    columns, carried_rows = _fitting(COLUMNS[taps, stride]), (taps - 1) // stride
    reads, step = (columns - 1) * stride + taps, lanes.count * lanes.compute_size

    @intrinsic
    def tile(
        context: Any, args: Any, source: Any, target: Any, weights: Any, zeros: Any, spare: Any, row0: Any, row1: Any, column: Any,
        ahead: Any,
    ) -> Any:  # fmt: skip
        def emit(ctx: Any, builder: Any, sig: Any, values: Any) -> Any:
            args_at, source, target, weights, zeros, spare, row0, row1, column, ahead = values
            strip = Strip(lanes, builder, stride)
            source_rows, source_cols, cols, low_h, low_w = strip.fields(
                ctx, args, args_at, "source_rows source_cols cols low_h low_w"
            )
            cell, pitch, target_cell, target_pitch, stream = strip.fields(
                ctx, args, args_at, "source_cell source_pitch target_cell target_pitch stream"
            )
            first = builder.add(strip.times(column, stride), low_w)
            inside = [builder.icmp_unsigned("<", builder.add(first, strip.number(i)), source_cols) for i in range(reads)]
            wanted = [builder.icmp_unsigned("<", builder.add(column, strip.number(c)), cols) for c in range(columns)]
            base, top = builder.add(source, builder.mul(first, cell)), builder.add(strip.times(row0, stride), low_h)
            steps, target_steps = strip.steps(cell, reads), strip.steps(target_cell, columns)
            # All weights of a small window stay in registers.
            known = [strip.load(builder.add(weights, strip.number(t * step)), True) for t in range(9)] if taps == 3 else []

            def weight(a: int, b: int) -> Any:
                t = a * taps + b
                return known[t] if known else strip.load(builder.add(weights, strip.number(t * step)), True)

            def meet(row: Any, sums: list[Any], tap: int) -> list[Any]:
                """Add source row `row`, which is tap row `tap` of the first of these target rows, of `columns` sums each."""
                at = builder.add(base, builder.mul(row, pitch))
                for i in range(reads - columns * stride, reads):  # those of the next strip that this one does not read
                    emit_prefetch(builder, builder.add(builder.add(at, steps[i]), ahead))

                def read(i: int) -> Any:
                    return strip.load(builder.select(inside[i], builder.add(at, steps[i]), zeros), False)

                def add(values: list[Any]) -> list[Any]:
                    found = list(values)
                    rows = [(q, tap - stride * q) for q in range(len(found) // columns) if 0 <= tap - stride * q < taps]
                    if known:
                        for i in range(reads):
                            value = read(i)
                            for (q, a), c in ((row, c) for c in range(columns) for row in rows):
                                if 0 <= i - c * stride < taps:
                                    place = q * columns + c
                                    found[place] = strip.fma(value, weight(a, i - c * stride), found[place])
                        return found
                    cells = [read(i) for i in range(reads)]
                    for (q, a), b in ((row, b) for row in rows for b in range(taps)):
                        factor = weight(a, b)
                        for c in range(columns):
                            place = q * columns + c
                            found[place] = strip.fma(cells[c * stride + b], factor, found[place])
                    return found

                return strip.if_row(row, source_rows, sums, add)

            sums = [strip.zero] * (carried_rows * columns)
            for t in range(taps - stride):
                sums = meet(builder.add(top, strip.number(t)), sums, t)

            def body(r: Any, carried: Any) -> Any:
                row, place, *sums = carried
                sums += [strip.zero] * columns
                for j in range(stride):
                    sums = meet(builder.add(row, strip.number(j)), sums, taps - stride + j)
                places = [
                    builder.select(there, builder.add(place, step), spare)
                    for there, step in zip(wanted, target_steps, strict=True)
                ]
                with builder.if_else(builder.icmp_signed("!=", stream, strip.number(0))) as (past_cache, into_cache):
                    with past_cache:
                        for at, total in zip(places, sums, strict=False):
                            strip.stream(at, total)
                    with into_cache:
                        for at, total in zip(places, sums, strict=False):
                            strip.store(at, total, False)
                down = builder.add(row, strip.number(stride)), builder.add(place, target_pitch)
                return [*down, *sums[columns:]]

            place = builder.add(target, builder.add(builder.mul(row0, target_pitch), builder.mul(column, target_cell)))
            emit_loop(builder, row0, row1, [builder.add(top, strip.number(taps - stride)), place, *sums], body)
            return ctx.get_dummy_value()

        return types.void(args, *(types.int64,) * 9), emit

    return tile


def _make_products(lanes: Any, taps: int, stride: int, first_tap: int, tap_rows: int) -> Any:
    """Sums of source times dy over rows [row0, row1) of dy and some rows of taps, a vector for each tap, added to `sums`."""
    columns = _fitting(PRODUCT_COLUMNS[taps])
    reads, step = (columns - 1) * stride + taps, lanes.count * lanes.compute_size

    @intrinsic
    def tile(
        context: Any, args: Any, source: Any, dy: Any, sums: Any, zeros: Any, row0: Any, row1: Any, ahead: Any, dy_ahead: Any
    ) -> Any:  # fmt: skip
        def emit(ctx: Any, builder: Any, sig: Any, values: Any) -> Any:
            args_at, source, dy, sums, zeros, row0, row1, ahead, dy_ahead = values
            strip = Strip(lanes, builder, stride)
            source_rows, source_cols, cols, low_h, low_w = strip.fields(
                ctx, args, args_at, "source_rows source_cols cols low_h low_w"
            )
            cell, pitch, dy_cell, dy_pitch = strip.fields(
                ctx, args, args_at, "source_cell source_pitch target_cell target_pitch"
            )
            steps, dy_steps = strip.steps(cell, reads), strip.steps(dy_cell, columns)
            numbers = range(first_tap * taps, (first_tap + tap_rows) * taps)
            places = [builder.add(sums, strip.number(t * step)) for t in numbers]
            strips = builder.sdiv(builder.add(cols, strip.number(columns - 1)), strip.number(columns))

            def of_row(r: Any, totals: Any) -> list[Any]:
                line = builder.add(dy, builder.mul(r, dy_pitch))
                top = builder.add(builder.add(strip.times(r, stride), low_h), strip.number(first_tap))

                def of_strip(s: Any, totals: Any) -> list[Any]:
                    column = strip.times(s, columns)
                    first = builder.add(strip.times(column, stride), low_w)
                    at = builder.add(line, builder.mul(column, dy_cell))
                    base = builder.add(source, builder.mul(first, cell))
                    factors = []
                    for c in range(columns):
                        there, place = builder.add(column, strip.number(c)), builder.add(at, dy_steps[c])
                        if first_tap == 0:
                            emit_prefetch(builder, builder.add(place, dy_ahead))
                        there = builder.icmp_unsigned("<", there, cols)
                        factors.append(strip.load(builder.select(there, place, zeros), False))
                    inside = [
                        builder.icmp_unsigned("<", builder.add(first, strip.number(i)), source_cols) for i in range(reads)
                    ]
                    found = list(totals)
                    for a in range(tap_rows):
                        row = builder.add(top, strip.number(a))
                        from_row = builder.add(base, builder.mul(row, pitch))
                        if first_tap == 0 and a < stride:
                            for i in range(columns * stride):
                                emit_prefetch(builder, builder.add(builder.add(from_row, steps[i]), ahead))

                        def add(values: list[Any], from_row: Any = from_row) -> list[Any]:
                            mine = list(values)
                            for i in range(reads):
                                value = strip.load(builder.select(inside[i], builder.add(from_row, steps[i]), zeros), False)
                                for c in range(columns):
                                    b = i - c * stride
                                    if 0 <= b < taps:
                                        mine[b] = strip.fma(value, factors[c], mine[b])
                            return mine

                        part = slice(a * taps, (a + 1) * taps)
                        found[part] = strip.if_row(row, source_rows, found[part], add)
                    return found

                return emit_loop(builder, strip.number(0), strips, totals, of_strip)

            totals = emit_loop(builder, row0, row1, [strip.load(place, True) for place in places], of_row)
            for place, total in zip(places, totals, strict=True):
                strip.store(place, total, True)
            return ctx.get_dummy_value()

        return types.void(args, *(types.int64,) * 8), emit

    return tile


@inline
def unit_of(args, unit):
    """Image of a unit, the rows of its block, and the bytes of source from it to the next block."""
    image, b = unit // args.blocks, unit % args.blocks
    row0 = b * args.block_rows
    row1 = min(row0 + args.block_rows, args.rows)
    step = args.block_rows * args.stride if b + 1 < args.blocks else args.source_rows - row0 * args.stride
    return image, row0, row1, step * args.source_pitch


def build(lanes: Any, taps: int, stride: int) -> dict[str, Any]:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    VECTOR, TAPS, COLUMNS_HERE = V * WIDE, taps * taps, _fitting(COLUMNS[taps, stride])
    load_wide, store_wide = lanes.load_wide, lanes.store_wide
    gather_tile = _make_gather(lanes, taps, stride)
    half = taps if TAPS <= MOST_TOTALS else (taps + 1) // 2
    first_products, last_products = (
        _make_products(lanes, taps, stride, 0, half),
        (_make_products(lanes, taps, stride, half, taps - half) if half < taps else None),
    )

    @outline
    def gather_strip(args, source, target, weights, zeros, spare, row0, row1, column, ahead):
        stay_outline()
        gather_tile(args, source, target, weights, zeros, spare, row0, row1, column, ahead)

    def gather(args: SlideCellsGather, piece, scratch):
        zeros, spare, own = scratch, scratch + VECTOR, scratch + 2 * VECTOR
        fill_zero(zeros, VECTOR)
        strips = (args.cols + COLUMNS_HERE - 1) // COLUMNS_HERE
        for number in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.units)):
            part = number % args.parts
            image, row0, row1, down = unit_of(args, number // args.parts)
            begin, end = part * args.part_channels, min(part * args.part_channels + args.part_channels, args.channels)
            for s in range(strips):
                # What the next strip reads is prefetched; after the last one, what the next unit does.
                ahead = COLUMNS_HERE * stride * args.source_cell
                if s + 1 == strips:
                    over = args.part_channels * SIZE if part + 1 < args.parts else down - begin * SIZE
                    ahead = over - s * ahead
                for first in range(begin, end, V):
                    c = min(first, args.channels - V)
                    for a in range(taps):
                        for b in range(taps):
                            at = args.weights + args.weight_start + a * args.weight_row + b * args.weight_column + c * WIDE
                            store_wide(own + (a * taps + b) * VECTOR, load_wide(at, V), V)
                    gather_strip(
                        args, args.source + image * args.source_rows * args.source_pitch + c * SIZE,
                        args.target + image * args.rows * args.target_pitch + c * SIZE, own, zeros, spare, row0, row1,
                        s * COLUMNS_HERE, ahead,
                    )  # fmt: skip
        if args.stream:
            fence()

    @outline
    def products_of(args, source, dy, sums, zeros, row0, row1, ahead, dy_ahead):
        stay_outline()
        first_products(args, source, dy, sums, zeros, row0, row1, ahead, dy_ahead)

    if last_products is None:

        @inline
        def products_of_rest(args, source, dy, sums, zeros, row0, row1):
            pass

    else:

        @outline
        def products_of_rest(args, source, dy, sums, zeros, row0, row1):
            stay_outline()
            last_products(args, source, dy, sums, zeros, row0, row1, 0, 0)

    def products(args: SlideCellsProducts, piece, scratch):
        zeros, own = scratch, scratch + VECTOR
        part, chunk = piece // args.chunks, piece % args.chunks
        begin, end = part * args.part_channels, min(part * args.part_channels + args.part_channels, args.channels)
        fill_zero(scratch, VECTOR + (end - begin + V - 1) // V * TAPS * VECTOR)
        for unit in range(chunk * args.per_piece, min(chunk * args.per_piece + args.per_piece, args.units)):
            image, row0, row1, down = unit_of(args, unit)
            dy_down = args.block_rows * args.target_pitch
            for first in range(begin, end, V):
                c, sums = min(first, args.channels - V), own + (first - begin) // V * TAPS * VECTOR
                source = args.source + image * args.source_rows * args.source_pitch + c * SIZE
                dy = args.dy + image * args.rows * args.target_pitch + c * SIZE
                products_of(args, source, dy, sums, zeros, row0, row1, down, dy_down)
                products_of_rest(args, source, dy, sums, zeros, row0, row1)
        to = args.sums + chunk * args.sums_bytes
        for first in range(begin, end, V):
            c, sums = min(first, args.channels - V), own + (first - begin) // V * TAPS * VECTOR
            for t in range(TAPS):
                store_wide(to + (t * args.channels + c) * WIDE, load_wide(sums + t * VECTOR, V), V)

    return {"gather": gather, "products": products}
