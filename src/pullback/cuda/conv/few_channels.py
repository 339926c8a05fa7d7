"""Gradients of convolutions of one to four input channels on a GPU: what their kernels are launched with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

import torch

from pullback.cuda.axes import MOST_KEPT, axes_of
from pullback.cuda.conv import few_filter_kernel, gather_kernel, plan
from pullback.cuda.conv.common import LEAST_SIDE, filter_strides, new_filter, precision
from pullback.cuda.launch import Launch, blocks, is_wide, launch, power_of_two
from pullback.problem import Problem

PACKED = 1024  # weights a program packs
MOST_DOTS = 48  # unrolled
MOST_CONTRACTED = 128  # bytes of dy's channels in a product
BASES = 64  # of a tile
CHUNK_PROGRAMS = 132 * 3
ROWS = 32  # of (tap, input channel) in a product
MOST_COLUMNS = 64  # output channels in a product
OUTPUTS = 32  # of a tile
ADDED = 64  # weights a program adds the chunks of


class _Shape(NamedTuple):
    """Of the packed weights: blocks of dy's channels, source cells, channels of a block, columns."""

    blocks: int
    weights: int
    high: int
    columns: int


@lru_cache(MOST_KEPT)
def _planned(problem: Problem) -> tuple[plan.Gather, _Shape]:
    columns = max(LEAST_SIDE, power_of_two(prod(plan.inner_box(problem)) * problem.channels_in))
    wide = problem.dtype.itemsize == 2 and problem.layout == "channels_last"
    # Boxes along the height share the rows of dy: as many as the registers have room for.
    fitting = (rows for rows in (4, 2) if wide and columns * rows <= 64 and plan.few(problem, rows).dots <= MOST_DOTS)
    found = plan.few(problem, next(fitting, 1))
    high = min(MOST_CONTRACTED // problem.dtype.itemsize, max(LEAST_SIDE, power_of_two(problem.channels_out)))
    return found, _Shape(blocks(problem.channels_out, high), prod(found.counts), high, columns)


@dataclass(frozen=True)
class _Pack:
    strides: tuple[int, ...]

    def __call__(self, problem: Problem) -> Launch:
        axes, (found, shape) = axes_of(problem), _planned(problem)
        total = prod(shape)
        return Launch(
            gather_kernel.pack_cells, blocks(total, PACKED), (total, problem.channels_out, *self.strides, axes.low),
            {
                "K": axes.kernel, "S": axes.stride, "D": axes.dilation, "INNER": found.inner, "LOW": found.low,
                "COUNT": found.counts, "B": problem.channels_in, "KI": shape.high, "NO": shape.columns, "BLOCK": PACKED,
                "num_warps": 4,
            },
        )  # fmt: skip


@dataclass(frozen=True)
class _Gather:
    strides: tuple[int, ...]
    precision: str

    def __call__(self, problem: Problem) -> Launch:
        axes, (found, shape) = axes_of(problem), _planned(problem)
        contracted, channels = problem.channels_out, problem.channels_in
        cells = found.bases(axes.size)
        bases = problem.batch * prod(cells)
        return Launch(
            gather_kernel.gather, blocks(bases, BASES),
            (
                bases, cells, axes.out, axes.out, axes.size, axes.readable, (0, 0, 0), axes.low, contracted, channels, contracted,
                *self.strides, shape.blocks,
            ),
            {
                "K": axes.kernel, "S": axes.stride, "D": axes.dilation, "BOX": found.box, "FIRST": found.first,
                "EXTENT": found.extent, "INNER": found.inner, "STEP": found.step, "LOADS": found.loads, "T": shape.weights,
                "AHEAD": min(1, len(found.loads)), "BUNDLE": 1, "A": 1, "B": channels, "KI": shape.high,
                "NO": shape.columns, "FULL": contracted % shape.high == 0, "GROUPED": False, "FORWARD": False, "LAST": axes.last,
                "PRECISION": self.precision, "BP": BASES, "WIDE": is_wide(problem), "num_warps": 2, "num_stages": 1,
            },
        )  # fmt: skip


def conv_grad_input(problem: Problem, dy: torch.Tensor, filter: torch.Tensor) -> torch.Tensor:
    dy = dy.contiguous()
    dx = dy.new_empty(problem.input_shape)
    strides = filter_strides(problem, filter)
    packed = filter.new_empty(_planned(problem)[1])
    launch(_Pack(strides), problem, filter, packed)
    launch(_Gather(strides, precision(problem)), problem, dy, packed, filter, dx)
    return dx


class _Chunks(NamedTuple):
    """How a filter gradient is split: blocks of output channels, parts of ROWS rows, chunks of outputs."""

    columns: int
    out_blocks: int
    parts: int
    chunk_tiles: int
    chunks: int


@lru_cache(MOST_KEPT)
def _chunks(problem: Problem, programs: int) -> _Chunks:
    axes = axes_of(problem)
    columns = min(MOST_COLUMNS, max(LEAST_SIDE, power_of_two(problem.channels_out)))
    out_blocks = blocks(problem.channels_out, columns)
    tiles = blocks(problem.batch * prod(axes.out), OUTPUTS)
    chunk_tiles = blocks(tiles, max(1, min(tiles, programs // out_blocks)))
    parts = blocks(axes.taps * problem.channels_in, ROWS)
    return _Chunks(columns, out_blocks, parts, chunk_tiles, blocks(tiles, chunk_tiles))


@dataclass(frozen=True)
class _Products:
    programs: int
    precision: str

    def __call__(self, problem: Problem) -> Launch:
        axes, chunks = axes_of(problem), _chunks(problem, self.programs)
        return Launch(
            few_filter_kernel.window_sums, chunks.chunks * chunks.out_blocks,
            (
                problem.batch * prod(axes.out), chunks.chunk_tiles, chunks.out_blocks, axes.out, axes.size, axes.readable, axes.low,
                problem.channels_out,
            ),
            {
                "K": axes.kernel, "S": axes.stride, "D": axes.dilation, "A": problem.channels_in, "ROWS": ROWS,
                "PARTS": chunks.parts, "NO": chunks.columns, "FULL": problem.channels_out % chunks.columns == 0,
                "LAST": axes.last, "PRECISION": self.precision, "BP": OUTPUTS, "WIDE": is_wide(problem), "num_warps": 4,
                "num_stages": 1,
            },
        )  # fmt: skip


@dataclass(frozen=True)
class _Added:
    programs: int
    precision: str

    def __call__(self, problem: Problem) -> Launch:
        taps, channels, chunks = problem.window.tap_count, problem.channels_in, _chunks(problem, self.programs)
        total = chunks.out_blocks * taps * channels * chunks.columns
        return Launch(
            few_filter_kernel.add_rows, blocks(total, ADDED),
            (chunks.chunks, total, chunks.out_blocks, problem.channels_out),
            {
                "TAPS": taps, "A": channels, "HIGH": chunks.parts * ROWS, "NO": chunks.columns, "BC": 32, "BE": ADDED,
                "PRECISION": self.precision, "num_warps": 4,
            },
        )  # fmt: skip


def conv_grad_filter(problem: Problem, dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    chunks, how = _chunks(problem, CHUNK_PROGRAMS), (CHUNK_PROGRAMS, precision(problem))
    dy, x = dy.contiguous(), x.contiguous()
    memory, dw = new_filter(problem, dy)
    partials = x.new_empty((chunks.chunks, chunks.out_blocks, chunks.parts * ROWS, chunks.columns), dtype=torch.float32)
    launch(_Products(*how), problem, x, dy, partials)
    launch(_Added(*how), problem, partials, memory)
    return dw
