"""Optimizer steps and sums of squares: against NumPy's, the same bits for any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cpu_calls import reals

import pullback as pb
from pullback.cpu import elementwise
from pullback.cpu.engine.machine import machine
from pullback.reference import elementwise as reference

V = machine().vector_bytes // 4
SIZES = (0, 1, V + 1, 4 * V - 1, 100_003)
SGD: tuple[dict[str, Any], ...] = (
    {"g_scale": 0.5},
    {"momentum": 0.9, "weight_decay": 0.01, "dampening": 0.1},
    {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
    {"momentum": 0.9, "first": True, "dampening": 0.5},
)
USUAL = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "decoupled": False, "step": 1}
ADAM: tuple[dict[str, Any], ...] = (
    USUAL,
    USUAL | {"step": 7, "weight_decay": 0.1, "g_scale": 2.0},
    USUAL | {"step": 7, "weight_decay": 0.1, "decoupled": True, "beta1": 0.8, "beta2": 0.9, "eps": 1e-3},
)


def steps(library: Any, size: int, dtype: Any) -> list[np.ndarray]:
    """The arrays after each of the steps."""
    p, g, v = (reals((size,), seed, dtype) for seed in range(3))
    after = []
    for options in SGD:
        changed = [p.copy(), np.full_like(v, np.nan) if options.get("first") else v.copy()]
        library.sgd_step(changed[0], g, changed[1], lr=0.1, **options)
        after += changed if options.get("momentum") else changed[:1]
    for options in ADAM:
        changed = [p.copy(), 0.1 * v, np.square(v)]
        library.adam_step(changed[0], g, *changed[1:], **options)
        after += changed
    return after


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_step_is_that_of_numpy(dtype: Any) -> None:
    bound = 2e-6 if dtype == np.float32 else 1e-14
    for size in SIZES:
        for ours, plain in zip(steps(elementwise, size, dtype), steps(reference, size, dtype), strict=True):
            np.testing.assert_allclose(ours, plain, rtol=bound, atol=bound)


def test_a_parameter_may_lie_in_any_order_and_its_gradient_in_another() -> None:
    p, g = reals((6, 5, 3, 3)), reals((6, 5, 3, 3), 1)
    expected = p - np.float32(0.5) * g
    for order in ((0, 1, 2, 3), (2, 3, 1, 0)):
        here = p.transpose(order).copy().transpose(np.argsort(order))
        elementwise.sgd_step(here, g, None, lr=0.5)
        np.testing.assert_allclose(here, expected, rtol=1e-6, atol=1e-6)


def test_what_cannot_be_changed_in_place_is_refused() -> None:
    p = reals((4, 6))
    with pytest.raises(ValueError, match="without gaps and alike"):
        elementwise.sgd_step(p[:, ::2], p[:, ::2], None, lr=0.1)
    with pytest.raises(ValueError, match="without gaps and alike"):
        elementwise.adam_step(p, p, p.copy(order="F"), p.copy(), **USUAL)
    frozen = p.copy()
    frozen.setflags(write=False)
    for library in (elementwise, reference):
        with pytest.raises(ValueError, match="read-only"):
            library.sgd_step(frozen, p, None, lr=0.1)
        with pytest.raises(ValueError, match="read-only"):
            library.relu(p, out=frozen)
        with pytest.raises(ValueError, match="momentum needs v"):
            library.sgd_step(p, p, None, lr=0.1, momentum=0.9)
        with pytest.raises(ValueError, match="counts from 1"):
            library.adam_step(p, p, p.copy(), p.copy(), **USUAL | {"step": 0})


def test_sums_of_squares() -> None:
    for size in SIZES:
        for dtype in (np.float32, np.float64):
            g = 1e3 * reals((size,), 3, dtype)
            np.testing.assert_allclose(elementwise.sum_of_squares(g), reference.sum_of_squares(g), rtol=1e-13)
    large = np.full(1000, 1e30, np.float32)
    np.testing.assert_allclose(elementwise.sum_of_squares(large), 1e63, rtol=1e-6)  # no number of float32
    assert np.isnan(elementwise.sum_of_squares(np.array([1.0, np.nan], np.float32)))


def test_the_same_bits_for_any_number_of_threads() -> None:
    answers = []
    for count in (1, 2, 5):
        with pb.threads(count):
            sums = elementwise.sum_of_squares(reals((1_000_003,)))
            answers.append((sums, [array.tobytes() for array in steps(elementwise, 300_001, np.float32)]))
    assert answers[0] == answers[1] == answers[2]
