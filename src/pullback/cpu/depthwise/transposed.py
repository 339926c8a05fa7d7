"""`group_transposed`: grouped convolutions in channels_first on the kernels for channels_last, between transposed arrays.

Where planes are small, or taken apart by a stride, unpacking them row by row costs more than transposing all channels at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pullback.cpu.conv.common import even_parts, lanes_of, moved_bytes
from pullback.cpu.conv.transpose import NATIVE
from pullback.cpu.conv.transpose import transposed as transpose
from pullback.cpu.depthwise import filter_times, planes, tuning
from pullback.cpu.depthwise.common import group_channels, groups_pay, near
from pullback.cpu.engine.memory import new_array
from pullback.cpu.engine.sizes import ceil_div
from pullback.cpu.refusals import ordinary
from pullback.problem import Problem
from pullback.registry import dispatch
from pullback.rules import Array
from pullback.settings import precision


def can(problem: Problem) -> str | None:
    if problem.layout != "channels_first":
        return "it is for channels_first: channels_last needs no transposing"
    if problem.dtype.name not in NATIVE:
        return f"it transposes {' and '.join(NATIVE)}"
    return ordinary(problem)


def pays(problem: Problem) -> str | None:
    dense = filter_times.is_dense(problem)
    if (refused := filter_times.why_not(problem, "transposed") if dense else groups_pay(problem)) is not None:
        return refused
    moved, most = moved_bytes(problem), tuning.MOST_TRANSPOSED_BYTES
    if moved > most and moved > problem.batch * tuning.TRANSPOSED_PART_BYTES:
        return (
            f"its copies would take more than {most >> 20} MiB, or than {tuning.TRANSPOSED_PART_BYTES >> 20} MiB of one image"
        )
    problem, is_near = near(problem)
    if dense:
        return None
    if not is_near or _times(problem)[0] > _times(problem)[1]:
        return "transposing would take longer than unpacking planes saves"
    return None


def _times(problem: Problem) -> tuple[float, float]:
    """About how long this kernel and `group_planes` take, in one unit."""
    if problem.op == "conv_grad_filter":
        return filter_times.transposed_time(problem), filter_times.planes_time(problem)
    return _time_of(problem), planes.time_of(problem)


def _time_of(problem: Problem) -> float:
    """About how long conv and conv_grad_input take, in the unit of tuning.TRANSPOSED_TIME."""
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
    rows = cells[1] / target[1][-1] * vectors[1] * math.prod(window.kernel[:-1]) * (1 if forward else window.stride[-1])
    time = unit.call + moved * unit.vector
    if each == 1:
        return time + products * unit.product + rows * unit.row
    return time + cells[0] * vectors[1] * each * unit.spread + products * unit.spread_product + rows * unit.spread_row


def _last(array: Array) -> Array:
    """Cells before channels."""
    batch, channels, *cells = array.shape
    return transpose(array.reshape(batch, channels, -1)).reshape(batch, *cells, channels)


def _first(array: Array, target: Array) -> None:
    """Channels before cells, into the target."""
    batch, *_, channels = array.shape
    transpose(array.reshape(batch, -1, channels), target.reshape(batch, channels, -1))


def _parts(problem: Problem) -> Iterator[tuple[Problem, slice]]:
    """Parts of the batch whose copies are small, as problems in channels_last; all of it where its own are."""
    moved, each = moved_bytes(problem), problem.batch
    if moved > tuning.MOST_TRANSPOSED_BYTES:
        each = even_parts(problem.batch, tuning.TRANSPOSED_PART_BYTES * problem.batch // moved)
    for first in range(0, problem.batch, each):
        count = min(each, problem.batch - first)
        yield replace(problem, layout="channels_last", batch=count), slice(first, first + count)


def gather(problem: Problem, source: Array, filter: Array) -> Array:
    """conv and conv_grad_input."""
    weights = np.moveaxis(filter, (0, 1), (-1, -2))
    target = new_array(problem.output_shape if problem.op == "conv" else problem.input_shape, problem.dtype)
    with precision("exact"):  # this kernel promises plain sums, so those that it calls must make them
        for part, images in _parts(problem):
            _first(dispatch(part, _last(source[images]), weights), target[images])
    return target


def filter_gradient(problem: Problem, dy: Array, x: Array) -> Array:
    with precision("exact"):
        found = [dispatch(part, _last(dy[images]), _last(x[images])) for part, images in _parts(problem)]
    result = found[0]
    for more in found[1:]:  # parts of the batch do not depend on the machine
        result += more
    return np.ascontiguousarray(np.moveaxis(result, (-1, -2), (0, 1)))
