"""Plans of the pool gradients: max by scatter or by gather, average by gather."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from pullback.cpu.compiler import Variant, code
from pullback.cpu.plan import Plan, make_plan
from pullback.cpu.pool_common import (
    CHANNELS,
    PLANE_BYTES,
    PLANES,
    SCATTER,
    Shape,
    divisors,
    floor_of,
    grouped,
    lanes_at_once,
    row_block,
    shape_of,
    simplified,
    slack,
    streams,
    variant,
    wide_row,
)
from pullback.cpu.pool_forward import index_tables, plan_of_images, unpacked_planes, winner_lists
from pullback.cpu.pool_tables import columns, cut, dense, depth_lists, in_three, phase_places, rows
from pullback.problem import IndexProblem, Problem
from pullback.settings import cores

SCATTER_BYTES = 512 << 10  # of a block at most, where it is made in scratch
NOWHERE = -(1 << 60)  # a place in no block


def _scatter_tables(problem: Problem, shape: Shape) -> dict[str, Any]:
    """Where each tap lies from its window's first cell, and for windows at the ends of a row, which columns exist."""
    window = problem.window
    _, col_cells = dense(window)
    kernel_cols = window.kernel[-1]
    inner = np.flatnonzero((col_cells >= 0).all(axis=1))
    inner0, inner1 = (int(inner[0]), int(inner[-1]) + 1) if len(inner) else (shape.out_cols, shape.out_cols)
    taps = np.arange(window.tap_count, dtype=np.int64)
    tables = index_tables(problem)
    # Codes that are no tap lie in no block. A false winner above or below its plane is skipped, or in 3-D may meet a cell there.
    tap_at = np.full(max(256, window.tap_count + 1), NOWHERE, np.int64)
    tap_at[: window.tap_count] = tables["tap_base"]
    return {
        "inner0": inner0, "inner1": inner1, "taps": window.tap_count, "tap_at": tap_at,
        "tap_row_at": tables["tap_base"] - taps % kernel_cols * window.dilation[-1] * shape.channels,
        "tap_col": taps % kernel_cols, "col_cells": col_cells, "kernel_cols": kernel_cols, "row_base": tables["row_base"],
        "col_first": -window.pad_low[-1] * shape.channels, "col_step": window.stride[-1] * shape.channels,
    }  # fmt: skip


