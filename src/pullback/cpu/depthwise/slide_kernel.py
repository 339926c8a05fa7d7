"""Depthwise convolution in channels_first where planes are read and written in place: windows slide down strips of columns.

A strip is a vector of target columns, or two. Going down its rows, a row of the source is read once for all the taps that meet it,
and sums that are not complete stay in registers. Columns beyond the ends are masked and rows beyond them left out, of reading and
of adding, so that weights and gradients may be infinite. Windows are square and undilated, the stride is 1 or 2: `taps` and
`stride` are constants of the machine code.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.depthwise.columns_kernel import Strip
from pullback.cpu.depthwise.records import SlideGather, SlideProducts, SlideWeave
from pullback.cpu.depthwise.tiles_kernel import emit_loop
from pullback.cpu.simd.native import LINE, fence, fill_zero, stream_bytes
from pullback.cpu.simd.vectors import I32, constant_vector, outline, stay_outline

SPARE = 1 << 10  # bytes of scratch that stand for a row of zeros, and as many that take what nobody wants


def _make_gather(lanes: Any, taps: int, stride: int, vectors: int) -> Any:
    """Target rows [row0, row1) of `vectors` vectors of columns from `column` on."""
    V, SIZE = lanes.count, lanes.size
    carried_rows = (taps - 1) // stride

    @intrinsic
    def tile(
        context: Any, source: Any, source_rows: Any, source_cols: Any, target: Any, cols: Any, row0: Any, row1: Any, column: Any,
        low_h: Any, low_w: Any, weights: Any, weight_row: Any, weight_column: Any, ahead: Any, end: Any,
    ) -> Any:  # fmt: skip
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            (
                source, source_rows, source_cols, target, cols, row0, row1, column,
                low_h, low_w, weights, weight_row, weight_column, ahead, end,
            ) = args  # fmt: skip
            strip = Strip(lanes, builder, stride)
            factors = strip.weights(weights, weight_row, weight_column, taps)
            first = builder.add(strip.times(column, stride), low_w)
            firsts = [builder.add(first, strip.number(u * V * stride)) for u in range(vectors)]
            masks = [strip.masks(each, source_cols, taps) for each in firsts]
            met = [strip.met(each, source_cols, taps) for each in firsts]
            wanted = [strip.mask(builder.sub(cols, builder.add(column, strip.number(u * V)))) for u in range(vectors)]
            pitch, target_pitch = strip.times(source_cols, SIZE), strip.times(cols, SIZE)
            base = builder.add(source, strip.times(first, SIZE))
            top = builder.add(strip.times(row0, stride), low_h)

            def meet(row: Any, sums: list[Any], tap: int) -> list[Any]:
                """Add source row `row`, which is tap row `tap` of the first of these target rows, of `vectors` sums each."""

                def add(values: list[Any]) -> list[Any]:
                    at, found = builder.add(base, builder.mul(row, pitch)), list(values)
                    for u in range(vectors):
                        cells = strip.columns(builder.add(at, strip.number(u * V * stride * SIZE)), masks[u], taps)
                        for q in range(len(found) // vectors):
                            a = tap - stride * q
                            if 0 <= a < taps:
                                for b in range(taps):
                                    place = q * vectors + u
                                    found[place] = strip.fma_where(met[u][b], cells[b], factors[a][b], found[place])
                    return found

                return strip.if_row(row, source_rows, sums, add)

            sums = [strip.zero] * (carried_rows * vectors)
            for t in range(taps - stride):
                sums = meet(builder.add(top, strip.number(t)), sums, t)

            def body(r: Any, carried: Any) -> Any:
                ahead, row, place, *sums = carried
                ahead = strip.ask_ahead(ahead, end, 2)
                sums += [strip.zero] * vectors
                for j in range(stride):
                    sums = meet(builder.add(row, strip.number(j)), sums, taps - stride + j)
                for u in range(vectors):
                    strip.store(builder.add(place, strip.number(u * V * SIZE)), sums[u], False, wanted[u])
                down = builder.add(row, strip.number(stride)), builder.add(place, target_pitch)
                return [ahead, *down, *sums[vectors:]]

            place = builder.add(target, strip.times(column, SIZE))
            begin = [ahead, builder.add(top, strip.number(taps - stride)), place, *sums]
            emit_loop(builder, row0, row1, begin, body)
            return ctx.get_dummy_value()

        return types.void(*(types.int64,) * 15), emit

    return tile


def _make_weave(lanes: Any, taps: int, stride: int) -> Any:
    """Source rows [row0, row1) of one vector of source columns: each completes `stride` rows of the target.

    Target cell stride * k + e - low gets source cells k, k - 1 ... by taps e, e + stride ...
    """
    V, SIZE = lanes.count, lanes.size
    reach = (taps - 1) // stride

    @intrinsic
    def tile(
        context: Any, source: Any, source_rows: Any, source_cols: Any, target: Any, rows: Any, cols: Any, row0: Any, row1: Any,
        column: Any, low_h: Any, low_w: Any, weights: Any, weight_row: Any, weight_column: Any, spare: Any, ahead: Any, end: Any,
    ) -> Any:  # fmt: skip
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            (
                source, source_rows, source_cols, target, rows, cols, row0, row1, column,
                low_h, low_w, weights, weight_row, weight_column, spare, ahead, end,
            ) = args  # fmt: skip
            strip = Strip(lanes, builder, 1)
            factors = strip.weights(weights, weight_row, weight_column, taps)
            first = builder.sub(column, strip.number(reach))
            masks = strip.masks(first, source_cols, reach + 1)
            pitch, target_pitch = strip.times(source_cols, SIZE), strip.times(cols, SIZE)
            base = builder.add(source, strip.times(first, SIZE))
            left = builder.sub(strip.times(column, stride), low_w)
            wanted = [strip.inside(builder.add(left, strip.number(u * V)), cols) for u in range(stride)]

            def meet(row: Any, sums: list[Any]) -> list[Any]:
                """Add a source row to the `taps` target rows that it meets, each with `stride` phases of columns."""

                def add(values: list[Any]) -> list[Any]:
                    cells = strip.columns(builder.add(base, builder.mul(row, pitch)), masks, reach + 1)
                    found = list(values)
                    for a in range(taps):
                        for b in range(taps):
                            cell, place = reach - b // stride, a * stride + b % stride  # column k - b // stride
                            found[place] = strip.fma_where(masks[cell], cells[cell], factors[a][b], found[place])
                    return found

                return strip.if_row(row, source_rows, sums + [strip.zero] * (taps * stride - len(sums)), add)

            rest = (taps - stride) * stride  # sums that the next source row goes on with
            sums: list[Any] = [strip.zero] * rest
            for m in range(reach, 0, -1):
                sums = meet(builder.sub(row0, strip.number(m)), sums)[-rest:]

            def body(k: Any, carried: Any) -> Any:
                ahead, *sums = carried
                ahead = strip.ask_ahead(ahead, end, 2)
                sums = meet(k, sums)
                for e in range(stride):
                    row = builder.sub(builder.add(strip.times(k, stride), strip.number(e)), low_h)
                    place = builder.add(target, builder.add(builder.mul(row, target_pitch), strip.times(left, SIZE)))
                    place = strip.row_or(spare, place, row, rows)
                    for u in range(stride):
                        order = [u * V // stride + i // stride + V * (i % stride) for i in range(V)]
                        phases = sums[e * stride : (e + 1) * stride]
                        woven = builder.shuffle_vector(*phases, constant_vector(ir.VectorType(I32, V), order))
                        strip.store(builder.add(place, strip.number(u * V * SIZE)), woven, False, wanted[u])
                return [ahead, *sums[-rest:]]

            emit_loop(builder, row0, row1, [ahead, *sums], body)
            return ctx.get_dummy_value()

        return types.void(*(types.int64,) * 17), emit

    return tile


def _make_products(lanes: Any, taps: int, stride: int) -> Any:
    """Sums of source times dy over rows [row0, row1) of one vector of dy's columns, a vector for each tap, added to `sums`."""
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size

    @intrinsic
    def tile(
        context: Any, source: Any, source_rows: Any, source_cols: Any, dy: Any, cols: Any, row0: Any, row1: Any, column: Any,
        low_h: Any, low_w: Any, sums: Any, zeros: Any, ahead: Any, dy_ahead: Any,
    ) -> Any:  # fmt: skip
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            source, source_rows, source_cols, dy, cols, row0, row1, column, low_h, low_w, sums, zeros, ahead, dy_ahead = args
            strip = Strip(lanes, builder, stride)
            first = builder.add(strip.times(column, stride), low_w)
            masks = strip.masks(first, source_cols, taps)
            wanted = strip.mask(builder.sub(cols, column))
            met = [builder.and_(mask, wanted) for mask in strip.met(first, source_cols, taps)]
            if stride == 1:
                masks = met  # as many as there are registers for
            pitch, dy_pitch = strip.times(source_cols, SIZE), strip.times(cols, SIZE)
            base = builder.add(source, strip.times(first, SIZE))
            top = builder.add(strip.times(row0, stride), low_h)
            places = [builder.add(sums, strip.number(tap * V * WIDE)) for tap in range(taps * taps)]
            # Rows of the source that the next row of dy meets again; read again where registers are too few to keep them.
            kept = taps - stride if taps == 3 or stride == 2 else 0

            def cells_of(row: Any) -> list[Any]:
                at = strip.row_or(zeros, builder.add(base, builder.mul(row, pitch)), row, source_rows)
                return strip.columns(at, masks, taps)

            def body(r: Any, carried: Any) -> Any:
                ahead, dy_ahead, row, place, *flat = carried
                ahead, dy_ahead = strip.ask_lines(ahead, stride * stride), strip.ask_lines(dy_ahead, 1)
                totals, cells = flat[: taps * taps], flat[taps * taps :]
                lines = [cells[a * taps : (a + 1) * taps] for a in range(kept)]
                if kept:
                    lines += [cells_of(builder.add(row, strip.number(j))) for j in range(taps - kept)]
                factor = strip.load(place, False, wanted)
                highest = builder.sub(row, strip.number(kept))

                def add(values: list[Any], a: int) -> list[Any]:
                    line = lines[a] if kept else cells_of(builder.add(row, strip.number(a)))
                    return [strip.fma_where(met[b], line[b], factor, values[b]) for b in range(taps)]

                def add_all(values: list[Any]) -> list[Any]:
                    return [total for a in range(taps) for total in add(values[a * taps : (a + 1) * taps], a)]

                def add_some(values: list[Any]) -> list[Any]:
                    found = []
                    for a in range(taps):
                        mine, line = values[a * taps : (a + 1) * taps], builder.add(highest, strip.number(a))
                        found += strip.if_row(line, source_rows, mine, partial(add, a=a))
                    return found

                lowest = builder.add(highest, strip.number(taps - 1))
                inside = [builder.icmp_unsigned("<", line, source_rows) for line in (highest, lowest)]
                totals = strip.when(builder.and_(*inside), add_all, add_some, totals)
                down = builder.add(row, strip.number(stride)), builder.add(place, dy_pitch)
                return [ahead, dy_ahead, *down, *totals, *(cell for line in lines[stride:][:kept] for cell in line)]

            place = builder.add(dy, builder.add(builder.mul(row0, dy_pitch), strip.times(column, SIZE)))
            known = [cell for t in range(kept) for cell in cells_of(builder.add(top, strip.number(t)))]
            begin = [
                ahead,
                dy_ahead,
                builder.add(top, strip.number(kept)),
                place,
                *(strip.load(at, True) for at in places),
                *known,
            ]
            _, _, _, _, *flat = emit_loop(builder, row0, row1, begin, body)
            for at, total in zip(places, flat, strict=False):
                strip.store(at, total, True)
            return ctx.get_dummy_value()

        return types.void(*(types.int64,) * 14), emit

    return tile


