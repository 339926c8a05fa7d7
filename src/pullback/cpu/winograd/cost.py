"""What Winograd costs against a plain sum, in vector multiply-adds on one core: measured on a few shapes, meant for all.

The numbers of tuning.py are those of one machine; on others each is multiplied by what its kind of work costs there (profile.py).
Passes over a filter or over sums go with the caches that they are written to.
"""

from __future__ import annotations

import math
from dataclasses import replace

from pullback.cpu.conv.cells import costs
from pullback.cpu.conv.pairs import cost_of_term
from pullback.cpu.conv.sweep import sweep_of
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.profile import profile
from pullback.cpu.engine.sizes import ceil_div, round_up
from pullback.cpu.winograd import tuning
from pullback.cpu.winograd.blocks import depths_of_block
from pullback.cpu.winograd.convolve import cut_convolution, packed_filter, part_channels
from pullback.cpu.winograd.filter_gradient import cut_gradient, ends_own_sums
from pullback.cpu.winograd.shapes import Shape, register_tile
from pullback.problem import Problem


def _padded_vectors(channels: int, lanes: int) -> int:
    return round_up(ceil_div(channels, lanes), register_tile(channels, lanes)[1])


def _far(total_bytes: int) -> float:
    return tuning.FAR * profile().waiting if total_bytes > machine().l3_bytes * tuning.FAR_CACHE else 0


def _plain_cost(problem: Problem, shape: Shape) -> float:
    """Of the better of the kernels that would run instead, which leave out taps beside the cells."""
    cells = shape.batch * shape.target.depth * shape.target.rows * shape.target.columns
    terms: float = cells * problem.window.tap_count * shape.groups * shape.in_channels
    if problem.op == "conv_grad_filter":
        terms *= math.prod(axis.taps_met() for axis in sweep_of(problem).axes)
        edges = (1 + tuning.PLAIN_ROWS / shape.in_channels) * (ceil_div(shape.out_channels, shape.lanes) + tuning.PLAIN_VECTORS)
        return terms * edges * cost_of_term(problem)
    over_cells, over_channels = costs(problem)
    packing = (
        shape.groups * problem.window.tap_count * shape.in_channels * ceil_div(shape.out_channels, shape.lanes) * tuning.PACK
    )
    return packing * profile().copying + terms * min(over_cells, over_channels * cost_of_term(problem)) / shape.lanes


def _transforms(problem: Problem, shape: Shape) -> tuple[int, float, float]:
    """Tiles of all depths, and per vector of channels what it costs to read one, with the depths read twice, and to write one."""
    transpose = tuning.TRANSPOSE * profile().transposing if problem.layout == "channels_first" else 0
    into, out = tuning.READ * profile().transforming + transpose, tuning.WRITE * profile().transforming + transpose
    depth_block, slots = depths_of_block(shape)
    tiles = shape.positions * shape.target.depth * shape.groups
    read = slots / depth_block * shape.tap_blocks * shape.points * into
    return tiles, read, shape.points * out


def _convolve_cost(problem: Problem, shape: Shape) -> float:
    packed, lanes, points = packed_filter(shape), shape.lanes, shape.points
    x, y = ceil_div(shape.in_channels, lanes), ceil_div(shape.out_channels, lanes)  # vectors
    tiles, read, write = _transforms(problem, shape)
    cut = cut_convolution(shape)
    read *= ceil_div(shape.out_channels, cut.panel_block * packed.panel)
    terms, weight, chunks = shape.k_blocks * shape.in_channels, tuning.FILTER * profile().copying, 1
    per_weight = weight + _far(packed_filter(replace(shape, out_channels=part_channels(shape))).total)
    if cut.k_chunk:  # the filter is transformed for each block, and never leaves the cache
        per_weight, chunks = weight * ceil_div(shape.positions, cut.block), ceil_div(shape.in_channels, cut.k_chunk)
    products = tiles * points * (terms + chunks * tuning.TERMS) * _padded_vectors(shape.out_channels, lanes) * tuning.SLOWER
    transforms = tiles * (2 * tuning.TABLE + read * x + write * y)
    return tuning.CALL * profile().calling + products + transforms + shape.groups * terms * y * points * per_weight


def _filter_gradient_cost(problem: Problem, shape: Shape) -> float:
    cut, lanes = cut_gradient(shape), shape.lanes
    x, dy = ceil_div(shape.in_channels, lanes), ceil_div(shape.out_channels, lanes)  # vectors
    tiles, read, _ = _transforms(problem, shape)
    terms = 1 + tuning.TERMS / min(tiles, cut.block * depths_of_block(shape)[0])
    products = tiles * terms * shape.points * shape.k_blocks * shape.in_channels
    products *= _padded_vectors(min(shape.out_channels, cut.dy_block), lanes) * cut.dy_blocks * tuning.SLOWER
    transforms = tiles * (tuning.TABLE * (cut.x_blocks + cut.dy_blocks) + read * (cut.dy_blocks * x + cut.x_blocks * dy))
    sums = shape.groups * shape.k_blocks * shape.in_channels * dy * shape.points
    far = 0 if ends_own_sums(shape, cut) else _far(sums * cut.splits * machine().vector_bytes)
    finish = (tuning.FINISH + tuning.ADD * cut.splits) * profile().copying + far
    return tuning.CALL * profile().calling + products + transforms + sums * finish


def share_of_plain(problem: Problem, shape: Shape) -> float:
    """Winograd's cost over that of a plain sum, which is 0 where no tap meets a cell."""
    cost = _filter_gradient_cost if problem.op == "conv_grad_filter" else _convolve_cost
    return cost(problem, shape) / max(1.0, _plain_cost(problem, shape))


def why_slower(problem: Problem, shape: Shape) -> str | None:
    """Why Winograd would not pay, in words; None where it does."""
    share = share_of_plain(problem, shape)
    if share < tuning.GAIN:
        return None
    return f"its transforms cost more than they save here: about {share:.2g} times the work of plain sums"
