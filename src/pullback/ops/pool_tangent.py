"""Forward-mode derivatives of max pooling: t at the winners of x. Linear in t, and the adjoints of the max-pool gradients.

With them the family is closed: the gradient of `max_pool_grad` in dy is `max_pool_jvp`, whose gradient in t is
`max_pool_grad`. (Average pooling needs none: it is linear, its own tangent.)
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from pullback.ops.arguments import (
    as_float_array,
    as_indices,
    as_layout,
    check_shape,
    one_of,
    same_dtype,
    spatial_rank,
    split_shape,
)
from pullback.ops.call import run_op
from pullback.ops.conv import PerAxis
from pullback.ops.hints import DEFAULT_LAYOUT, with_hints
from pullback.ops.pool_problem import check_winners, max_rules, pool_problem
from pullback.problem import IndexProblem, Problem
from pullback.rules import Array
from pullback.window import Padding


def prepare_max_pool_jvp(
    t: npt.ArrayLike,
    x: npt.ArrayLike,
    window: PerAxis,
    *,
    ties: str = "first",
    nan: str = "propagate",
    **keywords: Any,
) -> tuple[Problem, Array, Array]:
    op = "max_pool_jvp"
    b, a = as_float_array(op, "t", t), as_float_array(op, "x", x)
    problem = pool_problem(op, "x", a.shape, same_dtype(op, t=b, x=a), window, **keywords, **max_rules(op, ties, nan))
    check_shape(op, "t", b.shape, a.shape, "a tangent for each cell of x")
    return problem, b, a


def prepare_max_pool_jvp_from_winners(
    t: npt.ArrayLike, winners: npt.ArrayLike, window: PerAxis, *, nan: str = "propagate", **keywords: Any
) -> tuple[Problem, Array, Array]:
    op = "max_pool_jvp_from_winners"
    b = as_float_array(op, "t", t)
    problem = pool_problem(op, "t", b.shape, b.dtype, window, **keywords, **max_rules(op, "first", nan))
    return problem, b, check_winners(problem, winners)


def prepare_max_pool_jvp_from_indices(
    t: npt.ArrayLike, indices: npt.ArrayLike, *, layout: str = DEFAULT_LAYOUT, storage_order: int = 0
) -> tuple[IndexProblem, Array, Array]:
    op = "max_pool_jvp_from_indices"
    b, i = as_float_array(op, "t", t), as_indices(op, indices)
    kind = as_layout(op, layout, spatial_rank(op, "t", b.shape))
    one_of(op, "storage_order", storage_order, (0, 1))
    if i.ndim != b.ndim or split_shape(kind, i.shape)[::2] != split_shape(kind, b.shape)[::2]:
        raise ValueError(f"{op}: t {b.shape} and indices {i.shape} differ in rank, batch or channels")
    return IndexProblem(op, b.dtype, kind, b.shape, i.shape, storage_order), b, i


@with_hints
def max_pool_jvp(
    t: npt.ArrayLike,
    x: npt.ArrayLike,
    window: PerAxis,
    *,
    stride: PerAxis | None = None,
    padding: Padding = "valid",
    dilation: PerAxis = 1,
    layout: str = DEFAULT_LAYOUT,
    rounding: str = "floor",
    ties: str = "first",
    nan: str = "propagate",
) -> Array:
    """Derivative of `max_pool` at x in the direction t: t at each window's winner, 0 where a window has none.

    **Formula.** `ty[n, i, c] = t at the winner of window i of x`. The adjoint of `max_pool_grad`.

    **Shapes.** t has the shape of x, the result that of max_pool's.

    **Rules.** The keywords are those of the forward call. **Error.** None: values are copied.

    **Equals** the forward mode of torch.func.jvp and jax.jvp through max pooling.
    """
    return run_op(
        prepare_max_pool_jvp, t, x, window,
        stride=stride, padding=padding, dilation=dilation, layout=layout, rounding=rounding, ties=ties, nan=nan,
    )  # fmt: skip


@with_hints
def max_pool_jvp_from_winners(
    t: npt.ArrayLike,
    winners: npt.ArrayLike,
    window: PerAxis,
    *,
    stride: PerAxis | None = None,
    padding: Padding = "valid",
    dilation: PerAxis = 1,
    layout: str = DEFAULT_LAYOUT,
    rounding: str = "floor",
    nan: str = "propagate",
) -> Array:
    """`max_pool_jvp` from the winners that max_pool returned with return_winners=True. The adjoint of
    `max_pool_grad_from_winners`.
    """
    return run_op(
        prepare_max_pool_jvp_from_winners, t, winners, window,
        stride=stride, padding=padding, dilation=dilation, layout=layout, rounding=rounding, nan=nan,
    )  # fmt: skip


@with_hints
def max_pool_jvp_from_indices(
    t: npt.ArrayLike, indices: npt.ArrayLike, *, layout: str = DEFAULT_LAYOUT, storage_order: int = 0
) -> Array:
    """`max_pool_jvp` from the indices that max_pool returned: t at the indices, 0 at -1. The adjoint of
    `max_pool_grad_from_indices`.
    """
    return run_op(prepare_max_pool_jvp_from_indices, t, indices, layout=layout, storage_order=storage_order)
