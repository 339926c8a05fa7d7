"""The ops for JAX arrays, under jit, grad, jvp, vmap, remat and scan, to any order of derivatives.

`import pullback.jax as pj`, then `pj.conv(x, filter, ...)` with the arguments of `pullback.conv`.
Rooms: `primitives` (one JAX primitive per op), `composed` (ops that call others), `differentiation` (their jvp and transpose),
`mapping` (vmap), `symbolic` (batches that are not known yet), `xla_calls` (how compiled programs call an op).
"""

from __future__ import annotations

from pullback.extras import missing as _missing

try:
    import jax  # noqa: F401
except ImportError as error:
    raise _missing(error, "jax", "pullback.jax needs JAX, which is not installed") from None

from pullback.jax import differentiation, mapping  # noqa: F401 (they give the primitives their rules)
from pullback.jax.composed import (
    batch_norm,
    batch_norm_grad,
    conv_grad_bias,
    conv_transpose,
    global_avg_pool,
    global_avg_pool_grad,
    global_max_pool,
    global_max_pool_grad,
    lp_pool,
    lp_pool_grad,
)
from pullback.jax.primitives import explain, public

adaptive_avg_pool = public("adaptive_avg_pool")
adaptive_avg_pool_grad = public("adaptive_avg_pool_grad")
adaptive_max_pool = public("adaptive_max_pool")
adaptive_max_pool_grad = public("adaptive_max_pool_grad")
adaptive_max_pool_jvp = public("adaptive_max_pool_jvp")
avg_pool = public("avg_pool")
avg_pool_grad = public("avg_pool_grad")
conv = public("conv")
conv_grad_filter = public("conv_grad_filter")
conv_grad_input = public("conv_grad_input")
max_pool = public("max_pool")
max_pool_grad = public("max_pool_grad")
max_pool_grad_from_indices = public("max_pool_grad_from_indices")
max_pool_grad_from_winners = public("max_pool_grad_from_winners")
max_pool_jvp = public("max_pool_jvp")
max_pool_jvp_from_indices = public("max_pool_jvp_from_indices")
max_pool_jvp_from_winners = public("max_pool_jvp_from_winners")
max_unpool = public("max_unpool")
max_unpool_grad = public("max_unpool_grad")

__all__ = [
    "adaptive_avg_pool",
    "adaptive_avg_pool_grad",
    "adaptive_max_pool",
    "adaptive_max_pool_grad",
    "adaptive_max_pool_jvp",
    "avg_pool",
    "avg_pool_grad",
    "batch_norm",
    "batch_norm_grad",
    "conv",
    "conv_grad_bias",
    "conv_grad_filter",
    "conv_grad_input",
    "conv_transpose",
    "explain",
    "global_avg_pool",
    "global_avg_pool_grad",
    "global_max_pool",
    "global_max_pool_grad",
    "lp_pool",
    "lp_pool_grad",
    "max_pool",
    "max_pool_grad",
    "max_pool_grad_from_indices",
    "max_pool_grad_from_winners",
    "max_pool_jvp",
    "max_pool_jvp_from_indices",
    "max_pool_jvp_from_winners",
    "max_unpool",
    "max_unpool_grad",
]
