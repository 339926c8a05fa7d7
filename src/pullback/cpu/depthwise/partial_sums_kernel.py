"""The job that adds the sums of all pieces of a filter gradient, and how a group's vectors of sums are stored."""

from __future__ import annotations

from functools import cache
from typing import Any

from pullback.cpu.depthwise.records import FilterAdd
from pullback.cpu.simd.vectors import inline


@cache
def make_store_sums(lanes: Any) -> Any:
    """store_sums(vectors, result, count): the lanes of `count` vectors of sums, added up."""
    V, WIDE = lanes.count, lanes.compute_size
    load_wide, put_wide, add_lanes = lanes.load_wide, lanes.put_wide, lanes.add_lanes

    @inline
    def store_sums(vectors, result, count):
        for i in range(count):
            put_wide(result + i * WIDE, add_lanes(load_wide(vectors + i * V * WIDE, V)))

    return store_sums


def build(lanes: Any) -> dict[str, Any]:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    load_wide_some, store_some, splat = lanes.load_wide_some, lanes.store_some, lanes.splat

    def add(args: FilterAdd, piece, scratch):
        for j in range(piece * args.block, min(piece * args.block + args.block, args.count), V):
            n = min(V, args.count - j)
            total = splat(0.0)
            for p in range(args.pieces):
                total = total + load_wide_some(args.sums + p * args.piece_bytes + j * WIDE, n)
            store_some(args.result + j * SIZE, total, n)

    return {"add": add}
