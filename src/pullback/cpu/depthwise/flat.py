"""`flat`: depthwise convolutions of small planes in channels_first, stride 1, in place; see flat_kernel.py."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np

from pullback.cpu.conv.common import lanes_of, moved_bytes
from pullback.cpu.conv.filter_order import FilterOrder
from pullback.cpu.depthwise import tuning
from pullback.cpu.depthwise.common import (
    in_place_can,
    in_place_steps,
    near,
    run_filter_gradient,
    run_gather,
    several_groups,
    wide,
)
from pullback.cpu.depthwise.partial_sums import FilterPlans, plane_pieces, with_add
from pullback.cpu.depthwise.records import FLAT_MASK, FLAT_VECTORS, PRODUCT_TAPS, FlatGather, FlatProducts
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.pieces import cut_pieces
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.sequence import Steps
from pullback.cpu.engine.sizes import ceil_div
from pullback.cpu.machine_code.variants import Variant
from pullback.problem import Problem
from pullback.rules import Array

MODULE = "depthwise.flat"


def _mask_bytes(problem: Problem) -> int:
    window = problem.window
    return FLAT_MASK * ceil_div(math.prod(window.output_size), lanes_of(problem)) * window.tap_count


def can(problem: Problem) -> str | None:
    if (refused := in_place_can(problem)) is not None:
        return refused
    window = near(problem)[0].window
    if set(window.stride) != {1} or window.input_size[1:] != window.output_size[1:]:
        return "a tap must lie at one distance from all cells: it is for stride 1, and rows and planes as long as before"
    if _mask_bytes(problem) > tuning.MOST_FLAT_MASKS_BYTES:
        return f"its masks, one for each tap and vector, would take more than {tuning.MOST_FLAT_MASKS_BYTES >> 20} MiB"
    return None


def pays(problem: Problem) -> str | None:
    if (refused := several_groups(problem)) is not None:
        return refused
    return "its masks would not stay in the first-level cache" if _mask_bytes(problem) > tuning.FLAT_MASKS_BYTES else None


def gather(problem: Problem, source: Array, filter: Array) -> Array:
    """conv and conv_grad_input; under masks no zero is met."""
    problem, _ = near(problem)
    return run_gather(problem, gather_plan(problem), source, wide(problem, filter))


def filter_gradient(problem: Problem, dy: Array, x: Array) -> Array:
    problem, _ = near(problem)
    return run_filter_gradient(problem, filter_plans(problem), dy, x)


def steps(problem: Problem, order: FilterOrder) -> Steps | None:
    return in_place_steps(problem, order, gather_plan, filter_plans)


def _tables(problem: Problem) -> dict[str, Any]:
    """The distance of each tap in bytes, and where it meets a cell: a bit for each cell of the target."""
    window, forward, lanes = problem.window, problem.op != "conv_grad_input", lanes_of(problem)
    source, target = (window.input_size, window.output_size) if forward else (window.output_size, window.input_size)
    steps = np.append(np.cumprod(source[:0:-1])[::-1], 1)
    count = math.prod(target)
    vectors = ceil_div(count, lanes)
    shifts, masks = [], np.zeros((window.tap_count, vectors + FLAT_VECTORS), f"u{FLAT_MASK}")
    for t, tap in enumerate(product(*(range(k) for k in window.kernel))):
        distance = [i * d - p for i, d, p in zip(tap, window.dilation, window.pad_low, strict=True)]
        if not forward:
            distance = [-d for d in distance]
        shifts.append(int(np.dot(distance, steps)) * problem.dtype.itemsize)
        inside = np.ones(target, bool)
        for axis, (d, n, size) in enumerate(zip(distance, source, target, strict=True)):
            at = np.arange(size) + d
            inside &= ((at >= 0) & (at < n)).reshape([-1 if a == axis else 1 for a in range(len(target))])
        bits = np.zeros(vectors * lanes, np.int64)
        bits[:count] = inside.ravel()
        masks[t, :vectors] = (bits.reshape(vectors, lanes) << np.arange(lanes)).sum(axis=1)
    return {
        "source": None, "groups": problem.groups, "source_cells": math.prod(source), "cells": count,
        "taps": window.tap_count, "shifts": np.array(shifts, np.int64), "masks": masks, "mask_pitch": masks.strides[0],
    }  # fmt: skip


@planned
def gather_plan(problem: Problem) -> Plan:
    """conv and conv_grad_input."""
    images, moved = problem.batch * problem.groups, moved_bytes(problem)
    per_piece, pieces = cut_pieces(images, moved)
    given = _tables(problem) | {"weights": None, "target": None, "per_piece": per_piece, "planes": images}
    return make_plan(Variant(MODULE, "gather", problem.dtype.name), FlatGather, pieces, 0, moved, given)


@planned
def filter_plans(problem: Problem) -> FilterPlans:
    given, pieces = plane_pieces(problem, problem.batch)
    compiled, scratch = Variant(MODULE, "products", problem.dtype.name), PRODUCT_TAPS * machine().vector_bytes
    products = make_plan(compiled, FlatProducts, pieces, scratch, moved_bytes(problem), given | _tables(problem))
    return with_add(problem, products, given["chunks"], given["sums_bytes"])
