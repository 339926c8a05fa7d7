"""The choice between scatter, gather and phases for max-pool gradients from winners: a model of their costs.

A scatter pays for every output that it adds to its winner; the others ask for every cell each window that covers it (`outputs` per
input element times the taps).
"""

from __future__ import annotations

import math

from pullback.cpu.engine.profile import profile
from pullback.cpu.engine.sizes import ceil_div, sum_bytes
from pullback.cpu.pool import tuning
from pullback.cpu.pool.common import lanes_at_once, simplified
from pullback.problem import Problem

TOO_MANY_WINDOWS = "adding each output to its winner costs less here than asking every window about every cell"


def _scatter_cost(problem: Problem, outputs_per_element: float) -> float:
    window = problem.window
    apart = all(d * (k - 1) < s for d, k, s in zip(window.dilation, window.kernel, window.stride, strict=True))
    output = tuning.SCATTER_OUTPUT if apart else tuning.SCATTER_OVERLAP
    return (tuning.SCATTER_ELEMENT + output * outputs_per_element) * profile().pooling("scatter")


def _outputs(problem: Problem) -> float:
    return math.prod(problem.window.output_size) / max(1, math.prod(problem.window.input_size))


def prefers_gather(problem: Problem) -> bool:
    """Whether asking, with vectors of channels, costs less than adding every output to its winner."""
    outputs, channels = _outputs(problem), problem.channels_in
    asked = outputs * problem.window.tap_count
    four = lanes_at_once(sum_bytes(problem.dtype))
    rest, two = channels % four, four // 2
    fewer = rest // two + ceil_div(rest % two, two // 2)  # the loads of two registers or fewer that remain
    fours = channels // four * (tuning.GATHER_FOUR + tuning.GATHER_FOUR_TAP * asked)
    cell = tuning.GATHER_CELL + fours + fewer * (tuning.GATHER_TWO + tuning.GATHER_TWO_TAP * asked)
    return cell / channels * profile().pooling("gather") < _scatter_cost(problem, outputs)


def prefers_phases(problem: Problem) -> bool:
    """The same question for vectors along flat runs of cells, or along single rows, whose ends fill a group of registers."""
    outputs, window = _outputs(problem), simplified(problem).window
    cells = ceil_div(window.input_size[-1], window.stride[-1])
    register = lanes_at_once(sum_bytes(problem.dtype)) // 4
    waste = 1.0
    if problem.layout == "channels_first" and window.stride[-1] in (2, 4):
        group = register * (1 if window.stride[-1] == 4 or cells <= register else 2 if cells <= 2 * register else 4)
        waste = ceil_div(cells, group) * group / cells
    asked = outputs * problem.window.tap_count
    cost = tuning.PHASES_WRITE + (tuning.PHASES_ELEMENT + tuning.PHASES_TAP * asked) * waste
    return cost < _scatter_cost(problem, outputs)
