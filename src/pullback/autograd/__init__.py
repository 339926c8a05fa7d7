"""The ops as autograd sees them: `autograd.grad` and its relatives differentiate through them, to any order.

The same functions as in `pullback`, which hands calls over to here while autograd records. Needs the package `autograd`.
"""

from pullback.extras import missing as _missing

try:
    import autograd as _package  # noqa: F401
except ImportError as _error:
    raise _missing(_error, "autograd", "pullback.autograd needs the package autograd") from None

from pullback.autograd.primitives import (
    adaptive_avg_pool,
    adaptive_avg_pool_grad,
    adaptive_max_pool,
    adaptive_max_pool_grad,
    adaptive_max_pool_jvp,
    avg_pool,
    avg_pool_grad,
    conv,
    conv_grad_bias,
    conv_grad_filter,
    conv_grad_input,
    conv_transpose,
    max_pool,
    max_pool_grad,
    max_pool_grad_from_indices,
    max_pool_grad_from_winners,
    max_pool_jvp,
    max_pool_jvp_from_indices,
    max_pool_jvp_from_winners,
    max_unpool,
    max_unpool_grad,
)
from pullback.autograd.reverse import grad, grads, pull_back, value_and_grads

__all__ = [
    "adaptive_avg_pool",
    "adaptive_avg_pool_grad",
    "adaptive_max_pool",
    "adaptive_max_pool_grad",
    "adaptive_max_pool_jvp",
    "avg_pool",
    "avg_pool_grad",
    "conv",
    "conv_grad_bias",
    "conv_grad_filter",
    "conv_grad_input",
    "conv_transpose",
    "grad",
    "grads",
    "max_pool",
    "max_pool_grad",
    "max_pool_grad_from_indices",
    "max_pool_grad_from_winners",
    "max_pool_jvp",
    "max_pool_jvp_from_indices",
    "max_pool_jvp_from_winners",
    "max_unpool",
    "max_unpool_grad",
    "pull_back",
    "value_and_grads",
]