def build(lanes: Any, taps: int, stride: int) -> dict[str, Any]:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    gather_one, gather_two = (_make_gather(lanes, taps, stride, vectors) for vectors in (1, 2))
    products_tile = _make_products(lanes, taps, stride)
    load_wide, put_wide, add_lanes = lanes.load_wide, lanes.put_wide, lanes.add_lanes

    @outline
    def gather_rows(
        source, source_rows, source_cols, target, cols, row0, row1, low_h, low_w, weights, weight_row, weight_column, ahead,
        ahead_bytes,
    ):  # fmt: skip
        stay_outline()
        column, strips = 0, (cols + 2 * V - 1) // (2 * V)
        for s in range(strips):
            begin, end = ahead + ahead_bytes * s // strips, ahead + ahead_bytes * (s + 1) // strips
            if cols - column > V:
                gather_two(
                    source, source_rows, source_cols, target, cols, row0, row1, column, low_h, low_w, weights, weight_row,
                    weight_column, begin, end,
                )  # fmt: skip
            else:
                gather_one(
                    source, source_rows, source_cols, target, cols, row0, row1, column, low_h, low_w, weights, weight_row,
                    weight_column, begin, end,
                )  # fmt: skip
            column += 2 * V

    def gather(args: SlideGather, piece, scratch):
        """stage: whether results go through scratch, past the cache."""
        plane = args.source_rows * args.source_cols * SIZE
        for unit in range(piece * args.group, min(piece * args.group + args.group, args.units)):
            owner, b = unit // args.blocks, unit % args.blocks
            row0, row1 = b * args.block_rows, min(b * args.block_rows + args.block_rows, args.rows)
            place = args.target + (owner * args.rows + row0) * args.cols * SIZE
            out = scratch + args.stage if args.stage else place
            gather_rows(
                args.source + owner * plane, args.source_rows, args.source_cols, out, args.cols, row0, row1, args.low_h, args.low_w,
                args.weights + owner % args.groups * args.group_weights + args.weight_start, args.weight_row, args.weight_column,
                args.source + (unit + 1) * plane // args.blocks, plane // args.blocks,
            )  # fmt: skip
            if args.stage:
                stream_bytes(place, out, (row1 - row0) * args.cols * SIZE)
        if args.stage:
            fence()

    def products(args: SlideProducts, piece, scratch):
        """The filter gradient of some groups over some of their (image, block) units; a vector of sums for each weight."""
        fill_zero(scratch, SPARE)
        own, vector = scratch + args.own_start, V * WIDE
        part, chunk = piece // args.chunks, piece % args.chunks
        strips, stop = (args.cols + V - 1) // V, min(chunk * args.group + args.group, args.units)
        for g in range(part * args.group_block, min(part * args.group_block + args.group_block, args.groups)):
            fill_zero(own, taps * taps * vector)
            for unit in range(chunk * args.group, stop):
                image, b = unit // args.blocks, unit % args.blocks
                owner = image * args.groups + g
                row0, row1 = b * args.block_rows, min(b * args.block_rows + args.block_rows, args.rows)
                n, owner_next = (unit + 1, g) if unit + 1 < stop else (chunk * args.group, g + 1)
                owner_next += n // args.blocks * args.groups
                first = n % args.blocks * args.block_rows
                ahead = args.source + (owner_next * args.source_rows + first * stride) * args.source_cols * SIZE
                dy_ahead = args.dy + (owner_next * args.rows + first) * args.cols * SIZE
                for s in range(strips):
                    asked = s * (row1 - row0) * LINE
                    products_tile(
                        args.source + owner * args.source_rows * args.source_cols * SIZE, args.source_rows, args.source_cols,
                        args.dy + owner * args.rows * args.cols * SIZE, args.cols, row0, row1, s * V, args.low_h, args.low_w, own, scratch,
                        ahead + stride * stride * asked, dy_ahead + asked,
                    )  # fmt: skip
            result = args.sums + chunk * args.sums_bytes + g * taps * taps * WIDE
            for i in range(taps * taps):
                put_wide(result + i * WIDE, add_lanes(load_wide(own + i * vector, V)))

    kernels = {"gather": gather, "products": products}
    if stride == 1:
        return kernels
    weave_tile = _make_weave(lanes, taps, stride)

    def weave(args: SlideWeave, piece, scratch):
        """The input gradient: source rows from first_row to last_row complete all rows of the target, the columns likewise."""
        plane = args.source_rows * args.source_cols * SIZE
        strips = (args.last_column - args.first_column + V - 1) // V
        for unit in range(piece * args.group, min(piece * args.group + args.group, args.units)):
            owner, b = unit // args.blocks, unit % args.blocks
            row0 = args.first_row + b * args.block_rows
            row1 = min(row0 + args.block_rows, args.last_row)
            begin, end = max(row0 * stride - args.low_h, 0), min(row1 * stride - args.low_h, args.rows)
            place = args.target + owner * args.rows * args.cols * SIZE
            out = scratch + args.stage - begin * args.cols * SIZE if args.stage else place
            ahead = args.source + (unit + 1) * plane // args.blocks
            for s in range(strips):
                weave_tile(
                    args.source + owner * plane, args.source_rows, args.source_cols, out, args.rows, args.cols, row0, row1, args.first_column + s * V,
                    args.low_h, args.low_w, args.weights + owner % args.groups * args.group_weights, args.weight_row, args.weight_column, scratch + SPARE,
                    ahead + plane // args.blocks * s // strips, ahead + plane // args.blocks * (s + 1) // strips,
                )  # fmt: skip
            if args.stage:
                stream_bytes(place + begin * args.cols * SIZE, out + begin * args.cols * SIZE, (end - begin) * args.cols * SIZE)
        if args.stage:
            fence()

    return kernels | {"weave": weave}
