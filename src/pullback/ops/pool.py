"""Max and average pooling and their gradients: validation, the Problem, dispatch.

max:  y[n, i, c] = x at the winner of window i under the rules for ties and NaN;  dx = dy at the winners, summed
mean: y[n, i, c] = sum of window i / divisor(i);  dx = dy / divisor spread over the window, summed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pullback.ops.arguments import (
    as_array,
    as_float_array,
    as_indices,
    as_int,
    as_layout,
    as_shape,
    check_shape,
    make_window,
    one_of,
    per_axis,
    same_dtype,
    spatial_rank,
    split_shape,
)
from pullback.ops.call import run_op
from pullback.ops.conv import PerAxis
from pullback.problem import IndexProblem, Problem
from pullback.rules import PUBLIC_NAN_RULES, TIES, Array, WinnerRule
from pullback.window import Padding


def pool_problem(
    op: str,
    input_name: str,
    shape: tuple[int, ...],
    dtype: Any,
    window: PerAxis,
    *,
    stride: PerAxis | None = None,
    padding: Padding = "valid",
    dilation: PerAxis = 1,
    layout: str = "channels_last",
    rounding: str = "floor",
    **rules: Any,
) -> Problem:
    rank = spatial_rank(op, input_name, shape)
    kind = as_layout(op, layout, rank)
    batch, size, channels = split_shape(kind, shape)
    kernel = per_axis(op, "window", window, rank)
    geometry = make_window(op, size, kernel, kernel if stride is None else stride, dilation, padding, rounding)
    return Problem(op, dtype, kind, batch, channels, channels, geometry, **rules)


def max_rules(op: str, ties: str, nan: str) -> dict[str, Any]:
    rule = WinnerRule(one_of(op, "ties", ties, TIES), one_of(op, "nan", nan, PUBLIC_NAN_RULES))
    return {"winner": rule, "empty": -np.inf}


def _mean_rules(op: str, count_include_pad: bool, divisor: int | None) -> dict[str, Any]:
    one_of(op, "count_include_pad", count_include_pad, (False, True))
    if divisor is None:
        return {"divisor": "padded" if count_include_pad else "valid", "empty": 0.0}
    number = as_int(op, "divisor", divisor)
    if number < 1:
        raise ValueError(f"{op}: divisor is {number}; it must be at least 1, or None for the number of a window's cells")
    return {"divisor": number, "empty": 0.0}


def prepare_max_pool(
    x: npt.ArrayLike,
    window: PerAxis,
    *,
    ties: str = "first",
    nan: str = "propagate",
    return_indices: bool = False,
    return_winners: bool = False,
    storage_order: int = 0,
    **keywords: Any,
) -> tuple[Problem, Array]:
    op = "max_pool"
    a = as_float_array(op, "x", x)
    one_of(op, "return_indices", return_indices, (False, True))
    one_of(op, "return_winners", return_winners, (False, True))
    if return_indices and return_winners:
        raise ValueError(f"{op}: return_indices and return_winners are both True; ask for one of them")
    one_of(op, "storage_order", storage_order, (0, 1))
    keywords |= max_rules(op, ties, nan) | {"storage_order": storage_order}
    keywords |= {"return_indices": return_indices, "return_winners": return_winners}
    return pool_problem(op, "x", a.shape, a.dtype, window, **keywords), a


def prepare_max_pool_grad(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    window: PerAxis,
    *,
    ties: str = "first",
    nan: str = "propagate",
    **keywords: Any,
) -> tuple[Problem, Array, Array]:
    op = "max_pool_grad"
    d, a = as_float_array(op, "dy", dy), as_float_array(op, "x", x)
    problem = pool_problem(op, "x", a.shape, same_dtype(op, dy=d, x=a), window, **keywords, **max_rules(op, ties, nan))
    check_shape(op, "dy", d.shape, problem.output_shape, f"the output of x {a.shape} and window {problem.window.kernel}")
    return problem, d, a


def check_winners(problem: Problem, winners: npt.ArrayLike) -> Array:
    """The winners as an array, of the shape and dtype that max_pool gives them."""
    op, rule = problem.op, problem.winner
    w = as_array(op, "winners", winners)
    why = f"the output of input {problem.input_shape} and window {problem.window.kernel}"
    check_shape(op, "winners", w.shape, problem.output_shape, why)
    if w.dtype != problem.winner_dtype:
        raise TypeError(
            f"{op}: winners have dtype {w.dtype}; max_pool(..., return_winners=True) gives {problem.winner_dtype} for a "
            f"window of {problem.window.tap_count} taps with nan={rule and rule.nan!r}"
        )
    return w


def prepare_max_pool_grad_from_winners(
    dy: npt.ArrayLike,
    winners: npt.ArrayLike,
    input_shape: Sequence[int],
    window: PerAxis,
    *,
    nan: str = "propagate",
    **keywords: Any,
) -> tuple[Problem, Array, Array]:
    op = "max_pool_grad_from_winners"
    d = as_float_array(op, "dy", dy)
    shape = as_shape(op, "input_shape", input_shape)
    problem = pool_problem(op, "input_shape", shape, d.dtype, window, **keywords, **max_rules(op, "first", nan))
    why = f"the output of input {shape} and window {problem.window.kernel}"
    check_shape(op, "dy", d.shape, problem.output_shape, why)
    return problem, d, check_winners(problem, winners)


def prepare_max_pool_grad_from_indices(
    dy: npt.ArrayLike,
    indices: npt.ArrayLike,
    input_shape: Sequence[int],
    *,
    layout: str = "channels_last",
    storage_order: int = 0,
) -> tuple[IndexProblem, Array, Array]:
    op = "max_pool_grad_from_indices"
    d, i = as_float_array(op, "dy", dy), as_indices(op, indices)
    shape = as_shape(op, "input_shape", input_shape)
    kind = as_layout(op, layout, spatial_rank(op, "input_shape", shape))
    one_of(op, "storage_order", storage_order, (0, 1))
    check_shape(op, "indices", i.shape, d.shape, "one index for each entry of dy")
    if d.ndim != len(shape):
        raise ValueError(f"{op}: dy has shape {d.shape} but input_shape {shape} has {len(shape)} axes")
    d_outer, x_outer = split_shape(kind, d.shape), split_shape(kind, shape)
    if d_outer[::2] != x_outer[::2]:
        raise ValueError(f"{op}: dy {d.shape} and input_shape {shape} differ in batch or channels")
    return IndexProblem(op, d.dtype, kind, shape, d.shape, storage_order), d, i


def prepare_avg_pool(
    x: npt.ArrayLike, window: PerAxis, *, count_include_pad: bool = False, divisor: int | None = None, **keywords: Any
) -> tuple[Problem, Array]:
    op = "avg_pool"
    a = as_float_array(op, "x", x)
    return pool_problem(op, "x", a.shape, a.dtype, window, **keywords, **_mean_rules(op, count_include_pad, divisor)), a


def prepare_avg_pool_grad(
    dy: npt.ArrayLike,
    input_shape: Sequence[int],
    window: PerAxis,
    *,
    count_include_pad: bool = False,
    divisor: int | None = None,
    **keywords: Any,
) -> tuple[Problem, Array]:
    op = "avg_pool_grad"
    d = as_float_array(op, "dy", dy)
    shape = as_shape(op, "input_shape", input_shape)
    rules = _mean_rules(op, count_include_pad, divisor)
    problem = pool_problem(op, "input_shape", shape, d.dtype, window, **keywords, **rules)
    check_shape(op, "dy", d.shape, problem.output_shape, f"the output of input {shape} and window {problem.window.kernel}")
    return problem, d


def max_pool(
    x: npt.ArrayLike,
    window: PerAxis,
    *,
    stride: PerAxis | None = None,
    padding: Padding = "valid",
    dilation: PerAxis = 1,
    layout: str = "channels_last",
    rounding: str = "floor",
    ties: str = "first",
    nan: str = "propagate",
    return_indices: bool = False,
    return_winners: bool = False,
    storage_order: int = 0,
) -> Any:
    """Maximum of each window; with `return_indices` the pair (values, int64 indices of the winners).

    Indices are flat over the whole of x in C order, or with the spatial part column-major for storage_order=1; -1 marks a
    window without a winner, whose value is -inf. stride=None means stride=window. Padding never wins.
    With `return_winners` the pair (values, winners): the number of each window's winning tap in one byte (two or four where the
    window has more than 255 taps), an eighth of the indices, for `max_pool_grad_from_winners`.
    """
    result = run_op(
        prepare_max_pool, x, window, stride=stride, padding=padding, dilation=dilation, layout=layout, rounding=rounding,
        ties=ties, nan=nan, return_indices=return_indices, return_winners=return_winners, storage_order=storage_order,
    )  # fmt: skip
    return cast(Any, result)


def max_pool_grad(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    window: PerAxis,
    *,
    stride: PerAxis | None = None,
    padding: Padding = "valid",
    dilation: PerAxis = 1,
    layout: str = "channels_last",
    rounding: str = "floor",
    ties: str = "first",
    nan: str = "propagate",
) -> Array:
    """Gradient of `max_pool`, finding the winners in x again: each dy goes to its window's winner."""
    return run_op(
        prepare_max_pool_grad, dy, x, window,
        stride=stride, padding=padding, dilation=dilation, layout=layout, rounding=rounding, ties=ties, nan=nan,
    )  # fmt: skip


