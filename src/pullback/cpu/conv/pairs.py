"""Convolutions of bfloat16 on CPUs that multiply pairs of it: the direct kernels, with pairs of what is summed as their terms."""

from __future__ import annotations

from functools import partial

from pullback.cpu.conv.direct import direct_plan
from pullback.cpu.machine_code import dry_run
from pullback.cpu.machine_code.levels import has_pairs, level
from pullback.cpu.refusals import ordinary
from pullback.problem import Problem


def can(problem: Problem) -> str | None:
    """Why not, if not. What is planned for others is for any CPU of the level."""
    if problem.dtype.name != "bfloat16":
        return f"it multiplies bfloat16, not {problem.dtype.name}"
    if not (level().pairs if dry_run.current is not None else has_pairs()):
        return "this CPU has no instructions for products of bfloat16 (AVX512-BF16)"
    return ordinary(problem)


def pays(problem: Problem) -> str | None:
    """Why another would take less time, if so."""
    return None


sweep_plan = partial(direct_plan, pairs=True)
