"""Calls of a dialect, remembered as the steps they came down to: the same call is translated once and costs microseconds
then.

A translation reads names, shapes, dtypes and attributes; values are read in its steps alone. Where it hands on its arrays as
they came and its answers as they are, the next call of the same kind can take the same steps; any other is translated each
time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.ops.call import MOST_REMEMBERED, NotComparableError, token
from pullback.registry import chosen_run, selection
from pullback.rules import Array
from pullback.settings import during

# An array by its number, the inputs first and then the answers so far, and the shape to take it in; None: as it is.
_Taken = tuple[int, tuple[int, ...] | None]


@dataclass(frozen=True)
class _Replay:
    """The steps of a call, and what it answers: one array, or several of which some may be None."""

    steps: tuple[tuple[Callable[..., Any], tuple[Any, ...], tuple[_Taken, ...]], ...]
    answers: tuple[_Taken | None, ...]
    is_tuple: bool

    def run(self, known: list[Array]) -> Any:
        for function, fixed, taken in self.steps:
            answer = function(*fixed, *[known[n] if shape is None else known[n].reshape(shape) for n, shape in taken])
            if isinstance(answer, (tuple, list)):
                known += answer
            else:
                known.append(answer)
        answers = [
            None if one is None else known[one[0]] if one[1] is None else known[one[0]].reshape(one[1]) for one in self.answers
        ]
        return tuple(answers) if self.is_tuple else answers[0]


_remembered: dict[Any, _Replay] = {}
# Of the call being translated: (function, fixed arguments, arrays, answer) of each step, or None for what is no step.
_steps: ContextVar[list[Any] | None] = ContextVar("pullback_steps", default=None)


def step(function: Callable[..., Any], fixed: tuple[Any, ...], *arrays: Array) -> Any:
    """function(*fixed, *arrays), a step of the call being translated. What it answers may depend on nothing else."""
    answer = function(*fixed, *arrays)
    steps = _steps.get()
    if steps is not None:
        steps.append((function, fixed, arrays, answer))
    return answer


def translate_each_time() -> None:
    """Said by a translation that does more than its steps, such as a kernel of a stranger."""
    steps = _steps.get()
    if steps is not None:
        steps.append(None)


def dispatch(problem: Any, *arrays: Array) -> Any:
    """Run a problem on the kernel chosen for it, as a step of the call being translated."""
    return step(chosen_run(problem), (problem,), *arrays)


def _key(who: tuple[Any, ...], inputs: Mapping[str, Any], options: Sequence[Any]) -> Any:
    """What a call depends on; None where it is unlike any other."""
    tokens: list[Any] = [selection(), *who]
    try:
        for name, value in inputs.items():
            if type(value) is not np.ndarray:
                return None
            tokens += name, value.shape, value.dtype
        for option in options:
            if type(option) is dict:
                for name, value in option.items():
                    tokens += name, value if type(value) is str else token(value)
            else:
                tokens.append(token(option))
        key = tuple(tokens)
        hash(key)
    except (NotComparableError, TypeError):
        return None
    return key


def _address(array: Array) -> int:
    place: int = array.__array_interface__["data"][0]
    return place


def _taken(array: Any, known: list[Array]) -> _Taken | None:
    """Which of the known arrays this one is, perhaps in another shape; None: none of them."""
    if type(array) is not np.ndarray:
        return None
    for number, other in enumerate(known):
        if array is other:
            return number, None
    for number, other in enumerate(known):
        if type(other) is not np.ndarray:
            continue
        dense = array.flags.c_contiguous and other.flags.c_contiguous
        if dense and array.dtype == other.dtype and array.size == other.size and _address(array) == _address(other):
            return number, array.shape
    return None


def _replay(known: list[Array], steps: list[Any], answer: Any) -> _Replay | None:
    """How to come to this answer again; None where something of it is neither an input nor a step's.

    Nor from inputs that begin at one place: which of them a step took cannot be told, and the next call may have others.
    """
    if len({_address(array) for array in known}) < len(known):
        return None
    repeated = []
    for function, fixed, arrays, got in steps:
        taken = [found for array in arrays if (found := _taken(array, known)) is not None]
        if len(taken) < len(arrays):
            return None
        repeated.append((function, fixed, tuple(taken)))
        known += got if isinstance(got, (tuple, list)) else (got,)
    wanted = answer if isinstance(answer, tuple) else (answer,)
    answers = tuple(None if part is None else _taken(part, known) for part in wanted)
    if any(part is None and given is not None for part, given in zip(answers, wanted, strict=True)):
        return None
    return _Replay(tuple(repeated), answers, isinstance(answer, tuple))


def run_translated(
    who: tuple[Any, ...], inputs: Mapping[str, Any], options: Sequence[Any], translate: Callable[[], Any]
) -> Any:
    """What `translate()` answers, whose steps are taken again without it when the same call comes again.

    `who` names the translation and all that it depends on beside the inputs and options, such as the state of a registry.
    """
    key = _key(who, inputs, options)
    if key is None:
        return translate()
    replay = _remembered.get(key)
    if replay is not None:
        return replay.run(list(inputs.values()))
    steps: list[Any] = []
    with during(_steps, steps):
        answer = translate()
    replay = _replay(list(inputs.values()), steps, answer) if steps and None not in steps else None
    if replay is not None:
        if len(_remembered) >= MOST_REMEMBERED:
            _remembered.clear()
        _remembered[key] = replay
    return answer
