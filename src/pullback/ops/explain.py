"""explain(): which kernel an op's call would run on, and why the faster ones refused, without running it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.ops import conv, conv_transpose, pool, pool_tangent
from pullback.ops.arguments import shown
from pullback.registry import Explanation, explain_problem

PREPARE: dict[str, Callable[..., tuple[Any, ...]]] = {
    "conv": conv.prepare_conv,
    "conv_grad_input": conv.prepare_conv_grad_input,
    "conv_grad_filter": conv.prepare_conv_grad_filter,
    "conv_transpose": conv_transpose.prepare_conv_transpose,
    "max_pool": pool.prepare_max_pool,
    "max_pool_grad": pool.prepare_max_pool_grad,
    "max_pool_grad_from_indices": pool.prepare_max_pool_grad_from_indices,
    "max_pool_grad_from_winners": pool.prepare_max_pool_grad_from_winners,
    "max_pool_jvp": pool_tangent.prepare_max_pool_jvp,
    "max_pool_jvp_from_indices": pool_tangent.prepare_max_pool_jvp_from_indices,
    "max_pool_jvp_from_winners": pool_tangent.prepare_max_pool_jvp_from_winners,
    "avg_pool": pool.prepare_avg_pool,
    "avg_pool_grad": pool.prepare_avg_pool_grad,
}


def explain(op_name: str, *args: Any, **keywords: Any) -> Explanation:
    """Explain `op_name(*args, **keywords)`: print it, or ask its `.chosen` kernel and `.verdicts`."""
    try:
        prepare = PREPARE[op_name]
    except (KeyError, TypeError):
        raise ValueError(f"explain: unknown op {shown(op_name)}; the ops are {', '.join(PREPARE)}") from None
    return explain_problem(prepare(*args, **keywords)[0])
