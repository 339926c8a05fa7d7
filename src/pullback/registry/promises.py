"""What a kernel from outside the package must give back, checked at every call: one KernelError says who broke which promise."""

from __future__ import annotations

from functools import wraps
from typing import Any

import numpy as np

from pullback.problem import RESULTS, AnyProblem
from pullback.registry.kernels import Accepts, KernelError, Run

Expected = tuple[tuple[int, ...], np.dtype[Any]]


def checked_reason(who: str, passes: str, ask: Accepts) -> Accepts:
    """`accepts` or `pays`, whose answer is None or a string."""

    @wraps(ask)
    def reason(problem: AnyProblem) -> str | None:
        answer: object = ask(problem)
        if answer is None or isinstance(answer, str):
            return answer
        given = str(answer) if isinstance(answer, (bool, np.bool_)) else f"a value of type {type(answer).__name__}"
        raise KernelError(f"{who} returned {given}; return None {passes}, or the reason as a string")

    return reason


def checked_run(who: str, run: Run) -> Run:
    """A kernel whose results are new arrays of the shape and dtype that its problem asks for."""

    @wraps(run)
    def checked(problem: AnyProblem, *arrays: Any) -> Any:
        result = run(problem, *arrays)
        expected = expected_of(problem)
        if len(expected) == 1:
            _check(f"{who} returned", result, expected[0], arrays)
        elif not isinstance(result, (tuple, list)) or len(result) != len(expected):
            raise KernelError(f"{who} returned {_described(result)}; expected a pair: {' and '.join(map(_wanted, expected))}")
        else:
            for number, (part, wanted) in enumerate(zip(result, expected, strict=True)):
                _check(f"{who} returned as part {number} of its pair", part, wanted, arrays)
        return result

    return checked


def expected_of(problem: AnyProblem) -> list[Expected | None]:
    """The shape and dtype of each result; None for an op of someone else's."""
    if problem.op not in RESULTS:
        return [None]
    first: Expected = (problem.result_shape, problem.dtype)
    if getattr(problem, "return_indices", False):
        return [first, (first[0], np.dtype(np.int64))]
    if getattr(problem, "return_winners", False):
        return [first, (first[0], problem.winner_dtype)]  # type: ignore[union-attr]
    return [first]


def _check(who: str, result: Any, wanted: Expected | None, arrays: tuple[Any, ...]) -> None:
    if not isinstance(result, np.ndarray) or (wanted is not None and (result.shape, result.dtype) != wanted):
        raise KernelError(f"{who} {_described(result)}; expected {_wanted(wanted)}")
    if not result.flags.writeable:
        raise KernelError(f"{who} a read-only array; expected a new one that may be written to")
    if any(np.may_share_memory(result, array) for array in arrays):
        raise KernelError(f"{who} memory of an array that it was given; expected a new array")


def _described(result: Any) -> str:
    if isinstance(result, np.ndarray):
        return f"an array of shape {result.shape} and dtype {result.dtype.name}"
    if isinstance(result, (tuple, list)):
        return f"a {type(result).__name__} of {len(result)}"
    return "None" if result is None else f"a value of type {type(result).__name__}"


def _wanted(expected: Expected | None) -> str:
    return "an array" if expected is None else f"an array of shape {expected[0]} and dtype {expected[1].name}"
