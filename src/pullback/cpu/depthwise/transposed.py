"""`group_transposed`: grouped convolutions in channels_first on the kernels for channels_last, between transposed arrays.

Where planes are small, or taken apart by a stride, unpacking them row by row costs more than transposing all channels at once.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from pullback.cpu.conv.common import lanes_of, moved_bytes
from pullback.cpu.conv.transpose import NATIVE
from pullback.cpu.conv.transpose import transposed as transpose
from pullback.cpu.depthwise import planes, tuning
from pullback.cpu.depthwise.common import group_channels, groups_pay, near
from pullback.cpu.engine.sizes import ceil_div
from pullback.cpu.refusals import ordinary
from pullback.problem import Problem
from pullback.registry import dispatch
from pullback.rules import Array


def can(problem: Problem) -> str | None:
    if problem.layout != "channels_first":
        return "it is for channels_first: channels_last needs no transposing"
    if problem.dtype.name not in NATIVE:
        return f"it transposes {' and '.join(NATIVE)}"
    return ordinary(problem)


def pays(problem: Problem) -> str | None:
    if (refused := groups_pay(problem)) is not None:
        return refused
    if moved_bytes(problem) > tuning.MOST_TRANSPOSED_BYTES:
        return f"its copies would take more than {tuning.MOST_TRANSPOSED_BYTES >> 20} MiB"
    problem, is_near = near(problem)
    if not is_near or _time_of(problem) > planes.time_of(problem):
        return "transposing would take longer than unpacking planes saves"
    return None


def _time_of(problem: Problem) -> float:
    """About how long it takes, in the unit of tuning.TRANSPOSED_TIME."""
    window, unit, lanes = problem.window, tuning.TRANSPOSED_TIME, lanes_of(problem)
    sides = [(problem.channels_in, window.input_size), (problem.channels_out, window.output_size)]
    forward, summed = problem.op != "conv_grad_input", group_channels(problem)
    source, target = sides if forward else sides[::-1]
    each = summed[0] if forward else summed[1]
    cells = [problem.batch * math.prod(size) for _, size in (source, target)]
    vectors = [ceil_div(channels, lanes) for channels, _ in (source, target)]
    moved = cells[0] * vectors[0] + cells[1] * vectors[1]
    outputs = problem.batch * math.prod(window.output_size)
    products = outputs * vectors[1] * window.tap_count * each
    spread = cells[0] * vectors[1] * each if each > 1 else 0
    rows = cells[1] / target[1][-1] * vectors[1] * math.prod(window.kernel[:-1]) * (1 if forward else window.stride[-1])
    return unit.call + moved * unit.vector + products * unit.product + spread * unit.spread + rows * unit.row


def _last(array: Array) -> Array:
    """Cells before channels."""
    batch, channels, *cells = array.shape
    return transpose(array.reshape(batch, channels, -1)).reshape(batch, *cells, channels)


def _first(array: Array) -> Array:
    batch, *cells, channels = array.shape
    return transpose(array.reshape(batch, -1, channels)).reshape(batch, channels, *cells)


def gather(problem: Problem, source: Array, filter: Array) -> Array:
    """conv and conv_grad_input."""
    return _first(dispatch(replace(problem, layout="channels_last"), _last(source), np.moveaxis(filter, (0, 1), (-1, -2))))


def filter_gradient(problem: Problem, dy: Array, x: Array) -> Array:
    result = dispatch(replace(problem, layout="channels_last"), _last(dy), _last(x))
    return np.ascontiguousarray(np.moveaxis(result, (-1, -2), (0, 1)))
