"""How `group_planes` cuts its work: taps of each phase by the places that they read, blocks of planes, and how much they are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from pullback.cpu.conv.common import lanes_of
from pullback.cpu.conv.sweep import forward_phase, gradient_phases
from pullback.cpu.depthwise import tuning
from pullback.cpu.depthwise.common import group_channels
from pullback.cpu.depthwise.records import (
    ListedOffsets,
    Offsets,
    PlanePhase,
    Range,
)
from pullback.cpu.depthwise.tables import Ints
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.pieces import slack
from pullback.cpu.engine.sizes import LINE, ceil_div, round_up, sum_bytes
from pullback.cpu.pool.tables import depth_lists, in_three, places_reached, tap_places
from pullback.problem import Problem
from pullback.window import Window


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
        lists[start] = [Tap(0, offset - low, t, *bases) for offset, t, bases in read]
    return Side(low, high - low, lists)


def _offsets(entries: list[tuple[int, int]]) -> Ints:
    """A table of Offsets; one entry at the least."""
    sources, weights = zip(*(entries or [(0, 0)]), strict=True)
    return Offsets.columns(source=sources, weight=weights)


def _columns(offsets: list[tuple[int, int]], pitch: int) -> tuple[list[tuple[int, int]], int]:
    """(first tap of each column, from one weight of a column to the next), where all taps are columns of three; else none."""
    start = sorted(offsets)
    count = len(start) // 3
    columns, weight_pitch = start[:count], start[count][1] - start[0][1] if count else 0
    found = [(place + t * pitch, weight + t * weight_pitch) for t in range(3) for place, weight in columns]
    return (columns, weight_pitch) if count and found == start else ([], 0)


@dataclass(frozen=True)
class Blocks:
    """`given`: fields that all kernels share. `end`: bytes of scratch that the areas and their list take."""

    given: dict[str, Any]
    end: int
    plane_rows: int  # of a block, in a plane of sums
    most_taps: int  # of a list

    @property
    def plane_bytes(self) -> int:
        """Of a plane of sums, or of a block of dy."""
        return round_up(self.plane_rows * self.given["pitch"] + slack(), LINE)


def blocks_of(problem: Problem) -> Blocks:
    window = in_three(problem.window)
    forward = problem.op != "conv_grad_input"
    size = sum_bytes(problem.dtype)
    source, target = (window.input_size, window.output_size) if forward else (window.output_size, window.input_size)
    group_in, group_out = group_channels(problem)
    sources, targets = (group_in, group_out) if forward else (group_out, group_in)
    h, w = _side(window, 1, forward), _side(window, 2, forward)
    stride_h, stride_w = window.stride[1:] if forward else (1, 1)
    phases_h, phases_w = (1, 1) if forward else window.stride[1:]
    depths = depth_lists(window, forward)
    areas = sources * max(1, int(np.diff(depths["d_ptr"]).max(initial=1)))
    area_cols = ceil_div(target[2], phases_w) + w.more
    pitch = area_cols * size
    row_bytes = pitch * stride_h * stride_w * areas
    plane_rows = max(1, min(ceil_div(target[1], phases_h), tuning.PLANES_AREA_BYTES // row_bytes - h.more))
    area_rows = plane_rows + h.more
    plane_pitch = round_up(area_rows * pitch + slack(), LINE)
    area_bytes = stride_h * stride_w * plane_pitch
    table: list[dict[str, int]] = []
    offsets: list[tuple[int, int]] = []
    ends: list[Tap] = []
    for taps_h, taps_w in product(h.phases, w.phases):
        begin = len(offsets)
        for y, x in product(taps_h, taps_w):
            place = (y.plane * stride_w + x.plane) * plane_pitch + y.place * pitch + x.place * size
            offsets.append((place, (y.number * window.kernel[2] + x.number) * size))
        table.append({
            "first_tap": begin, "end_tap": len(offsets), "taps_h": len(taps_h), "ends_h": len(ends), "taps_w": len(taps_w),
            "ends_w": len(ends) + len(taps_h),
        })  # fmt: skip
        ends += [*taps_h, *taps_w]
    columns, weight_pitch = _columns(offsets, pitch) if len(table) == 1 else ([], 0)
    depth_blocks = ceil_div(target[1], plane_rows * phases_h)
    # Weights from one channel of a group to the next.
    in_weights, out_weights = window.tap_count * size, group_in * window.tap_count * size
    area_start = round_up(areas * ListedOffsets.BYTES, LINE)
    given = {
        "source": None, "groups": problem.groups, "group_in_channels": sources, "group_out_channels": targets,
        "source_depths": source[0], "source_rows": source[1], "source_cols": source[2], "depths": target[0],
        "rows": target[1], "cols": target[2], "blocks": target[0] * depth_blocks, "depth_blocks": depth_blocks,
        "block_rows": plane_rows * phases_h, "stride_h": stride_h, "stride_w": stride_w, "low_h": h.low, "low_w": w.low,
        "area_rows": area_rows, "area_cols": area_cols, "pitch": pitch, "plane_pitch": plane_pitch, "area_bytes": area_bytes,
        "area_start": area_start, "depth_ptr": depths["d_ptr"], "depth_sources": depths["d_src"],
        "depth_taps": depths["d_tap"], "phase_table": PlanePhase.table(table), "tap_offsets": _offsets(offsets),
        "tap_ends": Range.columns(first=[tap.first for tap in ends] or 0, end=[tap.end for tap in ends] or 0),
        "depth_weights": window.kernel[1] * window.kernel[2] * size, "in_weights": in_weights if forward else out_weights,
        "out_weights": out_weights if forward else in_weights, "group_weights": group_out * out_weights,
        "phases_h": phases_h, "phases_w": phases_w, "phases": phases_h * phases_w,
        "columns": len(columns), "column_offsets": _offsets(columns), "weight_pitch": weight_pitch,
    }  # fmt: skip
    most_taps = areas * max(row["end_tap"] - row["first_tap"] for row in table)
    return Blocks(given, area_start + round_up(areas * area_bytes + slack(), LINE), plane_rows, most_taps)


class Work(NamedTuple):
    """What it does for a problem: blocks, rows and vectors unpacked and made, products of vectors, taps of all blocks."""

    blocks: int
    unpacked: float
    made: float
    strided: bool
    vectors: float
    products: float
    taps: float


def work_of(problem: Problem) -> Work:
    given = blocks_of(problem).given
    lanes, phases, outs = lanes_of(problem), given["phases"], given["group_out_channels"]
    blocks = problem.batch * problem.groups * given["blocks"]
    areas = given["group_in_channels"] * len(given["depth_sources"]) / given["depths"]
    taps = len(given["tap_offsets"]) / phases
    unpacked, made = blocks * areas * given["area_rows"] * given["stride_h"], blocks * given["block_rows"] * outs
    strided = max(given["stride_h"], given["stride_w"], phases) > 1
    vectors = (unpacked * given["stride_w"] * given["area_cols"] + made * given["cols"]) / lanes
    products = made * given["pitch"] / machine().vector_bytes * taps * areas / given["phases_w"]
    return Work(blocks, unpacked, made, strided, vectors, products, blocks * areas * taps * outs)
