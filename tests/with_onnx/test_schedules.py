"""Learning-rate schedules: pure functions with known values at known places."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pullback.onnx import OnnxError
from pullback.onnx.train.schedules import Constant, Cosine, Linear, OneCycle, ReduceOnPlateau, StepDecay


@pytest.mark.parametrize(
    ("schedule", "at", "factor"),
    [
        (Constant(), 7.5, 1.0),
        (StepDecay(3, 0.5), 2.99, 1.0),
        (StepDecay(3, 0.5), 3, 0.5),
        (StepDecay(3, 0.5), 7, 0.25),
        (Linear(10), 0, 1.0),
        (Linear(10), 2.5, 0.75),
        (Linear(10, final=0.5), 20, 0.5),
        (Linear(10, warmup=2), 1, 0.5),
        (Linear(10, warmup=2), 6, 0.5),
        (Cosine(10), 5, 0.5),
        (Cosine(10), 0, 1.0),
        (Cosine(10, final=0.1), 10, 0.1),
        (Cosine(10, final=0.1), 99, 0.1),
        (Cosine(12, warmup=2), 0.5, 0.25),
        (Cosine(12, warmup=2), 7, 0.5),
        (OneCycle(10), 0, 1 / 25),
        (OneCycle(10), 3, 1.0),
        (OneCycle(10), 10, 1 / 25e4),
        (OneCycle(10), 1.5, (1 + 1 / 25) / 2),
    ],
    ids=str,
)
def test_values(schedule: Any, at: float, factor: float) -> None:
    assert schedule.factor(at) == pytest.approx(factor, rel=1e-12)


def test_plateau_counts_epochs_without_a_better_value() -> None:
    schedule = ReduceOnPlateau(gamma=0.5, patience=1, least=0.2)
    seen = [schedule.factor(0.0, [1.0, 0.9, 0.9, 0.89999, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6][:n]) for n in range(11)]
    assert seen == [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.2, 0.2]
    assert ReduceOnPlateau(patience=0).factor(0.0, [-0.9, -0.95]) == 1.0  # an accuracy that becomes better
    assert ReduceOnPlateau(patience=0).factor(0.0, [math.inf, 1.0]) == 1.0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: StepDecay(0), "StepDecay: every is 0"),
        (lambda: Cosine(10, warmup=11), "Cosine: warmup is 11; it must be a number, at least 0 and at most 10"),
        (lambda: Linear(5, by="minutes"), "by is 'minutes'; it must be 'epoch' or 'step'"),
        (lambda: ReduceOnPlateau(patience=1.5), "patience is 1.5; it must be a whole number"),  # type: ignore[arg-type]
        (lambda: OneCycle(10, rise=2), "rise is 2"),
    ],
)
def test_settings_are_checked(make: Any, said: str) -> None:
    with pytest.raises(OnnxError, match=said):
        make()