def max_pool_grad_from_winners(
    dy: npt.ArrayLike,
    winners: npt.ArrayLike,
    input_shape: Sequence[int],
    window: PerAxis,
    *,
    stride: PerAxis | None = None,
    padding: Padding = "valid",
    dilation: PerAxis = 1,
    layout: str = "channels_last",
    rounding: str = "floor",
    nan: str = "propagate",
) -> Array:
    """Gradient of `max_pool` from the winners it returned with return_winners=True; the other keywords as given there."""
    return run_op(
        prepare_max_pool_grad_from_winners, dy, winners, input_shape, window,
        stride=stride, padding=padding, dilation=dilation, layout=layout, rounding=rounding, nan=nan,
    )  # fmt: skip


def max_pool_grad_from_indices(
    dy: npt.ArrayLike,
    indices: npt.ArrayLike,
    input_shape: Sequence[int],
    *,
    layout: str = "channels_last",
    storage_order: int = 0,
) -> Array:
    """Gradient of `max_pool` from the indices it returned; -1 passes nothing, any other index out of range is refused."""
    return run_op(prepare_max_pool_grad_from_indices, dy, indices, input_shape, layout=layout, storage_order=storage_order)


def avg_pool(
    x: npt.ArrayLike,
    window: PerAxis,
    *,
    stride: PerAxis | None = None,
    padding: Padding = "valid",
    dilation: PerAxis = 1,
    layout: str = "channels_last",
    rounding: str = "floor",
    count_include_pad: bool = False,
    divisor: int | None = None,
) -> Array:
    """Mean of each window over its cells inside the input, or with count_include_pad inside input and padding.

    With `divisor` it is the window's sum divided by that number. A window wholly in the padding gives 0. Cells past the padding,
    under rounding="ceil", never count.
    """
    return run_op(
        prepare_avg_pool, x, window, stride=stride, padding=padding, dilation=dilation, layout=layout,
        rounding=rounding, count_include_pad=count_include_pad, divisor=divisor,
    )  # fmt: skip


def avg_pool_grad(
    dy: npt.ArrayLike,
    input_shape: Sequence[int],
    window: PerAxis,
    *,
    stride: PerAxis | None = None,
    padding: Padding = "valid",
    dilation: PerAxis = 1,
    layout: str = "channels_last",
    rounding: str = "floor",
    count_include_pad: bool = False,
    divisor: int | None = None,
) -> Array:
    """Gradient of `avg_pool`: each dy divided as the forward divided, spread over its window."""
    return run_op(
        prepare_avg_pool_grad, dy, input_shape, window, stride=stride, padding=padding, dilation=dilation, layout=layout,
        rounding=rounding, count_include_pad=count_include_pad, divisor=divisor,
    )  # fmt: skip
