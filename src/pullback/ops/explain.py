"""explain(): which kernel an op's call would run on, and why the faster ones refused, without running it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from pullback.ops import adaptive_pool, avg_pool, conv, conv_transpose, max_pool, pool_tangent, unpool
from pullback.ops.foreign_arrays import any_device_array
from pullback.ops.hints import check_names
from pullback.registry import Explanation, explain_problem
from pullback.shown import shown

# The module of each op that is dispatched, which has the op and `prepare_` it.
MODULES: dict[str, ModuleType] = {
    "conv": conv,
    "conv_grad_input": conv,
    "conv_grad_filter": conv,
    "conv_transpose": conv_transpose,
    "max_pool": max_pool,
    "max_pool_grad": max_pool,
    "max_pool_grad_from_indices": max_pool,
    "max_pool_grad_from_winners": max_pool,
    "max_pool_jvp": pool_tangent,
    "max_pool_jvp_from_indices": pool_tangent,
    "max_pool_jvp_from_winners": pool_tangent,
    "avg_pool": avg_pool,
    "avg_pool_grad": avg_pool,
    "adaptive_max_pool": adaptive_pool,
    "adaptive_max_pool_grad": adaptive_pool,
    "adaptive_max_pool_jvp": adaptive_pool,
    "adaptive_avg_pool": adaptive_pool,
    "adaptive_avg_pool_grad": adaptive_pool,
    "max_unpool": unpool,
    "max_unpool_grad": unpool,
}
PREPARE: dict[str, Callable[..., tuple[Any, ...]]] = {op: getattr(module, f"prepare_{op}") for op, module in MODULES.items()}
NOT_EXPLAINED = ("bias", "out")  # keywords that do not change which kernel runs


def explain(op_name: str, *args: Any, **keywords: Any) -> Explanation:
    """Explain `op_name(*args, **keywords)`: print it, or ask its `.chosen` kernel and `.verdicts`."""
    try:
        prepare = PREPARE[op_name]
    except (KeyError, TypeError):
        raise ValueError(f"explain: unknown op {shown(op_name)}; the ops are {', '.join(PREPARE)}") from None
    check_names(getattr(MODULES[op_name], op_name), args, keywords)
    kept = {name: value for name, value in keywords.items() if name not in NOT_EXPLAINED}
    if any_device_array(args):
        from pullback.cuda.arrays import explain_on_arrays

        return explain_on_arrays(prepare, args, kept)
    return explain_problem(prepare(*args, **kept)[0])
