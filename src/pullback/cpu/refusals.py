"""Why kernels of the cpu backend cannot run a problem, where several of them say the same."""

from __future__ import annotations

from pullback.problem import AnyProblem, Problem


def ordinary(problem: AnyProblem) -> str | None:
    """Why no kernel but the reference, or `crop`, takes a problem."""
    if 0 in problem.input_shape or 0 in problem.output_shape:  # a filter is empty only where one of these has no channels
        return "there is nothing to compute in an empty array"
    if isinstance(problem, Problem) and problem.window.reaches_crop:
        return "its windows would read cells that a negative pad crops; `crop` runs the others without these"
    return None
