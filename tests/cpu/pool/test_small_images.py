"""Kernels that take many small images together: planes transposed band by band, and scatter over several images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.cpu.engine.plan_cache import release_plans
from pullback.cpu.pool import tuning

CASES: tuple[tuple[tuple[int, ...], Any, dict[str, Any]], ...] = (
    ((19,), 3, {"stride": 5}),
    ((9, 11), (4, 3), {"stride": (3, 2), "padding": (2, 1)}),
    ((23, 5), (2, 2), {"stride": (5, 3)}),  # rows that no window reads
    ((12, 7), (3, 2), {"stride": (2, 1), "dilation": (3, 2), "padding": (0, 1)}),
    ((5, 6, 7), (3, 2, 3), {"stride": (2, 3, 1), "padding": 1}),
    ((4, 9, 3), (2, 2, 3), {"stride": (3, 1, 2)}),
)


def numbers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(np.float32)


@pytest.mark.parametrize("block_bytes", [1, 12 << 10, tuning.TRANSPOSED_BYTES])
@pytest.mark.parametrize(("size", "window", "options"), CASES)
def test_bands_and_blocks_of_any_size(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, ...], window: Any, options: dict[str, Any], block_bytes: int
) -> None:
    monkeypatch.setattr(tuning, "TRANSPOSED_BYTES", block_bytes)
    monkeypatch.setattr(tuning, "LEAST_TRANSPOSED_BYTES", block_bytes)
    release_plans()
    keywords = options | {"layout": "channels_first"}
    undilated = {name: value for name, value in keywords.items() if name != "dilation"}
    for planes in (1, 70):
        x = numbers((1, planes, *size), planes)
        with pb.backend("reference"):
            y, winners = pb.max_pool(x, window, return_winners=True, **keywords)
            indices = pb.max_pool(x, window, return_indices=True, **keywords)[1]
            dy, dy_mean = numbers(y.shape, 1), numbers(pb.avg_pool(x, window, **undilated).shape, 2)
            dx = pb.max_pool_grad_from_winners(dy, winners, x.shape, window, **keywords)
            mean, dx_mean = pb.avg_pool(x, window, **undilated), pb.avg_pool_grad(dy_mean, x.shape, window, **undilated)
        with pb.backend("cpu"), pb.kernel("transposed"):
            for more, expected in (("return_winners", winners), ("return_indices", indices)):
                found = pb.max_pool(x, window, **{more: True}, **keywords)
                np.testing.assert_array_equal(found[0], y)
                np.testing.assert_array_equal(found[1], expected)
            np.testing.assert_array_equal(pb.max_pool_grad_from_winners(dy, winners, x.shape, window, **keywords), dx)
            np.testing.assert_allclose(pb.avg_pool(x, window, **undilated), mean, rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(pb.avg_pool_grad(dy_mean, x.shape, window, **undilated), dx_mean, rtol=1e-6, atol=1e-5)
    release_plans()


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("size", "window", "options"), CASES)
def test_scatter_over_many_images(layout: str, dtype: str, size: tuple[int, ...], window: Any, options: dict[str, Any]) -> None:
    """More images than are taken together, and no whole number of them."""
    shape = (7, 43, *size) if layout == "channels_first" else (301, *size, 1)
    keywords = options | {"layout": layout}
    x = numbers(shape, 3).astype(dtype)
    with pb.backend("reference"):
        y, winners = pb.max_pool(x, window, return_winners=True, **keywords)
        dy = numbers(y.shape, 4).astype(dtype)
        expected = pb.max_pool_grad_from_winners(dy, winners, shape, window, **keywords)
    with pb.backend("cpu"), pb.kernel("scatter"):
        np.testing.assert_array_equal(pb.max_pool_grad_from_winners(dy, winners, shape, window, **keywords), expected)
