"""The Winograd kernels of the cpu backend: when they can run and pay, and running them."""

from __future__ import annotations

import numpy as np

from pullback.cpu.conv.filter_order import FilterOrder, in_known_order
from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.memory import new_array, put_work_back, take_work
from pullback.cpu.engine.sequence import FLAG, OUT, WORK, A, B, Step, Steps, Where
from pullback.cpu.refusals import ordinary
from pullback.cpu.winograd.convolve import convolve_plans, cut_convolution
from pullback.cpu.winograd.cost import why_slower
from pullback.cpu.winograd.filter_gradient import gradient_plans
from pullback.cpu.winograd.nonfinite import nonfinite_channels, redo_filter, redo_sweep, too_many
from pullback.cpu.winograd.shapes import axes_of, compacted, shape_of, unit_stride
from pullback.cpu.winograd.tuning import FEWEST_TILES_THAT_PAY
from pullback.problem import Problem
from pullback.registry import CPU, kernels_for
from pullback.rules import Array
from pullback.settings import current_precision
from pullback.window import Window

NAME = "winograd"
ERROR = 100  # of results, by norm, in units of the rounding of a number; 10 to 40 are measured
# And of single results, absolutely, in units of the smallest number above 0, for each summed channel and k-block, times the
# largest number of x or dy if that is above 1. A transformed weight errs by 3 of them; it meets 100 times such a number, and what
# has been summed is added up with factors of 361 in all.
UNDERFLOW = 2**17


def can(problem: Problem) -> str | None:
    """Why not, in words."""
    if current_precision() == "exact":
        return 'its transforms err by more than plain sums do, and precision "exact" asks for those'
    refused = ordinary(problem)
    if refused is not None:
        return refused
    problem = _as_read(problem)
    if axes_of(problem.window) is None:
        return "it is for windows of several taps along one or two axes, or three"
    if unit_stride(problem.window) is None:
        return "it is for strides of 1, or such that divide the dilation"
    if shape_of(problem, problem.op == "conv_grad_input") is None:
        return "in channels_first it needs several taps along the last axis, or no window reads a cell"
    if _sums_nothing(problem.op, problem.window):
        return "some results are sums of nothing, which its transforms would not leave at exactly zero"
    return None


def pays(problem: Problem) -> str | None:
    """Why it would take longer than a plain sum, in words."""
    problem = _as_read(problem)
    shape = shape_of(problem, problem.op == "conv_grad_input")
    assert shape is not None
    if cut_convolution(shape).block < min(FEWEST_TILES_THAT_PAY, shape.positions) and shape.target.depth == 1:
        return "so few transformed tiles of so many taps and channels fit into memory that the filter would be read too often"
    return why_slower(problem, shape)


def takes(problem: Problem) -> bool:
    """Whether it can, and would take less time than a plain sum."""
    return can(problem) is None and pays(problem) is None


def conv(problem: Problem, x: Array, filter: Array) -> Array:
    problem, x = _over_cells_read(problem, x)
    return _convolve(problem, x, filter, False)


def conv_grad_input(problem: Problem, dy: Array, filter: Array) -> Array:
    compact = compacted(problem)
    if compact is None:
        return _convolve(problem, dy, filter, True)
    dx = new_array(problem.input_shape, problem.dtype)
    dx.fill(0)
    dx[compact[1]] = _convolve(compact[0], dy, filter, True)
    return dx


def conv_grad_filter(problem: Problem, dy: Array, x: Array) -> Array:
    problem, x = _over_cells_read(problem, x)
    dy, x = np.ascontiguousarray(dy), np.ascontiguousarray(x)
    plans = gradient_plans(problem)
    df, nonfinite = new_array(problem.filter_shape, problem.dtype), np.zeros(1, np.int64)
    made = {"filter": address_of(df), "nonfinite": address_of(nonfinite)}
    sums = take_work(plans.sum_bytes)
    plans.partial_sums.run(x=address_of(x) + plans.x_start, dy=address_of(dy), sums=address_of(sums), **made)
    if plans.finish is not None:
        plans.finish.run(sums=address_of(sums), **made)
    put_work_back(sums)
    return redo_filter(problem, dy, x, df, _plain_sum) if nonfinite[0] else df


