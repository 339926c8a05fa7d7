"""The mean and the variance of each channel of a batch."""

from __future__ import annotations

from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.dense import check_alike, check_writeable
from pullback.cpu.engine.memory import new_array
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.words import float_word
from pullback.cpu.norm.layout import Shape, Sums, pass_plan, per_channel, seen, sums_plans
from pullback.cpu.norm.records import MergeStatistics, StatisticsPlanes, StatisticsRows
from pullback.rules import Array


@planned
def statistics_plans(shape: Shape) -> Sums:
    partial = pass_plan("statistics", "", (StatisticsRows, StatisticsPlanes), shape, arrays=1)
    return sums_plans("statistics", partial, MergeStatistics, shape, arrays=1, kinds=3)


def batch_statistics(x: Array) -> tuple[Array, Array]:
    """(mean, biased variance) of each channel of x, of shape (N, C, *spatial)."""
    return training_statistics(x, 0.0)[:2]


def training_statistics(
    x: Array, eps: float, running: tuple[Array, Array] | None = None, momentum: float = 0.0
) -> tuple[Array, Array, Array]:
    """(mean, biased variance, 1 / sqrt(variance + eps)) of each channel; running means and variances are moved, in place.

    running <- (1 - momentum) running + momentum new, of variances the unbiased ones.
    """
    op = "batch_statistics"
    check_alike(op, x)
    given, _, shape = seen(op, x)
    plans = statistics_plans(shape)
    partials = new_array((plans.numbers,), x.dtype)
    results = [new_array((shape.channels,), x.dtype) for _ in range(3)]
    mean, variance, inv_std = results
    running_mean = running_variance = 0
    if running is not None:
        check_writeable(op, *running)
        if any(per_channel(op, "a running statistic", array, shape) is not array for array in running):
            raise ValueError(
                f"{op}: running statistics must be contiguous and of dtype {x.dtype}, since they are changed in place"
            )
        running_mean, running_variance = map(address_of, running)
    plans.partial.run(x=address_of(given), partials=address_of(partials))
    plans.merge.run(
        partials=address_of(partials), mean=address_of(mean), variance=address_of(variance), inv_std=address_of(inv_std),
        running_mean=running_mean, running_variance=running_variance, eps=float_word(eps), momentum=float_word(momentum),
    )  # fmt: skip
    return mean, variance, inv_std
