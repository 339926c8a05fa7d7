"""The cpu kernels of adaptive pooling stay inside their arrays, and give the same bits for any number of threads."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from cpu_calls import guarded_calls

import pullback as pb
from pullback.cpu.machine_code import dry_run, warmup


@pytest.mark.skipif(sys.platform != "linux", reason="memory is protected by Linux's mprotect")
@pytest.mark.parametrize("side", ["above", "below"])
def test_no_kernel_leaves_its_arrays(side: str) -> None:
    assert guarded_calls("guarded_adaptive.py", "float32", side)["calls"] > 50


def test_any_number_of_threads_gives_the_same_bits() -> None:
    x = np.random.default_rng(0).normal(size=(9, 31, 30, 33)).astype(np.float32)
    results = []
    for count in (1, 2, 5):
        with pb.threads(count), pb.backend("cpu"):
            y = pb.adaptive_avg_pool(x, (13, 11))
            results.append((y, pb.adaptive_avg_pool_grad(y, x.shape), pb.adaptive_max_pool_grad(y, x)))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_three_axes_of_unequal_maxima_run_on_the_reference() -> None:
    explained = pb.explain("adaptive_max_pool", np.ones((1, 5, 5, 5, 4), np.float32), 3)
    assert "two axes from tables" in str(explained)
    assert explained.chosen is not None
    assert explained.chosen.backend == "reference"


def test_wheels_ship_what_they_run() -> None:
    shipped = {
        variant
        for task in warmup.tasks(["float32"], wide=True)
        if task.op in ("max_pool", "avg_pool_grad")
        for variant in warmup.variants_of(task)
    }
    for side in (7, 37, 3000):  # with 31 columns to a window: winners of one, two and four bytes
        x, outputs = np.ones((1, side, 61, 2), np.float32), (1, 2)
        with pb.backend("cpu"), dry_run.dry_run(False) as run:
            for rule in ({}, {"ties": "last", "nan": "ignore"}):
                pb.adaptive_max_pool(x, outputs, return_indices=True, **rule)
            pb.adaptive_avg_pool_grad(pb.adaptive_avg_pool(x, outputs), x)
        assert len(run.wanted) >= 3
        assert set(run.wanted) <= shipped
