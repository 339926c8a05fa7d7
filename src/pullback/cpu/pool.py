"""Plans for the pooling kernels: from a Problem to tables, blocks and scratch, kept by problem."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pullback.cpu.compiler import Variant, code
from pullback.cpu.machine import machine
from pullback.cpu.plan import Plan, make_plan
from pullback.cpu.pool_tables import (
    columns,
    cut,
    forward_places,
    gradient_places,
    row_count,
    rows,
    tap_bases,
)
from pullback.problem import Problem
from pullback.rules import Array

BLOCK_BYTES = 48 << 10  # working set of a piece: stays in the second-level cache with room to spare
CHANNELS, COLUMNS = "pool_channels", "pool_columns"


@dataclass(frozen=True)
class Shape:
    """A problem as the kernels see it: images of rows by columns by channels (channels_first: one channel, more images)."""

    images: int
    channels: int
    size: int  # bytes of an element
    wide: int  # bytes of an unpacked element
    in_rows: int
    in_cols: int
    out_rows: int
    out_cols: int


def _shape(problem: Problem) -> Shape:
    last = problem.layout == "channels_last"
    window = problem.window
    return Shape(
        images=problem.batch if last else problem.batch * problem.channels_in,
        channels=problem.channels_in if last else 1,
        size=problem.dtype.itemsize,
        wide=8 if problem.dtype.name == "float64" else 4,
        in_rows=row_count(window.input_size),
        in_cols=window.input_size[-1],
        out_rows=row_count(window.output_size),
        out_cols=window.output_size[-1],
    )


def _variant(problem: Problem, module: str, kernel: str, *, rule: bool) -> Variant:
    options: list[tuple[str, Any]] = [("winner", problem.winner_dtype.name)] if problem.winner else []
    if rule and problem.winner:
        winner = problem.winner
        floor = winner.above is not None
        options += [("floor", floor), ("losers", floor or winner.nan == "ignore"), ("nan", winner.nan), ("ties", winner.ties)]
    return Variant(module, kernel, problem.dtype.name, tuple(options))


def _streams(total_bytes: int) -> bool:
    """Whether an output is so large that it should bypass the cache."""
    return total_bytes > machine().l3_bytes // 2


def _row_block(targets: int, bytes_per_row: int) -> int:
    return max(1, min(targets, BLOCK_BYTES // max(1, bytes_per_row)))


def _vector_slack(shape: Shape) -> int:
    return 2 * machine().vector_bytes * (8 // shape.wide + 1)


def _divisors(problem: Problem) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Divisor parts of output rows and of output columns; 1 where nothing counts."""
    assert problem.divisor is not None
    window, rule = problem.window, problem.divisor
    row = np.ones(1, np.int64)
    for axis in range(window.rank - 1):
        row = (row[:, None] * window.axis_divisor(axis, rule)).reshape(-1)
    return np.maximum(row, 1), np.maximum(window.axis_divisor(window.rank - 1, rule), 1)


def _index_tables(problem: Problem) -> dict[str, Any]:
    """Tables that turn winners into flat indices."""
    sizes = problem.window.input_size
    order = range(len(sizes)) if problem.storage_order else reversed(range(len(sizes)))
    inner = problem.channels_in if problem.layout == "channels_last" else 1
    multipliers, count = [0] * len(sizes), inner
    for axis in order:
        multipliers[axis] = count
        count *= sizes[axis]
    row_base, col_base, tap_base = tap_bases(problem.window, tuple(multipliers))
    return {"index_image": count, "row_base": row_base, "col_base": col_base, "tap_base": tap_base}


def _floor(problem: Problem) -> float:
    return problem.winner.above if problem.winner and problem.winner.above is not None else -math.inf


