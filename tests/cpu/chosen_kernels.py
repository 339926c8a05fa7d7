"""The convolution kernels that are chosen under figures and levels of other machines, beside what the cost models say of each.

Run in a process of its own (test_choices.py), since levels are looked for once and much is remembered.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from functools import _lru_cache_wrapper
from typing import Any

import numpy as np

from pullback.bench.cases import LAYOUTS, Case, load_cases
from pullback.bench.cliff_shapes import draw
from pullback.cpu.conv.cells import costs
from pullback.cpu.engine import machine, profile_file
from pullback.cpu.engine.profile import using
from pullback.cpu.winograd import ops as winograd
from pullback.cpu.winograd.cost import share_of_plain
from pullback.cpu.winograd.shapes import shape_of
from pullback.ops.conv import prepare_conv, prepare_conv_grad_filter, prepare_conv_grad_input
from pullback.registry import chosen_kernel


def problem_of(op: str, case: Case, layout: str) -> Any:
    def array(shape: tuple[int, ...], moved: bool = True) -> Any:
        whole = np.broadcast_to(np.float32(0), shape)
        return np.moveaxis(whole, -1, 1) if moved and layout == "channels_first" else whole

    x, dy = array(case.input_shape), array(case.output_shape)
    f = array(case.filter_shape, moved=False)
    f = np.moveaxis(f, (-1, -2), (0, 1)) if layout == "channels_first" else f
    options = {**case.geometry, "groups": case.groups, "layout": layout}
    if op == "conv":
        return prepare_conv(x, f, **options)[0]
    if op == "conv_grad_input":
        return prepare_conv_grad_input(dy, f, x.shape, **options)[0]
    return prepare_conv_grad_filter(dy, x, f.shape, **options)[0]


def costs_of(problem: Any) -> dict[str, float]:
    """What each kernel that is compared by a model costs, beside the others of the same comparison."""
    found = {}
    if winograd.can(problem) is None:
        read = winograd._as_read(problem)
        found = {"winograd": share_of_plain(read, shape_of(read, problem.op == "conv_grad_input"))}
    if problem.op != "conv_grad_filter":
        found["cells"], found["direct"] = costs(problem)
    return found


def choices() -> list[Any]:
    cases = [case for case in load_cases() if case.kind == "conv"]
    cases += [shape.case for shape in (draw(5, number) for number in range(24)) if shape.case.kind == "conv"]
    found = []
    for case in cases:
        for op in ("conv", "conv_grad_input", "conv_grad_filter"):
            for layout in LAYOUTS:
                problem = problem_of(op, case, layout)
                found.append([op, case.name, layout, chosen_kernel(problem).name, costs_of(problem)])
    return found


def main() -> None:
    """For each [file of figures, level, bytes of the caches] of the JSON on stdin."""
    found = {}
    for path, level, caches in json.load(sys.stdin):
        os.environ |= {"PULLBACK_PROFILE": path, "PULLBACK_LEVEL": level}
        for remembered in [each for each in gc.get_objects() if isinstance(each, _lru_cache_wrapper)]:
            remembered.cache_clear()
        machine.cache_bytes = lambda number, caches=caches: caches[number - 1]  # type: ignore[assignment,misc]
        with using(profile_file.read_named(path)):
            found[path] = choices()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
