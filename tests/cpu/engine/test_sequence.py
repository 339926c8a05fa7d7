"""Jobs in a row: on our own pool each by itself; a job that sets its flag is the last. (On a team: tests/with_torch.)"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.cpu.conv.transpose import transpose_plan
from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.sequence import FLAG, OUT, WORK, A, B, JobSequence, Step
from pullback.ops.conv import conv_problem
from pullback.registry import chosen_kernel


def turned_twice(checked: bool) -> JobSequence:
    there, back = transpose_plan(1, 5, 7, np.dtype("float32")), transpose_plan(1, 7, 5, np.dtype("float32"))
    flag = {"faults": FLAG} if checked else {}
    steps = (Step(there, {"source": A, "target": (WORK, 64), **flag}), Step(back, {"source": (WORK, 64), "target": OUT}))
    return JobSequence(steps, (A, OUT), 64 + 5 * 7 * 4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_flag_ends_it(bad: float) -> None:
    x = np.arange(35, dtype=np.float32).reshape(5, 7)
    for place in ((0, 0), (4, 6), (2, 3), None):
        given, made = x.copy(), np.full_like(x, -1)
        if place is not None:
            given[place] = bad
        for _ in range(2):  # the flag is for one call
            assert turned_twice(True).run(address_of(given), address_of(made)) == (place is None)
        assert (made == (x if place is None else -1)).all()
        assert turned_twice(False).run(address_of(given), address_of(made))
        np.testing.assert_array_equal(made, given)


CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("direct", {"x": (2, 9, 8, 24), "filter": (3, 3, 24, 40), "stride": 2, "padding": 1}),
    ("winograd", {"x": (2, 24, 24, 32), "filter": (3, 3, 32, 32), "padding": 1}),
    ("slide_cells", {"x": (2, 9, 8, 40), "filter": (3, 3, 1, 40), "groups": 40, "padding": 1}),
    ("group_cells", {"x": (2, 9, 8, 40), "filter": (5, 3, 1, 40), "groups": 40, "padding": (2, 1)}),
    ("pointwise", {"x": (2, 24, 9, 8), "filter": (40, 24, 1, 1), "layout": "channels_first"}),
    ("slide", {"x": (2, 5, 40, 40), "filter": (5, 1, 3, 3), "groups": 5, "padding": 1, "layout": "channels_first"}),
    ("flat", {"x": (2, 5, 6, 5), "filter": (5, 1, 3, 3), "groups": 5, "padding": 1, "layout": "channels_first"}),
)


@pytest.mark.parametrize("op", ["conv", "conv_grad_input", "conv_grad_filter"])
@pytest.mark.parametrize(("name", "case"), CASES, ids=[name for name, _ in CASES])
def test_the_steps_of_a_kernel_are_its_call(name: str, case: dict[str, Any], op: str) -> None:
    """The same bits, from filters as PyTorch keeps them; and numbers that are not finite are told, not hidden."""
    rng = np.random.default_rng(3)
    options = {key: value for key, value in case.items() if key not in ("x", "filter")}
    layout = options.setdefault("layout", "channels_last")
    problem = conv_problem(op, "x", case["x"], case["filter"], np.dtype("float32"), **options)
    with pb.backend("cpu"), pb.kernel(name if name != "pointwise" or op != "conv_grad_filter" else "direct"):
        kernel = chosen_kernel(problem)
        assert kernel.steps is not None
        x = rng.standard_normal(case["x"], np.float32)
        dy = rng.standard_normal(problem.output_shape, np.float32)
        weights = rng.standard_normal(case["filter"], np.float32)
        if layout == "channels_last":  # out, taps, in
            weights = np.ascontiguousarray(np.moveaxis(weights, -1, 0)).transpose(1, 2, 3, 0)
        arrays = {"conv": (x, weights), "conv_grad_input": (dy, weights), "conv_grad_filter": (dy, x)}[op]
        expected = kernel.run(problem, *arrays)
        steps = kernel.steps(problem, "in_last" if layout == "channels_last" else "taps_last")
        assert steps is not None
        jobs, made = JobSequence(steps.steps, (A, B, OUT), steps.work_bytes), np.zeros_like(expected)
        assert jobs.run(*map(address_of, arrays), address_of(made))
        np.testing.assert_array_equal(made, expected)
        if any(FLAG in step.at.values() for step in steps.steps):
            for array in arrays:
                array[(slice(None),) * array.ndim] = np.where(np.arange(array.size).reshape(array.shape) == 0, np.inf, array)
                told = not jobs.run(*map(address_of, arrays), address_of(made))
                correct = kernel.run(problem, *arrays)
                assert told or np.array_equal(made, correct, equal_nan=True)
