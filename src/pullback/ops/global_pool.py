"""Global pooling: one window over all cells of an image, which stay as axes of size 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.ops.arguments import as_shape, layout_of, split_shape
from pullback.ops.avg_pool import avg_pool, avg_pool_grad
from pullback.ops.hints import DEFAULT_LAYOUT, with_hints
from pullback.ops.max_pool import max_pool, max_pool_grad
from pullback.rules import Array
from pullback.tracing import plain


def _all_cells(op: str, name: str, shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """The window that spans an image."""
    size = split_shape(layout_of(op, layout, name, shape), shape)[1]
    if 0 in size:
        raise ValueError(f"{op}: {name} {shape} has an axis of no cells, so there is nothing to pool")
    return size


@with_hints
def global_max_pool(
    x: npt.ArrayLike,
    *,
    layout: str = DEFAULT_LAYOUT,
    ties: str = "first",
    nan: str = "propagate",
    return_indices: bool = False,
    return_winners: bool = False,
    storage_order: int = 0,
) -> Any:
    """Maximum over all cells of each image and channel.

    **Formula.** `y[n, 0, c] = max over i of x[n, i, c]`. **Shapes.** `(N, 1, 1, C)` of `(N, H, W, C)`, and so on.

    **Rules.** As `max_pool` with the image as its window, indices and winners too. **Equals** ONNX GlobalMaxPool.
    """
    return max_pool(
        x, _all_cells("global_max_pool", "x", np.shape(plain(x)), layout), layout=layout, ties=ties, nan=nan,
        return_indices=return_indices, return_winners=return_winners, storage_order=storage_order,
    )  # fmt: skip


@with_hints
def global_max_pool_grad(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    *,
    layout: str = DEFAULT_LAYOUT,
    ties: str = "first",
    nan: str = "propagate",
    out: Array | None = None,
) -> Array:
    """Gradient of `global_max_pool` with respect to x: each dy goes to its image's largest cell.

    **Formula.** `dx[n, j, c] = dy[n, 0, c] where cell j is the winner, else 0`. **Shapes.** dy as the result, the gradient as
    x.
    """
    window = _all_cells("global_max_pool_grad", "x", np.shape(plain(x)), layout)
    return max_pool_grad(dy, x, window, layout=layout, ties=ties, nan=nan, out=out)


@with_hints
def global_avg_pool(x: npt.ArrayLike, *, layout: str = DEFAULT_LAYOUT, out: Array | None = None) -> Array:
    """Mean over all cells of each image and channel.

    **Formula.** `y[n, 0, c] = mean over i of x[n, i, c]`. **Shapes.** `(N, 1, 1, C)` of `(N, H, W, C)`, and so on.

    **Error.** As `avg_pool`. **Equals** ONNX GlobalAveragePool, torch.nn.functional.adaptive_avg_pool2d(x, 1).
    """
    return avg_pool(x, _all_cells("global_avg_pool", "x", np.shape(plain(x)), layout), layout=layout, out=out)


@with_hints
def global_avg_pool_grad(
    dy: npt.ArrayLike, input_shape: Sequence[int], *, layout: str = DEFAULT_LAYOUT, out: Array | None = None
) -> Array:
    """Gradient of `global_avg_pool` with respect to x: each dy, divided by the cells of an image, in all of them.

    **Formula.** `dx[n, j, c] = dy[n, 0, c] / cells`. **Shapes.** `input_shape` is x's shape, or x itself.
    """
    shape = as_shape("global_avg_pool_grad", "input_shape", input_shape)
    window = _all_cells("global_avg_pool_grad", "input_shape", shape, layout)
    return avg_pool_grad(dy, shape, window, layout=layout, out=out)
