"""The register tile: a few rows of C made in registers from rows of scalars (A) times rows of vectors (B).

All sums of a tile stay in registers while k runs over some k-blocks of `depth` terms each; every k-block begins at an offset from a
table, so that one tile serves matrix products and convolutions alike. All sizes and distances are run-time values.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import alloca_once
from numba.extending import intrinsic

from pullback.cpu.simd.bfloat16_pairs import add_products, both_rounded_to_bfloat16, rounded_to_bfloat16
from pullback.cpu.simd.linked_functions import call_part
from pullback.cpu.simd.masked_memory import masked_store
from pullback.cpu.simd.native import emit_prefetch
from pullback.cpu.simd.vectors import (
    I32,
    I64,
    LLVM_TYPES,
    constant_vector,
    declare,
    opaque,
    pointer,
    some_lanes,
    splat_lanes,
)

# What a tile does with its sums: store them; add them to what is there; store them past the cache (rows of whole, aligned lines).
# Tiles of pairs can also store them rounded to bfloat16, and do so past the cache.
FRESH, ADDED, STREAMED, ROUNDED = 0, 1, 2, 3
FAR_ROW = 16  # rows that have one base register


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


def _stream(builder: Any, value: Any, place: Any, align: int) -> None:
    stored = builder.store(value, place, align=align)
    stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))


def _store_rounded(builder: Any, address: Any, sums: list[Any], n: Any, past_cache: bool) -> None:
    """n elements of a row as bfloat16; past the cache all of two vectors, which are a line."""
    value = rounded_to_bfloat16(builder, *sums) if len(sums) == 1 else both_rounded_to_bfloat16(builder, *sums)
    if past_cache and len(sums) == 2:
        _stream(builder, value, pointer(builder, address, value.type), 2 * value.type.count)
    else:
        masked_store(builder, address, value, some_lanes(builder, n, value.type.count))


def _emit_tile(builder: Any, lanes: Any, rows: int, vectors: int, args: Any) -> None:
    a, a_at, a_row, a_step, b, b_at, b_unit, b_step, c, c_row, n, how, blocks, depth, *more = args
    fetched, ranged = (more, []) if len(more) == PREFETCHING else ([], more)
    scalar, vector = LLVM_TYPES[lanes.compute], lanes.vector.llvm
    count, size, vector_bytes = lanes.count, lanes.compute_size, lanes.count * lanes.compute_size
    suffix = f"v{count}f{8 * size}"
    fma = declare(builder, f"llvm.fma.{suffix}", vector, [vector] * 3)
    a_kind, b_kind = (I32, ir.VectorType(I32, count)) if lanes.pairs else (scalar, vector)
    none = ir.Constant(I64, 0)
    one = ir.Constant(I64, 1)
    zeros = ir.Constant(vector, [0.0] * count)

    def multiply_add(a: Any, b: Any, total: Any) -> Any:
        return add_products(builder, total, a, b) if lanes.pairs else builder.call(fma, [a, b, total])

    # Row r lies at base + (odd part of r) * distance * (power of two): one base register and an index for each odd number. Rows
    # from FAR_ROW on have a second base, or there would be more indices than registers.
    # LLVM must not know how these belong together: it would step from row to row, and the sums wait for that chain of additions.
    def row_indices(distance: Any) -> list[tuple[Any, int]]:
        odd = {}
        for r in range(1, min(rows, FAR_ROW)):
            number = r // (r & -r)
            if number not in odd:
                odd[number] = opaque(builder, builder.mul(distance, ir.Constant(I64, number)))
        near = [(none, 0) if r == 0 else (odd[r // (r & -r)], (r & -r).bit_length() - 1) for r in range(min(rows, FAR_ROW))]
        return near + near[: rows - len(near)]

    def far_of(distance: Any) -> Any:
        return opaque(builder, builder.mul(distance, ir.Constant(I64, FAR_ROW))) if rows > FAR_ROW else none

    def row_places(base: Any, indices: list[tuple[Any, int]], far: Any) -> list[Any]:
        bases = [base] * FAR_ROW + [builder.add(base, far) if rows > FAR_ROW else base] * (rows - FAR_ROW)
        return [
            at if index is none else builder.add(at, builder.shl(index, ir.Constant(I64, power)))
            for at, (index, power) in zip(bases, indices, strict=False)
        ]

    a_index, a_far = row_indices(a_row), far_of(a_row)
    entry = builder.block
    k_block, loop, k_end, done = (builder.append_basic_block(name) for name in ("k_block", "terms", "k_end", "done"))
    empty = builder.or_(builder.icmp_signed("<=", blocks, none), builder.icmp_signed("<=", depth, none))
    builder.cbranch(empty, done, k_block)

    builder.position_at_end(k_block)
    t = builder.phi(I64)
    b_next = builder.phi(I64)
    ahead_next = builder.phi(I64) if fetched else none
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
    b_start = looked_up(b_at, b_unit, b_next, b)
    ahead_following = _emit_prefetches(builder, fetched[0], ahead_next, fetched[2]) if fetched else none
    lanes_met = _emit_ranges(builder, ranged[0], t, ranged[1], vectors, count) if ranged else []
    before = builder.block
    builder.branch(loop)

    builder.position_at_end(loop)
    left, a_place, b_place = builder.phi(I64), builder.phi(I64), builder.phi(I64)
    sums = [builder.phi(vector) for _ in range(rows * vectors)]
    bs = [
        builder.load(pointer(builder, builder.add(b_place, ir.Constant(I64, v * vector_bytes)), b_kind), align=size)
        for v in range(vectors)
    ]
    made = []
    a_places = row_places(a_place, a_index, a_far)
    for r in range(rows):
        value = builder.load(pointer(builder, a_places[r], a_kind))
        spread = splat_lanes(builder, value, count)
        more_of_row = [multiply_add(spread, bs[v], sums[r * vectors + v]) for v in range(vectors)]
        if ranged:
            more_of_row = [
                builder.select(lanes_met[v], value, sums[r * vectors + v]) for v, value in enumerate(more_of_row)
            ]  # fmt: skip
        made += more_of_row
    a_following, b_following = builder.add(a_place, a_step), builder.add(b_place, b_step)
    fewer = builder.sub(left, one)
    builder.cbranch(builder.icmp_signed(">", fewer, none), loop, k_end)
    for phi, first, again in (
        (left, depth, fewer),
        (a_place, a_start, a_following),
        (b_place, b_start, b_following),
        *zip(sums, outer, made, strict=True),
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(again, loop)

    builder.position_at_end(k_end)
    t_next = builder.add(t, one)
    builder.cbranch(builder.icmp_signed("<", t_next, blocks), k_block, done)
    for phi, first, again in (
        (t, none, t_next),
        (b_next, b, b_following),
        *([(ahead_next, fetched[1], ahead_following)] if fetched else []),
        *((o, zeros, m) for o, m in zip(outer, made, strict=True)),
    ):
        phi.add_incoming(first, entry)
        phi.add_incoming(again, k_end)

    builder.position_at_end(done)
    totals = []
    for m in made:
        total = builder.phi(vector)
        total.add_incoming(zeros, entry)
        total.add_incoming(m, k_end)
        totals.append(total)
    masks = [some_lanes(builder, builder.sub(n, ir.Constant(I64, v * count)), count) for v in range(vectors)]
    load = declare(builder, f"llvm.masked.load.{suffix}.p0", vector, [vector.as_pointer(), I32, masks[0].type, vector])
    store = declare(builder, f"llvm.masked.store.{suffix}.p0", ir.VoidType(), [vector, vector.as_pointer(), I32, masks[0].type])
    align, c_places = ir.Constant(I32, size), row_places(c, row_indices(c_row), far_of(c_row))
    kinds = (FRESH, ADDED, STREAMED, ROUNDED) if lanes.pairs else (FRESH, ADDED, STREAMED)
    stores = {kind: builder.append_basic_block(f"store{kind}") for kind in kinds}
    end = builder.append_basic_block("end")
    is_whole = builder.icmp_signed(">=", n, ir.Constant(I64, vectors * count))
    switch = builder.switch(how, stores[ADDED])
    for kind in kinds:
        if kind != ADDED:
            switch.add_case(ir.Constant(I64, kind), stores[kind])

    def store_rows(kind: int, whole: bool) -> None:
        """whole: not under masks, under which stores take longer even where they touch all lanes."""
        for r in range(rows):
            base = c_places[r]
            if lanes.pairs and kind in (STREAMED, ROUNDED):
                _store_rounded(builder, base, totals[r * vectors : (r + 1) * vectors], n, kind == STREAMED)
                continue
            for v in range(vectors):
                place = pointer(builder, builder.add(base, ir.Constant(I64, v * vector_bytes)), vector)
                value = totals[r * vectors + v]
                if kind == STREAMED:
                    _stream(builder, value, place, vector_bytes)
                    continue
                if kind == ADDED:
                    there = builder.load(place, align=size) if whole else builder.call(load, [place, align, masks[v], zeros])
                    value = builder.fadd(there, value)
                if whole:
                    builder.store(value, place, align=size)
                else:
                    builder.call(store, [value, place, align, masks[v]])

    for kind, block in stores.items():
        builder.position_at_end(block)
        if kind in (FRESH, ADDED):
            with builder.if_else(is_whole) as (plain, masked):
                with plain:
                    store_rows(kind, True)
                with masked:
                    store_rows(kind, False)
        else:
            store_rows(kind, False)
        builder.branch(end)
    builder.position_at_end(end)


PREFETCHING, MASKED = 3, 2  # more arguments of tiles that prefetch, and of those that mask their lanes
ENDINGS = {0: "", PREFETCHING: "_prefetches", MASKED: "_masked"}  # of their names
PLAIN_ARGUMENTS = 14


def _name(kind: str, lanes: Any, rows: int, vectors: int, arguments: int) -> str:
    of = "pairs" if lanes.pairs else lanes.compute
    return f"{kind}_{of}_{lanes.count}_{rows}x{vectors}{ENDINGS[arguments - PLAIN_ARGUMENTS]}"


def _call_tile(builder: Any, lanes: Any, rows: int, vectors: int, given: Any, count: int) -> Any:
    """Call the tile of exactly `rows` rows with the arguments that lie at `given`, `count` of them."""

    def emit(body: Any, parameters: Any) -> None:
        _emit_tile(body, lanes, rows, vectors, _arguments_at(body, parameters[0], count))

    return call_part(builder, _name("tile", lanes, rows, vectors, count), [given], emit)


def _arguments_at(builder: Any, address: Any, count: int) -> list[Any]:
    return [builder.load(pointer(builder, builder.add(address, ir.Constant(I64, 8 * i)), I64)) for i in range(count)]


def _call_tiles(builder: Any, lanes: Any, rows: int, vectors: int, height: Any, args: Any) -> None:
    """Call the tile of `height` rows, from 1 to `rows`; a compiled tile for each.

    Arguments go through memory, once: as parameters they would be more than there are registers for, and be copied from call to
    call.
    """

    def emit_choice(builder: Any, parameters: Any) -> None:
        end = builder.append_basic_block("end")
        cases = [builder.append_basic_block(f"rows{r}") for r in range(1, rows + 1)]
        switch = builder.switch(parameters[1], end)
        for r, case in enumerate(cases, 1):
            switch.add_case(ir.Constant(I64, r), case)
            builder.position_at_end(case)
            _call_tile(builder, lanes, r, vectors, parameters[0], len(args)).tail = "tail"
            builder.ret_void()
        builder.position_at_end(end)

    given = alloca_once(builder, ir.ArrayType(I64, len(args)))
    for i, value in enumerate(args):
        builder.store(value, builder.gep(given, [ir.Constant(I32, 0), ir.Constant(I32, i)]))
    address = builder.ptrtoint(given, I64)
    call_part(builder, _name("tiles", lanes, rows, vectors, len(args)), [address, height], emit_choice)


def _flat(ctx: Any, builder: Any, kinds: Any, values: Any) -> list[Any]:
    """All numbers of some tuples, as int64."""
    flat = []
    for kind, value in zip(kinds, values, strict=True):
        for i, element in enumerate(kind.types):
            flat.append(ctx.cast(builder, builder.extract_value(value, i), element, types.int64))
    return flat


@cache
def make_tiles(lanes: Any, rows: int, vectors: int) -> Any:
    """tiles(count, a, b, c, k, more): C[r, 0:n] = (or +=) the sum over t < blocks, i < depth of A(r, t, i) * B(t, i, :), r < count.

    count: rows of the tile, from 1 to `rows`. Distances are in bytes, tables of int64; 0 for no table. a = (address, table, row,
    step): A(r, t, i) is the wide scalar at address + table[t] + r * row + i * step. b = (address, table, unit, step): B(t, i) are
    `vectors` wide vectors at address + table[t] * unit + i * step; without a table each k-block begins right after the one
    before. c = (address, row, n, how): C[r] lies at address + r * row; of it only n elements are touched. how: FRESH, ADDED or
    STREAMED. k = (blocks, depth): k-blocks, and terms of each. more = (): nothing; (ahead, table, lines): at the beginning of
    each k-block the next `lines` of a table are prefetched, from `ahead` on (all at once they would hold up the loads of the
    tile); (ranges, lane): k-block t adds to the lanes of its range only, first and how many at ranges[t], where lanes are counted
    from `lane`, the number of the tile's first one. With lanes of pairs, terms are pairs of bfloat16 (bfloat16_pairs.py).
    """

    @intrinsic
    def tiles(context: Any, count: Any, a: Any, b: Any, c: Any, k: Any, more: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            _call_tiles(builder, lanes, rows, vectors, args[0], _flat(ctx, builder, sig.args[1:], args[1:]))
            return ctx.get_dummy_value()

        return types.void(types.int64, a, b, c, k, more), emit

    return tiles
