"""The mean and the variance of each channel of a batch."""

from __future__ import annotations

from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.dense import check_alike
from pullback.cpu.engine.memory import new_array
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.norm.layout import Shape, Sums, pass_plan, seen, sums_plans
from pullback.cpu.norm.records import MergeStatistics, StatisticsPlanes, StatisticsRows
from pullback.rules import Array


@planned
def _plans(shape: Shape) -> Sums:
    partial = pass_plan("statistics", "", (StatisticsRows, StatisticsPlanes), shape, arrays=1)
    return sums_plans("statistics", partial, MergeStatistics, shape, arrays=1, kinds=3)


def batch_statistics(x: Array) -> tuple[Array, Array]:
    """(mean, biased variance) of each channel of x, of shape (N, C, *spatial)."""
    check_alike("batch_statistics", x)
    given, _, shape = seen("batch_statistics", x)
    plans = _plans(shape)
    partials = new_array((plans.numbers,), x.dtype)
    mean, variance = new_array((shape.channels,), x.dtype), new_array((shape.channels,), x.dtype)
    plans.partial.run(x=address_of(given), partials=address_of(partials))
    plans.merge.run(partials=address_of(partials), mean=address_of(mean), variance=address_of(variance))
    return mean, variance
