"""Adaptive pooling: windows that cut each axis into a given number of parts, of sizes that may differ by one.

Output y of o along an axis of n cells has the cells floor(y n / o) .. ceil((y + 1) n / o) - 1. Where every o divides its n
these are ordinary windows, and the ordinary ops run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy.typing as npt

from pullback.ops.arguments import (
    as_entries,
    as_float_array,
    as_int,
    as_shape,
    check_shape,
    check_taps,
    layout_of,
    one_of,
    same_dtype,
    split_shape,
)
from pullback.ops.call import run_op
from pullback.ops.hints import DEFAULT_LAYOUT, with_hints
from pullback.ops.pool_problem import max_rules, mean_rules
from pullback.problem import AdaptiveProblem, Problem
from pullback.rules import Array, Layout
from pullback.shown import shown
from pullback.window import AdaptiveWindow

OutputSize = int | Sequence[int | None]


def _output_size(op: str, given: Any, layout: Layout, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The spatial sizes of the output: one for all axes, one for each (None keeps the input's), or the whole shape of the
    output.
    """
    batch, size, channels = split_shape(layout, shape)
    entries = as_entries(getattr(given, "shape", given))
    if entries is None:
        entries = (given,) * len(size)
    if len(entries) == len(shape):
        whole = as_shape(op, "output_size", entries)
        if split_shape(layout, whole)[::2] != (batch, channels):
            what = "dy has shape" if op.endswith("_grad") else "output_size, a whole shape, is"
            raise ValueError(f"{op}: {what} {whole}, which differs from {shape} in batch or channels")
        entries = split_shape(layout, whole)[1]
    if len(entries) != len(size):
        raise ValueError(f"{op}: output_size is {shown(given)}, which has {len(entries)} entries for {len(size)} spatial axes")
    sizes = tuple(n if o is None else as_int(op, "output_size", o) for n, o in zip(size, entries, strict=True))
    if min(sizes) < 1:
        raise ValueError(f"{op}: output_size is {shown(given)}; every entry must be at least 1, or None for the input's size")
    return sizes


def _problem(op: str, name: str, shape: tuple[int, ...], dtype: Any, output_size: Any, layout: str, **rules: Any) -> Problem:
    kind = layout_of(op, layout, name, shape)
    batch, size, channels = split_shape(kind, shape)
    if 0 in size:
        raise ValueError(f"{op}: {name} {shape} has an axis of no cells, which cannot be cut into windows")
    window = AdaptiveWindow(size, _output_size(op, output_size, kind, shape))
    check_taps(op, window.kernel)
    even = window.even()
    if even is not None:
        return Problem(op.removeprefix("adaptive_"), dtype, kind, batch, channels, channels, even, **rules)
    return AdaptiveProblem(op, dtype, kind, batch, channels, channels, window, **rules)


def prepare_adaptive_max_pool(
    x: npt.ArrayLike,
    output_size: OutputSize,
    *,
    layout: str = DEFAULT_LAYOUT,
    ties: str = "first",
    nan: str = "propagate",
    return_indices: bool = False,
    storage_order: int = 0,
) -> tuple[Problem, Array]:
    op = "adaptive_max_pool"
    a = as_float_array(op, "x", x)
    one_of(op, "return_indices", return_indices, (False, True))
    one_of(op, "storage_order", storage_order, (0, 1))
    rules = max_rules(op, ties, nan) | {"return_indices": return_indices, "storage_order": storage_order}
    return _problem(op, "x", a.shape, a.dtype, output_size, layout, **rules), a


def prepare_adaptive_max_pool_grad(
    dy: npt.ArrayLike, x: npt.ArrayLike, *, layout: str = DEFAULT_LAYOUT, ties: str = "first", nan: str = "propagate"
) -> tuple[Problem, Array, Array]:
    op = "adaptive_max_pool_grad"
    d, a = as_float_array(op, "dy", dy), as_float_array(op, "x", x)
    dtype = same_dtype(op, dy=d, x=a)
    _check_axes(op, d, "x", a.shape)
    return _problem(op, "x", a.shape, dtype, d.shape, layout, **max_rules(op, ties, nan)), d, a


def prepare_adaptive_max_pool_jvp(
    t: npt.ArrayLike,
    x: npt.ArrayLike,
    output_size: OutputSize,
    *,
    layout: str = DEFAULT_LAYOUT,
    ties: str = "first",
    nan: str = "propagate",
) -> tuple[Problem, Array, Array]:
    op = "adaptive_max_pool_jvp"
    b, a = as_float_array(op, "t", t), as_float_array(op, "x", x)
    problem = _problem(op, "x", a.shape, same_dtype(op, t=b, x=a), output_size, layout, **max_rules(op, ties, nan))
    check_shape(op, "t", b.shape, a.shape, "a tangent for each cell of x")
    return problem, b, a


def _check_axes(op: str, dy: Array, name: str, shape: tuple[int, ...]) -> None:
    if dy.ndim != len(shape):
        raise ValueError(f"{op}: dy has shape {dy.shape} but {name} {shape} has {len(shape)} axes")


