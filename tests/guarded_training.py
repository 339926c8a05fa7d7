"""Run as a script: the kernels of training steps on memory that ends where it must (see guarded.py)."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from guarded import sizes
from guarded_memory import bare_memory

import pullback as pb
from pullback.cpu import elementwise, norm
from pullback.cpu.engine.plan_cache import release_plans
from pullback.reference import elementwise as plain_elementwise
from pullback.reference import norm as plain_norm

Call = tuple[str, list[Any]]  # a name, arguments, and perhaps a dict of keywords
SGD = {"lr": 0.5, "momentum": 0.5, "weight_decay": 0.5, "nesterov": True}
ADAM = {"lr": 0.5, "beta1": 0.5, "beta2": 0.5, "eps": 1.0, "weight_decay": 0.0, "decoupled": False, "step": 1}


def flat_calls(size: int) -> Iterator[Call]:
    arrays = [np.random.default_rng([size, place]).integers(-3, 4, size).astype(np.float32) for place in range(4)]
    for name, count in (("relu", 1), ("relu_grad", 2), ("add_relu", 2), ("relu_grad_of_sum", 3), ("sum_of_squares", 1)):
        yield name, arrays[:count]
    yield "sgd_step", [*arrays[:3], SGD]
    yield "adam_step", [*arrays[:3], np.abs(arrays[3]), ADAM]


def norm_calls(channels: int, cells: int, last: bool) -> Iterator[Call]:
    shape = (3, cells, channels) if last else (3, channels, cells)
    made = [np.random.default_rng([channels, place]).integers(-3, 4, shape).astype(np.float32) for place in range(3)]
    x, dy, y = (np.moveaxis(array, -1, 1) if last else array for array in made)
    numbers = [np.random.default_rng(place).integers(1, 4, channels).astype(np.float32) for place in range(4)]
    yield "batch_norm_train", [x, *numbers[:2], 1.0, True, y]
    yield "batch_norm_grad", [dy, x, *numbers[:3], y, True]
    yield "batch_norm_grad", [dy, x, *numbers[:3], {"bias": numbers[3], "top": 6.0}]
    yield "training_statistics", [x, 1.0]


def calls() -> Iterator[tuple[Any, Any, Call]]:
    for size in sizes():
        for call in flat_calls(size):
            yield elementwise, plain_elementwise, call
    for size, other, last in itertools.product(sizes(), (1, 5), (True, False)):
        for channels, cells in ((size, other), (other, size)):
            for call in norm_calls(channels, cells, last):
                yield norm, plain_norm, call


def run(function: Callable[..., Any], arguments: list[Any], keep: Callable[[Any], Any]) -> list[Any]:
    """The results, and the arguments, which some functions change."""
    keywords = next((argument for argument in arguments if isinstance(argument, dict)), {})
    rest = [argument for argument in arguments if not isinstance(argument, dict)]
    given = [keep(argument) if isinstance(argument, np.ndarray) else argument for argument in rest]
    result = function(*given, **keywords)
    return [*(result if isinstance(result, tuple) else (result,)), *given]


def main(side: str) -> None:
    memory = bare_memory(side)
    seen: dict[str, int] = {}

    def guarded(array: np.ndarray) -> np.ndarray:
        axes = np.argsort([-stride for stride in array.strides], kind="stable")
        return memory.copy(array.transpose(axes)).transpose(np.argsort(axes))

    for native, plain, (name, arguments) in calls():
        expected = run(getattr(plain, name), arguments, lambda array: array.copy(order="K"))
        release_plans()
        with memory.in_use(), pb.threads(1):
            found = run(getattr(native, name), arguments, guarded)
        for ours, theirs in zip(found, expected, strict=True):
            if isinstance(theirs, np.ndarray | float):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-4)
        memory.check()
        seen[name] = seen.get(name, 0) + 1
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1])
