"""Elementwise maps over flat memory: ReLU, its gradient, sums of two, and these together."""

from __future__ import annotations

from typing import Any

from pullback.cpu.elementwise.records import Limited, Map
from pullback.cpu.simd.vectors import choose, equal, greater, inline, invert

AT_ONCE = 4  # registers of a step


def build(lanes: Any) -> dict[str, Any]:
    V, SIZE = lanes.count, lanes.size
    many = lanes.times(AT_ONCE)
    M, zero, zeros = many.count, lanes.splat, many.splat
    load, store, load_some, store_some = many.load, many.store, lanes.load_some, lanes.store_some

    def make(body):
        def run(args: Map, piece, scratch):
            j = piece * args.per_piece
            end = min(j + args.per_piece, args.count)
            while j + M <= end:
                at = j * SIZE
                store(args.out + at, body(load(args.a + at, M), load(args.b + at, M), load(args.c + at, M), zeros(0.0)), M)
                j += M
            while j < end:
                at, n = j * SIZE, min(V, end - j)
                some = body(load_some(args.a + at, n), load_some(args.b + at, n), load_some(args.c + at, n), zero(0.0))
                store_some(args.out + at, some, n)
                j += V

        return run

    # NaN is not below 0 and stays; it is not above 0 either, so no gradient passes it.
    @inline
    def relu(a, b, c, nothing):
        return choose(greater(nothing, a), nothing, a)

    @inline
    def relu_grad(dy, y, c, nothing):
        return choose(greater(y, nothing), dy, nothing)

    @inline
    def add(a, b, c, nothing):
        return a + b

    @inline
    def add_relu(a, b, c, nothing):
        total = a + b
        return choose(greater(nothing, total), nothing, total)

    @inline
    def relu_grad_of_sum(da, db, y, nothing):
        return choose(greater(y, nothing), da + db, nothing)

    bodies = {"relu": relu, "relu_grad": relu_grad, "add": add, "add_relu": add_relu, "relu_grad_of_sum": relu_grad_of_sum}

    def clip(args: Limited, piece, scratch):
        j = piece * args.per_piece
        end = min(j + args.per_piece, args.count)
        low, high = zeros(args.low), zeros(args.high)
        while j + M <= end:
            x = load(args.x + j * SIZE, M)
            x = choose(greater(low, x), low, x)
            store(args.out + j * SIZE, choose(greater(x, high), high, x), M)
            j += M
        while j < end:
            n = min(V, end - j)
            some = load_some(args.x + j * SIZE, n)
            some = choose(greater(zero(args.low), some), zero(args.low), some)
            store_some(args.out + j * SIZE, choose(greater(some, zero(args.high)), zero(args.high), some), n)
            j += V

    def clip_grad(args: Limited, piece, scratch):
        j = piece * args.per_piece
        end = min(j + args.per_piece, args.count)
        low, high = zeros(args.low), zeros(args.high)
        while j + M <= end:
            x, dy = load(args.x + j * SIZE, M), load(args.dy + j * SIZE, M)
            outside = greater(low, x) | greater(x, high) | invert(equal(x, x))
            store(args.out + j * SIZE, choose(outside, zeros(0.0), dy), M)
            j += M
        while j < end:
            n = min(V, end - j)
            some, gradient = load_some(args.x + j * SIZE, n), load_some(args.dy + j * SIZE, n)
            beside = greater(zero(args.low), some) | greater(some, zero(args.high)) | invert(equal(some, some))
            store_some(args.out + j * SIZE, choose(beside, zero(0.0), gradient), n)
            j += V

    return {name: make(body) for name, body in bodies.items()} | {"clip": clip, "clip_grad": clip_grad}