def prepare_adaptive_avg_pool(
    x: npt.ArrayLike, output_size: OutputSize, *, layout: str = DEFAULT_LAYOUT
) -> tuple[Problem, Array]:
    op = "adaptive_avg_pool"
    a = as_float_array(op, "x", x)
    return _problem(op, "x", a.shape, a.dtype, output_size, layout, **mean_rules(op, False, None)), a


def prepare_adaptive_avg_pool_grad(
    dy: npt.ArrayLike, input_shape: Sequence[int], *, layout: str = DEFAULT_LAYOUT
) -> tuple[Problem, Array]:
    op = "adaptive_avg_pool_grad"
    d, shape = as_float_array(op, "dy", dy), as_shape(op, "input_shape", input_shape)
    _check_axes(op, d, "input_shape", shape)
    return _problem(op, "input_shape", shape, d.dtype, d.shape, layout, **mean_rules(op, False, None)), d


@with_hints
def adaptive_max_pool(
    x: npt.ArrayLike,
    output_size: OutputSize,
    *,
    layout: str = DEFAULT_LAYOUT,
    ties: str = "first",
    nan: str = "propagate",
    return_indices: bool = False,
    storage_order: int = 0,
) -> Any:
    """Maximum of each of `output_size` windows that cover the input.

    **Formula.** Output i of o along an axis of n cells is the maximum of the cells `floor(i*n/o) .. ceil((i+1)*n/o) - 1`.

    **Shapes.** As `max_pool`; `output_size` is a number, one per axis (None keeps the input's size), or the result's whole
    shape.

    **Rules.** `ties`, `nan`, `return_indices`, `storage_order`: as `max_pool` has them. The gradient from the indices is
    `max_pool_grad_from_indices`.

    **Error.** None: values are copied. **Equals** torch.nn.functional.adaptive_max_pool1d to 3d.
    """
    result = run_op(
        prepare_adaptive_max_pool, x, output_size, layout=layout, ties=ties, nan=nan, return_indices=return_indices,
        storage_order=storage_order,
    )  # fmt: skip
    return cast(Any, result)


@with_hints
def adaptive_max_pool_grad(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    *,
    layout: str = DEFAULT_LAYOUT,
    ties: str = "first",
    nan: str = "propagate",
    out: Array | None = None,
) -> Array:
    """Gradient of `adaptive_max_pool` with respect to x, finding the winners in x again: each dy goes to its window's winner.

    **Formula.** `dx[n, j, c] = sum of dy[n, i, c] over the windows i whose winner is cell j`.

    **Shapes.** dy has the shape of adaptive_max_pool's result, which tells the output's size; the gradient has that of x.

    **Error.** A sum of as many numbers as windows that share a cell. **Equals** torch's adaptive_max_pool backward.
    """
    return run_op(prepare_adaptive_max_pool_grad, dy, x, out=out, layout=layout, ties=ties, nan=nan)


@with_hints
def adaptive_max_pool_jvp(
    t: npt.ArrayLike,
    x: npt.ArrayLike,
    output_size: OutputSize,
    *,
    layout: str = DEFAULT_LAYOUT,
    ties: str = "first",
    nan: str = "propagate",
) -> Array:
    """Derivative of `adaptive_max_pool` at x in the direction t: t at each window's winner, 0 where a window has none.

    The adjoint of `adaptive_max_pool_grad`. **Shapes.** t has the shape of x, the result that of adaptive_max_pool's.
    """
    return run_op(prepare_adaptive_max_pool_jvp, t, x, output_size, layout=layout, ties=ties, nan=nan)


@with_hints
def adaptive_avg_pool(
    x: npt.ArrayLike, output_size: OutputSize, *, layout: str = DEFAULT_LAYOUT, out: Array | None = None
) -> Array:
    """Mean of each of `output_size` windows that cover the input.

    **Formula.** Output i of o along an axis of n cells is the mean of the cells `floor(i*n/o) .. ceil((i+1)*n/o) - 1`.

    **Shapes.** As `adaptive_max_pool`.

    **Error.** A sum of n cells errs by at most n eps times the sum of their absolute values, the share of each by one
    rounding more.

    **Equals** torch.nn.functional.adaptive_avg_pool1d to 3d.
    """
    return run_op(prepare_adaptive_avg_pool, x, output_size, out=out, layout=layout)


@with_hints
def adaptive_avg_pool_grad(
    dy: npt.ArrayLike, input_shape: Sequence[int], *, layout: str = DEFAULT_LAYOUT, out: Array | None = None
) -> Array:
    """Gradient of `adaptive_avg_pool` with respect to x: each dy divided by the cells of its window and spread over them.

    **Formula.** `dx[n, j, c] = sum over the windows i that hold cell j of dy[n, i, c] / cells(i)`.

    **Shapes.** dy has the shape of adaptive_avg_pool's result, which tells the output's size. `input_shape` is x's shape, or
    x itself.

    **Error.** As `adaptive_avg_pool`. **Equals** torch's adaptive_avg_pool backward.
    """
    return run_op(prepare_adaptive_avg_pool_grad, dy, input_shape, out=out, layout=layout)
