"""The register tile: a few rows of C summed in registers from rows of scalars (A) times rows of vectors (B).

All sums of a tile stay in registers while k runs over `taps` k-blocks of `depth` terms each; every k-block begins at an offset
from a table, so that one tile serves matrix products and convolutions alike. All sizes and pitches are run-time values.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.simd.linked_functions import call_part
from pullback.cpu.simd.native import emit_prefetch
from pullback.cpu.simd.vectors import (
    I32,
    I64,
    LLVM_TYPES,
    constant_vector,
    declare,
    inline,
    pointer,
    some_lanes,
    splat_lanes,
)

# What a tile does with its sums: store them; add them to what is there; non-temporal stores (rows of whole, aligned lines).
FRESH, ADDED, STREAMED = 0, 1, 2


def tile_size(lanes: Any, vectors: int) -> int:
    """The most rows of a tile `vectors` wide: its sums, one row of B and a broadcast share the registers (16; AVX-512: 32)."""
    registers = 32 if lanes.vector_bytes == 64 else 16
    return max(1, min(14, (registers - vectors - 1) // vectors))


def _emit_prefetches(builder: Any, base: Any, table: Any, count: Any) -> Any:
    """Prefetch `count` lines at base + table[0], base + table[1], ... ; where the table goes on."""
    none, one = ir.Constant(I64, 0), ir.Constant(I64, 1)
    before = builder.block
    loop, after = builder.append_basic_block("prefetch"), builder.append_basic_block("prefetched")
    builder.cbranch(builder.icmp_signed(">", count, none), loop, after)
    builder.position_at_end(loop)
    left, at = builder.phi(I64), builder.phi(I64)
    emit_prefetch(builder, builder.add(base, builder.load(pointer(builder, at, I64))))
    fewer, following = builder.sub(left, one), builder.add(at, ir.Constant(I64, 8))
    builder.cbranch(builder.icmp_signed(">", fewer, none), loop, after)
    for phi, first, again in ((left, count, fewer), (at, table, following)):
        phi.add_incoming(first, before)
        phi.add_incoming(again, loop)
    builder.position_at_end(after)
    end = builder.phi(I64)
    end.add_incoming(table, before)
    end.add_incoming(following, loop)
    return end


def _emit_ranges(builder: Any, table: Any, t: Any, lane: Any, vectors: int, count: int) -> list[Any]:
    """Masks of the lanes that k-block t adds to: its range in a table of (first, how many), where the tile begins at `lane`."""
    at = builder.add(table, builder.mul(t, ir.Constant(I64, 16)))
    first, many = (builder.load(pointer(builder, builder.add(at, ir.Constant(I64, place)), I64)) for place in (0, 8))
    begin, kind = builder.trunc(builder.sub(lane, first), I32), ir.VectorType(I32, count)
    length = splat_lanes(builder, builder.trunc(many, I32), count)
    masks = []
    for v in range(vectors):
        numbers = builder.add(constant_vector(kind, range(v * count, (v + 1) * count)), splat_lanes(builder, begin, count))
        masks.append(builder.icmp_unsigned("<", numbers, length))
    return masks


def _emit_tile(builder: Any, lanes: Any, rows: int, vectors: int, args: Any) -> None:
    _, a, a_at, taps, depth, a_row, a_step, b, b_at, b_tap, b_step, c, c_row, n, add, *more = args
    prefetched, ranged = (more, []) if len(more) == PREFETCHING else ([], more)
    scalar, vector = LLVM_TYPES[lanes.compute], lanes.vector.llvm
    count, size, vector_bytes = lanes.count, lanes.compute_size, lanes.count * lanes.compute_size
    suffix = f"v{count}f{8 * size}"
    fma = declare(builder, f"llvm.fma.{suffix}", vector, [vector] * 3)
    none = ir.Constant(I64, 0)
    one = ir.Constant(I64, 1)
    zeros = ir.Constant(vector, [0.0] * count)

    # Row r lies at base + (odd part of r) * pitch * (power of two): one base register and an index for each odd number.
    def row_indices(pitch: Any) -> list[tuple[Any, int]]:
        odd = {}
        for r in range(1, rows):
            number = r // (r & -r)
            if number not in odd:
                odd[number] = builder.mul(pitch, ir.Constant(I64, number))
        return [(none, 0) if r == 0 else (odd[r // (r & -r)], (r & -r).bit_length() - 1) for r in range(rows)]

    def row_place(base: Any, index: tuple[Any, int]) -> Any:
        return builder.add(base, builder.shl(index[0], ir.Constant(I64, index[1]))) if index[0] is not none else base

    a_index = row_indices(a_row)
    entry = builder.block
    tap_block, loop, tap_end, done = (builder.append_basic_block(name) for name in ("tap", "terms", "tap_end", "done"))
    empty = builder.or_(builder.icmp_signed("<=", taps, none), builder.icmp_signed("<=", depth, none))
    builder.cbranch(empty, done, tap_block)

    builder.position_at_end(tap_block)
    t = builder.phi(I64)
    b_next = builder.phi(I64)
    prefetch_next = builder.phi(I64) if prefetched else none
    outer = [builder.phi(vector) for _ in range(rows * vectors)]
    eight = ir.Constant(I64, 8)

    def looked_up(table: Any, unit: Any, otherwise: Any, base: Any) -> Any:
        """base + table[t] * unit, or `otherwise` where there is no table."""
        has_table = builder.icmp_signed("!=", table, none)
        here = builder.block
        found, after = builder.append_basic_block("offset"), builder.append_basic_block("placed")
        builder.cbranch(has_table, found, after)
        builder.position_at_end(found)
        offset = builder.load(pointer(builder, builder.add(table, builder.mul(t, eight)), I64))
        place = builder.add(base, builder.mul(offset, unit))
        builder.branch(after)
        builder.position_at_end(after)
        phi = builder.phi(I64)
        phi.add_incoming(place, found)
        phi.add_incoming(otherwise, here)
        return phi

    a_start = looked_up(a_at, one, a, a)
    b_start = looked_up(b_at, b_tap, b_next, b)
    prefetch_following = _emit_prefetches(builder, prefetched[0], prefetch_next, prefetched[2]) if prefetched else none
    lanes_met = _emit_ranges(builder, ranged[0], t, ranged[1], vectors, count) if ranged else []
    before = builder.block
    builder.branch(loop)

    builder.position_at_end(loop)
    left, a_place, b_place = builder.phi(I64), builder.phi(I64), builder.phi(I64)
    sums = [builder.phi(vector) for _ in range(rows * vectors)]
    bs = [
        builder.load(pointer(builder, builder.add(b_place, ir.Constant(I64, v * vector_bytes)), vector), align=size)
        for v in range(vectors)
    ]
    added = []
    for r in range(rows):
        value = builder.load(pointer(builder, row_place(a_place, a_index[r]), scalar))
        spread = splat_lanes(builder, value, count)
        more_of_row = [builder.call(fma, [spread, bs[v], sums[r * vectors + v]]) for v in range(vectors)]
        if ranged:
            more_of_row = [
                builder.select(lanes_met[v], value, sums[r * vectors + v]) for v, value in enumerate(more_of_row)
            ]  # fmt: skip
        added += more_of_row
    a_following, b_following = builder.add(a_place, a_step), builder.add(b_place, b_step)
    fewer = builder.sub(left, one)
    builder.cbranch(builder.icmp_signed(">", fewer, none), loop, tap_end)
    for phi, first, again in (
        (left, depth, fewer),
        (a_place, a_start, a_following),
        (b_place, b_start, b_following),
        *zip(sums, outer, added, strict=True),
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(again, loop)

    builder.position_at_end(tap_end)
    t_next = builder.add(t, one)
    builder.cbranch(builder.icmp_signed("<", t_next, taps), tap_block, done)
    for phi, first, again in (
        (t, none, t_next),
        (b_next, b, b_following),
        *([(prefetch_next, prefetched[1], prefetch_following)] if prefetched else []),
        *((o, zeros, m) for o, m in zip(outer, added, strict=True)),
    ):
        phi.add_incoming(first, entry)
        phi.add_incoming(again, tap_end)

    builder.position_at_end(done)
    totals = []
    for m in added:
        total = builder.phi(vector)
        total.add_incoming(zeros, entry)
        total.add_incoming(m, tap_end)
        totals.append(total)
    masks = [some_lanes(builder, builder.sub(n, ir.Constant(I64, v * count)), count) for v in range(vectors)]
    load = declare(builder, f"llvm.masked.load.{suffix}.p0", vector, [vector.as_pointer(), I32, masks[0].type, vector])
    store = declare(builder, f"llvm.masked.store.{suffix}.p0", ir.VoidType(), [vector, vector.as_pointer(), I32, masks[0].type])
    align, c_index = ir.Constant(I32, size), row_indices(c_row)
    stores = {how: builder.append_basic_block(f"store{how}") for how in (FRESH, ADDED, STREAMED)}
    end = builder.append_basic_block("end")
    switch = builder.switch(add, stores[ADDED])
    for how in (FRESH, STREAMED):
        switch.add_case(ir.Constant(I64, how), stores[how])
    for how, block in stores.items():
        builder.position_at_end(block)
        for r in range(rows):
            base = row_place(c, c_index[r])
            for v in range(vectors):
                place = pointer(builder, builder.add(base, ir.Constant(I64, v * vector_bytes)), vector)
                value = totals[r * vectors + v]
                if how == STREAMED:
                    stored = builder.store(value, place, align=vector_bytes)
                    stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))
                    continue
                if how == ADDED:
                    value = builder.fadd(builder.call(load, [place, align, masks[v], zeros]), value)
                builder.call(store, [value, place, align, masks[v]])
        builder.branch(end)
    builder.position_at_end(end)


TILE_ARGUMENTS, TABLE_TILE_ARGUMENTS = 12, 14  # of tile and table tile
PREFETCHING, MASKED = 3, 2  # more of those that prefetch, and of those that mask their lanes


def _ending(args: Any) -> str:
    """Of the name of a tile with these arguments."""
    return {0: "", PREFETCHING: "_prefetching", MASKED: "_masked"}[len(args) - TABLE_TILE_ARGUMENTS - 1]


def _call_tile(builder: Any, lanes: Any, rows: int, vectors: int, args: Any) -> Any:
    """Call a tile, whose arguments are the number of rows and those of a table tile: so a choice of tiles can jump to it."""
    name = f"tile_{lanes.compute}_{lanes.count}_{rows}x{vectors}{_ending(args)}"
    return call_part(builder, name, args, lambda body, given: _emit_tile(body, lanes, rows, vectors, given))


def make_table_tile(lanes: Any, rows: int, vectors: int) -> Any:
    """As make_tile, with a table for B too: k-block t of B begins at b + get_int(b_at + 8 * t) * b_tap.

    b_at = 0: each begins right after the one before.
    """

    @intrinsic
    def tile(context, a, a_at, taps, depth, a_row, a_step, b, b_at, b_tap, b_step, c, c_row, n, add):  # type: ignore[no-untyped-def]
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            _call_tile(builder, lanes, rows, vectors, [ir.Constant(I64, rows), *args])
            return ctx.get_dummy_value()

        return types.void(*(types.int64,) * TABLE_TILE_ARGUMENTS), emit

    return tile


def make_tile(lanes: Any, rows: int, vectors: int) -> Any:
    """A tile of exactly `rows` rows: C[r, 0:n] = (or +=, if add) the sum over t < taps, k < depth of A(r, t, k) * B(t, k, :).

    A(r, t, k) is the wide scalar at a + get_int(a_at + 8 * t) + r * a_row + k * a_step (a_at = 0: offset 0), B(t, k) the `vectors`
    wide vectors at b + (t * depth + k) * b_step, C[r] at c + r * c_row. Pitches and steps are in bytes. Of C only n
    elements a row are touched.
    """

    @intrinsic
    def tile(context, a, a_at, taps, depth, a_row, a_step, b, b_step, c, c_row, n, add):  # type: ignore[no-untyped-def]
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            _call_tile(
                builder,
                lanes,
                rows,
                vectors,
                [ir.Constant(I64, rows), *args[:7], ir.Constant(I64, 0), ir.Constant(I64, 0), *args[7:]],
            )
            return ctx.get_dummy_value()

        return types.void(*(types.int64,) * TILE_ARGUMENTS), emit

    return tile


def _call_tiles(builder: Any, lanes: Any, rows: int, vectors: int, args: Any) -> None:
    """Call the tile of as many rows as the first argument says, from 1 to `rows`; a compiled tile for each."""

    def emit_choice(builder: Any, args: Any) -> None:
        end = builder.append_basic_block("end")
        cases = [builder.append_basic_block(f"rows{r}") for r in range(1, rows + 1)]
        switch = builder.switch(args[0], end)
        for r, case in enumerate(cases, 1):
            switch.add_case(ir.Constant(I64, r), case)
            builder.position_at_end(case)
            _call_tile(builder, lanes, r, vectors, args).tail = "tail"
            builder.ret_void()
        builder.position_at_end(end)

    call_part(builder, f"tiles_{lanes.compute}_{lanes.count}_{rows}x{vectors}{_ending(args)}", args, emit_choice)


def make_table_tiles(lanes: Any, rows: int, vectors: int) -> Any:
    """tiles(count, a, ...): a table tile of any number of rows from 1 to `rows`."""

    @intrinsic
    def tiles(context, count, a, a_at, taps, depth, a_row, a_step, b, b_at, b_tap, b_step, c, c_row, n, add):  # type: ignore[no-untyped-def]
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            _call_tiles(builder, lanes, rows, vectors, args)
            return ctx.get_dummy_value()

        return types.void(*(types.int64,) * (TABLE_TILE_ARGUMENTS + 1)), emit

    return tiles


def make_asking_tiles(lanes: Any, rows: int, vectors: int) -> Any:
    """As make_table_tiles; at the beginning of each k-block the next `lines` of a table are prefetched.

    They are at ahead + get_int(ahead_at), ahead + get_int(ahead_at + 8) and so on. All at once they would hold up the loads
    of the tile.
    """

    @intrinsic
    def tiles(
        context, count, a, a_at, taps, depth, a_row, a_step, b, b_at, b_tap, b_step, c, c_row, n, add, ahead, ahead_at, lines
    ):  # type: ignore[no-untyped-def] # fmt: skip
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            _call_tiles(builder, lanes, rows, vectors, args)
            return ctx.get_dummy_value()

        return types.void(*(types.int64,) * (TABLE_TILE_ARGUMENTS + 1 + PREFETCHING)), emit

    return tiles


def make_masked_tiles(lanes: Any, rows: int, vectors: int) -> Any:
    """As make_table_tiles; k-block t adds to the lanes of its range only, first and how many at ranges + 16 * t.

    Lanes are counted from `lane`, the number of the tile's first one.
    """

    @intrinsic
    def tiles(
        context, count, a, a_at, taps, depth, a_row, a_step, b, b_at, b_tap, b_step, c, c_row, n, add, ranges, lane
    ):  # type: ignore[no-untyped-def] # fmt: skip
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            _call_tiles(builder, lanes, rows, vectors, args)
            return ctx.get_dummy_value()

        return types.void(*(types.int64,) * (TABLE_TILE_ARGUMENTS + 1 + MASKED)), emit

    return tiles


def make_tiles(lanes: Any, rows: int, vectors: int) -> Any:
    """tiles(count, a, ...): a tile (see make_tile) of any number of rows from 1 to `rows`."""
    table_tiles = make_table_tiles(lanes, rows, vectors)

    @inline
    def tiles(count, a, a_at, taps, depth, a_row, a_step, b, b_step, c, c_row, n, add):
        table_tiles(count, a, a_at, taps, depth, a_row, a_step, b, 0, 0, b_step, c, c_row, n, add)

    return tiles
