"""Average pooling and its gradient: validation, dispatch.

y[n, i, c] = sum of window i / divisor(i);  dx = dy / divisor spread over the window, summed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from pullback.ops.arguments import as_float_array, as_shape, check_shape
from pullback.ops.call import run_op
from pullback.ops.conv import PerAxis
from pullback.ops.hints import DEFAULT_LAYOUT, with_hints
from pullback.ops.pool_problem import mean_rules, pool_problem
from pullback.problem import Problem
from pullback.rules import Array
from pullback.window import Padding


def prepare_avg_pool(
    x: npt.ArrayLike, window: PerAxis, *, count_include_pad: bool = False, divisor: int | None = None, **keywords: Any
) -> tuple[Problem, Array]:
    op = "avg_pool"
    a = as_float_array(op, "x", x)
    return pool_problem(op, "x", a.shape, a.dtype, window, **keywords, **mean_rules(op, count_include_pad, divisor)), a


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
    rules = mean_rules(op, count_include_pad, divisor)
    problem = pool_problem(op, "input_shape", shape, d.dtype, window, **keywords, **rules)
    check_shape(op, "dy", d.shape, problem.output_shape, f"the output of input {shape} and window {problem.window.kernel}")
    return problem, d


@with_hints
def avg_pool(
    x: npt.ArrayLike,
    window: PerAxis,
    *,
    stride: PerAxis | None = None,
    padding: Padding = "valid",
    dilation: PerAxis = 1,
    layout: str = DEFAULT_LAYOUT,
    rounding: str = "floor",
    count_include_pad: bool = False,
    divisor: int | None = None,
    out: Array | None = None,
) -> Array:
    """Mean of each window.

    **Formula.** `y[n, i, c] = (sum over the taps t inside x of x[n, i*stride - low + t*dilation, c]) / divisor(i)`.

    **Shapes.** As `max_pool`.

    **Rules.** The divisor counts the cells inside the input, or with `count_include_pad` inside input and padding; with
    `divisor` it is that number. A window wholly in the padding gives 0. Cells past the padding, under rounding="ceil", never
    count. The other keywords are those of `max_pool`.

    **Error.** A sum of n cells errs by at most n eps times the sum of their absolute values, and the quotient by one
    rounding.

    **Equals** torch.nn.functional.avg_pool1d to avg_pool3d with count_include_pad (whose default there is True), ONNX
    AveragePool, TF.js AvgPool and AvgPool3D.
    """
    return run_op(
        prepare_avg_pool, x, window, out=out, stride=stride, padding=padding, dilation=dilation, layout=layout,
        rounding=rounding, count_include_pad=count_include_pad, divisor=divisor,
    )  # fmt: skip


@with_hints
def avg_pool_grad(
    dy: npt.ArrayLike,
    input_shape: Sequence[int],
    window: PerAxis,
    *,
    stride: PerAxis | None = None,
    padding: Padding = "valid",
    dilation: PerAxis = 1,
    layout: str = DEFAULT_LAYOUT,
    rounding: str = "floor",
    count_include_pad: bool = False,
    divisor: int | None = None,
    out: Array | None = None,
) -> Array:
    """Gradient of `avg_pool` with respect to x: each dy divided as the forward divided, spread over its window.

    **Formula.** `dx[n, j, c] = sum over the windows i that read cell j of dy[n, i, c] / divisor(i)`.

    **Shapes.** dy has the shape of avg_pool's result. `input_shape` is x's shape, or x itself, of which only the shape is
    read.

    **Rules.** The keywords are those of the forward call.

    **Error.** As `avg_pool`, with n the windows that read a cell.

    **Equals** TF.js AvgPoolGrad and AvgPool3DGrad, ONNX Runtime's AveragePoolGrad, torch's avg_pool backward.
    """
    return run_op(
        prepare_avg_pool_grad, dy, input_shape, window, out=out, stride=stride, padding=padding, dilation=dilation, layout=layout,
        rounding=rounding, count_include_pad=count_include_pad, divisor=divisor,
    )  # fmt: skip
