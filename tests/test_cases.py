"""The tests' own machinery: every pair of parameter values occurs, and a kernel cannot pass by refusing."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from cases import CHOICES, EMPTY, all_pairs, cases
from kernels import KernelUnderTest

import pullback as pb


@pytest.mark.parametrize("choices", [CHOICES, EMPTY], ids=["full", "empty"])
def test_every_pair_of_values_occurs(choices: dict[str, tuple[object, ...]]) -> None:
    rows = list(all_pairs(choices, 1))
    for a, b in combinations(choices, 2):
        assert {(row[a], row[b]) for row in rows} == set(product(choices[a], choices[b])), (a, b)
    assert rows == list(all_pairs(choices, 1))


def test_cases_hold_what_they_promise() -> None:
    everything = cases()
    full = [case for case in everything if 0 not in case.conv_output_shape and 0 not in case.conv_input_shape]
    assert {case.rank for case in full} == {1, 2, 3}
    overlaps = {k > s for case in full for k, s in zip(case.kernel, case.geometry.stride, strict=True)}
    assert overlaps == {True, False}
    assert any(min(case.geometry.low) < 0 for case in full)
    assert any(len({y for y, _, _ in case.geometry.reads()}) < np.prod(case.geometry.outs) for case in full), "no empty window"
    assert {0, 1, 3} <= {case.batch for case in everything}
    assert {0, 1, 3, 17} <= {case.channels for case in everything}


def test_a_kernel_that_refuses_is_counted() -> None:
    pb.register_kernel("avg_pool", "grumpy", "never", lambda problem: "no", lambda *arrays: None)
    try:
        under_test = KernelUnderTest("avg_pool", "grumpy", "never")
        assert under_test(np.ones((1, 4, 1)), 2) is None
        assert under_test.accepted == 0
        assert "grumpy/never: no" in under_test.refusals[0]
    finally:
        pb.unregister_kernel("avg_pool", "grumpy", "never")
    reference = KernelUnderTest("avg_pool", "reference", "taps")
    assert reference(np.ones((1, 4, 1)), 2).shape == (1, 2, 1)
    assert (reference.accepted, reference.refusals) == (1, [])
