"""Convolutions of many groups with few channels each: the list of their kernels on the cpu backend."""

from __future__ import annotations

from functools import partial
from typing import Any

from pullback.cpu.depthwise import cells, flat, planes, slide
from pullback.cpu.depthwise.common import depthwise_can
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.refusals import ordinary
from pullback.problem import Problem
from pullback.registry import CPU, add_kernel

# In the order in which they are tried. `cells` is a kernel of conv/, too, and a name is given once.
KERNELS: dict[str, Any] = {"slide": slide, "flat": flat, "planes": planes, "group_cells": cells}
RUNS = {"conv": "gather", "conv_grad_input": "gather", "conv_grad_filter": "filter_gradient"}


@planned
def _module_of(problem: Problem) -> Any:
    """The module that runs a problem under an older name, whatever the number of groups."""
    for module in (slide, flat):
        if module.can(problem) is None and module.fits(problem) is None:
            return module
    return planes if problem.layout == "channels_first" else cells


def _run(name: str, problem: Problem, *arrays: Any) -> Any:
    return getattr(_module_of(problem), name)(problem, *arrays)


def _older_name(problem: Problem) -> str:
    return f"an older name for {', '.join(KERNELS)}"


def register() -> None:
    """Put the kernels on the lists of the cpu backend."""
    for op, run in RUNS.items():
        for name, module in KERNELS.items():
            add_kernel(op, CPU, name, module.can, getattr(module, run), pays=module.pays)
        for name, can in (("depthwise", depthwise_can), ("grouped", ordinary)):
            add_kernel(op, CPU, name, can, partial(_run, run), pays=_older_name)