@lru_cache(maxsize=1024)
def scatter_plan(problem: Problem, module: str) -> Plan:
    """max_pool_grad from winners (module SCATTER) or from x, whose winners another module finds again."""
    problem = simplified(problem)
    shape, window = shape_of(problem), problem.window
    moved = shape.input_bytes + shape.output_bytes
    narrow = shape.size != shape.wide
    rows_each = -(-shape.in_rows * shape.images // max(4, 2 * cores()))
    if narrow:
        rows_each = min(rows_each, row_block(shape.in_rows, shape.in_row * shape.wide, SCATTER_BYTES))
    stride = window.stride[-2] if window.rank > 1 else 1
    blocks = cut(rows(window, False), max(-(-rows_each // stride) * stride, 1))
    units = shape.images * blocks.count
    group, pieces = grouped(units, moved)
    most_rows = int(np.diff(blocks.row).max(initial=0))
    scratch = -(-most_rows * shape.in_row * shape.wide // 64) * 64 if narrow else 0
    given = _scatter_tables(problem, shape) | {
        "dy": None, "dx": None, "group": group, "units": units, "blocks": blocks.count, "rows": shape.in_rows,
        "cols": shape.in_cols, "channels": shape.channels, "source_rows": shape.out_rows, "source_cols": shape.out_cols,
        "block_row": blocks.row, "need_ptr": blocks.need_ptr, "need_row": blocks.need,
    }  # fmt: skip
    if module == SCATTER:
        compiled = code(variant(problem, SCATTER, "max_grad", rule=False))
        return make_plan(compiled, pieces, scratch, moved, given | {"winners": None})
    given |= winner_lists(problem, shape) | {
        "x": None, "code_start": scratch, "empty": problem.empty, "above": floor_of(problem),
    }  # fmt: skip
    winner_row = -(-shape.out_row * problem.winner_dtype.itemsize // 64) * 64
    scratch += winner_row + slack()
    if module == PLANES:
        need_rows = max(1, int(np.diff(blocks.need_ptr).max(initial=1)))
        unpacked, end = unpacked_planes(problem, shape, need_rows, scratch)
        given |= {"area_start": scratch, "own_start": end, "most_rows": unpacked["block_rows"]}
        given |= {name: value for name, value in unpacked.items() if name not in ("taps", "tap_at")}
        given |= {"tap_count": unpacked["taps"], "places_at": unpacked["tap_at"]}
        scratch = end + winner_row + slack()
    compiled = code(variant(problem, module, "max_grad_from_x", rule=True))
    return make_plan(compiled, pieces, scratch, moved + shape.input_bytes, given)


@lru_cache(maxsize=1024)
def indices_plan(problem: IndexProblem) -> Plan:
    """max_pool_grad_from_indices: images as far as indices of one image point into that image alone."""
    last = problem.layout == "channels_last"
    inner = 1 if last else 2
    images = int(np.prod(problem.input_shape[:inner], dtype=np.int64))
    target = int(np.prod(problem.input_shape[inner:], dtype=np.int64))
    source = int(np.prod(problem.output_shape[inner:], dtype=np.int64))
    wide = 8 if problem.dtype.name == "float64" else 4
    moved = images * (target * problem.dtype.itemsize + source * (8 + problem.dtype.itemsize))
    group, pieces = grouped(images, moved)
    given = {
        "dy": None, "indices": None, "dx": None, "faults": None, "group": group, "images": images,
        "source_image": source, "target_image": target,
    }  # fmt: skip
    scratch = 0 if wide == problem.dtype.itemsize else target * wide + slack()
    compiled = code(Variant(SCATTER, "max_grad_from_indices", problem.dtype.name))
    return make_plan(compiled, pieces, scratch, moved, given)


@lru_cache(maxsize=1024)
def whole_plan(problem: Problem, kernel: str) -> Plan:
    """Any gradient where one window is the whole image."""
    return plan_of_images(problem, kernel, rule=kernel == "max_grad_from_x")


@lru_cache(maxsize=1024)
def gather_plan(problem: Problem) -> Plan:
    """max_pool_grad from winners with vectors of channels: where windows overlap so much that scattering costs more."""
    problem = simplified(problem)
    shape = shape_of(problem)
    r, c = rows(problem.window, False), columns(problem.window, False)
    given, pieces, scratch = _flat_rows(shape)
    given |= {
        "dy": None, "winners": None, "dx": None, "row_ptr": r.ptr, "row_src": r.source * shape.out_row,
        "row_tap": r.tap * problem.window.kernel[-1], "col_ptr": c.ptr, "col_src": c.source * shape.channels, "col_tap": c.tap,
    }  # fmt: skip
    compiled = code(variant(problem, CHANNELS, "max_grad", rule=False))
    return make_plan(compiled, pieces, scratch, shape.input_bytes + shape.output_bytes, given)


def _flat_rows(shape: Shape) -> tuple[dict[str, Any], int, int]:
    """Arguments, pieces and scratch of a kernel that takes all input rows as one list."""
    total = shape.in_rows * shape.images
    block = row_block(total, shape.in_row * shape.size)
    past_cache = streams(shape.input_bytes)
    whole = shape.channels % lanes_at_once(shape.wide) == 0  # then no store is masked, and each can pass the cache by itself
    stage = block * shape.in_row * shape.size if past_cache and not whole else 0
    given = {
        "block": block, "images": shape.images, "rows": shape.in_rows, "cols": shape.in_cols, "channels": shape.channels,
        "source_image": shape.out_rows * shape.out_row, "stage": stage, "streams": int(past_cache and whole),
    }  # fmt: skip
    return given, -(-total // block), stage


@lru_cache(maxsize=1024)
def avg_plan(problem: Problem, module: str) -> Plan:
    """avg_pool_grad."""
    problem = simplified(problem)
    shape, window = shape_of(problem), problem.window
    moved = shape.input_bytes + shape.output_bytes
    r, c = rows(window, False), columns(window, False)
    row_div, col_div = divisors(problem)
    given: dict[str, Any] = {"dy": None, "dx": None, "row_ptr": r.ptr}
    if module == CHANNELS:
        more, pieces, scratch = _flat_rows(shape)
        given |= more
        given |= {"row_src": r.source * shape.out_row, "col_ptr": c.ptr, "col_src": c.source * shape.channels}
        for name, lists, div in (("row", r, row_div), ("col", c, col_div)):
            per_entry = div[lists.source]
            given |= {f"{name}_div": per_entry, f"{name}_same": _same(lists.ptr, per_entry)}
    else:
        window = in_three(window)
        h, w = phase_places(window, 1), phase_places(window, 2)
        stride_h, stride_w = window.stride[1:]
        places_w = max(w.places(-(-window.input_size[2] // stride_w)), shape.out_cols - w.low)
        pitch = places_w * shape.channels
        depths = depth_lists(window, False)
        most = int(np.diff(depths["d_ptr"]).max(initial=1))
        in_rows = window.input_size[1]
        bytes_each = pitch * shape.wide * (most + stride_h * stride_w)  # of a row of dy and the rows it makes
        plane_rows = min(-(-in_rows // stride_h), max(1, PLANE_BYTES // max(1, bytes_each) - (h.high - h.low)))
        block_rows = plane_rows * stride_h
        places_h = h.places(plane_rows)
        area_bytes = places_h * pitch * shape.wide
        blocks = window.input_size[0] * -(-in_rows // block_rows)
        group, pieces = grouped(shape.images * blocks, moved)
        stage = -(-group * block_rows * shape.in_row * shape.size // 64) * 64 if streams(shape.input_bytes) else 0
        plane_start = stage + most * area_bytes + slack()
        uniform = (row_div == row_div[0]).all() and (col_div == col_div[0]).all()
        given |= depths | {
            "group": group, "units": shape.images * blocks, "blocks": blocks, "in_depth": window.input_size[0],
            "in_rows": in_rows, "in_cols": shape.in_cols, "channels": shape.channels, "out_depth": window.output_size[0],
            "out_rows": window.output_size[1], "cols": shape.out_cols, "stride_h": stride_h, "stride_w": stride_w,
            "low_h": h.low, "places_h": places_h, "low_w": w.low, "places_w": places_w, "block_rows": block_rows,
            "area_bytes": area_bytes, "plane_start": plane_start, "plane_rows": plane_rows, "stage": stage,
            "phase_h_ptr": h.ptr, "phase_h_at": h.at, "phase_w_ptr": w.ptr, "phase_w_at": w.at,
            "row_div": row_div, "col_div": wide_row(shape, col_div), "uniform": int(row_div[0] * col_div[0]) if uniform else 0,
            "constant": int(shape.out_row == 1 and stride_h == 1 and c.targets == len(c.source)),
        }  # fmt: skip
        scratch = plane_start + stride_h * stride_w * plane_rows * pitch * shape.wide + slack()
    return make_plan(code(variant(problem, module, "avg_grad", rule=False)), pieces, scratch, moved, given)


def _same(ptr: Any, per_entry: Any) -> Any:
    """The divisor that all entries of a target share; 0 where they differ, 1 where there are none."""
    counts = np.diff(ptr)
    same = np.ones(len(counts), np.int64)
    filled = counts > 0
    if per_entry.size:
        starts = ptr[:-1][filled]
        low, high = np.minimum.reduceat(per_entry, starts), np.maximum.reduceat(per_entry, starts)
        same[filled] = np.where(low == high, low, 0)
    return same


def prefers_gather(problem: Problem) -> bool:
    """Whether reading every window that covers a cell costs less than adding every output to its winner.

    Nanoseconds per input element on one core, from measurements of both kernels over many shapes.
    """
    window = problem.window
    outputs = math.prod(window.output_size) / max(1, math.prod(window.input_size))
    readers = outputs * window.tap_count
    gather = (0.18 + 0.035 * readers) * (1.0 if problem.channels_in >= 64 else 1.6)
    return gather < 0.04 + 1.3 * outputs
