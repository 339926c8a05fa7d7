"""Plans of max_pool and avg_pool of single elements row by row: channels_first, or one channel."""

from __future__ import annotations

from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.pool.common import divisors, shape_of, simplified, uniform_divisor, variant
from pullback.cpu.pool.forward import blocked, forward_fields, winner_row_bytes
from pullback.cpu.pool.records import RowsAvgForward, RowsMaxForward
from pullback.cpu.pool.tuning import SPLIT_STRIDES
from pullback.cpu.refusals import ordinary
from pullback.problem import Problem


def can(problem: Problem) -> str | None:
    if problem.layout == "channels_last" and problem.channels_in > 1:
        return "its vectors run along rows of single elements, and channels_last has channels between them"
    if (refused := ordinary(problem)) is not None:
        return refused
    stride = simplified(problem).window.stride[-1]
    if stride not in SPLIT_STRIDES:
        return f"it splits rows in registers by strides of {', '.join(map(str, SPLIT_STRIDES))}, not {stride}"
    return None


def _exact_share(problem: Problem) -> float:
    """The reciprocal of the one divisor of all windows, if it is a power of 2 and so exact; else 0."""
    divisor = uniform_divisor(*divisors(problem))
    return 1 / divisor if divisor and divisor & (divisor - 1) == 0 else 0.0


@planned
def forward_plan(problem: Problem, rows_each: int = 0) -> Plan:
    """max_pool or avg_pool; rows_each: output rows of a piece, or 0 for as many as pay."""
    problem = simplified(problem)
    shape, is_max = shape_of(problem), problem.winner is not None
    blocks, pieces = blocked(shape, rows_each)
    fields, scratch = forward_fields(problem, shape, winner_row_bytes(problem, shape), wide_divisors=True)
    if not is_max:
        fields["share"] = _exact_share(problem)
    kernel, record = ("max_forward", RowsMaxForward) if is_max else ("avg_forward", RowsAvgForward)
    compiled = variant(problem, "rows", kernel, finds_winners=is_max, stride=problem.window.stride[-1])
    return make_plan(compiled, record, pieces, scratch, shape.moved_bytes, fields | blocks)
