"""Plans of the pool gradients: max by scatter or by gather, average by gather."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pullback.cpu.engine.compiler import Variant
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.pool.common import (
    CHANNELS,
    PHASES,
    SCATTER,
    Shape,
    Table,
    divisors,
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
from pullback.cpu.pool.forward import forward_plan, index_tables, plan_of_images
from pullback.cpu.pool.records import (
    ChannelsAvgGrad,
    ChannelsMaxGrad,
    PhasesAvgGrad,
    PhasesMaxGrad,
    ScatterMaxGrad,
    ScatterMaxGradFromIndices,
    ScatterMaxGradFromX,
)
from pullback.cpu.pool.tables import axis_table, in_three, lines_in_scratch, needed_rows, reader_table, same_divisor, tap_places
from pullback.problem import IndexProblem, Problem
from pullback.settings import cores
from pullback.window import Window

SCATTER_BYTES = 512 << 10  # of a block at most, where it is made in scratch
WOVEN_BYTES = 12 << 10  # of the phases of a block, which are made and woven in the first-level cache
MANY = 16  # winners turned into places at once: see kernels/scatter_many.py
SPAN_ELEMENTS = 256  # outputs whose windows' beginnings are tabulated
NOWHERE = -(1 << 60)  # a place in no block


def _scatter_tables(problem: Problem, shape: Shape) -> dict[str, Any]:
    """Where each tap lies from its window's first cell, and where windows begin."""
    window, channels = problem.window, shape.channels
    taps = np.arange(window.tap_count, dtype=np.int64)
    tables = index_tables(problem)
    stride, dilation = window.stride[-1], window.dilation[-1]
    span = max(1, SPAN_ELEMENTS // channels) if stride < 1 << 20 else 1
    begins = np.arange(-(-span * channels // MANY) * MANY, dtype=np.int64)  # whole registers of them
    three = in_three(window)
    row_tap = taps // window.kernel[-1] % three.kernel[1]
    # A false winner above or below its plane lies outside the image, unless there are more planes or taps of these.
    row_cells = np.arange(three.output_size[1], dtype=np.int64) * three.stride[1] - three.pad_low[1]
    return {
        "taps": window.tap_count, "tap_at": _or_nowhere(tables["tap_base"]), "row_base": tables["row_base"],
        "tap_cell": _or_nowhere(taps % window.kernel[-1] * dilation), "tap_row": _or_nowhere(row_tap * three.dilation[1]),
        "row_cells": np.tile(row_cells, three.output_size[0]) if max(three.input_size[0], three.kernel[0]) > 1 else 0,
        "plane_rows": three.input_size[1],
        "col_first": -window.pad_low[-1] * channels, "col_step": stride * channels, "col_cell": -window.pad_low[-1],
        "stride": stride, "span": span, "cells": (begins // channels * stride).astype(np.int32),
        "firsts": (begins // channels * (stride * channels) + begins % channels).astype(np.int32),
        "reach": int(tables["tap_base"].max()) + (shape.out_cols * stride - window.pad_low[-1]) * channels,
        "many": int(shape.in_rows * shape.in_row < 1 << 31), "code_steps": _code_steps(window, shape),
    }  # fmt: skip


def _or_nowhere(table: Table) -> Table:
    """A table of taps, and behind them what is no tap: it lies in no block."""
    return np.append(table, NOWHERE)


def _code_steps(window: Window, shape: Shape) -> Table:
    """What makes a tap's number an offset: reciprocals (in 1 / 2**16) of the window's columns and rows, these and their dilations,

    and a step per tap, per row of taps that it counts past, per plane. Exact for the numbers that fit a byte.
    """
    three = in_three(window)
    _, rows_each, cols_each = three.kernel
    col = three.dilation[2] * shape.channels
    row = three.dilation[1] * shape.in_row
    plane = three.dilation[0] * three.input_size[1] * shape.in_row
    reciprocals = [-(-(1 << 16) // each) for each in (cols_each, rows_each)]
    steps = (col, row - cols_each * col, plane - rows_each * row)
    return np.array([*reciprocals, cols_each, rows_each, three.dilation[2], three.dilation[1], *steps], np.int64)


@planned
def scatter_plan(problem: Problem, module: str) -> Plan:
    """max_pool_grad from winners (module SCATTER) or from x, whose winners another module finds again."""
    problem = simplified(problem)
    shape, window = shape_of(problem), problem.window
    moved = shape.input_bytes + shape.output_bytes
    narrow = shape.size != shape.wide
    # Blocks for the threads of this machine cut no sum: a cell lies in one block, and its outputs are added in ascending order.
    rows_each = -(-shape.in_rows * shape.images // max(4, 2 * cores()))
    if narrow:
        rows_each = min(rows_each, row_block(shape.in_rows, shape.in_row * shape.wide, SCATTER_BYTES))
    stride = window.stride[-2] if window.rank > 1 else 1
    block_row, need_ptr, need = needed_rows(in_three(window), max(-(-rows_each // stride) * stride, 1))
    blocks = len(block_row) - 1
    units = shape.images * blocks
    group, pieces = grouped(units, moved)
    most_rows = int(np.diff(block_row).max(initial=0))
    scratch = -(-most_rows * shape.in_row * shape.wide // 64) * 64 if narrow else 0
    tables = _scatter_tables(problem, shape)
    places_start, scratch = scratch, scratch + tables["firsts"].nbytes + 64  # the last register of a row may run past it
    given = tables | {"places_start": places_start} | {
        "dy": None, "dx": None, "group": group, "units": units, "blocks": blocks, "rows": shape.in_rows,
        "cols": shape.in_cols, "channels": shape.channels, "source_rows": shape.out_rows, "source_cols": shape.out_cols,
        "block_row": block_row, "need_ptr": need_ptr, "need_row": need,
    }  # fmt: skip
    if module == SCATTER:
        compiled = variant(problem, SCATTER, "max_grad", rule=False)
        return make_plan(compiled, ScatterMaxGrad, pieces, scratch, moved, given | {"winners": None})
    find = forward_plan(replace(problem, op="max_pool", return_winners=True), module, by_rows=True)
    code_start = scratch
    find_start = code_start + -(-(shape.out_row * problem.winner_dtype.itemsize + slack()) // 64) * 64
    words = -(-len(find.template) // 8) * 8  # whole lines, so that the scratch behind them is aligned
    given |= {
        "x": None, "code_start": code_start, "find": find.code.address, "find_block": np.resize(find.template, words),
        "find_words": words, "find_start": find_start, "x_word": find.places["x"], "winners_word": find.places["winners"],
    }  # fmt: skip
    scratch = find_start + 8 * words + find.scratch_bytes
    compiled = variant(problem, SCATTER, "max_grad_from_x", rule=False)
    plan = make_plan(compiled, ScatterMaxGradFromX, pieces, scratch, moved + shape.input_bytes, given)
    return replace(plan, keep=(*plan.keep, find))


@planned
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
    compiled = Variant(SCATTER, "max_grad_from_indices", problem.dtype.name)
    return make_plan(compiled, ScatterMaxGradFromIndices, pieces, scratch, moved, given)


@planned
def whole_plan(problem: Problem, kernel: str) -> Plan:
    """Any gradient where one window is the whole image."""
    return plan_of_images(problem, kernel, rule=kernel == "max_grad_from_x")


@planned
def gather_plan(problem: Problem) -> Plan:
    """max_pool_grad from winners with vectors of channels: where windows overlap so much that scattering costs more."""
    problem = simplified(problem)
    shape, window = shape_of(problem), in_three(problem.window)
    given, pieces, stage = _flat_rows(shape)
    lines, scratch = lines_in_scratch(window, False, stage)
    given |= lines | {
        "dy": None, "winners": None, "dx": None, "axes": axis_table(window), "col_readers": reader_table(window.readers(2)),
    }  # fmt: skip
    compiled = variant(problem, CHANNELS, "max_grad", rule=False)
    return make_plan(compiled, ChannelsMaxGrad, pieces, scratch, shape.input_bytes + shape.output_bytes, given)


def _flat_rows(shape: Shape) -> tuple[dict[str, Any], int, int]:
    """Arguments, pieces and scratch of a kernel that takes all input rows as one list."""
    total = shape.in_rows * shape.images
    block = row_block(total, shape.in_row * shape.size)
    past_cache = streams(shape.input_bytes)
    whole = shape.channels % lanes_at_once(shape.wide) == 0  # then no store is masked, and each can pass the cache by itself
    stage = block * shape.in_row * shape.size if past_cache and not whole else 0
    given = {
        "block": block, "images": shape.images, "rows": shape.in_rows, "channels": shape.channels, "stage": stage,
        "streams": int(past_cache and whole),
    }  # fmt: skip
    return given, -(-total // block), stage


@planned
def avg_plan(problem: Problem) -> Plan:
    """avg_pool_grad with vectors of channels."""
    problem = simplified(problem)
    shape, window = shape_of(problem), in_three(problem.window)
    assert problem.divisor is not None
    row_div, col_div = divisors(problem)
    readers = [window.readers(axis) for axis in range(3)]
    depth_same, row_same, col_same = (
        same_divisor(np.maximum(window.axis_divisor(axis, problem.divisor), 1), readers[axis]) for axis in range(3)
    )
    given, pieces, stage = _flat_rows(shape)
    lines, scratch = lines_in_scratch(window, False, stage)
    given |= lines | {
        "col_readers": reader_table(readers[2]),
        "dy": None, "dx": None, "axes": axis_table(window), "row_div": row_div, "col_div": col_div,
        "row_same": np.multiply.outer(depth_same, row_same).ravel(), "col_same": col_same,
    }  # fmt: skip
    compiled = variant(problem, CHANNELS, "avg_grad", rule=False)
    return make_plan(compiled, ChannelsAvgGrad, pieces, scratch, shape.input_bytes + shape.output_bytes, given)


def is_flat(window: Window) -> bool:
    """Whether each axis of a merged window has an output for every cell of its stride phases: see kernels/pool_phases.py."""
    return all(-(-n // s) <= o for n, s, o in zip(window.input_size, window.stride, window.output_size, strict=True))


def _entries(window: Window, axes: Sequence[int], pitches: Sequence[int]) -> tuple[Table, Table, Table]:
    """For each combination of the stride phases of some axes: where its cells find the outputs they are due, and by which taps.

    ptr (one more than combinations), shifts (ascending, in elements) and taps. A tap serves one phase of each axis.
    """
    number, shift, exists = np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1, np.bool_)
    for axis, pitch in zip(axes, pitches, strict=True):
        places = tap_places(window, axis)
        number = (number[:, None] * window.stride[axis] + places.plane).ravel()
        shift = (shift[:, None] - places.shift * pitch).ravel()
        exists = (
            exists[:, None] & (places.plane < window.input_size[axis])
        ).ravel()  # a stride beyond the axis has fewer phases
    taps = np.flatnonzero(exists)
    taps = taps[np.lexsort((taps, shift[taps], number[taps]))]
    counts = np.bincount(number[taps], minlength=math.prod(window.stride[axis] for axis in axes))
    return np.concatenate([[0], np.cumsum(counts)]), shift[taps], taps


def _woven(shape: Shape, cells: int, stride_h: int, stride_w: int) -> tuple[dict[str, Any], int]:
    """Where the woven rows and the phases of a block lie, `cells` elements to a phase; the end of them."""
    row_distance = -(-(cells * stride_w * shape.size + 2 * slack()) // 64) * 64
    distance = -(-(cells * shape.wide + slack()) // 64) * 64
    start = stride_h * row_distance
    return {"row_distance": row_distance, "phase_start": start, "distance": distance}, start + stride_w * distance


@planned
def phases_plan(problem: Problem) -> Plan:
    """max_pool_grad from winners over flat runs of cells."""
    problem = simplified(problem)
    shape, window = shape_of(problem), in_three(problem.window)
    (in_depth, in_rows, _), (out_depth, out_rows, _) = window.input_size, window.output_size
    stride_d, stride_h, stride_w = window.stride
    ptr, shifts, taps = _entries(window, range(3), (out_rows * shape.out_row, shape.out_row, shape.channels))
    images = shape.images
    direct = window.stride == (1, 1, 1) and shape.in_row == shape.out_row
    if stride_d == 1 and in_depth == out_depth and in_rows == stride_h * out_rows:  # then planes follow each other like rows
        images, in_rows, out_rows = 1, in_rows * in_depth * shape.images, out_rows * out_depth * shape.images
        in_depth = out_depth = 1
    phase_rows = -(-in_rows // stride_h)
    block_rows = row_block(phase_rows, stride_h * stride_w * shape.out_row * shape.wide, WOVEN_BYTES)
    blocks = in_depth * -(-phase_rows // block_rows)
    moved = shape.input_bytes + shape.output_bytes
    group, pieces = grouped(images * blocks, moved)
    woven, end = _woven(shape, block_rows * shape.out_row, stride_h, stride_w)
    whole_lines = (block_rows * shape.in_row if direct else shape.in_row) * shape.size % 64 == 0
    given = woven | {
        "dy": None, "winners": None, "dx": None, "group": group, "units": images * blocks, "blocks": blocks,
        "block_rows": block_rows, "in_depth": in_depth, "in_rows": in_rows, "in_row": shape.in_row, "out_depth": out_depth,
        "out_rows": out_rows, "out_row": shape.out_row, "stride_d": stride_d, "stride_h": stride_h, "stride_w": stride_w,
        "channels": shape.channels, "ptr": ptr, "shifts": shifts, "taps": taps, "lowest": int(shifts.min(initial=0)),
        "highest": int(shifts.max(initial=0)), "outputs": shape.images * shape.out_rows * shape.out_row, "direct": int(direct),
        "streams": int(streams(shape.input_bytes) and whole_lines), "faults": None, "pieces": pieces, "images": shape.images,
        "image_outputs": shape.out_rows * shape.out_row, **_border_tables(window, shape.channels),
    }  # fmt: skip
    return make_plan(
        variant(problem, PHASES, "max_grad", rule=False), PhasesMaxGrad, pieces, 0 if direct else end, moved, given
    )


def _border_tables(window: Window, channels: int) -> dict[str, Any]:
    """The outputs of an image whose windows stick out of it, and which of their taps do: codes that only a false winner has.

    Windows that have the same taps inside, per axis, are of one kind.
    """
    numbers, kinds, outside = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros((1, 1), np.bool_)
    for axis in range(3):
        ranges, kind = np.unique(np.stack(window.tap_ranges(axis), axis=1), axis=0, return_inverse=True)
        taps, outputs = np.arange(window.kernel[axis]), np.arange(window.output_size[axis])
        out = (taps < ranges[:, :1]) | (taps >= ranges.sum(axis=1)[:, None])
        outside = (outside[:, None, :, None] | out[:, None, :]).reshape(len(outside) * len(out), -1)
        kinds = (kinds[:, None] * len(ranges) + kind.ravel()).ravel()
        numbers = (numbers[:, None] * len(outputs) + outputs).ravel()
    sticks_out = np.take(outside.any(axis=1), kinds)
    faults = np.zeros((len(outside), 256), np.uint8)
    faults[:, : window.tap_count] = outside
    places = (numbers[sticks_out][:, None] * channels + np.arange(channels)).ravel()
    border = np.stack([places, np.repeat(kinds[sticks_out], channels) * 256], axis=1).astype(np.int32)
    border = np.concatenate([border, border[:1].repeat(-len(border) % 4, axis=0)])
    return {"border": border, "border_count": len(border), "false_codes": faults}


@planned
def avg_phases_plan(problem: Problem) -> Plan:
    """avg_pool_grad over flat runs of cells, from unpacked planes of dy."""
    problem = simplified(problem)
    shape, window = shape_of(problem), in_three(problem.window)
    stride_h, stride_w = window.stride[1:]
    low_h, high_h = _reach(window, 1)
    low_w, high_w = _reach(window, 2)
    cells_w = -(-window.input_size[2] // stride_w)
    places_w = max(cells_w + high_w - low_w, shape.out_cols - low_w)
    pitch = places_w * shape.channels
    ptr, shifts, _ = _entries(window, (1, 2), (pitch, shape.channels))
    shifts -= low_h * pitch + low_w * shape.channels  # places count from the first that is unpacked
    depth_readers = window.readers(0)
    most = max(1, int(depth_readers.count.max()))
    in_rows = window.input_size[1]
    phase_rows = -(-in_rows // stride_h)
    bytes_each = pitch * shape.wide * (most + stride_h * stride_w)  # of a row of dy and the rows it makes
    block_rows = min(phase_rows, max(1, WOVEN_BYTES // max(1, bytes_each)))
    places_h = block_rows + high_h - low_h
    area = places_h * pitch
    blocks = window.input_size[0] * -(-phase_rows // block_rows)
    moved = shape.input_bytes + shape.output_bytes
    group, pieces = grouped(shape.images * blocks, moved)
    woven, area_start = _woven(shape, block_rows * pitch, stride_h, stride_w)
    row_div, col_div = divisors(problem)
    uniform = (row_div == row_div[0]).all() and (col_div == col_div[0]).all()
    given = woven | {
        "dy": None, "dx": None, "depth_readers": reader_table(depth_readers), "group": group,
        "units": shape.images * blocks, "blocks": blocks, "block_rows": block_rows,
        "in_depth": window.input_size[0], "in_rows": in_rows, "in_row": shape.in_row, "out_depth": window.output_size[0],
        "out_rows": window.output_size[1], "cols": shape.out_cols, "stride_h": stride_h, "stride_w": stride_w,
        "channels": shape.channels, "ptr": ptr, "shifts": shifts,
        "streams": int(streams(shape.input_bytes) and shape.in_row * shape.size % 64 == 0),
        "low_h": low_h, "places_h": places_h, "low_w": low_w, "places_w": places_w, "area_start": area_start, "area": area,
        "row_div": row_div, "col_div": wide_row(shape, col_div), "uniform": int(row_div[0] * col_div[0]) if uniform else 0,
    }  # fmt: skip
    scratch = area_start + (most * area + pitch) * shape.wide + slack()
    return make_plan(variant(problem, PHASES, "avg_grad", rule=False), PhasesAvgGrad, pieces, scratch, moved, given)


def _reach(window: Window, axis: int) -> tuple[int, int]:
    """How far from their own number the cells of a phase find the first and the last output that they are due, 0 included."""
    places = tap_places(window, axis)
    shifts = -places.shift[places.plane < window.input_size[axis]]
    return int(shifts.min(initial=0)), int(shifts.max(initial=0))


# Costs in nanoseconds per input element on one core, measured over many shapes. A scatter pays for every output it adds to its
# winner, more where windows overlap and additions wait for each other; the others ask for every cell each window that covers it
# (`outputs` per input element times the taps).
def _scatter_cost(problem: Problem, outputs: float) -> float:
    window = problem.window
    apart = all(d * (k - 1) < s for d, k, s in zip(window.dilation, window.kernel, window.stride, strict=True))
    return 0.085 + (0.55 if apart else 0.85) * outputs


def _outputs(problem: Problem) -> float:
    return math.prod(problem.window.output_size) / max(1, math.prod(problem.window.input_size))


def prefers_gather(problem: Problem) -> bool:
    """Whether asking, with vectors of channels, costs less than adding every output to its winner."""
    outputs, channels = _outputs(problem), problem.channels_in
    asked = outputs * problem.window.tap_count
    four = lanes_at_once(8 if problem.dtype.name == "float64" else 4)
    rest, two = channels % four, four // 2
    fewer = rest // two - (-(rest % two) // (two // 2))  # the loads of two registers or fewer that remain
    cell = 5 + channels // four * (2.5 + 2.1 * asked) + fewer * (2.5 + 1.4 * asked)
    return cell / channels < _scatter_cost(problem, outputs)


def prefers_phases(problem: Problem) -> bool:
    """The same question for vectors along flat runs of cells, or along single rows, whose ends fill a group of registers."""
    outputs, window = _outputs(problem), simplified(problem).window
    cells = -(-window.input_size[-1] // window.stride[-1])
    register = lanes_at_once(8 if problem.dtype.name == "float64" else 4) // 4
    waste = 1.0
    if problem.layout == "channels_first" and window.stride[-1] in (2, 4):
        group = register * (1 if window.stride[-1] == 4 or cells <= register else 2 if cells <= 2 * register else 4)
        waste = -(-cells // group) * group / cells
    return 0.03 + (0.09 + 0.035 * outputs * problem.window.tap_count) * waste < _scatter_cost(problem, outputs)
