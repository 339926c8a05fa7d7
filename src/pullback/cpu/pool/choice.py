"""The choices between pooling kernels that can run the same: models of their costs, in nanoseconds on one core.

Max-pool gradients from winners: a scatter pays for every output that it adds to its winner; the others ask for every cell each
window that covers it (`outputs` per input element times the taps).
"""

from __future__ import annotations

import math

from pullback.cpu.engine.profile import profile
from pullback.cpu.engine.sizes import ceil_div, sum_bytes
from pullback.cpu.pool import tuning
from pullback.cpu.pool.common import lanes_at_once, shape_of, simplified
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


def _phases_cost(problem: Problem, outputs: float) -> float:
    """Of vectors along flat runs of cells, or along single rows, whose ends fill a group of registers; per input element."""
    window = simplified(problem).window
    cells = ceil_div(window.input_size[-1], window.stride[-1])
    register = lanes_at_once(sum_bytes(problem.dtype)) // 4
    waste = 1.0
    if problem.layout == "channels_first" and window.stride[-1] in (2, 4):
        group = register * (1 if window.stride[-1] == 4 or cells <= register else 2 if cells <= 2 * register else 4)
        waste = ceil_div(cells, group) * group / cells
    pack = {1: 0.0, 2: 0.0, 3: tuning.PHASES_PACK_3, 4: 0.0}.get(window.stride[-1], tuning.PHASES_PACK)
    if math.prod(window.stride) > 1 or window.input_size[-1] != window.output_size[-1]:
        pack += tuning.PHASES_ROW / window.input_size[-1]
    asked = outputs * problem.window.tap_count
    return tuning.PHASES_WRITE + pack + (tuning.PHASES_ELEMENT + tuning.PHASES_TAP * asked) * waste


def prefers_phases(problem: Problem) -> bool:
    outputs = _outputs(problem)
    return _phases_cost(problem, outputs) < _scatter_cost(problem, outputs)


def from_winners_cost(problem: Problem, phases: bool) -> float:
    """Of a max-pool gradient from winners, by scatter or (where it can) by phases."""
    outputs = _outputs(problem)
    each = _scatter_cost(problem, outputs)
    return math.prod(problem.input_shape) * (min(each, _phases_cost(problem, outputs)) if phases else each)


def rows_cost(problem: Problem) -> float:
    """Of max_pool or avg_pool by the kernel rows."""
    shape, window = shape_of(simplified(problem)), simplified(problem).window
    each = ceil_div(shape.out_cols, lanes_at_once(shape.wide) // 2)
    masked = min(each, 2 if window.pad_low[-1] else 1)  # at the ends of a row
    loads = shape.images * shape.out_rows * (each + masked * tuning.ROWS_MASKED)
    if problem.winner is None:
        return loads * (tuning.ROWS_LOAD + tuning.ROWS_TAP * window.tap_count)
    taps, stride = window.kernel[-1], window.stride[-1]
    registers = window.tap_count // taps * stride * (ceil_div(taps, stride) if window.dilation[-1] == 1 else taps)
    return loads * (tuning.ROWS_LOAD + tuning.ROWS_REGISTER * registers)


def planes_cost(problem: Problem) -> float:
    """Of max_pool or avg_pool by the kernel planes."""
    shape, window = shape_of(simplified(problem)), simplified(problem).window
    again = (
        max(1, window.output_size[0] * window.kernel[0] / window.input_size[0]) if window.rank == 3 else 1
    )  # of a plane of cells
    rows = again * shape.in_rows * (tuning.PLANES_IN_ROW + tuning.PLANES_ELEMENT * shape.in_row)
    outputs = shape.out_rows * (tuning.PLANES_OUT_ROW + tuning.PLANES_TAP * window.tap_count * shape.out_row)
    return shape.images * (rows + outputs)


def shares_cost(problem: Problem) -> float:
    """Of avg_pool_grad by the kernel phases."""
    shape, window = shape_of(simplified(problem)), simplified(problem).window
    row = tuning.SHARES_ROW + tuning.SHARES_PHASE * window.stride[-1] + tuning.SHARES_ELEMENT * shape.in_row
    return shape.images * (shape.in_rows * row + tuning.SHARES_TAP * window.tap_count * shape.out_rows * shape.out_row)


def prefers_planes(problem: Problem) -> bool:
    """Whether max_pool or avg_pool of few channels, channels_last, costs less with vectors along rows than over channels."""
    window, channels = problem.window, problem.channels_in
    rule = "average" if problem.divisor is not None else "max"
    four = lanes_at_once(sum_bytes(problem.dtype))
    lanes = four // 4
    fours, rest = divmod(channels, four)
    twos, rest = divmod(rest, 2 * lanes)
    ones = ceil_div(rest, lanes)
    one_tap, two_tap, four_tap = tuning.CHANNELS_TAPS[rule]
    over_channels = tuning.CHANNELS_CELL + tuning.CHANNELS_GROUP * (fours + twos + ones)
    over_channels += window.tap_count * (ones * one_tap + twos * two_tap + fours * four_tap)
    again = max(1.0, window.output_size[0] * window.kernel[0] / max(1, window.input_size[0])) if window.rank == 3 else 1.0
    cells, registers = again / max(_outputs(problem), 1e-9), channels / lanes  # unpacked for each output
    if math.prod(window.stride[-2:]) == 1:
        unpacked = cells * registers * tuning.PLANES_UNPACKED[rule]
    else:
        unpacked = cells * (tuning.PLANES_SPLIT_CELL + tuning.PLANES_SPLIT * registers)
    over_planes = registers * (window.tap_count + tuning.PLANES_RESULT[rule]) + unpacked
    return over_planes < tuning.PLANES_GAIN * over_channels
