"""Pooling over channels where rows are few and long: they are cut into columns, and flat indices are made on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cpu_calls import reals

import pullback as pb
from pullback.cpu.pool import channels, forward

SHAPES: dict[str, tuple[tuple[int, ...], Any, dict[str, Any]]] = {
    "1d": ((1, 1999, 37), 3, {"stride": 2, "padding": 1}),
    "1d dilated": ((2, 700, 129), 2, {"stride": 3, "dilation": 4}),
    "2d of one row": ((1, 1, 900, 64), (1, 2), {"stride": 1}),
    "ceil": ((1, 1201, 40), 4, {"stride": 4, "rounding": "ceil"}),
}


def forget_plans() -> None:
    channels.forward_plan.cache_clear()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SHAPES)
def test_columns_of_few_rows(name: str, dtype: str) -> None:
    shape, window, options = SHAPES[name]
    x = reals(shape, 1).astype(dtype)
    x[0, ..., 3] = np.nan  # windows without a winner under nan="ignore"
    for nan in ("propagate", "ignore"):
        keywords = {**options, "nan": nan, "return_indices": True}
        plan = channels.forward_plan(pb.explain("max_pool", x, window, **keywords).problem)
        assert plan.pieces > shape[0]
        with pb.backend("reference"):
            values, indices = pb.max_pool(x, window, **keywords)
        for threads in (1, 2, 5):
            with pb.kernel("channels"), pb.threads(threads):
                found = pb.max_pool(x, window, **keywords)
            np.testing.assert_array_equal(found[0], values)
            np.testing.assert_array_equal(found[1], indices)
    x[...] = np.round(8 * np.nan_to_num(x))
    options = {key: value for key, value in options.items() if key != "dilation"}
    with pb.backend("reference"):
        means = pb.avg_pool(x, window, **options)
    with pb.kernel("channels"):
        np.testing.assert_allclose(pb.avg_pool(x, window, **options), means, rtol=1e-6, atol=1e-6)


def test_indices_of_windows_that_reach_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where distances from tap to tap do not fit into 32 bits, winners are turned into indices afterwards: the same ones."""
    x, keywords = reals((2, 9, 11, 40), 2), {"stride": 2, "padding": 1, "return_indices": True}
    results = []
    for near in (True, False):
        if not near:
            monkeypatch.setattr(channels, "over_channels_fields", lambda f: forward.over_channels_fields(f) | {"indexed": 0})
        forget_plans()
        with pb.kernel("channels"):
            results.append(pb.max_pool(x, 3, **keywords)[1])
    forget_plans()
    np.testing.assert_array_equal(*results)