@lru_cache(maxsize=1024)
def forward_plan(problem: Problem, module: str) -> Plan:
    """max_pool and avg_pool."""
    shape, window = _shape(problem), problem.window
    r, c = rows(window, True), columns(window, True)
    is_max = problem.winner is not None
    kernel = "max_forward" if is_max else "avg_forward"
    row_elements = shape.in_cols * shape.channels
    moved = shape.images * (shape.in_rows * row_elements + shape.out_rows * shape.out_cols * shape.channels) * shape.size
    given: dict[str, Any] = {
        "x": None, "y": None, "rows": shape.out_rows, "cols": shape.out_cols, "channels": shape.channels,
        "source_image": shape.in_rows * row_elements, "row_ptr": r.ptr, "col_ptr": c.ptr, "empty": problem.empty,
    }  # fmt: skip
    winner_row = shape.out_cols * shape.channels * problem.winner_dtype.itemsize if is_max else 0
    if is_max:
        given |= {"winners": None, "indices": None, "above": _floor(problem), **_index_tables(problem)}
        given |= {"row_src": r.source * row_elements, "col_src": c.source * shape.channels, "col_tap": c.tap}
        given |= {"row_tap": r.tap * window.kernel[-1]}
    if module == CHANNELS:
        block = _row_block(shape.out_rows * shape.images, moved // max(1, shape.images * shape.out_rows))
        pieces = -(-shape.images * shape.out_rows // block)
        scratch = winner_row
        given |= {"block": block, "images": shape.images, "stage": 0}
        if not is_max:
            row_div, col_div = _divisors(problem)
            given |= {"row_src": r.source * row_elements, "col_src": c.source * shape.channels}
            given |= {"row_div": row_div, "col_div": col_div}
    else:
        places = forward_places(window)
        row_bytes = window.stride[-1] * places.places * shape.channels * shape.wide
        blocks = cut(r, _row_block(shape.out_rows, row_bytes * -(-shape.in_rows // max(1, shape.out_rows))))
        stage = -(-winner_row // 64) * 64
        scratch = stage + blocks.most_needed * row_bytes + _vector_slack(shape)
        group, pieces = _grouped(shape.images * blocks.count, moved)
        given |= {
            "group": group, "units": shape.images * blocks.count, "blocks": blocks.count, "stage": stage,
            "source_width": shape.in_cols, "stride": window.stride[-1], "low": places.low, "places": places.places,
            "row_bytes": row_bytes, "taps": window.kernel[-1], "tap_at": places.at * shape.channels,
            "block_row": blocks.row, "need_ptr": blocks.need_ptr, "need_row": blocks.need, "row_slot": blocks.slot,
            "source_row": row_elements,
        }  # fmt: skip
        if not is_max:
            row_div, col_div = _divisors(problem)
            given |= {"row_div": row_div, "col_div": _wide_row(problem, shape, col_div)}
    return make_plan(code(_variant(problem, module, kernel, rule=is_max)), pieces, scratch, moved, **given)


def _grouped(units: int, moved: int) -> tuple[int, int]:
    """(units per piece, pieces): pieces of about a block's bytes, so that claiming them costs nothing."""
    group = max(1, min(units, units * BLOCK_BYTES // max(1, moved)))
    return group, -(-units // group)


def _wide_row(problem: Problem, shape: Shape, col_div: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Column divisors in the type of the sums, one per element of an output row, ones behind the end."""
    row = np.repeat(col_div, shape.channels).astype(np.float64 if shape.wide == 8 else np.float32)
    return np.concatenate([row, np.ones(machine().vector_bytes // shape.wide, row.dtype)])


@lru_cache(maxsize=1024)
def gradient_plan(problem: Problem, module: str, from_x: bool = False) -> Plan:
    """max_pool_grad (from x or from winners) and avg_pool_grad."""
    shape, window = _shape(problem), problem.window
    r, c = rows(window, False), columns(window, False)
    is_max = problem.winner is not None
    kernel = ("max_grad_from_x" if from_x else "max_grad") if is_max else "avg_grad"
    out_row, in_row = shape.out_cols * shape.channels, shape.in_cols * shape.channels
    dx_bytes = shape.images * shape.in_rows * in_row * shape.size
    moved = dx_bytes + shape.images * shape.out_rows * out_row * shape.size
    given: dict[str, Any] = {
        "dy": None, "dx": None, "rows": shape.in_rows, "cols": shape.in_cols, "channels": shape.channels,
        "source_image": shape.out_rows * out_row, "row_ptr": r.ptr,
    }  # fmt: skip
    if is_max:
        given |= {"x": None} if from_x else {"winners": None}
        given |= {"row_tap": r.tap * window.kernel[-1]}
    streams = _streams(dx_bytes)
    if module == CHANNELS:
        given |= {"row_src": r.source * out_row, "col_ptr": c.ptr, "col_src": c.source * shape.channels}
        if is_max:
            given |= {"col_tap": c.tap}
        if not from_x:
            block = _row_block(shape.in_rows * shape.images, in_row * shape.size)
            pieces = -(-shape.images * shape.in_rows // block)
            stage = block * in_row * shape.size if streams else 0
            scratch = stage
            given |= {"block": block, "images": shape.images, "stage": stage}
    else:
        places = gradient_places(window)
        row_bytes = places.places * shape.channels * shape.wide
        given |= {
            "source_width": shape.out_cols, "stride": window.stride[-1], "low": places.low, "places": places.places,
            "row_bytes": row_bytes, "plane_places": places.widest, "phase_ptr": places.ptr,
            "phase_at": places.at * shape.channels, "source_row": out_row,
        }  # fmt: skip
        if is_max:
            given |= {"phase_tap": places.tap}
    if is_max and from_x:
        given |= _found_again(problem, shape)
        if module == CHANNELS:
            given |= {"source_cols": shape.out_cols}
    if module == COLUMNS or from_x:
        source_ratio = -(-shape.out_rows // max(1, shape.in_rows))
        per_row = in_row * shape.size + source_ratio * out_row * (shape.wide + 4)
        blocks = cut(r, _row_block(shape.in_rows, per_row))
        group, pieces = _grouped(shape.images * blocks.count, moved)
        given |= {
            "group": group, "units": shape.images * blocks.count, "blocks": blocks.count,
            "block_row": blocks.row, "need_ptr": blocks.need_ptr, "need_row": blocks.need,
        }  # fmt: skip
        most_rows = int(np.diff(blocks.row).max(initial=0))
        stage = group * most_rows * in_row * shape.size + 64 if streams else 0
        stage = -(-stage // 64) * 64
        given |= {"stage": stage}
        scratch = stage + _lay_out(problem, shape, module, given, blocks, stage, from_x)
    if not is_max:
        given |= _gradient_divisors(problem, shape, module, r, c)
    return make_plan(code(_variant(problem, module, kernel, rule=from_x)), pieces, scratch, moved, **given)


def _lay_out(problem: Problem, shape: Shape, module: str, given: dict[str, Any], blocks: Any, stage: int, from_x: bool) -> int:
    """Place a block's working rows in scratch behind the stage: unpacked dy, winners, phase planes, unpacked x. Bytes used."""
    window, out_row = problem.window, shape.out_cols * shape.channels
    code_size = problem.winner_dtype.itemsize if problem.winner else 0
    slack, used = _vector_slack(shape), 0
    if module == CHANNELS:
        given |= {"row_win": blocks.slot * out_row}
        return int(blocks.most_needed * out_row * code_size + slack)
    given |= {"row_slot": blocks.slot}
    used += blocks.most_needed * given["row_bytes"] + slack
    if problem.winner:
        code_bytes = given["places"] * shape.channels * code_size
        given |= {"code_bytes": code_bytes, "code_start": stage + used}
        used += blocks.most_needed * code_bytes + slack
    given |= {"plane_start": stage + used}
    used += window.stride[-1] * given["plane_places"] * shape.channels * shape.wide + slack
    if from_x:
        forward, places = rows(window, True), forward_places(window)
        win_row_bytes = window.stride[-1] * places.places * shape.channels * shape.wide
        need_ptr, need, base, slots = [0], [], [], []
        most, entries = 0, 0
        for b in range(blocks.count):
            outputs = blocks.need[blocks.need_ptr[b] : blocks.need_ptr[b + 1]]
            lists = [forward.source[forward.ptr[y] : forward.ptr[y + 1]] for y in outputs]
            inputs = np.unique(np.concatenate(lists)) if lists else np.empty(0, np.int64)
            for sources in lists:
                base.append(entries)
                slots.append(np.searchsorted(inputs, sources))
                entries += len(sources)
            need.append(inputs)
            need_ptr.append(need_ptr[-1] + len(inputs))
            most = max(most, len(inputs))
        given |= {
            "win_low": places.low, "win_places": places.places, "win_row_bytes": win_row_bytes, "win_start": stage + used,
            "win_taps": window.kernel[-1], "win_tap_at": places.at * shape.channels,
            "win_need_ptr": np.array(need_ptr, np.int64), "win_need_row": _joined(need), "win_row_slot": _joined(slots),
            "win_base": np.array(base, np.int64), "target_row": shape.in_cols * shape.channels,
        }  # fmt: skip
        used += most * win_row_bytes + slack
    return int(used)


def _joined(arrays: list[Any]) -> np.ndarray[Any, Any]:
    return np.concatenate(arrays).astype(np.int64) if arrays else np.empty(0, np.int64)


def _found_again(problem: Problem, shape: Shape) -> dict[str, Any]:
    """The forward lists from which max_grad_from_x finds the winners."""
    window, row_elements = problem.window, shape.in_cols * shape.channels
    r, c = rows(window, True), columns(window, True)
    return {
        "target_image": shape.in_rows * row_elements, "win_row_ptr": r.ptr, "win_row_src": r.source * row_elements,
        "win_row_tap": r.tap * window.kernel[-1], "win_col_ptr": c.ptr, "win_col_src": c.source * shape.channels,
        "win_col_tap": c.tap, "empty": problem.empty, "above": _floor(problem),
    }  # fmt: skip


def _gradient_divisors(problem: Problem, shape: Shape, module: str, r: Any, c: Any) -> dict[str, Any]:
    """Divisors for avg_grad: per entry and, where all entries of a row or column agree, per target (channels); or per output."""
    row_div, col_div = _divisors(problem)
    if module == COLUMNS:
        uniform = row_div.size and col_div.size and (row_div == row_div[0]).all() and (col_div == col_div[0]).all()
        one = int(row_div[0] * col_div[0]) if uniform else 0
        return {"row_div": row_div, "col_div": _wide_row(problem, shape, col_div), "uniform": one}
    found: dict[str, Any] = {}
    for name, lists, divisors in (("row", r, row_div), ("col", c, col_div)):
        per_entry = divisors[lists.source]
        same = np.ones(lists.targets, np.int64)
        for target in range(lists.targets):
            own = per_entry[lists.ptr[target] : lists.ptr[target + 1]]
            if len(own):
                same[target] = own[0] if (own == own[0]).all() else 0
        found |= {f"{name}_div": per_entry, f"{name}_same": same}
    return found


def _address(array: Array) -> int:
    return int(array.ctypes.data)


def max_pool(module: str, problem: Problem, x: Array) -> Any:
    x = np.ascontiguousarray(x)
    y = np.empty(problem.output_shape, problem.dtype)
    addresses = {"x": _address(x), "y": _address(y)}
    more = None
    if problem.return_winners:
        more = np.empty(problem.output_shape, problem.winner_dtype)
        addresses["winners"] = _address(more)
    elif problem.return_indices:
        more = np.empty(problem.output_shape, np.int64)
        addresses["indices"] = _address(more)
    forward_plan(problem, module).run(**addresses)
    return y if more is None else (y, more)


def max_pool_grad(module: str, problem: Problem, dy: Array, x: Array) -> Array:
    dy, x = np.ascontiguousarray(dy), np.ascontiguousarray(x)
    dx = np.empty(problem.input_shape, problem.dtype)
    gradient_plan(problem, module, from_x=True).run(dy=_address(dy), x=_address(x), dx=_address(dx))
    return dx


def max_pool_grad_from_winners(module: str, problem: Problem, dy: Array, winners: Array) -> Array:
    dy, winners = np.ascontiguousarray(dy), np.ascontiguousarray(winners)
    dx = np.empty(problem.input_shape, problem.dtype)
    gradient_plan(problem, module).run(dy=_address(dy), winners=_address(winners), dx=_address(dx))
    return dx


def avg_pool(module: str, problem: Problem, x: Array) -> Array:
    x = np.ascontiguousarray(x)
    y = np.empty(problem.output_shape, problem.dtype)
    forward_plan(problem, module).run(x=_address(x), y=_address(y))
    return y


def avg_pool_grad(module: str, problem: Problem, dy: Array) -> Array:
    dy = np.ascontiguousarray(dy)
    dx = np.empty(problem.input_shape, problem.dtype)
    gradient_plan(problem, module).run(dy=_address(dy), dx=_address(dx))
    return dx
