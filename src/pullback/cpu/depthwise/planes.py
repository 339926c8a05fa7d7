"""Plans of grouped convolutions in channels_first; see kernels/depthwise_planes.py."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from pullback.cpu.conv.common import moved_bytes
from pullback.cpu.conv.sweep import forward_phase, gradient_phases
from pullback.cpu.depthwise.cells import FilterPlans, add_plan, filter_pieces
from pullback.cpu.depthwise.records import PlanesGather, PlanesProducts
from pullback.cpu.depthwise.tables import Ints, pairs
from pullback.cpu.engine.compiler import Variant
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.pieces import grouped, slack, streams
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.pool.tables import depth_lists, in_three, places_reached, tap_places
from pullback.problem import Problem
from pullback.window import Window

MODULE = "depthwise.planes"
AREA_BYTES = 256 << 10  # unpacked rows of a block
OUTS = 4  # planes of results at a time
ENTRY = 32  # bytes of a tap in a list of those that meet a row


def _line(count: int) -> int:
    return -(-count // 64) * 64


@dataclass(frozen=True)
class Tap:
    """Of one axis: the plane of residues and the place that it reads for base 0, its number, for which bases there is a cell."""

    plane: int
    place: int
    number: int
    first: int
    end: int


@dataclass(frozen=True)
class Side:
    """Of one axis: the lowest place read, how many more places than targets, and the taps of each phase, by place."""

    low: int
    more: int
    phases: list[list[Tap]]


def _side(window: Window, axis: int, forward: bool) -> Side:
    """Forward one phase, whose source is split by the stride; of the input gradient one phase for each residue of it."""
    n, o, s = window.input_size[axis], window.output_size[axis], window.stride[axis]
    if forward:
        phase, found = forward_phase(window, axis), tap_places(window, axis)
        ends = zip(*(numbers.tolist() for numbers in phase.met(s, n)), strict=True)
        taps = [
            Tap(int(found.plane[t]), int(found.shift[t]) - found.low, t, *bases)
            for t, bases in zip(phase.taps, ends, strict=True)
        ]
        return Side(found.low, places_reached(window, axis, 1) - 1, [taps])
    phases = {phase.start: phase for phase in gradient_phases(window, axis)}
    low, high = min([0, *(phase.low for phase in phases.values())]), max([0, *(phase.high for phase in phases.values())])
    lists: list[list[Tap]] = [[] for _ in range(s)]
    for start, phase in phases.items():
        ends = zip(*(numbers.tolist() for numbers in phase.met(1, o)), strict=True)
        read = zip(phase.offsets, phase.taps, ends, strict=True)
        lists[start] = [Tap(0, offset - low, t, *bases) for offset, t, bases in read][::-1]
    return Side(low, high - low, lists)


def _columns(offsets: list[tuple[int, int]], pitch: int) -> tuple[list[tuple[int, int]], int]:
    """(first tap of each column, from one weight of a column to the next), where all taps are columns of three; else none."""
    start = sorted(offsets)
    count = len(start) // 3
    columns, weight_row = start[:count], start[count][1] - start[0][1] if count else 0
    found = [(place + t * pitch, weight + t * weight_row) for t in range(3) for place, weight in columns]
    return (columns, weight_row) if count and found == start else ([], 0)


def _planes(problem: Problem) -> tuple[dict[str, Any], int, int, int]:
    """Arguments that all kernels share, bytes of the area list, of the areas, and the number of blocks of a group."""
    window = in_three(problem.window)
    forward = problem.op != "conv_grad_input"
    wide = 8 if problem.dtype.name == "float64" else 4
    source, target = (window.input_size, window.output_size) if forward else (window.output_size, window.input_size)
    each = problem.channels_in // problem.groups, problem.channels_out // problem.groups
    sources_each, targets_each = each if forward else each[::-1]
    h, w = _side(window, 1, forward), _side(window, 2, forward)
    split = window.stride[1:] if forward else (1, 1)
    woven = (1, 1) if forward else window.stride[1:]
    depths = depth_lists(window, forward)
    most_depths = max(1, int(np.diff(depths["d_ptr"]).max(initial=1)))
    places_w = -(-target[2] // woven[1]) + w.more
    pitch = places_w * wide
    areas = sources_each * most_depths
    row_bytes = pitch * split[0] * split[1] * areas
    plane_rows = max(1, min(-(-target[1] // woven[0]), AREA_BYTES // row_bytes - h.more))
    places_h = plane_rows + h.more
    distance = _line(places_h * pitch + slack())
    area_bytes = split[0] * split[1] * distance
    table: list[list[int]] = []
    offsets: list[tuple[int, int]] = []
    ends: list[tuple[int, int]] = []
    for rows, columns in product(h.phases, w.phases):
        begin, row_ends = len(offsets), len(ends)
        for y, x in product(rows, columns):
            place = (y.plane * split[1] + x.plane) * distance + y.place * pitch + x.place * wide
            offsets.append((place, (y.number * window.kernel[2] + x.number) * wide))
        ends += [(tap.first, tap.end) for tap in (*rows, *columns)]
        table.append([begin, len(offsets), len(rows), row_ends, len(columns), row_ends + len(rows)])
    column_taps, weight_row = _columns(offsets, pitch) if len(table) == 1 else ([], 0)
    pair_table: Ints = pairs(*np.array(offsets or [(0, 0)], np.int64).T)
    block_rows = plane_rows * woven[0]
    per_depth = -(-target[1] // block_rows)
    weights = window.tap_count * wide
    in_weights, out_weights = weights, each[0] * weights  # from one channel of a group to the next
    given = depths | {
        "groups": problem.groups, "blocks": target[0] * per_depth, "per_depth": per_depth, "sources_each": sources_each,
        "targets_each": targets_each, "source_depths": source[0], "source_rows": source[1], "source_cols": source[2],
        "depths": target[0], "rows": target[1], "cols": target[2], "stride_h": split[0], "stride_w": split[1],
        "phases_h": woven[0], "phases_w": woven[1], "low_h": h.low, "places_h": places_h, "low_w": w.low, "places_w": places_w,
        "pitch": pitch, "distance": distance, "area_bytes": area_bytes, "block_rows": block_rows, "plane_rows": plane_rows,
        "phase_table": np.array(table, np.int64), "tap_pairs": pair_table,
        "columns": len(column_taps), "column_pairs": pairs(*np.array(column_taps or [(0, 0)], np.int64).T),
        "weight_row": weight_row, "tap_ends": np.array(ends or [(0, 0)], np.int64),
        "entries": areas * max(end - begin for begin, end, *_ in table),
        "plane_taps": window.kernel[1] * window.kernel[2] * wide, "group_weights": each[1] * out_weights,
        "source_weights": in_weights if forward else out_weights, "target_weights": out_weights if forward else in_weights,
    }  # fmt: skip
    return given, _line(areas * 16), _line(areas * area_bytes + slack()), target[0] * per_depth


@planned
def gather_plan(problem: Problem, padded: bool) -> Plan:
    """conv and conv_grad_input. padded: taps outside the source may be multiplied by zero, as all weights are finite."""
    given, list_bytes, area_bytes, blocks = _planes(problem)
    moved = moved_bytes(problem)
    units = problem.batch * problem.groups * blocks
    group, pieces = grouped(units, moved)
    sum_start = list_bytes + area_bytes
    sum_plane = _line(given["plane_rows"] * given["pitch"] + slack())
    sum_bytes = min(OUTS, given["targets_each"]) * given["phases_h"] * given["phases_w"] * sum_plane
    staged = given["block_rows"] * given["cols"] * problem.dtype.itemsize if streams(moved) else 0
    given |= {
        "source": None, "weights": None, "target": None, "group": group, "units": units, "area_start": list_bytes,
        "sum_start": sum_start, "sum_plane": sum_plane, "stage": sum_start + sum_bytes if staged else 0,
    }  # fmt: skip
    end = sum_start + sum_bytes + _line(staged)
    given["entry_start"] = end
    compiled = Variant(MODULE, "gather" if padded else "gather_skipping", problem.dtype.name)
    return make_plan(compiled, PlanesGather, pieces, end if padded else end + ENTRY * given["entries"], moved, given)


@planned
def filter_plans(problem: Problem, padded: bool = True) -> FilterPlans:
    """padded: taps outside the source may be multiplied by zero; a result that is not finite may be wrong then."""
    given, list_bytes, area_bytes, blocks = _planes(problem)
    moved = moved_bytes(problem)
    wide, lanes = (8 if problem.dtype.name == "float64" else 4), machine().vector_bytes
    groups, units = problem.groups, problem.batch * blocks
    group_block, parts, group, chunks = filter_pieces(groups, units)
    count = int(np.prod(problem.filter_shape, dtype=np.int64))
    each = count // groups
    other_start = list_bytes + area_bytes
    entry_start = other_start + _line(given["plane_rows"] * given["pitch"] + slack())
    own_start = entry_start + 2 * _line((given["entries"] + 2) * 16)
    end = own_start + (each + 2) * lanes
    given |= {
        "source": None, "dy": None, "sums": None, "group": group, "units": units, "group_block": group_block, "chunks": chunks,
        "sums_bytes": count * wide, "area_start": list_bytes, "other_start": other_start, "entry_start": entry_start,
        "own_start": own_start, "end": end, "taps": int(given["phase_table"][0][1]),
        "range_start": entry_start + _line((given["entries"] + 2) * 16),
    }  # fmt: skip
    compiled = Variant(MODULE, "products" if padded else "products_skipping", problem.dtype.name)
    products = make_plan(compiled, PlanesProducts, parts * chunks, end, moved, given)
    return FilterPlans(products, add_plan(problem, chunks, count * wide), chunks * count * wide)
