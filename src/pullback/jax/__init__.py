"""The ops for JAX arrays, under jit, grad, jvp, vmap, remat and scan, to any order of derivatives.

`import pullback.jax as pj`, then `pj.conv(x, filter, ...)` with the arguments of `pullback.conv`.
Rooms: `primitives` (one JAX primitive per op), `differentiation` (their jvp and transpose), `mapping` (vmap).
"""

from __future__ import annotations

from pullback.extras import missing as _missing

try:
    import jax  # noqa: F401
except ImportError as error:
    raise _missing(error, "jax", "pullback.jax needs JAX, which is not installed") from None

from pullback.jax import differentiation, mapping  # noqa: F401 (they give the primitives their rules)
from pullback.jax.primitives import public

conv = public("conv")
conv_grad_input = public("conv_grad_input")
conv_grad_filter = public("conv_grad_filter")
conv_transpose = public("conv_transpose")
max_pool = public("max_pool")
max_pool_grad = public("max_pool_grad")
max_pool_grad_from_indices = public("max_pool_grad_from_indices")
max_pool_grad_from_winners = public("max_pool_grad_from_winners")
max_pool_jvp = public("max_pool_jvp")
max_pool_jvp_from_indices = public("max_pool_jvp_from_indices")
max_pool_jvp_from_winners = public("max_pool_jvp_from_winners")
avg_pool = public("avg_pool")
avg_pool_grad = public("avg_pool_grad")

__all__ = [
    "avg_pool",
    "avg_pool_grad",
    "conv",
    "conv_grad_filter",
    "conv_grad_input",
    "conv_transpose",
    "max_pool",
    "max_pool_grad",
    "max_pool_grad_from_indices",
    "max_pool_grad_from_winners",
    "max_pool_jvp",
    "max_pool_jvp_from_indices",
    "max_pool_jvp_from_winners",
]
