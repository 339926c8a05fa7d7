"""Ops that are calls of other ops, or of JAX's: transposed convolution, the bias's gradient, global and Lp pooling, batch norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pullback.jax.primitives import FUNCTIONS, bound, problem_of, public, with_bias
from pullback.jax.symbolic import check_only_batch
from pullback.ops.arguments import check_float, layout_of, split_shape
from pullback.ops.batch_norm import Rules, check, formula, named
from pullback.ops.hints import DEFAULT_LAYOUT
from pullback.ops.lp_pool import as_exponent, root, wide

_bind_transpose = bound("conv_transpose")


def _conv_transpose(*args: Any, **named: Any) -> Any:
    arrays, keywords, bias = _bind_transpose(*args, **named)
    problem, of_call = problem_of("conv_transpose", tuple(arrays.values()), keywords)
    place = {name: value for name, value in keywords.items() if not name.startswith("output_")}
    y = FUNCTIONS["conv_grad_input"](*arrays.values(), of_call(problem.input_shape), **place)
    return with_bias("conv_transpose", y, bias, keywords)


def _conv_grad_bias(dy: Any, *, layout: str = DEFAULT_LAYOUT) -> Any:
    d = jnp.asarray(dy)
    channels = d.ndim - 1 if layout_of("conv_grad_bias", layout, "dy", d.shape) == "channels_last" else 1
    return d.sum(axis=tuple(axis for axis in range(d.ndim) if axis != channels))


def _over_all_cells(op: str, shape_from: Callable[[tuple[Any, ...]], tuple[int, ...]]) -> Callable[..., Any]:
    """global_X as X with the image as its window."""

    def function(*arrays: Any, layout: str = DEFAULT_LAYOUT, **keywords: Any) -> Any:
        shape = tuple(shape_from(arrays))
        check_only_batch(f"global_{op}", "x", shape)
        window = split_shape(layout_of(f"global_{op}", layout, "x", shape), shape)[1]
        return FUNCTIONS[op](*arrays, window, layout=layout, **keywords)

    return function


def _lp_pool(x: Any, window: Any, *, p: float = 2, **keywords: Any) -> Any:
    a, exponent = jnp.asarray(x), as_exponent("lp_pool", p)
    sums = FUNCTIONS["avg_pool"](jnp.abs(wide(a)) ** exponent, window, divisor=1, **keywords)
    return root(jnp, sums, 1 / exponent).astype(a.dtype)


def _lp_pool_grad(dy: Any, x: Any, window: Any, **keywords: Any) -> Any:
    return jax.vjp(lambda a: _lp_pool(a, window, **keywords), jnp.asarray(x))[1](jnp.asarray(dy))[0]


def _of_batch_norm(
    op: str, required: dict[str, Any], *, mean: Any = None, variance: Any = None, eps: Any = 1e-5, activation: Any = None,
    add: Any = None, layout: str = DEFAULT_LAYOUT,
) -> tuple[dict[str, Any], Rules]:  # fmt: skip
    """The arrays of a call, and its rules."""
    given = named(required, mean=mean, variance=variance, add=add)
    arrays = {name: jnp.asarray(value) for name, value in given.items()}
    check_float(op, "x", arrays["x"].dtype)
    check_only_batch(op, "x", arrays["x"].shape)
    return arrays, check(op, arrays, eps, activation, layout)


def _batch_norm(x: Any, scale: Any, bias: Any, *, return_statistics: bool = False, **keywords: Any) -> Any:
    found = formula(jnp, *_of_batch_norm("batch_norm", {"x": x, "scale": scale, "bias": bias}, **keywords))
    return found if return_statistics else found[0]


def _batch_norm_grad(dy: Any, x: Any, scale: Any, bias: Any, **keywords: Any) -> Any:
    required = {"dy": dy, "x": x, "scale": scale, "bias": bias}
    arrays, rules = _of_batch_norm("batch_norm_grad", required, **keywords)
    of = {name: arrays[name] for name in ("x", "scale", "bias", "add") if name in arrays}
    gradients = jax.vjp(lambda of: formula(jnp, arrays | of, rules)[0], of)[1](arrays["dy"])[0]
    return tuple(gradients[name] for name in of)


batch_norm = public("batch_norm", _batch_norm)
batch_norm_grad = public("batch_norm_grad", _batch_norm_grad)
conv_transpose = public("conv_transpose", _conv_transpose)
conv_grad_bias = public("conv_grad_bias", _conv_grad_bias)
global_max_pool = public("global_max_pool", _over_all_cells("max_pool", lambda arrays: jnp.shape(arrays[0])))
global_max_pool_grad = public("global_max_pool_grad", _over_all_cells("max_pool_grad", lambda arrays: jnp.shape(arrays[1])))
global_avg_pool = public("global_avg_pool", _over_all_cells("avg_pool", lambda arrays: jnp.shape(arrays[0])))
global_avg_pool_grad = public("global_avg_pool_grad", _over_all_cells("avg_pool_grad", lambda arrays: _shape(arrays[1])))
lp_pool = public("lp_pool", _lp_pool)
lp_pool_grad = public("lp_pool_grad", _lp_pool_grad)


def _shape(given: Any) -> tuple[int, ...]:
    """A shape, or that of an array."""
    return tuple(given.shape if hasattr(given, "shape") and len(given.shape) > 1 else given)
