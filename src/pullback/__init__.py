"""pullback: exact gradients of convolution and pooling for NumPy arrays, under named rules.

Rooms: `ops` (validate, dispatch), `window` (geometry), `rules` (ties, NaN, dtypes), `problem`, `registry`,
`settings` (threads, precision), `reference` (the specification in NumPy), `cpu` (the fast kernels), `derivatives` (as data),
`autograd` (the ops for that package), and the dialects `tfjs` and `ort`.
"""

from typing import NoReturn

from pullback.gradients import grad, grads, value_and_grads
from pullback.ops.adaptive_pool import (
    adaptive_avg_pool,
    adaptive_avg_pool_grad,
    adaptive_max_pool,
    adaptive_max_pool_grad,
    adaptive_max_pool_jvp,
)
from pullback.ops.avg_pool import avg_pool, avg_pool_grad
from pullback.ops.batch_norm import batch_norm, batch_norm_grad
from pullback.ops.bias import conv_grad_bias
from pullback.ops.conv import conv, conv_grad_filter, conv_grad_input
from pullback.ops.conv_transpose import conv_transpose
from pullback.ops.explain import explain
from pullback.ops.global_pool import global_avg_pool, global_avg_pool_grad, global_max_pool, global_max_pool_grad
from pullback.ops.hints import unknown_name as _unknown_name
from pullback.ops.lp_pool import lp_pool, lp_pool_grad
from pullback.ops.max_pool import max_pool, max_pool_grad, max_pool_grad_from_indices, max_pool_grad_from_winners
from pullback.ops.pool_tangent import max_pool_jvp, max_pool_jvp_from_indices, max_pool_jvp_from_winners
from pullback.ops.unpool import max_unpool, max_unpool_grad
from pullback.pictures import draw
from pullback.registry import (
    Explanation,
    KernelError,
    backend,
    backends,
    kernel,
    register_kernel,
    unregister_kernel,
)
from pullback.settings import get_num_threads, precision, release_memory, set_num_threads, threads

__version__ = "0.1.0"

__all__ = [
    "Explanation",
    "KernelError",
    "adaptive_avg_pool",
    "adaptive_avg_pool_grad",
    "adaptive_max_pool",
    "adaptive_max_pool_grad",
    "adaptive_max_pool_jvp",
    "avg_pool",
    "avg_pool_grad",
    "backend",
    "backends",
    "batch_norm",
    "batch_norm_grad",
    "conv",
    "conv_grad_bias",
    "conv_grad_filter",
    "conv_grad_input",
    "conv_transpose",
    "draw",
    "explain",
    "get_num_threads",
    "global_avg_pool",
    "global_avg_pool_grad",
    "global_max_pool",
    "global_max_pool_grad",
    "grad",
    "grads",
    "kernel",
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
    "precision",
    "register_kernel",
    "release_memory",
    "set_num_threads",
    "threads",
    "unregister_kernel",
    "value_and_grads",
]


def __getattr__(name: str) -> NoReturn:
    _unknown_name(name, __all__)
