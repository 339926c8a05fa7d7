"""What the pooling ops share: the Problem of their keywords, the rules of maximum and mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.ops.arguments import as_array, as_int, check_shape, layout_of, make_window, one_of, per_axis, split_shape
from pullback.ops.conv import PerAxis
from pullback.ops.hints import DEFAULT_LAYOUT
from pullback.problem import Problem
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
    layout: str = DEFAULT_LAYOUT,
    rounding: str = "floor",
    **rules: Any,
) -> Problem:
    kind, rank = layout_of(op, layout, input_name, shape), len(shape) - 2
    batch, size, channels = split_shape(kind, shape)
    kernel = per_axis(op, "window", window, rank)
    geometry = make_window(op, size, kernel, kernel if stride is None else stride, dilation, padding, rounding)
    return Problem(op, dtype, kind, batch, channels, channels, geometry, **rules)


def max_rules(op: str, ties: str, nan: str) -> dict[str, Any]:
    rule = WinnerRule(one_of(op, "ties", ties, TIES), one_of(op, "nan", nan, PUBLIC_NAN_RULES))
    return {"winner": rule, "empty": -np.inf}


def mean_rules(op: str, count_include_pad: bool, divisor: int | None) -> dict[str, Any]:
    one_of(op, "count_include_pad", count_include_pad, (False, True))
    if divisor is None:
        return {"divisor": "padded" if count_include_pad else "valid", "empty": 0.0}
    number = as_int(op, "divisor", divisor)
    if number < 1:
        raise ValueError(f"{op}: divisor is {number}; it must be at least 1, or None for the number of a window's cells")
    return {"divisor": number, "empty": 0.0}


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
