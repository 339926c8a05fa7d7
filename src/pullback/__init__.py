"""pullback: exact gradients of convolution and pooling for NumPy arrays, under named rules.

Rooms: `ops` (validate, dispatch), `window` (geometry), `rules` (ties, NaN, dtypes), `problem`, `registry`,
`settings` (threads, precision), `reference` (the specification in NumPy), `cpu` (the fast kernels), `derivatives` (as data),
`autograd` (the ops for that package), and the dialects `tfjs` and `ort`.
"""

from pullback.draw import draw
from pullback.gradients import grads
from pullback.ops.conv import conv, conv_grad_filter, conv_grad_input
from pullback.ops.conv_transpose import conv_transpose
from pullback.ops.explain import explain
from pullback.ops.pool import (
    avg_pool,
    avg_pool_grad,
    max_pool,
    max_pool_grad,
    max_pool_grad_from_indices,
    max_pool_grad_from_winners,
)
from pullback.ops.pool_tangent import max_pool_jvp, max_pool_jvp_from_indices, max_pool_jvp_from_winners
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
    "avg_pool",
    "avg_pool_grad",
    "backend",
    "backends",
    "conv",
    "conv_grad_filter",
    "conv_grad_input",
    "conv_transpose",
    "draw",
    "explain",
    "get_num_threads",
    "grads",
    "kernel",
    "max_pool",
    "max_pool_grad",
    "max_pool_grad_from_indices",
    "max_pool_grad_from_winners",
    "max_pool_jvp",
    "max_pool_jvp_from_indices",
    "max_pool_jvp_from_winners",
    "precision",
    "register_kernel",
    "release_memory",
    "set_num_threads",
    "threads",
    "unregister_kernel",
]
