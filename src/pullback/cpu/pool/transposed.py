"""Plans of pooling with vectors over planes, transposed into scratch a band at a time: channels_first, short rows, any stride."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.pieces import cut_pieces, slack
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.profile import profile
from pullback.cpu.engine.records import Record
from pullback.cpu.engine.sizes import LINE, ceil_div, round_up
from pullback.cpu.pool import channels, choice, gather, phases, planes, records, rows, tuning
from pullback.cpu.pool.common import Shape, Table, shape_of, simplified, variant
from pullback.cpu.pool.forward import index_tables
from pullback.cpu.pool.tables import in_three, sources
from pullback.cpu.refusals import ordinary
from pullback.problem import Problem
from pullback.window import Window

SUMS: dict[int, np.dtype[Any]] = {4: np.dtype(np.float32), 8: np.dtype(np.float64)}  # what scratch holds, by its bytes
FORWARD = ("max_pool", "avg_pool")


@dataclass(frozen=True)
class Cut:
    """How the work is cut: `lanes` planes a band, `rows` target rows a block, and source rows that a block spans at the most."""

    lanes: int
    rows: int
    span: int


def can(problem: Problem) -> str | None:
    if problem.layout == "channels_last" and problem.channels_in > 1:
        return "it transposes planes of single elements, and channels_last has channels between them"
    if problem.storage_order and problem.return_indices:
        return "it numbers winners row-major, not by storage_order=1"
    if (refused := ordinary(problem)) is not None:
        return refused
    if next(_cuts(simplified(problem)), None) is None:
        return "what the windows of one row of all planes of a vector reach over does not fit into the cache"
    return None


def pays(problem: Problem) -> str | None:
    """Whether it costs less than all others that can."""
    others = []
    if problem.op in FORWARD:
        others += [choice.rows_cost(problem)] if rows.can(problem) is None else []
        others += [choice.planes_cost(problem)] if planes.can(problem) is None else []
    elif problem.winner is not None:
        others.append(choice.from_winners_cost(problem, phases.can(problem) is None))
    elif phases.can_average(problem) is None:
        others.append(choice.shares_cost(problem))
    if others and min(others) < cost(problem)[0]:
        return "transposing planes would cost more than it saves here"
    return None


def pays_for_winners(problem: Problem) -> str | None:
    """Of a max-pool gradient from x that keeps all winners: `planes` would unpack the same rows again for every row of outputs."""
    forward = replace(problem, op="max_pool", return_winners=True)
    if (refused := can(forward)) is not None:
        return f"winners are found row by row, since for the kernel that keeps them {refused}"
    return pays(forward) if rows.can(forward) is None else None


def _reach(window: Window, axis: int, count: int, forward: bool) -> int:
    """Sources that `count` neighbouring targets of an axis span at the most."""
    reach, stride = (window.kernel[axis] - 1) * window.dilation[axis], window.stride[axis]
    if forward:
        return min(window.input_size[axis], (count - 1) * stride + reach + 1)
    return min(window.output_size[axis], (count - 1 + reach) // stride + 1)


def _cuts(problem: Problem) -> Iterator[Cut]:
    """The cuts of a simplified problem whose blocks fit into scratch: for each width of a band the one with the most rows."""
    shape, window, forward = shape_of(problem), in_three(problem.window), problem.op in FORWARD
    (depths, rows), source_rows = _targets(window, forward), _targets(window, not forward)[1]
    source_row, target_row = (shape.in_row, shape.out_row) if forward else (shape.out_row, shape.in_row)
    code = problem.winner_dtype.itemsize if problem.winner else 0
    each_source, each_target = shape.wide + (0 if forward else code), shape.wide + (2 * code if forward else 0)
    wanted = [d * rows for d in range(depths, 0, -1) if depths % d == 0]
    # Blocks of the inner kernel go on from plane to plane, so of several planes they must divide one.
    wanted += [r for r in range(rows - 1, 0, -1) if rows % r == 0 or (depths == 1 and ceil_div(rows, ceil_div(rows, r)) == r)]
    register = machine().vector_bytes // shape.wide
    most = min(tuning.TRANSPOSED_BYTES, max(tuning.LEAST_TRANSPOSED_BYTES, shape.moved_bytes // 64))  # pieces for many threads
    for registers in (4, 2, 1):
        bands = ceil_div(shape.images, registers * register)
        lanes = round_up(ceil_div(shape.images, bands), register)
        for count in wanted:
            planes, lines = max(1, count // rows), min(count, rows)
            span = (_reach(window, 0, planes, forward) - 1) * source_rows + _reach(window, 1, lines, forward)
            taken = lanes * (span * source_row * each_source + count * target_row * each_target)
            if taken <= most or (registers == 1 and count == 1 and taken <= tuning.MOST_TRANSPOSED_BYTES):
                yield Cut(lanes, count, span)
                break


def _targets(window: Window, forward: bool) -> tuple[int, int]:
    depths, rows, _ = window.output_size if forward else window.input_size
    return depths, rows


def _runs(lines: Table) -> list[tuple[int, int]]:
    """(first, count) of each run of ascending numbers."""
    ends = [0, *(np.flatnonzero(np.diff(lines) > 1) + 1).tolist(), len(lines)]
    return [(int(lines[a]), b - a) for a, b in pairwise(ends) if b > a]


def _taken(window: Window, axis: int, forward: bool, first: int, last: int) -> Table:
    """The sources of an axis that targets first .. last-1 take."""
    found = sources(window, axis, forward)
    each = [
        np.arange(count, dtype=np.int64) * found.step + start
        for start, count in zip(found.first[first:last].tolist(), found.count[first:last].tolist(), strict=True)
    ]
    return np.unique(np.concatenate(each)) if each else np.empty(0, np.int64)


def _block_tables(window: Window, forward: bool, rows_each: int) -> tuple[Table, Table]:
    """A TransposedBlock for every block of rows_each target rows, and the Runs of source rows that they need."""
    (depths, rows), source_rows = _targets(window, forward), _targets(window, not forward)[1]
    planes_each, lines_each = max(1, rows_each // rows), min(rows, rows_each)
    lines = [_runs(_taken(window, 1, forward, r, r + lines_each)) for r in range(0, rows, lines_each)]
    blocks: list[dict[str, int]] = []
    runs: list[dict[str, int]] = []
    for d in range(0, depths, planes_each):
        planes = _taken(window, 0, forward, d, d + planes_each).tolist()
        for number, found in enumerate(lines):
            own = [{"first": plane * source_rows + first, "rows": count} for plane in planes for first, count in found]
            blocks.append({
                "first_source": own[0]["first"] if own else 0, "run": len(runs), "runs": len(own),
                "first_target": d * rows + number * lines_each,
                "targets": planes_each * min(lines_each, rows - number * lines_each),
            })  # fmt: skip
            runs += own
    return records.TransposedBlock.table(blocks), records.Run.table(runs or [{"first": 0, "rows": 0}])


def cost(problem: Problem) -> tuple[float, Cut]:
    """The cheapest cut and what it takes, in nanoseconds on one core."""
    problem = simplified(problem)
    shape, window, forward = shape_of(problem), in_three(problem.window), problem.op in FORWARD
    rows = math.prod(_targets(window, forward))
    source_row, target_row = (shape.in_row, shape.out_row) if forward else (shape.out_row, shape.in_row)
    taps = shape.out_rows * shape.out_cols * window.tap_count / max(1, rows * target_row)  # of a target, on average
    tap, element = tuning.TRANSPOSED_TAP[problem.op], tuning.TRANSPOSED_ELEMENT * profile().pooling("transpose")
    register = machine().vector_bytes // shape.wide
    best: tuple[float, Cut] | None = None
    for cut in _cuts(problem):
        moved = ceil_div(rows, cut.rows) * cut.span * source_row + rows * target_row
        cells = rows * target_row * (tuning.TRANSPOSED_CELL + tap * taps * cut.lanes / register)
        found = ceil_div(shape.images, cut.lanes) * (moved * cut.lanes * element + cells)
        if best is None or found < best[0]:
            best = found, cut
    assert best is not None
    return best


KERNELS: dict[str, tuple[str, type[Record], Any]] = {
    "max_pool": ("max_forward", records.TransposedMaxForward, channels.forward_plan),
    "avg_pool": ("avg_forward", records.TransposedAvgForward, channels.forward_plan),
    "max_pool_grad_from_winners": ("max_grad", records.TransposedMaxGrad, gather.max_grad_plan),
    "avg_pool_grad": ("avg_grad", records.TransposedAvgGrad, channels.avg_grad_plan),
}


def _inner_problem(problem: Problem, shape: Shape, lanes: int) -> Problem:
    """A band as one image whose channels are its planes."""
    return replace(
        problem, dtype=SUMS[shape.wide], layout="channels_last", batch=1, channels_in=lanes, channels_out=lanes,
        return_indices=False, return_winners=problem.return_winners or problem.return_indices,
    )  # fmt: skip


@planned
def plan(problem: Problem) -> Plan:
    _, cut = cost(problem)
    problem = simplified(problem)
    shape, window, forward = shape_of(problem), in_three(problem.window), problem.op in FORWARD
    kernel, record, inner_plan = KERNELS[problem.op]
    inner = inner_plan(_inner_problem(problem, shape, cut.lanes), cut.rows)
    blocks, runs = _block_tables(window, forward, cut.rows)
    source_row, target_row = (shape.in_row, shape.out_row) if forward else (shape.out_row, shape.in_row)
    source_rows, target_rows = (shape.in_rows, shape.out_rows) if forward else (shape.out_rows, shape.in_rows)
    units = ceil_div(shape.images, cut.lanes) * len(blocks)
    per_piece, pieces = cut_pieces(units, shape.moved_bytes)
    code = problem.winner_dtype.itemsize if problem.winner else 0
    source, target = cut.span * source_row * cut.lanes, cut.rows * target_row * cut.lanes  # elements in scratch
    target_start = round_up(source * shape.wide + slack(), LINE)
    code_start = round_up(target_start + target * shape.wide + slack(), LINE)
    own_start = round_up(code_start + (target if forward else source) * code + slack(), LINE)
    inner_start = round_up(own_start + (target * code if problem.return_indices else 0) + slack(), LINE)
    words = round_up(len(inner.template), 8)  # whole lines, so that the scratch behind them is aligned
    arrays = ("x", "y", "winners", "indices", "dy", "dx")
    given = dict.fromkeys(arrays) | (index_tables(problem) if problem.op == "max_pool" else {}) | {
        "per_piece": per_piece, "units": units, "blocks": len(blocks), "planes": shape.images, "lanes": cut.lanes,
        "source_row": source_row, "source_cells": source_rows * source_row, "target_row": target_row,
        "target_cells": target_rows * target_row, "block_table": blocks, "runs": runs, "inner": inner.code.address,
        "inner_block": np.resize(inner.template, words), "inner_words": words, "inner_start": inner_start,
        "target_start": target_start, "code_start": code_start, "own_start": own_start,
    }  # fmt: skip
    scratch = inner_start + 8 * words + inner.scratch_bytes
    compiled = variant(problem, "transposed", kernel)
    return make_plan(compiled, record, pieces, scratch, shape.moved_bytes, given, (inner,))
