"""Depthwise convolution of small planes in channels_first, stride 1: a plane is one run of cells, whatever its rows.

Where source and target rows are alike, a tap lies at one distance from all cells of a plane; a mask for each vector of cells and
each tap leaves out what lies beyond the ends, of reading and of adding. Any window, dilation and rank; nothing is copied.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.depthwise.emit_kernel import Emit, emit_loop
from pullback.cpu.depthwise.partial_sums_kernel import make_store_sums
from pullback.cpu.depthwise.records import FLAT_MASK, FLAT_VECTORS, PRODUCT_TAPS, FlatGather, FlatProducts
from pullback.cpu.engine.records import WORD
from pullback.cpu.simd.vectors import outline, pointer, stay_outline


class Flat(Emit):
    """Cells of a plane under masks from a table."""

    def plus(self, *values: Any) -> Any:
        total = values[0]
        for value in values[1:]:
            total = self.builder.add(total, value)
        return total

    def kept_mask(self, address: Any) -> Any:
        """A mask of one bit for each lane."""
        bits = ir.IntType(self.lanes.count)
        return self.builder.bitcast(
            self.builder.load(pointer(self.builder, address, bits)), ir.VectorType(ir.IntType(1), self.lanes.count)
        )


def _make_gather(lanes: Any, vectors: int) -> Any:
    """`vectors` vectors of target cells: sums over taps of what lies there times one weight each."""
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size

    @intrinsic
    def tile(context: Any, args: Any, source: Any, target: Any, weights: Any, masks: Any, n: Any) -> Any:
        """source, target: of the first of n cells. masks: of the first vector."""

        def emit(ctx: Any, builder: Any, sig: Any, values: Any) -> Any:
            args_at, source, target, weights, masks, n = values
            flat = Flat(lanes, builder)
            taps, shifts, mask_pitch = flat.fields(ctx, args, args_at, "taps shifts mask_pitch")

            def body(t: Any, sums: Any) -> Any:
                at = builder.add(source, flat.word(flat.plus(shifts, flat.times(t, WORD))))
                weight = flat.splat(flat.plus(weights, flat.times(t, WIDE)))
                mask_at = flat.plus(masks, builder.mul(t, mask_pitch))
                found = []
                for u, total in enumerate(sums):
                    mask = flat.kept_mask(flat.plus(mask_at, flat.number(u * FLAT_MASK)))
                    cells = flat.load(flat.plus(at, flat.number(u * V * SIZE)), False, mask)
                    found.append(flat.fma_where(mask, cells, weight, total))
                return found

            totals = emit_loop(builder, flat.number(0), taps, [flat.zero] * vectors, body)
            for u, total in enumerate(totals):
                wanted = flat.mask(builder.sub(n, flat.number(u * V)))
                flat.store(flat.plus(target, flat.number(u * V * SIZE)), total, False, wanted)
            return ctx.get_dummy_value()

        return types.void(args, *(types.int64,) * 5), emit

    return tile


def _make_products(lanes: Any, taps: int) -> Any:
    """`taps` sums of source times dy over the cells of some planes, a vector for each tap."""
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size

    @intrinsic
    def tile(context: Any, args: Any, source: Any, dy: Any, planes: Any, tap: Any, sums: Any) -> Any:
        """tap: the number of the first one."""

        def emit(ctx: Any, builder: Any, sig: Any, values: Any) -> Any:
            args_at, source, dy, planes, tap, sums = values
            flat = Flat(lanes, builder)
            groups, source_cells, cells = flat.fields(ctx, args, args_at, "groups source_cells cells")
            shifts, masks, mask_pitch = flat.fields(ctx, args, args_at, "shifts masks mask_pitch")
            source_step, dy_step = (flat.times(builder.mul(groups, count), SIZE) for count in (source_cells, cells))
            shifts, masks = flat.plus(shifts, flat.times(tap, WORD)), flat.plus(masks, builder.mul(tap, mask_pitch))
            distances = [flat.word(flat.plus(shifts, flat.number(WORD * t))) for t in range(taps)]
            rows = [flat.plus(masks, flat.times(mask_pitch, t)) for t in range(taps)]
            vectors = builder.sdiv(flat.plus(cells, flat.number(V - 1)), flat.number(V))

            def plane(p: Any, carried: Any) -> Any:
                at, other = flat.plus(source, builder.mul(p, source_step)), flat.plus(dy, builder.mul(p, dy_step))

                def vector(u: Any, totals: Any) -> Any:
                    offset, mask_offset = flat.times(u, V * SIZE), flat.times(u, FLAT_MASK)
                    wanted = flat.mask(builder.sub(cells, flat.times(u, V)))
                    factor = flat.load(flat.plus(other, offset), False, wanted)
                    masks = [flat.kept_mask(flat.plus(line, mask_offset)) for line in rows]
                    return [
                        flat.fma_where(mask, flat.load(flat.plus(at, offset, distance), False, mask), factor, total)
                        for distance, mask, total in zip(distances, masks, totals, strict=True)
                    ]

                return emit_loop(builder, flat.number(0), vectors, carried, vector)

            totals = emit_loop(builder, flat.number(0), planes, [flat.zero] * taps, plane)
            for t, total in enumerate(totals):
                flat.store(flat.plus(sums, flat.number(t * V * WIDE)), total, True)
            return ctx.get_dummy_value()

        return types.void(args, *(types.int64,) * 5), emit

    return tile


def build(lanes: Any) -> dict[str, Any]:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size

    def make_gather(vectors: int) -> Any:
        tile = _make_gather(lanes, vectors)

        @outline
        def gather(args, source, target, weights, masks, n):
            stay_outline()
            tile(args, source, target, weights, masks, n)

        return gather

    def make_products(taps: int) -> Any:
        tile = _make_products(lanes, taps)

        @outline
        def products(args, source, dy, planes, tap, sums):
            stay_outline()
            tile(args, source, dy, planes, tap, sums)

        return products

    gather_many, gather_two, gather_one = (make_gather(vectors) for vectors in (FLAT_VECTORS, 2, 1))
    products_many, products_three, products_one = (make_products(taps) for taps in (PRODUCT_TAPS, 3, 1))
    store_sums = make_store_sums(lanes)

    def gather(args: FlatGather, piece, scratch):
        for plane in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.planes)):
            at, to = args.source + plane * args.source_cells * SIZE, args.target + plane * args.cells * SIZE
            own = args.weights + plane % args.groups * args.taps * WIDE
            j = 0
            while j < args.cells:
                n, offset, mask = args.cells - j, j * SIZE, args.masks + j // V * FLAT_MASK
                if n > 2 * V:
                    gather_many(args, at + offset, to + offset, own, mask, n)
                    j += FLAT_VECTORS * V
                elif n > V:
                    gather_two(args, at + offset, to + offset, own, mask, n)
                    j += 2 * V
                else:
                    gather_one(args, at + offset, to + offset, own, mask, n)
                    j += V

    def products(args: FlatProducts, piece, scratch):
        part, chunk = piece // args.chunks, piece % args.chunks
        first, count = chunk * args.per_piece, min(args.per_piece, args.units - chunk * args.per_piece)
        for g in range(part * args.group_block, min(part * args.group_block + args.group_block, args.groups)):
            plane = first * args.groups + g
            x, dy = args.source + plane * args.source_cells * SIZE, args.dy + plane * args.cells * SIZE
            result = args.sums + chunk * args.sums_bytes + g * args.taps * WIDE
            t = 0
            while t < args.taps:
                if args.taps - t >= PRODUCT_TAPS:
                    done = PRODUCT_TAPS
                    products_many(args, x, dy, count, t, scratch)
                elif args.taps - t >= 3:
                    done = 3
                    products_three(args, x, dy, count, t, scratch)
                else:
                    done = 1
                    products_one(args, x, dy, count, t, scratch)
                store_sums(scratch, result + t * WIDE, done)
                t += done

    return {"gather": gather, "products": products}