def _sums_nothing(op: str, window: Window) -> bool:
    """Whether some result has no term, beside others of its tile that have: an output, a cell or a tap that meets nothing."""
    for n, o, k, s, d, p in zip(
        window.input_size, window.output_size, window.kernel, window.stride, window.dilation, window.pad_low, strict=True
    ):
        span, last = (k - 1) * d, (o - 1) * s - p  # of a window, and where the last one begins
        if op == "conv" and (p > span or last >= n):
            return True
        if op == "conv_grad_input" and (p < 0 or last + span + s < n):
            return True
        if op == "conv_grad_filter" and (last < 0 or span - p >= n):
            return True
    return False


def _as_read(problem: Problem) -> Problem:
    """The problem as the kernels see it: over the cells that windows read."""
    compact = compacted(problem)
    return problem if compact is None else compact[0]


def _over_cells_read(problem: Problem, x: Array) -> tuple[Problem, Array]:
    """The same, with those cells of x."""
    compact = compacted(problem)
    return (problem, x) if compact is None else (compact[0], x[compact[1]])


def _convolve(problem: Problem, source: Array, filter: Array, flipped: bool) -> Array:
    source, (weights, order) = np.ascontiguousarray(source), in_known_order(problem, filter)
    plans = convolve_plans(problem, flipped, order)
    target = new_array(problem.input_shape if flipped else problem.output_shape, problem.dtype)
    if plans.leaves_cells:
        target.fill(0)
    in_results, in_weights = np.zeros(1, np.int64), np.zeros(1, np.int64)
    packed = take_work(plans.packed_bytes)
    where = {"filter": address_of(weights), "nonfinite": address_of(in_weights)}
    for part in plans.parts:
        own = where | {"filter": where["filter"] + part.filter_start}
        if plans.packed_bytes:
            part.filter.run(packed=address_of(packed), **own)
            if in_weights[0] and too_many(problem, nonfinite_channels(problem, weights)):
                return _plain_sum(problem, source, weights)
        part.convolve.run(
            x=address_of(source) + plans.source_start, packed=address_of(packed),
            y=address_of(target) + part.target_start, nonfinite=address_of(in_results), filter=own["filter"],
            weights_nonfinite=where["nonfinite"],
        )  # fmt: skip
    put_work_back(packed)
    if in_weights[0] or in_results[0]:
        channels = nonfinite_channels(problem, weights)
        if too_many(problem, channels):
            return _plain_sum(problem, source, weights)
        redo_sweep(problem, source, weights, target, channels, _plain_sum)
    return target


def convolve_steps(problem: Problem, order: FilterOrder) -> Steps | None:
    """conv and conv_grad_input as jobs, where they are nothing else: A is the source, B a filter in this order."""
    if compacted(problem) is not None:
        return None
    plans = convolve_plans(problem, problem.op == "conv_grad_input", order)
    if plans.leaves_cells:
        return None
    found: list[Step] = []
    for part in plans.parts:
        own: Where = (B, part.filter_start)
        if plans.packed_bytes:
            found.append(Step(part.filter, {"filter": own, "packed": WORK, "nonfinite": FLAG}))
        at: dict[str, Where] = {"x": (A, plans.source_start), "packed": WORK, "y": (OUT, part.target_start), "filter": own}
        found.append(Step(part.convolve, {**at, "nonfinite": FLAG, "weights_nonfinite": FLAG}))
    return Steps(tuple(found), plans.packed_bytes)


def filter_gradient_steps(problem: Problem, _: FilterOrder) -> Steps | None:
    """The filter gradient as jobs: A is dy, B is x."""
    if compacted(problem) is not None:
        return None
    plans = gradient_plans(problem)
    made = {"filter": OUT, "nonfinite": FLAG}
    partial_sums = Step(plans.partial_sums, {"x": (B, plans.x_start), "dy": A, "sums": WORK, **made})
    finish = () if plans.finish is None else (Step(plans.finish, {"sums": WORK, **made}),)
    return Steps((partial_sums, *finish), plans.sum_bytes)


def _plain_sum(problem: Problem, *arrays: Array) -> Array:
    """The next kernel of the list that dispatch would take: one that keeps infinities and NaN to what they touch."""
    after = iter(kernels_for(problem.op, CPU))
    for kernel in after:
        if kernel.name == NAME:
            break
    result: Array = next(kernel for kernel in after if kernel.verdict(problem).reason is None).run(problem, *arrays)
    return result
