"""Convolutions of bfloat16 on CPUs that multiply pairs of it: the direct kernels, with pairs of what is summed as their terms."""

from __future__ import annotations

from functools import partial

from pullback.cpu.conv import tuning
from pullback.cpu.conv.cells import costs
from pullback.cpu.conv.direct import direct_plan
from pullback.cpu.conv.sweep import lies_far
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
    """Why vectors over cells would take less time, if so."""
    over_cells, over_channels = costs(problem)
    if not lies_far(problem.window) and over_cells < tuning.CELLS_RESERVE * tuning.PAIR_COST * over_channels:
        return "its vectors run over the output channels, and these would leave most of them empty"
    return None


def cost_of_term(problem: Problem) -> float:
    """What a product costs where this kernel would run, of what it costs elsewhere."""
    return tuning.PAIR_COST if can(problem) is None else 1.0


sweep_plan = partial(direct_plan, pairs=True)
