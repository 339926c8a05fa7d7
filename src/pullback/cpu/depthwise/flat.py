"""Plans of depthwise convolutions of small planes in channels_first; see kernels/depthwise_flat.py."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np

from pullback.cpu.conv.common import lanes_of, moved_bytes, wide_of
from pullback.cpu.depthwise.cells import FilterPlans, add_plan, filter_pieces
from pullback.cpu.depthwise.records import FlatGather, FlatProducts
from pullback.cpu.engine.compiler import Variant
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.pieces import grouped
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.problem import Problem

MODULE = "depthwise.flat"
MASKS_BYTES = 8 << 10  # of all masks: they must stay in the first-level cache
SUMS = 9  # of kernels/depthwise_flat.py
MANY = 4  # vectors at a time: masks are read so far


def flattens(problem: Problem) -> bool:
    """Whether these kernels take a depthwise problem."""
    window = problem.window
    if problem.layout != "channels_first" or problem.channels_in != problem.channels_out or set(window.stride) != {1}:
        return False
    if window.input_size[1:] != window.output_size[1:] or not machine().masks_memory:
        return False
    vectors = -(-math.prod(window.output_size) // lanes_of(problem))
    return 2 * vectors * window.tap_count <= MASKS_BYTES


def _tables(problem: Problem) -> dict[str, Any]:
    """The distance of each tap in bytes, and where it meets a cell: a bit for each cell of the target."""
    window, forward, lanes = problem.window, problem.op != "conv_grad_input", lanes_of(problem)
    source, target = (window.input_size, window.output_size) if forward else (window.output_size, window.input_size)
    steps = np.append(np.cumprod(source[:0:-1])[::-1], 1)
    count = math.prod(target)
    vectors = -(-count // lanes)
    shifts, masks = [], np.zeros((window.tap_count, vectors + MANY), np.uint16)
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
        "source_cells": math.prod(source), "cells": count, "taps": window.tap_count, "shifts": np.array(shifts, np.int64),
        "masks": masks, "mask_row": masks.strides[0], "groups": problem.groups,
    }  # fmt: skip


@planned
def gather_plan(problem: Problem) -> Plan:
    """conv and conv_grad_input with finite weights."""
    planes, moved = problem.batch * problem.groups, moved_bytes(problem)
    group, pieces = grouped(planes, moved)
    given = _tables(problem) | {"source": None, "weights": None, "target": None, "group": group, "planes": planes}
    return make_plan(Variant(MODULE, "gather", problem.dtype.name), FlatGather, pieces, 0, moved, given)


@planned
def filter_plans(problem: Problem) -> FilterPlans:
    groups, images = problem.groups, problem.batch
    group_block, parts, group, chunks = filter_pieces(groups, images)
    bytes_each = problem.window.tap_count * groups * wide_of(problem)
    given = _tables(problem) | {
        "source": None, "dy": None, "sums": None, "group": group, "images": images, "group_block": group_block, "chunks": chunks,
        "sums_bytes": bytes_each,
    }  # fmt: skip
    compiled = Variant(MODULE, "products", problem.dtype.name)
    products = make_plan(compiled, FlatProducts, parts * chunks, SUMS * machine().vector_bytes, moved_bytes(problem), given)
    return FilterPlans(products, add_plan(problem, chunks, bytes_each), chunks * bytes_each)
