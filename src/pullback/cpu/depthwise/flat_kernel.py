"""Depthwise convolution of small planes in channels_first, stride 1: a plane is one run of cells, whatever its rows.

Where source and target rows are alike, a tap lies at one distance from all cells of a plane; a mask for each vector of cells and
each tap leaves out what lies beyond the ends, of reading and of adding. Any window, dilation and rank; nothing is copied.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.depthwise.records import FlatGather, FlatProducts
from pullback.cpu.depthwise.tiles_kernel import Emit, emit_loop
from pullback.cpu.simd.vectors import outline, pointer, stay_outline

MASK = 2  # bytes of a mask
MANY, SUMS = 4, 9  # vectors of cells that share a weight; taps that share what they read of dy


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
    def tile(context: Any, source: Any, target: Any, n: Any, weights: Any, taps: Any, shifts: Any, masks: Any, row: Any) -> Any:
        """source, target: of the first cell. masks: of the first vector; `row` bytes from one tap's to the next tap's."""

        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            source, target, n, weights, taps, shifts, masks, row = args
            flat = Flat(lanes, builder)

            def body(t: Any, sums: Any) -> Any:
                at = builder.add(source, flat.word(flat.plus(shifts, flat.times(t, 8))))
                weight = flat.splat(flat.plus(weights, flat.times(t, WIDE)))
                mask_at = flat.plus(masks, builder.mul(t, row))
                found = []
                for u, total in enumerate(sums):
                    mask = flat.kept_mask(flat.plus(mask_at, flat.number(u * MASK)))
                    cells = flat.load(flat.plus(at, flat.number(u * V * SIZE)), False, mask)
                    found.append(flat.fma_where(mask, cells, weight, total))
                return found

            totals = emit_loop(builder, flat.number(0), taps, [flat.zero] * vectors, body)
            for u, total in enumerate(totals):
                wanted = flat.mask(builder.sub(n, flat.number(u * V)))
                flat.store(flat.plus(target, flat.number(u * V * SIZE)), total, False, wanted)
            return ctx.get_dummy_value()

        return types.void(*(types.int64,) * 8), emit

    return tile


def _make_products(lanes: Any, taps: int) -> Any:
    """`taps` sums of source times dy over the cells of some planes, a vector for each tap."""
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size

    @intrinsic
    def tile(
        context: Any, source: Any, dy: Any, cells: Any, planes: Any, source_step: Any, dy_step: Any, shifts: Any, masks: Any,
        row: Any, sums: Any,
    ) -> Any:  # fmt: skip
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            source, dy, cells, planes, source_step, dy_step, shifts, masks, row, sums = args
            flat = Flat(lanes, builder)
            distances = [flat.word(flat.plus(shifts, flat.number(8 * t))) for t in range(taps)]
            rows = [flat.plus(masks, builder.mul(row, flat.number(t))) for t in range(taps)]
            vectors = builder.sdiv(flat.plus(cells, flat.number(V - 1)), flat.number(V))

            def plane(p: Any, carried: Any) -> Any:
                at, other = flat.plus(source, builder.mul(p, source_step)), flat.plus(dy, builder.mul(p, dy_step))

                def vector(u: Any, totals: Any) -> Any:
                    offset, mask_offset = flat.times(u, V * SIZE), flat.times(u, MASK)
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

        return types.void(*(types.int64,) * 10), emit

    return tile


def build(lanes: Any) -> dict[str, Any]:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size

    def make_gather(vectors: int) -> Any:
        tile = _make_gather(lanes, vectors)

        @outline
        def gather(source, target, n, weights, taps, shifts, masks, row):
            stay_outline()
            tile(source, target, n, weights, taps, shifts, masks, row)

        return gather

    def make_products(taps: int) -> Any:
        tile = _make_products(lanes, taps)

        @outline
        def products(source, dy, cells, planes, source_step, dy_step, shifts, masks, row, sums):
            stay_outline()
            tile(source, dy, cells, planes, source_step, dy_step, shifts, masks, row, sums)

        return products

    gather_many, gather_two, gather_one = (make_gather(vectors) for vectors in (MANY, 2, 1))
    products_many, products_three, products_one = (make_products(taps) for taps in (SUMS, 3, 1))
    load_wide, put_wide, add_lanes = lanes.load_wide, lanes.put_wide, lanes.add_lanes

    def gather(args: FlatGather, piece, scratch):
        for plane in range(piece * args.group, min(piece * args.group + args.group, args.planes)):
            at, to = args.source + plane * args.source_cells * SIZE, args.target + plane * args.cells * SIZE
            own = args.weights + plane % args.groups * args.taps * WIDE
            j = 0
            while j < args.cells:
                n, offset, mask = args.cells - j, j * SIZE, args.masks + j // V * MASK
                if n > 2 * V:
                    gather_many(at + offset, to + offset, n, own, args.taps, args.shifts, mask, args.mask_row)
                    j += MANY * V
                elif n > V:
                    gather_two(at + offset, to + offset, n, own, args.taps, args.shifts, mask, args.mask_row)
                    j += 2 * V
                else:
                    gather_one(at + offset, to + offset, n, own, args.taps, args.shifts, mask, args.mask_row)
                    j += V

    def products(args: FlatProducts, piece, scratch):
        """The filter gradient of some groups over some images."""
        part, chunk = piece // args.chunks, piece % args.chunks
        first, count = chunk * args.group, min(args.group, args.images - chunk * args.group)
        for g in range(part * args.group_block, min(part * args.group_block + args.group_block, args.groups)):
            x, other = (
                args.source + (first * args.groups + g) * args.source_cells * SIZE,
                args.dy + (first * args.groups + g) * args.cells * SIZE,
            )
            x_step, step = args.groups * args.source_cells * SIZE, args.groups * args.cells * SIZE
            result = args.sums + chunk * args.sums_bytes + g * args.taps * WIDE
            t = 0
            while t < args.taps:
                distances, mask = args.shifts + 8 * t, args.masks + t * args.mask_row
                if args.taps - t >= SUMS:
                    done = SUMS
                    products_many(x, other, args.cells, count, x_step, step, distances, mask, args.mask_row, scratch)
                elif args.taps - t >= 3:
                    done = 3
                    products_three(x, other, args.cells, count, x_step, step, distances, mask, args.mask_row, scratch)
                else:
                    done = 1
                    products_one(x, other, args.cells, count, x_step, step, distances, mask, args.mask_row, scratch)
                for i in range(done):
                    put_wide(result + (t + i) * WIDE, add_lanes(load_wide(scratch + i * V * WIDE, V)))
                t += done

    return {"gather": gather, "products": products}
