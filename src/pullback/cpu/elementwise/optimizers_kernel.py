"""Optimizer steps in place on flat memory: stochastic gradient descent, with momentum or Nesterov's, and Adam."""

from __future__ import annotations

from typing import Any

from pullback.cpu.elementwise.records import AdamStep, SgdStep
from pullback.cpu.simd.doubles import make_square_root
from pullback.cpu.simd.vectors import inline

AT_ONCE = 2  # registers of a step


def build(lanes: Any) -> dict[str, Any]:
    V, SIZE = lanes.count, lanes.size
    many = lanes.times(AT_ONCE)
    M = many.count

    def make_sgd_step(some, load, store, momentum, nesterov):
        splat, fma = some.splat, some.fma

        @inline
        def step(args, at, n):
            p = load(args.p + at, n)
            g = load(args.g + at, n) * splat(args.g_scale)
            if args.weight_decay != 0.0:
                g = fma(splat(args.weight_decay), p, g)
            if momentum:
                if args.first:
                    v = g
                else:
                    v = fma(splat(args.momentum), load(args.v + at, n), splat(args.taken) * g)
                store(args.v + at, v, n)
                g = fma(splat(args.momentum), v, g) if nesterov else v
            store(args.p + at, fma(splat(-args.lr), g, p), n)

        return step

    def make_adam_step(some, load, store):
        splat, fma, square_root = some.splat, some.fma, make_square_root(some)

        @inline
        def step(args, at, n):
            p = load(args.p + at, n)
            g = load(args.g + at, n) * splat(args.g_scale)
            if args.weight_decay != 0.0:
                g = fma(splat(args.weight_decay), p, g)
            if args.shrink != 1.0:
                p = p * splat(args.shrink)
            m, v = load(args.m + at, n), load(args.v + at, n)
            m = fma(splat(args.beta1_rest), g - m, m)
            v = fma(splat(args.beta2), v, splat(args.beta2_rest) * g * g)
            store(args.m + at, m, n)
            store(args.v + at, v, n)
            divisor = fma(square_root(v), splat(args.root), splat(args.eps))
            store(args.p + at, p - splat(args.step_size) * (m / divisor), n)

        return step

    def make_sgd(momentum, nesterov):
        step_many = make_sgd_step(many, many.load, many.store, momentum, nesterov)
        step_some = make_sgd_step(lanes, lanes.load_some, lanes.store_some, momentum, nesterov)

        def sgd(args: SgdStep, piece, scratch):
            j = piece * args.per_piece
            end = min(j + args.per_piece, args.count)
            while j + M <= end:
                step_many(args, j * SIZE, M)
                j += M
            while j < end:
                step_some(args, j * SIZE, min(V, end - j))
                j += V

        return sgd

    adam_many = make_adam_step(many, many.load, many.store)
    adam_some = make_adam_step(lanes, lanes.load_some, lanes.store_some)

    def adam(args: AdamStep, piece, scratch):
        j = piece * args.per_piece
        end = min(j + args.per_piece, args.count)
        while j + M <= end:
            adam_many(args, j * SIZE, M)
            j += M
        while j < end:
            adam_some(args, j * SIZE, min(V, end - j))
            j += V

    return {
        "sgd": make_sgd(False, False),
        "sgd_momentum": make_sgd(True, False),
        "sgd_nesterov": make_sgd(True, True),
        "adam": adam,
    }
