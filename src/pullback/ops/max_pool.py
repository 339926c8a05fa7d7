"""Max pooling and its gradients: validation, dispatch.

y[n, i, c] = x at the winner of window i under the rules for ties and NaN;  dx = dy at the winners, summed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy.typing as npt

from pullback.ops.arguments import (
    as_float_array,
    as_indices,
    as_shape,
    check_shape,
    layout_of,
    one_of,
    same_dtype,
    split_shape,
)
from pullback.ops.call import run_op
from pullback.ops.conv import PerAxis
from pullback.ops.hints import DEFAULT_LAYOUT, with_hints
from pullback.ops.pool_problem import check_winners, max_rules, pool_problem
from pullback.problem import IndexProblem, Problem
from pullback.rules import Array
from pullback.window import Padding


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
    layout: str = DEFAULT_LAYOUT,
    storage_order: int = 0,
) -> tuple[IndexProblem, Array, Array]:
    op = "max_pool_grad_from_indices"
    d, i = as_float_array(op, "dy", dy), as_indices(op, indices)
    shape = as_shape(op, "input_shape", input_shape)
    kind = layout_of(op, layout, "input_shape", shape)
    one_of(op, "storage_order", storage_order, (0, 1))
    check_shape(op, "indices", i.shape, d.shape, "one index for each entry of dy")
    if d.ndim != len(shape):
        raise ValueError(f"{op}: dy has shape {d.shape} but input_shape {shape} has {len(shape)} axes")
    d_outer, x_outer = split_shape(kind, d.shape), split_shape(kind, shape)
    if d_outer[::2] != x_outer[::2]:
        raise ValueError(f"{op}: dy {d.shape} and input_shape {shape} differ in batch or channels")
    return IndexProblem(op, d.dtype, kind, shape, d.shape, storage_order), d, i


@with_hints
def max_pool(
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
    return_indices: bool = False,
    return_winners: bool = False,
    storage_order: int = 0,
    out: Array | None = None,
) -> Any:
    """Maximum of each window.

    **Formula.** `y[n, i, c] = x[n, i*stride - low + t*dilation, c]` at the winning tap t of window i.

    **Shapes.** x is `(N, *size, C)` in channels_last, `(N, C, *size)` in channels_first, with 1, 2 or 3 spatial axes; the
    result has the output's sizes in their place. `window` is a number or one per axis; stride=None means stride=window.

    **Rules.** Padding never wins. `ties`: the "first" or the "last" of equal cells, row-major. `nan`: "propagate" lets the
    first NaN of a window win, "ignore" never lets one win. A window without a winner gives -inf. `padding`, `dilation`,
    `layout`, `rounding`, `out`: as `conv` has them.

    **Returns** the values; with `return_indices` the pair (values, int64 indices of the winners), flat over the whole of x in
    C order, or with the spatial part column-major for storage_order=1, -1 for a window without a winner; with
    `return_winners` the pair (values, winners): the number of each window's winning tap in one byte (two or four where the
    window has more than 255 taps), an eighth of the indices, for `max_pool_grad_from_winners`.

    **Error.** None: values are copied.

    **Equals** torch.nn.functional.max_pool1d to max_pool3d, ONNX MaxPool, TF.js MaxPool and MaxPool3D without their defects.
    """
    if out is not None and (return_indices is True or return_winners is True):
        raise ValueError("max_pool: out takes one array; leave it away where indices or winners are returned too")
    result = run_op(
        prepare_max_pool, x, window, out=out, stride=stride, padding=padding, dilation=dilation, layout=layout, rounding=rounding,
        ties=ties, nan=nan, return_indices=return_indices, return_winners=return_winners, storage_order=storage_order,
    )  # fmt: skip
    return cast(Any, result)


@with_hints
def max_pool_grad(
    dy: npt.ArrayLike,
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
    out: Array | None = None,
) -> Array:
    """Gradient of `max_pool` with respect to x, finding the winners in x again: each dy goes to its window's winner.

    **Formula.** `dx[n, j, c] = sum of dy[n, i, c] over the windows i whose winner is cell j`.

    **Shapes.** dy has the shape of max_pool's result; the gradient has that of x.

    **Rules.** The keywords are those of the forward call. Kept winners or indices make it faster:
    `max_pool_grad_from_winners`, `max_pool_grad_from_indices`.

    **Error.** A sum of as many numbers as windows that share a cell, in the dtype of dy (the half precisions in float32).

    **Equals** TF.js MaxPoolGrad and MaxPool3DGrad, torch's max_pool backward, JAX's gradient of reduce_window (its ties go
    elsewhere).
    """
    return run_op(
        prepare_max_pool_grad, dy, x, window, out=out,
        stride=stride, padding=padding, dilation=dilation, layout=layout, rounding=rounding, ties=ties, nan=nan,
    )  # fmt: skip


@with_hints
def max_pool_grad_from_winners(
    dy: npt.ArrayLike,
    winners: npt.ArrayLike,
    input_shape: Sequence[int],
    window: PerAxis,
    *,
    stride: PerAxis | None = None,
    padding: Padding = "valid",
    dilation: PerAxis = 1,
    layout: str = DEFAULT_LAYOUT,
    rounding: str = "floor",
    nan: str = "propagate",
    out: Array | None = None,
) -> Array:
    """Gradient of `max_pool` with respect to x, from the winners it returned with return_winners=True.

    **Formula.** `dx[n, j, c] = sum of dy[n, i, c] over the windows i whose winner is cell j`.

    **Shapes.** dy and winners have the shape of max_pool's result. `input_shape` is x's shape, or x itself, of which only the
    shape is read.

    **Rules.** The keywords are those of the forward call. A winner that no forward finds (beside the input) passes nothing
    on.

    **Error.** As `max_pool_grad`.

    **Equals** `max_pool_grad` on the same x; no other system keeps winners so small.
    """
    return run_op(
        prepare_max_pool_grad_from_winners, dy, winners, input_shape, window, out=out,
        stride=stride, padding=padding, dilation=dilation, layout=layout, rounding=rounding, nan=nan,
    )  # fmt: skip


@with_hints
def max_pool_grad_from_indices(
    dy: npt.ArrayLike,
    indices: npt.ArrayLike,
    input_shape: Sequence[int],
    *,
    layout: str = DEFAULT_LAYOUT,
    storage_order: int = 0,
    out: Array | None = None,
) -> Array:
    """Gradient of `max_pool` with respect to x, from the indices it returned with return_indices=True.

    **Formula.** `dx[indices[n, i, c]] += dy[n, i, c]`, over flat indices into dx.

    **Shapes.** dy and indices have the shape of max_pool's result. `input_shape` is x's shape, or x itself.

    **Rules.** -1 passes nothing; any other index out of range is refused. `storage_order=1` as in the forward call.

    **Error.** As `max_pool_grad`.

    **Equals** ONNX Runtime's MaxPoolGrad; also the gradient of `adaptive_max_pool` and `global_max_pool` from their indices.
    """
    return run_op(
        prepare_max_pool_grad_from_indices, dy, indices, input_shape, out=out, layout=layout, storage_order=storage_order
    )
