"""What Winograd costs against a plain sum, in vector multiply-adds on one core: measured on a few shapes, meant for all."""

from __future__ import annotations

import math

from pullback.cpu.conv.cells import costs
from pullback.cpu.conv.direct import taps_met
from pullback.cpu.conv.sweep import sweep_of
from pullback.cpu.engine.machine import machine
from pullback.cpu.winograd.convolve import cut_forward, packed_filter
from pullback.cpu.winograd.filter_gradient import MOST_CHANNELS, cut_gradient
from pullback.cpu.winograd.shapes import Shape, register_tile
from pullback.problem import Problem

CALL = 30_000  # of the jobs that a plain sum does not have
TABLE = 150  # of the addresses of a tile
READ, WRITE, TURN = 7, 5, 4  # per product of a tile and vector of channels: into tiles, out of them, channels_first
FILTER, FINISH, ADD = 9, 6, 3  # per product of a filter's vector: into the transform, out of it, each share's sums
FAR = 60  # more, where these do not stay in the last-level cache, and all cores wait for the same memory
TERMS = 6  # of a register tile's loads, stores and call, as if it summed so many terms more
SLOWER = 1.05  # of a product between transforms, whose operands come from the second-level cache
GAIN = 0.95  # of the plain sum at most, or the error is for nothing


def _vectors(channels: int, lanes: int) -> int:
    return -(-channels // lanes)


def _padded_vectors(channels: int, lanes: int) -> int:
    wide = register_tile(channels, lanes)[1]
    return -(-_vectors(channels, lanes) // wide) * wide


def _far(total_bytes: int) -> int:
    return FAR if total_bytes > machine().l3_bytes // 2 else 0


def plain_cost(problem: Problem, shape: Shape) -> float:
    """Of the better of the kernels that would run instead. One over channels leaves out most taps that meet no cell."""
    cells = shape.batch * shape.target.depth * shape.target.rows * shape.target.columns
    terms = cells * problem.window.tap_count * shape.groups * shape.summed
    if problem.op == "conv_grad_filter":
        return terms * _vectors(shape.made, shape.lanes)
    over_cells, over_channels = costs(problem)
    return terms * min(over_cells, over_channels * taps_met(sweep_of(problem))) / shape.lanes


def _transforms(problem: Problem, shape: Shape, depth_block: int) -> tuple[float, float, float]:
    """Tiles of all depths, and per vector of channels what it costs to read one, with the depths read twice, and to write one."""
    turn = TURN if problem.layout == "channels_first" else 0
    again = (depth_block + (shape.taps - 1) * shape.dilation[0]) / depth_block
    tiles = shape.positions * shape.target.depth * shape.groups
    return tiles, again * shape.stretches * shape.numbers * (READ + turn), shape.numbers * (WRITE + turn)


def forward_cost(problem: Problem, shape: Shape) -> float:
    lanes = shape.lanes
    cut = cut_forward(shape)
    tiles, read, write = _transforms(problem, shape, cut.depth_block)
    read *= -(-shape.made // (cut.panel_block * packed_filter(shape).panel))
    products = tiles * shape.numbers * (shape.sets * shape.summed + TERMS) * _padded_vectors(shape.made, lanes) * SLOWER
    moved = tiles * (2 * TABLE + read * _vectors(shape.summed, lanes) + write * _vectors(shape.made, lanes))
    filters = shape.groups * shape.sets * shape.summed * _vectors(shape.made, lanes) * shape.numbers
    return CALL + products + moved + filters * (FILTER + _far(packed_filter(shape).total))


def filter_gradient_cost(problem: Problem, shape: Shape) -> float:
    lanes, cut = shape.lanes, cut_gradient(shape)
    tiles, read, _ = _transforms(problem, shape, cut.depth_block)
    terms = 1 + TERMS / min(tiles, cut.block * cut.depth_block)
    products = (
        tiles * terms * shape.numbers * shape.sets * shape.summed * _padded_vectors(min(shape.made, MOST_CHANNELS), lanes)
    )
    products *= math.ceil(shape.made / MOST_CHANNELS) * SLOWER
    x, dy = cut.dy_blocks * _vectors(shape.summed, lanes), cut.x_blocks * _vectors(shape.made, lanes)
    moved = tiles * (TABLE * (cut.x_blocks + cut.dy_blocks) + read * (x + dy))
    sums = shape.groups * shape.sets * shape.summed * _vectors(shape.made, lanes) * shape.numbers
    return CALL + products + moved + sums * (FINISH + ADD * cut.shares + _far(sums * cut.shares * machine().vector_bytes))


def unpaid(problem: Problem, shape: Shape) -> str | None:
    """Why Winograd would not pay, in words; None where it does."""
    cost = filter_gradient_cost if problem.op == "conv_grad_filter" else forward_cost
    share = cost(problem, shape) / max(1.0, plain_cost(problem, shape))  # 0 where no tap meets a cell
    if share < GAIN:
        return None
    return f"its transforms cost more than they save here: about {share:.2g} times the work of plain sums"
