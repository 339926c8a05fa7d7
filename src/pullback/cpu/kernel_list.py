"""Every kernel of the cpu backend: one table per op, tried from top to bottom. The first that can and pays runs.

`can` says why a kernel cannot run a problem, `pays` why the next ones would be quicker, `run` runs it. `pullback.kernel(name)`
obeys `can` alone. A note says what happens otherwise for some data. `steps` gives the jobs of a call to those who make the same one
often, and give its addresses alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from pullback.cpu import crop
from pullback.cpu.conv import cells, direct, pairs, pointwise
from pullback.cpu.conv import ops as conv
from pullback.cpu.depthwise import cells as group_cells
from pullback.cpu.depthwise import flat, permuted_filter, slide, slide_cells
from pullback.cpu.depthwise import planes as group_planes
from pullback.cpu.depthwise import transposed as group_transposed
from pullback.cpu.pool import adaptive, channels, gather, phases, planes, rows, run, scatter, separable, transposed, whole
from pullback.cpu.refusals import ordinary
from pullback.cpu.winograd import ops as winograd
from pullback.registry import CPU, Accepts, add_kernel

FALSE_WINNERS = "winners that no forward has found are seen, and the call is redone by scatter"
WEIGHTS = "weights that are not finite run on a second plan, which skips taps beside the input"
GRADIENTS = "a result that is not finite is redone by a second plan, which skips taps beside the input"
TILES = "what is not finite, and the tiles it would reach, is redone by plain sums"
FAR_INDICES = "an index beyond its own image sends the call to the reference, which tells errors from right ones"


class Row(NamedTuple):
    """A kernel in the table of an op."""

    name: str
    can: Accepts
    pays: Accepts | None
    run: Callable[..., Any]
    note: str = ""
    error: float = 0.0
    aliases: tuple[str, ...] = ()
    steps: Callable[..., Any] | None = None


def _from_x(finder: str) -> Callable[..., Any]:
    return partial(run.max_pool_grad, partial(scatter.max_grad_from_x_plan, finder=finder))


CROP = Row("crop", crop.can, None, crop.run)


def _grouped(name: str, module: Any, gradient: bool, note: str = "") -> Row:
    """A kernel for many groups of few channels; "depthwise" and "grouped" are older names of all of these."""
    run = module.filter_gradient if gradient else module.gather
    return Row(name, module.can, module.pays, run, note, aliases=("depthwise", "grouped"), steps=getattr(module, "steps", None))


def _groups(*, gradient: bool) -> tuple[Row, ...]:
    note = GRADIENTS if gradient else WEIGHTS
    return (
        _grouped("slide", slide, gradient),
        _grouped("flat", flat, gradient),
        _grouped("slide_cells", slide_cells, gradient, note),
        _grouped("group_transposed", group_transposed, gradient, note),
        _grouped("group_planes", group_planes, gradient, note),
        _grouped("group_cells", group_cells, gradient, note),
    )


def _sweeps(op: str) -> tuple[Row, ...]:
    """conv and conv_grad_input."""
    return (
        CROP,
        *_groups(gradient=False),
        Row(
            "winograd", winograd.can, winograd.pays, getattr(winograd, op), TILES, winograd.ERROR, steps=winograd.convolve_steps
        ),
        _sweep("pairs", pairs.can, pairs.pays, pairs.sweep_plan, WEIGHTS),
        _sweep("pointwise", pointwise.can, pointwise.pays, pointwise.pointwise_plan),
        _sweep("cells", ordinary, conv.few_channels, cells.cells_plan, WEIGHTS),
        _sweep("direct", ordinary, None, direct.direct_plan, WEIGHTS),
    )


def _sweep(name: str, can: Accepts, pays: Accepts | None, plan: Callable[..., Any], note: str = "") -> Row:
    return Row(name, can, pays, partial(conv.run_sweep, plan), note, steps=partial(conv.sweep_steps, plan))


# By layout. channels_last: channels, gather, permuted, slide_cells, group_cells. channels_first: whole, separable, transposed,
# rows, phases (with one channel, or for averages, also channels_last), slide, flat, group_transposed, group_planes, pointwise.
# Both: winners, planes, scatter, winograd, cells, direct.
TABLES: dict[str, tuple[Row, ...]] = {
    "max_pool": (
        CROP,
        Row("whole", whole.can, None, partial(run.max_pool, whole.forward_plan)),
        Row("channels", channels.can, channels.forward_pays, partial(run.max_pool, channels.forward_plan)),
        Row("transposed", transposed.can, transposed.pays, partial(run.max_pool, transposed.plan)),
        Row("rows", rows.can, None, partial(run.max_pool, rows.forward_plan)),
        Row("planes", planes.can, None, partial(run.max_pool, planes.forward_plan)),
    ),
    "max_pool_grad": (
        CROP,
        Row("whole", whole.can, None, partial(run.max_pool_grad, whole.max_grad_from_x_plan)),
        Row("winners", ordinary, transposed.pays_for_winners, run.max_pool_grad_by_winners),
        Row("channels", channels.can, channels.forward_pays, _from_x("channels")),
        Row("rows", rows.can, None, _from_x("rows")),
        Row("planes", planes.can, None, _from_x("planes")),
    ),
    "max_pool_grad_from_winners": (
        CROP,
        Row("whole", whole.can, None, partial(run.max_pool_grad_from_winners, whole.max_grad_plan)),
        Row("gather", gather.can, gather.pays, partial(run.max_pool_grad_from_winners, gather.max_grad_plan)),
        Row("transposed", transposed.can, transposed.pays, partial(run.max_pool_grad_from_winners, transposed.plan)),
        Row("phases", phases.can, phases.pays, run.max_pool_grad_by_phases, FALSE_WINNERS),
        Row("scatter", scatter.can, None, partial(run.max_pool_grad_from_winners, scatter.max_grad_plan)),
    ),
    "max_pool_grad_from_indices": (
        Row("scatter", scatter.can_from_indices, None, run.max_pool_grad_from_indices, FAR_INDICES),
    ),
    "max_pool_jvp": (CROP, Row("take", ordinary, None, run.max_pool_jvp)),
    "avg_pool": (
        CROP,
        Row("whole", whole.can, None, partial(run.avg_pool, whole.forward_plan)),
        Row("channels", channels.can, channels.forward_pays, partial(run.avg_pool, channels.forward_plan)),
        Row("transposed", transposed.can, transposed.pays, partial(run.avg_pool, transposed.plan)),
        Row("separable", separable.can, separable.pays, separable.avg_pool),
        Row("rows", rows.can, None, partial(run.avg_pool, rows.forward_plan)),
        Row("planes", planes.can, None, partial(run.avg_pool, planes.forward_plan)),
    ),
    "avg_pool_grad": (
        CROP,
        Row("whole", whole.can, None, partial(run.avg_pool_grad, whole.avg_grad_plan)),
        Row("channels", channels.can, channels.pays, partial(run.avg_pool_grad, channels.avg_grad_plan)),
        Row("transposed", transposed.can, transposed.pays, partial(run.avg_pool_grad, transposed.plan)),
        Row("phases", phases.can_average, None, partial(run.avg_pool_grad, phases.avg_grad_plan)),
    ),
    "adaptive_max_pool": (Row("channels", adaptive.can, None, adaptive.max_pool),),
    "adaptive_max_pool_grad": (Row("channels", adaptive.can, None, adaptive.max_pool_grad),),
    "adaptive_max_pool_jvp": (Row("channels", adaptive.can, None, adaptive.max_pool_jvp),),
    "adaptive_avg_pool": (Row("channels", adaptive.can, None, adaptive.avg_pool),),
    "adaptive_avg_pool_grad": (Row("channels", adaptive.can, None, adaptive.avg_pool_grad),),
    "conv": _sweeps("conv"),
    "conv_grad_input": _sweeps("conv_grad_input"),
    "conv_grad_filter": (
        CROP,
        Row(
            "permuted", permuted_filter.can, permuted_filter.pays, permuted_filter.filter_gradient, steps=permuted_filter.steps
        ),
        *_groups(gradient=True),
        Row(
            "winograd",
            winograd.can,
            winograd.pays,
            winograd.conv_grad_filter,
            TILES,
            winograd.ERROR,
            steps=winograd.filter_gradient_steps,
        ),
        Row("pairs", pairs.can, None, partial(conv.direct_filter, pairs=True), GRADIENTS),
        Row("direct", ordinary, None, conv.direct_filter, GRADIENTS, steps=conv.filter_gradient_steps),
    ),
}


def register() -> None:
    """Put all of them on the lists of the registry."""
    for op, table in TABLES.items():
        for row in table:
            add_kernel(
                op, CPU, row.name, row.can, row.run, pays=row.pays, note=row.note, error=row.error, aliases=row.aliases,
                steps=row.steps,
            )  # fmt: skip
