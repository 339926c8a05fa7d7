"""The filter gradient of depthwise convolution on a GPU: what `filter_gradient_kernel` is launched with."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

import torch

from pullback.cuda.axes import MOST_KEPT, axes_of
from pullback.cuda.depthwise import filter_gradient_kernel as kernels
from pullback.cuda.depthwise.gather import reaches_beside
from pullback.cuda.depthwise.plan import PER_LOAD, THREADS, AxisTable, channel_tile, forward_results, table, widest
from pullback.cuda.launch import Launch, blocks, is_wide, launch, power_of_two, sum_type
from pullback.problem import Problem

PROGRAMS = 132 * 8  # enough for all multiprocessors of the largest GPUs
MOST_SUMS = 100  # registers of a thread for sums
MOST_PATCH = 8  # outputs of a base, whose dy are in registers
MOST_PRODUCTS = 112  # written out in a kernel, as in plan
MOST_PART_BYTES = 64 << 20
SMALL_PART_BYTES = 8 << 20  # stay in the L2 cache


class SumPlan(NamedTuple):
    """A launch of `chunk_sums`."""

    line: AxisTable  # along the height, of the kernel rows of one program
    cells: AxisTable  # along the width
    vector: int
    dy_vector: int
    kernel_rows: int
    row_blocks: int
    positions: int  # bases of a tile
    columns: int  # channels of a tile
    bases: tuple[int, int, int]
    chunks: int
    chunk: int  # bases of a chunk

    def constants(self) -> dict[str, Any]:
        return {
            "OFFSETS": ((), self.line.offsets, self.cells.offsets), "PAIRS": ((), self.line.pairs, self.cells.pairs),
            "STEP": (1, self.line.step, self.cells.step), "CELLS": (1, self.line.cells, self.cells.cells),
            "VECTOR": self.vector, "DY_VECTOR": self.dy_vector, "DY_OFFSETS": ((), (), tuple(range(self.cells.cells))),
            "ROWS": self.kernel_rows, "BP": self.positions, "BC": self.columns,
        }  # fmt: skip


@lru_cache(MOST_KEPT)
def plan_of(problem: Problem) -> SumPlan:
    axes = axes_of(problem)
    _, kh, kw = axes.kernel
    item, channels = problem.dtype.itemsize, problem.channels_in
    best: tuple[float, Any] | None = None
    for high, across, v in product((1, 2, 4), (1, 2, 4, 7, 8) if axes.last else (1, 2, 4, 8), (1, 2, 4)):
        if high * across > MOST_PATCH or (axes.last and channels % v) or (not axes.last and v > 1):
            continue
        words = v * (2 if item == 8 else 1)
        rows = max(1, min(kh, MOST_SUMS // (kw * words), MOST_PRODUCTS // (kw * high * across)))
        row_blocks = blocks(kh, rows)
        rows = blocks(kh, row_blocks)
        many = rows * kw * high * across
        if (
            many > MOST_PRODUCTS or words * high * across > 32 or rows * kw * words > 1.2 * MOST_SUMS
        ) and high * across * v > 1:
            continue
        vector = v if axes.last else widest(axes.size[2], axes.readable[2], across * axes.stride[2])
        dy_vector = v if axes.last else widest(axes.out[2], across)
        s, d, p = axes.stride, axes.dilation, axes.low
        line = table(forward_results(rows, s[1], d[1], p[1], high), high * s[1], high)
        cells = table(forward_results(kw, s[2], d[2], p[2], across), across * s[2], across, 1 if axes.last else vector)
        loads = len(line.offsets) * len(cells.offsets) / (1 if axes.last else vector)
        loads += high * across / (1 if axes.last else dy_vector)
        convert = vector * loads if item == 2 else 0
        bases = (axes.out[0], blocks(axes.out[1], high), blocks(axes.out[2], across))
        cost = prod(bases) * row_blocks * (many * v + PER_LOAD * loads + convert + 80) / v
        if best is None or cost < best[0]:
            best = cost, (line, cells, vector, dy_vector, rows, row_blocks, v, bases)
    assert best is not None
    line, cells, vector, dy_vector, rows, row_blocks, v, bases = best[1]
    count = problem.batch * prod(bases)
    if axes.last:
        positions, columns = channel_tile(channels, THREADS * v)
    else:
        positions = min(THREADS, max(32, power_of_two(count)))
        columns = THREADS // positions
    beside = row_blocks * axes.kernel[0] * blocks(channels, columns)
    part = axes.taps * channels * max(item, 4)
    read = prod(problem.input_shape) * item
    most = min(MOST_PART_BYTES, max(SMALL_PART_BYTES, read // 4)) // part
    wanted = max(1, min(blocks(PROGRAMS, beside), most, blocks(count, positions)))
    chunk = blocks(blocks(count, wanted), positions) * positions
    return SumPlan(
        line, cells, vector, dy_vector, rows, row_blocks, positions, columns, bases, blocks(count, chunk), chunk
    )  # fmt: skip


def sums_launch(problem: Problem) -> Launch:
    axes, plan, channels = axes_of(problem), plan_of(problem), problem.channels_in
    vectors = channels // plan.vector if axes.last else channels
    options = {
        "K": axes.kernel, "S": axes.stride, "D": axes.dilation, "LAST": axes.last, "GUARD": reaches_beside(problem, False),
        "SUM": sum_type(problem), "WIDE": is_wide(problem), "num_warps": THREADS // 32,
    }  # fmt: skip
    numbers = (
        problem.batch * prod(plan.bases), plan.chunk, plan.row_blocks, vectors, plan.bases, axes.size, axes.out, axes.low,
        axes.readable,
    )  # fmt: skip
    programs = plan.chunks * plan.row_blocks * axes.kernel[0] * blocks(channels, plan.columns)
    return Launch(kernels.chunk_sums, programs, numbers, options | plan.constants())


def add_launch(problem: Problem) -> Launch:
    axes, plan, channels = axes_of(problem), plan_of(problem), problem.channels_in
    columns, block = axes.taps * channels, 32
    options = {
        "TAPS": axes.taps, "SUM": sum_type(problem), "BR": min(64, power_of_two(plan.chunks)), "BC": block, "num_warps": 4,
    }  # fmt: skip
    return Launch(kernels.add_chunks, blocks(columns, block), (plan.chunks, columns, channels), options)


def conv_grad_filter(problem: Problem, dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    plan, channels = plan_of(problem), problem.channels_in
    sums = torch.float64 if x.dtype == torch.float64 else torch.float32
    part = x.new_empty((plan.chunks, problem.window.tap_count, channels), dtype=sums)
    launch(sums_launch, problem, x.contiguous(), dy.contiguous(), part)
    df = x.new_empty((channels, 1, *problem.window.kernel))
    launch(add_launch, problem, part, df)
    if problem.layout == "channels_last":
        return df.permute(*range(2, 2 + problem.window.rank), 1, 0)
    return df
