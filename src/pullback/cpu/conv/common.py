"""What the convolution plans share: panels of the packed filter, array distances, even parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.cpu.conv.filter_order import TAPS_LAST, FilterOrder, filter_steps
from pullback.cpu.conv.records import PackPack
from pullback.cpu.conv.sweep import Sweep
from pullback.cpu.engine.compiler import Variant
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.problem import Problem

LINE = 64
STRETCH = 16  # terms, about
PIECES = 32  # enough for a dozen threads; more only where a piece stays worth its packing
Table = np.ndarray[Any, Any]

# What a kernel does otherwise for some data, by op and kernel, in words for `explain`: which data cannot be seen from a problem.
_WEIGHTS = "weights that are not finite run on a second plan, which skips taps beside the input"
_GRADIENTS = "a result that is not finite is made again by a second plan, which skips taps beside the input"
_TILES = "what is not finite, and the tiles it would reach, is made again by plain sums"
DATA_NOTES: dict[tuple[str, str], str] = {
    **{
        (op, name): _WEIGHTS
        for op in ("conv", "conv_grad_input")
        for name in ("cells", "turned", "direct", "depthwise", "grouped")
    },
    **{("conv_grad_filter", name): _GRADIENTS for name in ("direct", "depthwise", "grouped")},
    **{(op, "winograd"): _TILES for op in ("conv", "conv_grad_input", "conv_grad_filter")},
}


@dataclass(frozen=True)
class ConvPlan:
    """Two jobs, one after the other: the filter into panels, then the convolution.

    `pack` reports a filter that is not finite where `sweep` would multiply it by zeros that stand for no cell. `target_cells`:
    by axis, of which cells of the result the target is made; the others are zero.
    """

    pack: Plan
    sweep: Plan
    packed_bytes: int
    target_cells: tuple[Table, ...] | None


def wide_of(problem: Problem) -> int:
    """Bytes of an element as sums are made."""
    return 8 if problem.dtype.name == "float64" else 4


def lanes_of(problem: Problem) -> int:
    return machine().vector_bytes // wide_of(problem)


def moved_bytes(problem: Problem) -> int:
    """Of x and y together."""
    return sum(math.prod(shape) for shape in (problem.input_shape, problem.output_shape)) * problem.dtype.itemsize


def tile_rows() -> int:
    """The most rows of a register tile two vectors wide, as kernels/tiles.py makes them."""
    return 14 if machine().vector_bytes == 64 else 6


def even_parts(total: int, most: int, unit: int = 1) -> int:
    """The size of nearly equal parts of at most `most`, a multiple of `unit` where that is possible."""
    parts = -(-total // max(1, most))
    size = -(-total // parts)
    return min(total, -(-size // unit) * unit)


def panel_terms(sweep: Sweep, block_channels: int) -> tuple[Table, int, list[int]]:
    """(row of each (tap, channel), rows in all, first row of each phase); -1 for taps that reach nothing."""
    channels = sweep.source_channels
    rows = np.full((math.prod(sweep.tap_kernel), channels), -1, np.int64)
    total, starts = 0, []
    for phase in sweep.phases:
        taps = sweep.tap_numbers(phase)
        starts.append(total)
        for c0 in range(0, channels, block_channels):
            size = min(block_channels, channels - c0)
            rows[taps, c0 : c0 + size] = total + np.arange(len(taps) * size).reshape(-1, size)
            total += len(taps) * size
    return rows, total, starts


def phase_words(sweep: Sweep, starts: list[int], grid: list[int], pitches: Sequence[int]) -> Table:
    """The table of phases as the sweeping kernels read it (kernels/tap_ranges.py). pitches: bytes from place to place, by axis."""
    words: list[int] = []
    for phase, start in zip(sweep.phases, starts, strict=True):
        own = math.prod(len(axis.taps) for axis in phase)
        words += [*(axis.count for axis in phase), *(axis.start for axis in phase), start // sweep.source_channels, own]
        for axis, swept, cells, pitch in zip(phase, sweep.axes, grid, pitches, strict=True):
            if axis.offsets:
                first, apart = (axis.offsets[0] - swept.low) // cells, axis.offsets.step
                words += [len(axis.taps), axis.low, abs(apart), int(apart < 0), first * pitch, apart // cells * pitch]
            else:
                words += [0, 0, 1, 0, 0, 0]
    return np.array(words, np.int64)


def pack_plan(problem: Problem, sweep: Sweep, rows: Table, terms: int, order: FilterOrder, check: bool) -> Plan:
    """The job that packs a filter that lies in memory in this order, and reports one that is not finite if `check`."""
    size, v = problem.dtype.itemsize, lanes_of(problem)
    taps, summed = problem.window.tap_count, sweep.source_channels
    n_count, n_padded = sweep.target_channels, -(-sweep.target_channels // v) * v
    tap_step, in_step, out_step, group = filter_steps(problem, order)
    step, n_step = (in_step, out_step) if problem.op == "conv" else (out_step, in_step)
    if n_step == 1:  # each run is one term of all produced channels
        runs, length = taps * summed, 0
        run = step if taps == 1 else tap_step if summed == 1 else min(tap_step, step)
        place = rows if tap_step > step else rows.T
    elif order == TAPS_LAST:
        runs, run, length, place = (1, 0, summed * taps, rows.T) if step == taps else (summed, step, taps, rows.T)
    else:
        runs, run, length, place = taps, tap_step, summed, rows
    blocks = -(-n_padded // (2 * v))
    given = {
        "filter": None, "packed": None, "faults": None, "check": int(check), "blocks": blocks, "block": 2 * v,
        "n_count": n_count, "n_padded": n_padded, "terms": terms, "group_bytes": group * size, "n_bytes": n_step * size,
        "runs": runs, "run_bytes": run * size, "run_length": length, "run_row": int(length == 0), "place": place.reshape(-1),
    }  # fmt: skip
    moved = 2 * sweep.groups * n_padded * terms * wide_of(problem)
    return make_plan(Variant("conv.pack", "pack", problem.dtype.name), PackPack, sweep.groups * blocks, 0, moved, given)


def stretch_of(terms: int) -> int:
    """Terms of a stretch, between which a tile asks for memory: a divisor of all that is near STRETCH, or all of them."""
    fitting = [size for size in range(STRETCH // 2, 2 * STRETCH + 1) if terms % size == 0]
    return min(fitting, key=lambda size: abs(size - STRETCH), default=terms)


def lines_ahead(starts: Table, run_bytes: int, stretches: int) -> tuple[Table, int]:
    """(table, lines a stretch asks for): the lines of runs of memory that begin at these offsets, spread over some stretches."""
    wanted = (starts[:, None] + np.arange(0, run_bytes + LINE, LINE)).ravel()  # a run may begin inside a line
    lines = -(-len(wanted) // stretches)
    table = np.zeros(stretches * lines, np.int64)
    table[: len(wanted)] = wanted
    return table, lines


def pitches(layout: str, size: int, channels: int, sizes: tuple[int, int, int]) -> tuple[int, int, int, int, int]:
    """Bytes between channels, cells, rows, planes and images of an array."""
    d, h, w = sizes
    if layout == "channels_last":
        cell = channels * size
        return size, cell, w * cell, h * w * cell, d * h * w * cell
    return d * h * w * size, size, w * size, h * w * size, channels * d * h * w * size


def sweep_arguments(problem: Problem, sweep: Sweep) -> dict[str, Any]:
    """Arguments that both sweeping kernels have: sizes of source and target, distances in them, steps, channels."""
    size, v = problem.dtype.itemsize, lanes_of(problem)
    names = ("channel", "cell", "row", "plane", "image")
    d, h, w = sweep.axes
    source_size = (d.source_size, h.source_size, w.source_size)
    target_size = (d.target_size, h.target_size, w.target_size)
    source = pitches(problem.layout, size, sweep.source_channels * sweep.groups, source_size)
    target = pitches(problem.layout, size, sweep.target_channels * sweep.groups, target_size)
    given: dict[str, Any] = {"source": None, "target": None, "packed": None, "groups": sweep.groups, "images": sweep.images}
    given |= {f"source_{name}": value for name, value in zip(names, source, strict=True)}
    given |= {f"target_{name}": value for name, value in zip(names, target, strict=True)}
    given |= {f"in_{name}": value for name, value in zip(("depth", "rows", "cols"), source_size, strict=True)}
    given |= {f"out_{name}": value for name, value in zip(("depth", "rows", "cols"), target_size, strict=True)}
    given |= {name: axis.bases for name, axis in zip(("depths", "rows", "cols"), sweep.axes, strict=True)}
    for letter, axis in zip("dhw", sweep.axes, strict=True):
        given |= {f"step_{letter}": axis.source_step, f"to_{letter}": axis.target_step, f"low_{letter}": axis.low}
    return given | {
        "source_group": sweep.source_channels * source[0], "target_group": sweep.target_channels * target[0],
        "channels": sweep.source_channels, "n_count": sweep.target_channels,
        "n_padded": -(-sweep.target_channels // v) * v, "phases": len(sweep.phases),
    }  # fmt: skip


def work_of(sweep: Sweep, terms: int) -> int:
    """Multiplications of a sweep, in the plan's measure of bytes moved: whether a job is worth several threads."""
    cells = sweep.images * math.prod(axis.target_size for axis in sweep.axes)
    return cells * sweep.target_channels * sweep.groups * terms // 4
