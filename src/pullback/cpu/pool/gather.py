"""Plans of the max-pool gradient from winners, channels_last, by gather: where windows overlap so much that it beats scatter."""

from __future__ import annotations

from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.pool import channels
from pullback.cpu.pool.choice import TOO_MANY_WINDOWS, prefers_gather
from pullback.cpu.pool.common import shape_of, simplified, variant
from pullback.cpu.pool.records import GatherMaxGrad
from pullback.problem import Problem

can = channels.can


def pays(problem: Problem) -> str | None:
    refused = channels.pays(problem)
    return TOO_MANY_WINDOWS if refused is None and not prefers_gather(problem) else refused


@planned
def max_grad_plan(problem: Problem, rows_each: int = 0) -> Plan:
    """rows_each: input rows of a piece, or 0 for as many as pay."""
    problem = simplified(problem)
    shape = shape_of(problem)
    given, pieces, scratch = channels.input_rows(problem, shape, rows_each)
    compiled = variant(problem, "gather", "max_grad")
    return make_plan(compiled, GatherMaxGrad, pieces, scratch, shape.moved_bytes, given | {"winners": None})
