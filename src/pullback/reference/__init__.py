"""The reference backend: every op in plain NumPy over taps, float64 sums. It is the specification the others are held to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.reference import adaptive_pool, conv, morphology, pool, pool_tangent, unpool
from pullback.registry import REFERENCE, add_kernel

KERNELS: dict[str, Callable[..., Any]] = {
    "conv": conv.conv,
    "conv_grad_input": conv.conv_grad_input,
    "conv_grad_filter": conv.conv_grad_filter,
    "max_pool": pool.max_pool,
    "max_pool_grad": pool.max_pool_grad,
    "max_pool_grad_from_indices": pool.max_pool_grad_from_indices,
    "max_pool_grad_from_winners": pool.max_pool_grad_from_winners,
    "max_pool_jvp": pool_tangent.max_pool_jvp,
    "max_pool_jvp_from_indices": pool_tangent.max_pool_jvp_from_indices,
    "max_pool_jvp_from_winners": pool_tangent.max_pool_jvp_from_winners,
    "avg_pool": pool.avg_pool,
    "avg_pool_grad": pool.avg_pool_grad,
    "adaptive_max_pool": adaptive_pool.adaptive_max_pool,
    "adaptive_max_pool_grad": adaptive_pool.adaptive_max_pool_grad,
    "adaptive_max_pool_jvp": adaptive_pool.adaptive_max_pool_jvp,
    "adaptive_avg_pool": adaptive_pool.adaptive_avg_pool,
    "adaptive_avg_pool_grad": adaptive_pool.adaptive_avg_pool_grad,
    "max_unpool": unpool.max_unpool,
    "max_unpool_grad": unpool.max_unpool_grad,
    "dilation": morphology.dilation,
    "dilation_grad_input": morphology.dilation_grad_input,
    "dilation_grad_filter": morphology.dilation_grad_filter,
}


def _accepts_all(problem: Any) -> None:
    return None


def register() -> None:
    """Put all of them on the lists of the registry."""
    for op, run in KERNELS.items():
        add_kernel(op, REFERENCE, "taps", _accepts_all, run)
