"""Plans of grouped convolutions in channels_first; see kernels/depthwise_planes.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.cpu.compiler import Variant, code
from pullback.cpu.conv_common import moved_bytes
from pullback.cpu.depthwise_cells import FilterPlans, add_plan, filter_pieces
from pullback.cpu.depthwise_tables import Ints, pairs
from pullback.cpu.machine import machine
from pullback.cpu.plan import Plan, make_plan
from pullback.cpu.plan_cache import planned
from pullback.cpu.pool_common import grouped, slack, streams
from pullback.cpu.pool_tables import depth_lists, in_three, tap_places
from pullback.problem import Problem
from pullback.window import Window

MODULE = "depthwise_planes"
AREA_BYTES = 256 << 10  # unpacked rows of a block
OUTS = 4  # planes of results at a time


def _line(count: int) -> int:
    return -(-count // 64) * 64


def _forward_taps(window: Window) -> tuple[Any, Any, list[list[tuple[int, int, int, int]]]]:
    """Row and column extents (low, places beyond the targets), and (plane, row, column, tap) of all taps: one phase."""
    h, w = tap_places(window, 1), tap_places(window, 2)
    taps = [
        (
            int(h.plane[a] * window.stride[2] + w.plane[b]),
            int(h.shift[a]) - h.low,
            int(w.shift[b]) - w.low,
            a * window.kernel[2] + b,
        )
        for a in range(window.kernel[1])
        for b in range(window.kernel[2])
    ]
    return (h.low, h.places(1) - 1), (w.low, w.places(1) - 1), [taps]


def _gradient_taps(window: Window) -> tuple[Any, Any, list[list[tuple[int, int, int, int]]]]:
    """The same for the input gradient, one phase for each residue of both strides."""
    sides = []
    for axis in (1, 2):
        phases = {phase.start: phase for phase in window.phases(axis)}
        shifts = [shift for phase in phases.values() for shift in phase.shifts]
        low, high = min([0, *shifts]), max([0, *shifts])
        lists = []
        for start in range(window.stride[axis]):
            phase = phases.get(start)
            lists.append(sorted(zip(phase.shifts, phase.taps, strict=True)) if phase else [])
        sides.append((low, high - low, lists))
    (low_h, more_h, h), (low_w, more_w, w) = sides
    taps = [
        [(0, y - low_h, x - low_w, a * window.kernel[2] + b) for y, a in rows for x, b in columns]
        for rows in h
        for columns in w
    ]
    return (low_h, more_h), (low_w, more_w), taps


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
    (low_h, more_h), (low_w, more_w), phases = _forward_taps(window) if forward else _gradient_taps(window)
    split = window.stride[1:] if forward else (1, 1)
    woven = (1, 1) if forward else window.stride[1:]
    depths = depth_lists(window, forward)
    most_depths = max(1, int(np.diff(depths["d_ptr"]).max(initial=1)))
    places_w = -(-target[2] // woven[1]) + more_w
    pitch = places_w * wide
    areas = sources_each * most_depths
    row_bytes = pitch * split[0] * split[1] * areas
    plane_rows = max(1, min(-(-target[1] // woven[0]), AREA_BYTES // row_bytes - more_h))
    places_h = plane_rows + more_h
    distance = _line(places_h * pitch + slack())
    area_bytes = split[0] * split[1] * distance
    table: list[list[int]] = []
    offsets: list[tuple[int, int]] = []
    for taps in phases:
        begin = len(offsets)
        offsets += [(plane * distance + y * pitch + x * wide, tap * wide) for plane, y, x, tap in taps]
        table.append([begin, len(offsets)])
    columns, weight_row = _columns(offsets, pitch) if len(phases) == 1 else ([], 0)
    pair_table: Ints = pairs(*np.array(offsets or [(0, 0)], np.int64).T)
    block_rows = plane_rows * woven[0]
    per_depth = -(-target[1] // block_rows)
    weights = window.tap_count * wide
    in_weights, out_weights = weights, each[0] * weights  # from one channel of a group to the next
    given = depths | {
        "groups": problem.groups, "blocks": target[0] * per_depth, "per_depth": per_depth, "sources_each": sources_each,
        "targets_each": targets_each, "source_depths": source[0], "source_rows": source[1], "source_cols": source[2],
        "depths": target[0], "rows": target[1], "cols": target[2], "stride_h": split[0], "stride_w": split[1],
        "phases_h": woven[0], "phases_w": woven[1], "low_h": low_h, "places_h": places_h, "low_w": low_w, "places_w": places_w,
        "pitch": pitch, "distance": distance, "area_bytes": area_bytes, "block_rows": block_rows, "plane_rows": plane_rows,
        "phase_table": np.array(table, np.int64), "tap_pairs": pair_table,
        "columns": len(columns), "column_pairs": pairs(*np.array(columns or [(0, 0)], np.int64).T), "weight_row": weight_row,
        "plane_taps": window.kernel[1] * window.kernel[2] * wide, "group_weights": each[1] * out_weights,
        "source_weights": in_weights if forward else out_weights, "target_weights": out_weights if forward else in_weights,
    }  # fmt: skip
    return given, _line(areas * 16), _line(areas * area_bytes + slack()), target[0] * per_depth


@planned
def gather_plan(problem: Problem) -> Plan:
    """conv and conv_grad_input with finite weights."""
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
    compiled = code(Variant(MODULE, "gather", problem.dtype.name))
    return make_plan(compiled, pieces, sum_start + sum_bytes + _line(staged), moved, given)


@planned
def filter_plans(problem: Problem) -> FilterPlans:
    given, list_bytes, area_bytes, blocks = _planes(problem)
    moved = moved_bytes(problem)
    wide, lanes = (8 if problem.dtype.name == "float64" else 4), machine().vector_bytes
    groups, units = problem.groups, problem.batch * blocks
    group_block, parts, group, chunks = filter_pieces(groups, units)
    count = int(np.prod(problem.filter_shape, dtype=np.int64))
    each = count // groups
    other_start = list_bytes + area_bytes
    entry_start = other_start + _line(given["plane_rows"] * given["pitch"] + slack())
    taps = problem.window.tap_count * given["sources_each"]
    own_start = entry_start + _line((taps + 2) * 16)
    end = own_start + (each + 2) * lanes
    given |= {
        "source": None, "dy": None, "sums": None, "group": group, "units": units, "group_block": group_block, "chunks": chunks,
        "sums_bytes": count * wide, "area_start": list_bytes, "other_start": other_start, "entry_start": entry_start,
        "own_start": own_start, "end": end, "taps": int(given["phase_table"][0][1]),
    }  # fmt: skip
    compiled = code(Variant(MODULE, "products", problem.dtype.name))
    products = make_plan(compiled, parts * chunks, end, moved, given)
    return FilterPlans(products, add_plan(problem, chunks, count * wide), chunks * count * wide)
