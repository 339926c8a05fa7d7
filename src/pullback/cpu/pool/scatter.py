"""Plans of the max-pool gradients by scatter: from winners, from x (whose winners another kernel finds again), from indices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from pullback.cpu.engine.pieces import cut_pieces, slack
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned, planned_for_threads
from pullback.cpu.engine.sizes import LINE, ceil_div, round_up, sum_bytes
from pullback.cpu.machine_code.variants import Variant
from pullback.cpu.pool import channels, planes, rows
from pullback.cpu.pool.common import Shape, Table, row_block, shape_of, simplified, variant
from pullback.cpu.pool.forward import index_tables
from pullback.cpu.pool.records import CHAINS, MANY, CodeSteps, ScatterMaxGrad, ScatterMaxGradFromIndices, ScatterMaxGradFromX
from pullback.cpu.pool.tables import border_tables, in_three, needed_rows
from pullback.cpu.pool.tuning import (
    MOST_BORDER,
    MOST_IMAGE_BYTES,
    MOST_IMAGE_OUTPUTS,
    SCATTER_BYTES,
    SPAN_ELEMENTS,
    TOGETHER_BYTES,
    TOGETHER_OUTPUTS,
)
from pullback.cpu.refusals import ordinary
from pullback.problem import IndexProblem, Problem
from pullback.window import Window

IN_NO_BLOCK = -(1 << 60)  # elements from anywhere
FINDERS: dict[str, Callable[[Problem, int], Plan]] = {
    "channels": channels.forward_plan, "rows": rows.forward_plan, "planes": planes.forward_plan,
}  # fmt: skip

can = ordinary


def can_from_indices(problem: IndexProblem) -> str | None:
    if problem.storage_order:
        return "it reads row-major indices, not storage_order=1"
    return ordinary(problem)


def _tables(problem: Problem, shape: Shape) -> dict[str, Any]:
    """Where each tap lies from its window's first cell, and where windows begin."""
    window, channels = problem.window, shape.channels
    taps = np.arange(window.tap_count, dtype=np.int64)
    tables = index_tables(problem)
    stride, dilation = window.stride[-1], window.dilation[-1]
    span = max(1, SPAN_ELEMENTS // channels) if stride < 1 << 20 else 1
    begins = np.arange(round_up(span * channels, MANY), dtype=np.int64)  # whole registers of them
    three = in_three(window)
    row_tap = taps // window.kernel[-1] % three.kernel[1]
    # A false winner above or below its plane lies outside the image, unless there are more planes or taps of these.
    row_cells = np.arange(three.output_size[1], dtype=np.int64) * three.stride[1] - three.pad_low[1]
    return {
        "taps": window.tap_count, "tap_at": _and_no_tap(tables["tap_base"]), "row_base": tables["row_base"],
        "tap_cell": _and_no_tap(taps % window.kernel[-1] * dilation), "tap_row": _and_no_tap(row_tap * three.dilation[1]),
        "row_cells": np.tile(row_cells, three.output_size[0]) if max(three.input_size[0], three.kernel[0]) > 1 else 0,
        "plane_rows": three.input_size[1],
        "col_first": -window.pad_low[-1] * channels, "col_step": stride * channels, "col_cell": -window.pad_low[-1],
        "stride": stride, "span": span, "cells": (begins // channels * stride).astype(np.int32),
        "firsts": (begins // channels * (stride * channels) + begins % channels).astype(np.int32),
        "reach": int(tables["tap_base"].max()) + (shape.out_cols * stride - window.pad_low[-1]) * channels,
        "many": int(shape.in_rows * shape.in_row < 1 << 31), "code_steps": _code_steps(three, shape), "table_bytes": 0,
        "offsets": np.resize(tables["tap_base"], 256).astype(np.int32),
        "quick": 0, "border": 0, "border_count": 0, "false_codes": 0,
    }  # fmt: skip


def _and_no_tap(table: Table) -> Table:
    """A table of taps, and behind them what is no tap: it lies in no block."""
    return np.append(table, IN_NO_BLOCK)


def _code_steps(window: Window, shape: Shape) -> Table:
    """The record CodeSteps of a three-axis window. Exact for the numbers that fit a byte."""
    _, rows_each, cols_each = window.kernel
    col = window.dilation[2] * shape.channels
    row = window.dilation[1] * shape.in_row
    plane = window.dilation[0] * window.input_size[1] * shape.in_row
    return CodeSteps.pack({
        "by_cols": ceil_div(1 << 16, cols_each), "by_rows": ceil_div(1 << 16, rows_each), "kernel_cols": cols_each,
        "kernel_rows": rows_each, "dilation": window.dilation[2], "row_dilation": window.dilation[1],
        "code_step": col, "row_step": row - cols_each * col, "plane_step": plane - rows_each * row,
        "plane_dilation": window.dilation[0], "planes": window.input_size[0],
    })  # fmt: skip


def _together(threads: int, problem: Problem, shape: Shape) -> int:
    """How many whole images are taken together, or 0 where they are cut: large ones, or too few for all threads."""
    outputs, size = shape.out_rows * shape.out_row, shape.in_rows * shape.in_row * shape.wide
    if problem.op != "max_pool_grad_from_winners" or problem.winner_dtype.itemsize > 1:
        return 0
    if outputs > MOST_IMAGE_OUTPUTS or size > MOST_IMAGE_BYTES or shape.images < 2 * CHAINS * threads:
        return 0
    return CHAINS * max(1, min(TOGETHER_OUTPUTS // outputs, TOGETHER_BYTES // size) // CHAINS)


def _image_tables(window: Window, shape: Shape, images: int) -> dict[str, Any]:
    """Where the windows of all outputs of some images begin: as places, and their columns, rows and planes."""
    depth, row, col = (window.starts(axis) for axis in range(3))
    places = ((depth[:, None, None] * window.input_size[1] + row[:, None]) * window.input_size[2] + col)[
        ..., None
    ] * shape.channels
    places = places + np.arange(shape.channels)
    firsts = np.arange(images)[:, None] * (shape.in_rows * shape.in_row) + places.ravel()
    each = [
        np.tile(np.broadcast_to(axis, places.shape).ravel(), images)
        for axis in (col[:, None], row[:, None, None], depth[:, None, None, None])
    ]
    rest = np.zeros(-firsts.size % MANY, np.int64)  # whole registers of them
    cells = np.concatenate([np.append(axis, rest) for axis in each]).astype(np.int32)
    border = border_tables(window, shape.channels)
    few = len(border["border"]) <= MOST_BORDER * places.size
    return border | {
        "firsts": np.append(firsts, rest).astype(np.int32), "cells": cells, "table_bytes": cells.nbytes // 3, "quick": int(few),
    }  # fmt: skip


def _blocks(threads: int, problem: Problem, shape: Shape, narrow: bool) -> tuple[Table, Table, Table]:
    """Blocks of input rows with which the last thread is done first: windows that reach several blocks are looked at in each."""
    window, three = problem.window, in_three(problem.window)
    stride = window.stride[-2] if window.rank > 1 else 1
    most = row_block(shape.in_rows, shape.in_row * shape.wide, SCATTER_BYTES) if narrow else shape.in_rows

    def cut(blocks: int) -> tuple[Table, Table, Table]:
        return needed_rows(three, max(round_up(min(ceil_div(shape.in_rows, blocks), most), stride), 1))

    def longest(found: tuple[Table, Table, Table]) -> int:
        """Output rows that a thread looks at."""
        blocks = len(found[0]) - 1
        return ceil_div(shape.images * blocks, threads) * int(np.diff(found[1]).max(initial=0))

    wanted = max(1, ceil_div(2 * threads, shape.images))
    return min((cut(blocks) for blocks in sorted({wanted, ceil_div(wanted, 2), 1}, reverse=True)), key=longest)


def _fields(threads: int, problem: Problem, shape: Shape) -> tuple[dict[str, Any], int, int]:
    """The fields of Scatter, pieces, and the end of what they need of scratch."""
    window, narrow = problem.window, shape.size != shape.wide
    # Blocks for these threads cut no sum: a cell lies in one block, and its outputs are added in ascending order.
    block_row, need_ptr, need = _blocks(threads, problem, shape, narrow)
    blocks = len(block_row) - 1
    units = shape.images * blocks
    per_piece, pieces = cut_pieces(units, shape.moved_bytes)
    most_rows = int(np.diff(block_row).max(initial=0))
    places_start = round_up(most_rows * shape.in_row * shape.wide, LINE) if narrow else 0
    tables = _tables(problem, shape)
    together = _together(threads, problem, shape)
    if together:
        units = shape.images
        per_piece, pieces = cut_pieces(ceil_div(units, together), shape.moved_bytes)
        per_piece *= together
        places_start = round_up(together * shape.in_rows * shape.in_row * shape.wide, LINE) if narrow else 0
        tables |= _image_tables(in_three(window), shape, together // CHAINS)
    fields = tables | {
        "dy": None, "dx": None, "per_piece": per_piece, "units": units, "blocks": blocks, "rows": shape.in_rows,
        "cols": shape.in_cols, "channels": shape.channels, "source_rows": shape.out_rows, "source_cols": shape.out_cols,
        "block_row": block_row, "need_ptr": need_ptr, "need_row": need, "places_start": places_start,
        "together": together,
    }  # fmt: skip
    places = 4 * max(len(tables["firsts"]), together * shape.out_rows * shape.out_row)
    return fields, pieces, places_start + places + LINE  # the last register of a row may run past it


@planned_for_threads
def max_grad_plan(threads: int, problem: Problem) -> Plan:
    """max_pool_grad_from_winners."""
    problem = simplified(problem)
    shape = shape_of(problem)
    fields, pieces, scratch = _fields(threads, problem, shape)
    compiled = variant(problem, "scatter", "max_grad")
    return make_plan(compiled, ScatterMaxGrad, pieces, scratch, shape.moved_bytes, fields | {"winners": None})


@planned_for_threads
def max_grad_from_x_plan(threads: int, problem: Problem, finder: str) -> Plan:
    """max_pool_grad, whose winners one of FINDERS finds again."""
    problem = simplified(problem)
    shape = shape_of(problem)
    fields, pieces, code_start = _fields(threads, problem, shape)
    find = FINDERS[finder](replace(problem, op="max_pool", return_winners=True), 1)
    find_start = code_start + round_up(shape.out_row * problem.winner_dtype.itemsize + slack(), LINE)
    words = round_up(len(find.template), 8)  # whole lines, so that the scratch behind them is aligned
    fields |= {
        "x": None, "code_start": code_start, "find": find.code.address, "find_block": np.resize(find.template, words),
        "find_words": words, "find_start": find_start,
    }  # fmt: skip
    scratch = find_start + 8 * words + find.scratch_bytes
    compiled, moved = variant(problem, "scatter", "max_grad_from_x"), shape.moved_bytes + shape.input_bytes
    return make_plan(compiled, ScatterMaxGradFromX, pieces, scratch, moved, fields, (find,))


@planned
def indices_plan(problem: IndexProblem) -> Plan:
    """max_pool_grad_from_indices: images as far as indices of one image point into that image alone."""
    inner = 1 if problem.layout == "channels_last" else 2
    images, target = math.prod(problem.input_shape[:inner]), math.prod(problem.input_shape[inner:])
    source, item, wide = math.prod(problem.output_shape[inner:]), problem.dtype.itemsize, sum_bytes(problem.dtype)
    moved = images * (target * item + source * (8 + item))
    per_piece, pieces = cut_pieces(images, moved)
    fields = {
        "dy": None, "indices": None, "dx": None, "faults": None, "per_piece": per_piece, "images": images,
        "source_image": source, "target_image": target,
    }  # fmt: skip
    compiled = Variant("pool.scatter", "max_grad_from_indices", problem.dtype.name)
    scratch = 0 if wide == item else target * wide + slack()
    return make_plan(compiled, ScatterMaxGradFromIndices, pieces, scratch, moved, fields)
