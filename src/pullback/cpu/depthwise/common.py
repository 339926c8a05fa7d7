"""What the kernels for groups share: which problems they take, and how their plans are run."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pullback.cpu.conv.common import lanes_of
from pullback.cpu.conv.direct import direct_plan
from pullback.cpu.conv.filter_order import IN_LAST, TAPS_LAST, FilterOrder
from pullback.cpu.conv.ops import direct_filter, run_sweep
from pullback.cpu.conv.sweep import lies_far, settled
from pullback.cpu.conv.transpose import NATIVE, transpose_plan
from pullback.cpu.depthwise import tuning
from pullback.cpu.depthwise.partial_sums import FilterPlans
from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.memory import new_array
from pullback.cpu.engine.plan import Plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.profile import profile
from pullback.cpu.engine.sequence import FLAG, OUT, WORK, A, B, Step, Steps
from pullback.cpu.engine.sizes import round_up, sum_bytes
from pullback.cpu.refusals import ordinary
from pullback.problem import Problem
from pullback.rules import Array


def group_channels(problem: Problem) -> tuple[int, int]:
    """Channels of a group of x and of y."""
    return problem.channels_in // problem.groups, problem.channels_out // problem.groups


def is_depthwise(problem: Problem) -> bool:
    return group_channels(problem) == (1, 1)


@planned
def near(problem: Problem) -> tuple[Problem, bool]:
    """The problem as it is run, and whether its windows are compact enough for the kernels here."""
    problem = settled(problem)
    return problem, not lies_far(problem.window)


def depthwise_can(problem: Problem) -> str | None:
    if not is_depthwise(problem):
        return "it is for groups of one channel in and one out, not {} and {}".format(*group_channels(problem))
    return ordinary(problem)


def in_place_can(problem: Problem) -> str | None:
    """Why depthwise problems cannot be run in place, under masks."""
    if (refused := depthwise_can(problem)) is not None:
        return refused
    if problem.layout != "channels_first":
        return "its vectors run along planes, and channels_last has channels between their cells"
    if not machine().masks_memory:
        return "it reads and writes under masks, which this machine's vectors do not have"
    return None if near(problem)[1] else "it keeps what lies between the taps at hand, and here they lie far apart"


def several_groups(problem: Problem) -> str | None:
    if problem.groups > 1 or (is_depthwise(problem) and problem.op == "conv_grad_filter"):
        return None
    return "it lays groups side by side, and there is only one"


def groups_pay(problem: Problem) -> str | None:
    """Why `direct`, whose vectors hold channels of one group only, is quicker than spreading all groups over vectors."""
    if is_depthwise(problem):
        return several_groups(problem)
    few, most = sorted(group_channels(problem))
    limit = tuning.MOST_GROUP_CHANNELS
    if problem.op == "conv_grad_filter" and problem.layout == "channels_first" and max(problem.window.stride) == 1:
        limit *= 1 if few > tuning.FEWEST_GROUP_CHANNELS else 2
    if most > limit:
        return f"it is for groups of at most {limit} channels in and out, not {most}"
    if problem.layout == "channels_first" and problem.window.tap_count == 1 and not _has_few_products(problem):
        return "windows of one cell are plain matrix products, or read few cells of the rows that it takes apart"
    if problem.layout == "channels_first" and (better := _better_over_planes(problem)) is not None:
        return better
    if (refused := several_groups(problem)) is None and _fills_vectors(problem):
        return "it spreads groups over vectors, and the channels of one group fill them well enough"
    return refused


def _has_few_products(problem: Problem) -> bool:
    """Whether it is a filter gradient of so few channels a group that `direct` leaves most of its tiles empty."""
    return problem.op == "conv_grad_filter" and math.prod(group_channels(problem)) <= tuning.FEW_GROUP_PRODUCTS


def _better_over_planes(problem: Problem) -> str | None:
    """Why kernels that go over one group at a time are quicker in channels_first, by measurement over some 1,600 random shapes."""
    window, (sources, targets) = problem.window, group_channels(problem)
    skipped = math.prod(window.stride)
    if problem.op == "conv_grad_filter":
        short = window.output_size[-1] <= tuning.SHORT_ROW
        apart = skipped > 2 and short and not _has_few_products(problem)
        return "strides take its rows apart, and they are short" if apart else None
    if problem.op == "conv":
        few = targets <= tuning.FEW_TARGETS and window.input_size[-1] > tuning.SHORT_ROW // 2
        if skipped > 1:
            few = (few and sources * targets > tuning.FEWEST_PRODUCTS) or min(sources, targets) >= tuning.FEW_TARGETS
    else:
        few = sources <= tuning.FEW_TARGETS and min(sources, targets) > 2
        if skipped > tuning.MOST_SKIPPED and sources > tuning.FEW_TARGETS:
            return "its strides leave few cells that meet the same taps"
    return "vectors over cells, or over the channels of a group, serve as well, without spreading groups" if few else None


def _fills_vectors(problem: Problem) -> bool:
    """Spreading costs some time for every cell, and leaves lanes empty where groups are wide on the source side (channels_last)."""
    sources, targets = group_channels(problem)[:: 1 if problem.op != "conv_grad_input" else -1]
    if problem.op == "conv_grad_filter" and problem.layout == "channels_last":
        window = problem.window
        skips = math.prod(window.stride) > tuning.MOST_FILTER_SKIPPED and window.tap_count > tuning.FEW_FILTER_TAPS
        return skips or sources * targets > tuning.MOST_GROUP_PRODUCTS
    lanes = lanes_of(problem)
    direct = round_up(targets, lanes) / targets
    spread = tuning.SPREAD_COST + tuning.SPREAD_CELL_COST * profile().transposing / problem.window.tap_count
    if problem.layout == "channels_last":
        together = max(1, lanes // max(sources, targets))
        spread *= min(tuning.MOST_SPREAD_LOSS, max(1.0, lanes / (targets * together)))
    return direct < spread


def wide(problem: Problem, array: Array) -> Array:
    """Contiguous, in the type that sums are made in."""
    dtype = np.float64 if sum_bytes(problem.dtype) == 8 else np.float32
    return np.ascontiguousarray(array.astype(dtype, copy=False))


def run_gather(problem: Problem, plan: Plan, source: Array, weights: Array) -> Array:
    """conv or conv_grad_input, with weights as the plan reads them."""
    source = np.ascontiguousarray(source)
    target = new_array(problem.output_shape if problem.op == "conv" else problem.input_shape, problem.dtype)
    plan.run(source=address_of(source), weights=address_of(weights), target=address_of(target))
    return target


def run_padded_gather(
    problem: Problem, source: Array, filter: Array, plan: Callable[[Problem, bool], Plan],
    weights: Callable[[Problem, Array], Array],
) -> Array:  # fmt: skip
    """The same by plans that pad with zeros: weights that are not finite must not meet these, so their plan skips such taps.

    plan: from the problem, and whether it may pad. weights: as the plan reads them, from the filter.
    """
    problem, is_near = near(problem)
    if not is_near:
        return run_sweep(direct_plan, problem, source, filter)
    factors = weights(problem, filter)
    return run_gather(problem, plan(problem, bool(np.isfinite(factors).all())), source, factors)


def in_place_steps(
    problem: Problem, order: FilterOrder, gather_plan: Callable[[Problem], Plan], filter_plans: Callable[[Problem], FilterPlans]
) -> Steps | None:
    """The jobs of a kernel that runs in place: gathers read weights as channels_first has them."""
    problem, _ = near(problem)
    if problem.op == "conv_grad_filter":
        return filter_gradient_steps(filter_plans(problem))
    if order != TAPS_LAST or problem.dtype.name not in NATIVE:
        return None
    return Steps((Step(gather_plan(problem), {"source": A, "weights": B, "target": OUT}),), 0)


def padded_gather_steps(problem: Problem, plan: Callable[[Problem, bool], Plan], order: FilterOrder) -> Steps | None:
    """`run_padded_gather` as jobs, where all that weights need is to be turned round, output channels last."""
    problem, is_near = near(problem)
    inner, depthwise = problem.channels_in // problem.groups, is_depthwise(problem)
    turned = order == IN_LAST or (order == TAPS_LAST and (inner == 1 or problem.window.tap_count == 1))
    if not (is_near and turned and (depthwise or problem.op == "conv") and problem.dtype.name in NATIVE):
        return None
    count, out = math.prod(problem.filter_shape), problem.channels_out
    turn = Step(transpose_plan(1, out, count // out, problem.dtype), {"source": B, "target": WORK, "faults": FLAG})
    run = Step(plan(problem, True), {"source": A, "weights": WORK, "target": OUT})
    return Steps((turn, run), count * problem.dtype.itemsize)


def filter_gradient_steps(plans: FilterPlans, checked: bool = False) -> Steps:
    """A filter gradient as jobs: A is dy, B is x."""
    products = Step(plans.products, {"source": B, "dy": A, "sums": WORK})
    return Steps((products, Step(plans.add, {"sums": WORK, "result": OUT})), plans.all_sums_bytes, checked)


def run_filter_gradient(problem: Problem, plans: FilterPlans, dy: Array, x: Array) -> Array:
    result = new_array(problem.filter_shape, problem.dtype)
    plans.run(np.ascontiguousarray(dy), np.ascontiguousarray(x), result)
    return result


def run_padded_filter_gradient(problem: Problem, dy: Array, x: Array, plans: Callable[[Problem, bool], FilterPlans]) -> Array:
    """By plans that pad with zeros: a result that is not finite may have met these, so it is redone by one that skips taps."""
    problem, is_near = near(problem)
    if not is_near:
        return direct_filter(problem, dy, x)
    dy, x = np.ascontiguousarray(dy), np.ascontiguousarray(x)
    result = run_filter_gradient(problem, plans(problem, True), dy, x)
    if not np.isfinite(result).all():
        plans(problem, False).run(dy, x, result)
    return result
