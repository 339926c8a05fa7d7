"""Why kernels of the cuda backend cannot run a problem, where several say the same. Imports nothing of a GPU's."""

from __future__ import annotations

from pullback.problem import AnyProblem, Problem

MOST_TAPS = 64


def not_empty(problem: AnyProblem) -> str | None:
    if 0 in problem.input_shape or 0 in problem.output_shape:
        return "there is nothing to compute in an empty array"
    return None


def max_pool(problem: AnyProblem) -> str | None:
    rule = getattr(problem, "winner", None)
    if rule is not None and (rule.above is not None or rule.nan == "leading"):
        return "its rule for winners is a dialect's, whose arrays are NumPy's"
    return not_empty(problem)


def small_windows(problem: Problem) -> str | None:
    """Why a reduction would be faster, as PyTorch has it."""
    if problem.window.tap_count > MOST_TAPS:
        return f"windows of more than {MOST_TAPS} cells are better reduced by many threads each"
    return None
