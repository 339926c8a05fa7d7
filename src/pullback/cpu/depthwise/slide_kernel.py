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
from pullback.cpu.depthwise.emit_kernel import emit_loop
from pullback.cpu.depthwise.partial_sums_kernel import make_store_sums
from pullback.cpu.depthwise.records import SLIDE_SPARE, SlideGather, SlideInterleave, SlideProducts
from pullback.cpu.simd.native import LINE, fence, fill_zero, stream_bytes
from pullback.cpu.simd.vectors import I32, constant_vector, outline, stay_outline


def _make_gather(lanes: Any, taps: int, stride: int, vectors: int) -> Any:
    """Target rows [row0, row1) of `vectors` vectors of columns from `column` on."""
    V, SIZE = lanes.count, lanes.size
    carried_rows = (taps - 1) // stride

    @intrinsic
    def tile(
        context: Any, args: Any, source: Any, target: Any, weights: Any, row0: Any, row1: Any, column: Any, ahead: Any, end: Any
    ) -> Any:  # fmt: skip
        def emit(ctx: Any, builder: Any, sig: Any, values: Any) -> Any:
            args_at, source, target, weights, row0, row1, column, ahead, end = values
            strip = Strip(lanes, builder, stride)
            source_rows, source_cols, cols = strip.fields(ctx, args, args_at, "source_rows source_cols cols")
            low_h, low_w, weight_row, weight_column = strip.fields(ctx, args, args_at, "low_h low_w weight_row weight_column")
            weight = strip.weights(weights, weight_row, weight_column, taps)
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
                                    found[place] = strip.fma_where(met[u][b], cells[b], weight(a, b), found[place])
                    return found

                return strip.if_row(row, source_rows, sums, add)

            sums = [strip.zero] * (carried_rows * vectors)
            for t in range(taps - stride):
                sums = meet(builder.add(top, strip.number(t)), sums, t)

            def body(r: Any, carried: Any) -> Any:
                ahead, row, place, *sums = carried
                ahead = strip.prefetch_until(ahead, end, 2)
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

        return types.void(args, *(types.int64,) * 8), emit

    return tile


