"""What the convolution plans share: panels of the packed filter, array distances, even parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.cpu.conv.filter_order import TAPS_LAST, FilterOrder, filter_steps
from pullback.cpu.conv.records import PACKED_TERMS, Pack, Phase, PhaseAxis
from pullback.cpu.conv.sweep import Sweep
from pullback.cpu.conv.tuning import K_BLOCK
from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.pieces import cut_pieces
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.sizes import LINE, ceil_div, round_up, sum_bytes
from pullback.cpu.machine_code.variants import Variant
from pullback.problem import Problem

Table = np.ndarray[Any, Any]


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
    return sum_bytes(problem.dtype)


def lanes_of(problem: Problem) -> int:
    return machine().vector_bytes // wide_of(problem)


def moved_bytes(problem: Problem) -> int:
    """Of x and y together."""
    return sum(math.prod(shape) for shape in (problem.input_shape, problem.output_shape)) * problem.dtype.itemsize


def even_parts(total: int, most: int, unit: int = 1) -> int:
    """The size of nearly equal parts of at most `most`, a multiple of `unit` where that is possible."""
    parts = ceil_div(total, max(1, most))
    size = ceil_div(total, parts)
    return min(total, round_up(size, unit))


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


def phase_table(
    sweep: Sweep, starts: list[int], grid: list[int], pitches: Sequence[int], places: Sequence[Table] | None = None
) -> Table:
    """A Phase for each phase, and its axes. pitches: bytes from place to place, by axis. places: tables of where taps lie."""
    words: list[Table] = []
    for number, (phase, start) in enumerate(zip(sweep.phases, starts, strict=True)):
        d, h, w = phase
        words.append(Phase.pack({
            "bases_d": d.count, "bases_h": h.count, "bases_w": w.count, "start_d": d.start, "start_h": h.start,
            "start_w": w.start, "earlier_taps": start // sweep.source_channels, "taps": math.prod(len(a.taps) for a in phase),
            "places": 0 if places is None else address_of(places[number]),
        }))  # fmt: skip
        for axis, swept, cells, pitch in zip(phase, sweep.axes, grid, pitches, strict=True):
            fields = dict.fromkeys((name for name, _ in PhaseAxis.FIELDS), 0) | {"apart": 1}
            if axis.offsets:
                apart, place = axis.offsets.step, (axis.low - swept.low) // cells * pitch
                fields = {
                    "taps": len(axis.taps),
                    "low": axis.low,
                    "apart": apart,
                    "place": place,
                    "tap_pitch": apart // cells * pitch,
                }
            words.append(PhaseAxis.pack(fields))
    return np.concatenate(words)


def pack_plan(
    problem: Problem, sweep: Sweep, rows: Table, terms: int, order: FilterOrder, check: bool, pairs: bool = False
) -> Plan:
    """The job that packs a filter that lies in memory in this order, and reports one that is not finite if `check`.

    rows, terms: of single channels; `pairs`: each two neighbouring terms become one pair (see Pack).
    """
    size, v = problem.dtype.itemsize, lanes_of(problem)
    taps, summed = problem.window.tap_count, sweep.source_channels
    n_count, n_padded = sweep.target_channels, round_up(sweep.target_channels, v)
    tap_step, in_step, out_step, group = filter_steps(problem, order)
    step, n_step = (in_step, out_step) if problem.op == "conv" else (out_step, in_step)
    if n_step == 1:  # each run is one term of all output channels
        runs, length = taps * summed, 0
        run = step if taps == 1 else tap_step if summed == 1 else min(tap_step, step)
        place = rows if tap_step > step else rows.T
    elif order == TAPS_LAST:
        runs, run, length, place = (1, 0, summed * taps, rows.T) if step == taps else (summed, step, taps, rows.T)
    else:
        runs, run, length, place = taps, tap_step, summed, rows
    blocks = ceil_div(n_padded, 2 * v)
    moved = 2 * sweep.groups * n_padded * terms * wide_of(problem)
    run_units = ceil_div(length, PACKED_TERMS) or 1
    units = runs * run_units
    part_units, parts = cut_pieces(units, moved // (sweep.groups * blocks))
    given = {
        "filter": None, "packed": None, "faults": None, "check": int(check), "blocks": blocks, "block": 2 * v,
        "parts": parts, "units": units, "part_units": part_units, "run_units": run_units,
        "out_channels": n_count, "padded_channels": n_padded, "terms": terms, "group_bytes": group * size, "n_bytes": n_step * size,
        "runs": runs, "run_bytes": run * size, "run_length": length, "run_row": int(length == 0), "place": place.reshape(-1),
    }  # fmt: skip
    pieces, scratch = sweep.groups * blocks * parts, PACKED_TERMS * 2 * v * wide_of(problem)
    variant = Variant("conv.pack", "pack", problem.dtype.name, pairs=pairs)
    return make_plan(variant, Pack, pieces, scratch, moved, given)


def k_block_of(terms: int) -> int:
    """Terms of a k-block, between which a tile prefetches: a divisor of all that is near K_BLOCK, or all of them."""
    fitting = [size for size in range(K_BLOCK // 2, 2 * K_BLOCK + 1) if terms % size == 0]
    return min(fitting, key=lambda size: abs(size - K_BLOCK), default=terms)


def lines_ahead(starts: Table, run_bytes: int, k_blocks: int) -> tuple[Table, int]:
    """(table, lines that a k-block prefetches): the lines of runs of memory that begin at these offsets, spread over k-blocks."""
    wanted = (starts[:, None] + np.arange(0, run_bytes + LINE, LINE)).ravel()  # a run may begin inside a line
    lines = ceil_div(len(wanted), k_blocks)
    table = np.zeros(k_blocks * lines, np.int64)
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
    """The fields of the record Sweep but for its terms."""
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
        "channels": sweep.source_channels, "out_channels": sweep.target_channels,
        "padded_channels": round_up(sweep.target_channels, v), "phases": len(sweep.phases),
    }  # fmt: skip


def work_of(sweep: Sweep, terms: int) -> int:
    """Multiplications of a sweep, in the plan's measure of bytes moved: whether a job is worth several threads."""
    cells = sweep.images * math.prod(axis.target_size for axis in sweep.axes)
    return cells * sweep.target_channels * sweep.groups * terms // 4
