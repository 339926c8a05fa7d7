"""Max unpooling: values put back where max pooling found them; and its gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy.typing as npt

from pullback.ops.arguments import as_float_array, as_indices, as_shape, check_shape, layout_of, one_of, split_shape
from pullback.ops.call import run_op
from pullback.ops.hints import DEFAULT_LAYOUT, with_hints
from pullback.problem import IndexProblem
from pullback.rules import Array


def prepare_max_unpool(
    values: npt.ArrayLike,
    indices: npt.ArrayLike,
    output_shape: Sequence[int],
    *,
    layout: str = DEFAULT_LAYOUT,
    storage_order: int = 0,
) -> tuple[IndexProblem, Array, Array]:
    op = "max_unpool"
    v, i, shape = as_float_array(op, "values", values), as_indices(op, indices), as_shape(op, "output_shape", output_shape)
    kind = layout_of(op, layout, "output_shape", shape)
    one_of(op, "storage_order", storage_order, (0, 1))
    check_shape(op, "indices", i.shape, v.shape, "one index for each value")
    if v.ndim != len(shape) or split_shape(kind, v.shape)[::2] != split_shape(kind, shape)[::2]:
        raise ValueError(f"{op}: values {v.shape} and output_shape {shape} differ in rank, batch or channels")
    return IndexProblem(op, v.dtype, kind, shape, v.shape, storage_order), v, i


def prepare_max_unpool_grad(
    dy: npt.ArrayLike, indices: npt.ArrayLike, *, layout: str = DEFAULT_LAYOUT, storage_order: int = 0
) -> tuple[IndexProblem, Array, Array]:
    op = "max_unpool_grad"
    d, i = as_float_array(op, "dy", dy), as_indices(op, indices)
    kind = layout_of(op, layout, "dy", d.shape)
    one_of(op, "storage_order", storage_order, (0, 1))
    if i.ndim != d.ndim or split_shape(kind, i.shape)[::2] != split_shape(kind, d.shape)[::2]:
        raise ValueError(f"{op}: dy {d.shape} and indices {i.shape} differ in rank, batch or channels")
    return IndexProblem(op, d.dtype, kind, d.shape, i.shape, storage_order), d, i


@with_hints
def max_unpool(
    values: npt.ArrayLike,
    indices: npt.ArrayLike,
    output_shape: Sequence[int],
    *,
    layout: str = DEFAULT_LAYOUT,
    storage_order: int = 0,
) -> Array:
    """Values put back where `max_pool(..., return_indices=True)` found them; the other cells are zero.

    **Formula.** `y[indices[k]] = values[k]`, flat, for k in C order: where windows overlap and share a winner, the last value
    stays.

    **Shapes.** values and indices have the shape of max_pool's result, `output_shape` that of its input (or an array of that
    shape).

    **Rules.** -1 puts nothing; any other index out of range is refused. To sum instead, use `max_pool_grad_from_indices`.

    **Error.** None: values are copied.

    **Equals** ONNX MaxUnpool; torch.nn.functional.max_unpool2d with indices over the whole array instead of one plane.
    """
    return run_op(prepare_max_unpool, values, indices, output_shape, layout=layout, storage_order=storage_order)


@with_hints
def max_unpool_grad(
    dy: npt.ArrayLike, indices: npt.ArrayLike, *, layout: str = DEFAULT_LAYOUT, storage_order: int = 0
) -> Array:
    """Gradient of `max_unpool` with respect to its values: dy where each was put, 0 for one that another replaced.

    **Formula.** `dvalues[k] = dy[indices[k]]` if k is the last with this index, else 0. **Shapes.** dy as max_unpool's
    result.
    """
    return run_op(prepare_max_unpool_grad, dy, indices, layout=layout, storage_order=storage_order)