def _make_interleave(lanes: Any, taps: int, stride: int) -> Any:
    """Source rows [row0, row1) of one vector of source columns: each completes `stride` rows of the target.

    Target cell stride * k + e - low gets source cells k, k - 1 ... by taps e, e + stride ...
    """
    V, SIZE = lanes.count, lanes.size
    reach = (taps - 1) // stride

    @intrinsic
    def tile(
        context: Any, args: Any, source: Any, target: Any, weights: Any, row0: Any, row1: Any, column: Any, spare: Any, ahead: Any,
        end: Any,
    ) -> Any:  # fmt: skip
        def emit(ctx: Any, builder: Any, sig: Any, values: Any) -> Any:
            args_at, source, target, weights, row0, row1, column, spare, ahead, end = values
            strip = Strip(lanes, builder, 1)
            source_rows, source_cols, rows, cols = strip.fields(ctx, args, args_at, "source_rows source_cols rows cols")
            low_h, low_w, weight_row, weight_column = strip.fields(ctx, args, args_at, "low_h low_w weight_row weight_column")
            weight = strip.weights(weights, weight_row, weight_column, taps)
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
                            found[place] = strip.fma_where(masks[cell], cells[cell], weight(a, b), found[place])
                    return found

                return strip.if_row(row, source_rows, sums + [strip.zero] * (taps * stride - len(sums)), add)

            rest = (taps - stride) * stride  # sums that the next source row goes on with
            sums: list[Any] = [strip.zero] * rest
            for m in range(reach, 0, -1):
                sums = meet(builder.sub(row0, strip.number(m)), sums)[-rest:]

            def body(k: Any, carried: Any) -> Any:
                ahead, *sums = carried
                ahead = strip.prefetch_until(ahead, end, 2)
                sums = meet(k, sums)
                for e in range(stride):
                    row = builder.sub(builder.add(strip.times(k, stride), strip.number(e)), low_h)
                    place = builder.add(target, builder.add(builder.mul(row, target_pitch), strip.times(left, SIZE)))
                    place = strip.row_or(spare, place, row, rows)
                    for u in range(stride):
                        order = [u * V // stride + i // stride + V * (i % stride) for i in range(V)]
                        phases = sums[e * stride : (e + 1) * stride]
                        interleaved = builder.shuffle_vector(*phases, constant_vector(ir.VectorType(I32, V), order))
                        strip.store(builder.add(place, strip.number(u * V * SIZE)), interleaved, False, wanted[u])
                return [ahead, *sums[-rest:]]

            emit_loop(builder, row0, row1, [ahead, *sums], body)
            return ctx.get_dummy_value()

        return types.void(args, *(types.int64,) * 9), emit

    return tile


def _make_products(lanes: Any, taps: int, stride: int) -> Any:
    """Sums of source times dy over rows [row0, row1) of one vector of dy's columns, a vector for each tap, added to `sums`."""
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size

    @intrinsic
    def tile(
        context: Any, args: Any, source: Any, dy: Any, sums: Any, row0: Any, row1: Any, column: Any, zeros: Any, ahead: Any,
        dy_ahead: Any,
    ) -> Any:  # fmt: skip
        def emit(ctx: Any, builder: Any, sig: Any, values: Any) -> Any:
            args_at, source, dy, sums, row0, row1, column, zeros, ahead, dy_ahead = values
            strip = Strip(lanes, builder, stride)
            names = "source_rows source_cols cols low_h low_w"
            source_rows, source_cols, cols, low_h, low_w = strip.fields(ctx, args, args_at, names)
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
                ahead, dy_ahead = strip.prefetch_lines(ahead, stride * stride), strip.prefetch_lines(dy_ahead, 1)
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
            totals = [strip.load(at, True) for at in places]
            begin = [ahead, dy_ahead, builder.add(top, strip.number(kept)), place, *totals, *known]
            _, _, _, _, *flat = emit_loop(builder, row0, row1, begin, body)
            for at, total in zip(places, flat, strict=False):
                strip.store(at, total, True)
            return ctx.get_dummy_value()

        return types.void(args, *(types.int64,) * 9), emit

    return tile


def build(lanes: Any, taps: int, stride: int) -> dict[str, Any]:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    gather_one, gather_two = (_make_gather(lanes, taps, stride, vectors) for vectors in (1, 2))
    products_tile, store_sums = _make_products(lanes, taps, stride), make_store_sums(lanes)

    @outline
    def gather_rows(args, source, target, weights, row0, row1, ahead, ahead_bytes):
        """All columns of rows [row0, row1); meanwhile ahead_bytes from `ahead` on are prefetched."""
        stay_outline()
        column, strips = 0, (args.cols + 2 * V - 1) // (2 * V)
        for s in range(strips):
            begin, end = ahead + ahead_bytes * s // strips, ahead + ahead_bytes * (s + 1) // strips
            if args.cols - column > V:
                gather_two(args, source, target, weights, row0, row1, column, begin, end)
            else:
                gather_one(args, source, target, weights, row0, row1, column, begin, end)
            column += 2 * V

    def gather(args: SlideGather, piece, scratch):
        plane = args.source_rows * args.source_cols * SIZE
        block_bytes = plane // args.blocks
        for unit in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.units)):
            owner, b = unit // args.blocks, unit % args.blocks
            row0, row1 = b * args.block_rows, min(b * args.block_rows + args.block_rows, args.rows)
            place = args.target + (owner * args.rows + row0) * args.cols * SIZE
            out = scratch + args.stage if args.stage else place
            weights = args.weights + owner % args.groups * args.group_weights + args.weight_start
            ahead = args.source + (unit + 1) * plane // args.blocks
            gather_rows(args, args.source + owner * plane, out, weights, row0, row1, ahead, block_bytes)
            if args.stage:
                stream_bytes(place, out, (row1 - row0) * args.cols * SIZE)
        if args.stage:
            fence()

    def products(args: SlideProducts, piece, scratch):
        fill_zero(scratch, SLIDE_SPARE)
        source_plane, plane = args.source_rows * args.source_cols * SIZE, args.rows * args.cols * SIZE
        own = scratch + args.own_start
        part, chunk = piece // args.chunks, piece % args.chunks
        strips, stop = (args.cols + V - 1) // V, min(chunk * args.per_piece + args.per_piece, args.units)
        for g in range(part * args.group_block, min(part * args.group_block + args.group_block, args.groups)):
            fill_zero(own, taps * taps * V * WIDE)
            for unit in range(chunk * args.per_piece, stop):
                image, b = unit // args.blocks, unit % args.blocks
                owner = image * args.groups + g
                row0, row1 = b * args.block_rows, min(b * args.block_rows + args.block_rows, args.rows)
                # What the next unit reads is prefetched: of this group, or of the next one.
                n, owner_next = (unit + 1, g) if unit + 1 < stop else (chunk * args.per_piece, g + 1)
                owner_next += n // args.blocks * args.groups
                first = n % args.blocks * args.block_rows
                ahead = args.source + owner_next * source_plane + first * stride * args.source_cols * SIZE
                dy_ahead = args.dy + owner_next * plane + first * args.cols * SIZE
                for s in range(strips):
                    fetched = s * (row1 - row0) * LINE
                    products_tile(
                        args, args.source + owner * source_plane, args.dy + owner * plane, own, row0, row1, s * V, scratch,
                        ahead + stride * stride * fetched, dy_ahead + fetched,
                    )  # fmt: skip
            store_sums(own, args.sums + chunk * args.sums_bytes + g * taps * taps * WIDE, taps * taps)

    kernels = {"gather": gather, "products": products}
    if stride == 1:
        return kernels
    interleave_tile = _make_interleave(lanes, taps, stride)

    def interleave(args: SlideInterleave, piece, scratch):
        plane, pitch = args.source_rows * args.source_cols * SIZE, args.cols * SIZE
        block_bytes, spare = plane // args.blocks, scratch + SLIDE_SPARE
        strips = (args.last_column - args.first_column + V - 1) // V
        for unit in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.units)):
            owner, b = unit // args.blocks, unit % args.blocks
            row0 = args.first_row + b * args.block_rows
            row1 = min(row0 + args.block_rows, args.last_row)
            begin, end = max(row0 * stride - args.low_h, 0), min(row1 * stride - args.low_h, args.rows)
            place = args.target + owner * args.rows * pitch
            out = scratch + args.stage - begin * pitch if args.stage else place
            weights = args.weights + owner % args.groups * args.group_weights
            ahead = args.source + (unit + 1) * plane // args.blocks
            for s in range(strips):
                interleave_tile(
                    args, args.source + owner * plane, out, weights, row0, row1, args.first_column + s * V, spare,
                    ahead + block_bytes * s // strips, ahead + block_bytes * (s + 1) // strips,
                )  # fmt: skip
            if args.stage:
                stream_bytes(place + begin * pitch, out + begin * pitch, (end - begin) * pitch)
        if args.stage:
            fence()

    return kernels | {"interleave": interleave}
