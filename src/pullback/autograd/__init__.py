"""The ops as autograd sees them: `autograd.grad` and its relatives differentiate through them, to any order.

The same functions as in `pullback`, which hands calls over to here while autograd records. Needs the package `autograd`.
"""

from pullback.extras import missing as _missing

try:
    import autograd as _package  # noqa: F401
except ImportError as _error:
    raise _missing(_error, "autograd", "pullback.autograd needs the package autograd") from None

from pullback.autograd.primitives import (
    avg_pool,
    avg_pool_grad,
    conv,
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
)
from pullback.autograd.reverse import grads, pull_back

__all__ = [
    "avg_pool",
    "avg_pool_grad",
    "conv",
    "conv_grad_filter",
    "conv_grad_input",
    "conv_transpose",
    "grads",
    "max_pool",
    "max_pool_grad",
    "max_pool_grad_from_indices",
    "max_pool_grad_from_winners",
    "max_pool_jvp",
    "max_pool_jvp_from_indices",
    "max_pool_jvp_from_winners",
    "pull_back",
]
