"""Global, Lp and max un-pooling, and `grad`: against their formulas, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb

LAYOUTS = ["channels_last", "channels_first"]


def image(layout: str, dtype: Any = np.float64, seed: int = 0) -> np.ndarray:
    shape = (2, 6, 5, 3) if layout == "channels_last" else (2, 3, 6, 5)
    return np.random.default_rng(seed).permutation(np.prod(shape)).reshape(shape).astype(dtype) / 8


@pytest.mark.parametrize("layout", LAYOUTS)
def test_global_pools_are_the_mean_and_the_maximum_of_an_image(each_backend: str, layout: str) -> None:
    x, axes = image(layout), (1, 2) if layout == "channels_last" else (2, 3)
    mean, best = pb.global_avg_pool(x, layout=layout), pb.global_max_pool(x, layout=layout)
    np.testing.assert_allclose(mean, x.mean(axis=axes, keepdims=True), 1e-12)
    np.testing.assert_array_equal(best, x.max(axis=axes, keepdims=True))
    dy = np.random.default_rng(1).normal(size=mean.shape)
    np.testing.assert_allclose(pb.global_avg_pool_grad(dy, x, layout=layout), np.broadcast_to(dy / 30, x.shape), 1e-12)
    np.testing.assert_array_equal(pb.global_max_pool_grad(dy, x, layout=layout), np.where(x == best, dy, 0))
    values, indices = pb.global_max_pool(x, layout=layout, return_indices=True)
    np.testing.assert_array_equal(x.ravel()[indices], values)


def test_global_pools_of_no_cells_and_of_junk() -> None:
    with pytest.raises(ValueError, match=r"global_avg_pool: x .* no cells"):
        pb.global_avg_pool(np.ones((1, 0, 2, 3)))
    with pytest.raises(ValueError, match="global_max_pool: x has shape"):
        pb.global_max_pool(np.ones(3))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("storage_order", [0, 1])
def test_unpooling_puts_the_maxima_back(layout: str, storage_order: int) -> None:
    x = image(layout)
    options = {"layout": layout, "storage_order": storage_order}
    y, indices = pb.max_pool(x, 3, stride=1, return_indices=True, **options)  # windows overlap, and share winners
    back = pb.max_unpool(y, indices, x, **options)
    won = back != 0
    assert 0 < won.sum() < y.size
    np.testing.assert_array_equal(back[won], x[won])
    dy = np.random.default_rng(1).normal(size=x.shape)
    gradient = pb.max_unpool_grad(dy, indices, **options)
    np.testing.assert_allclose(np.vdot(back, dy), np.vdot(y, gradient))
    assert np.count_nonzero(gradient) == won.sum(), "a value that another replaced has no gradient"


def test_unpooling_leaves_out_windows_without_a_winner_and_refuses_what_is_out_of_range() -> None:
    values, indices = np.ones((1, 1, 2, 1)), np.array([-1, 3]).reshape(1, 1, 2, 1)
    np.testing.assert_array_equal(pb.max_unpool(values, indices, (1, 2, 2, 1)).ravel(), [0, 0, 0, 1])
    np.testing.assert_array_equal(pb.max_unpool_grad(np.ones((1, 2, 2, 1)), indices).ravel(), [0, 1])
    with pytest.raises(ValueError, match="max_unpool: index 4 in indices is out of range"):
        pb.max_unpool(values, indices + 1, (1, 2, 2, 1))
    with pytest.raises(ValueError, match="max_unpool: indices has shape"):
        pb.max_unpool(values, indices[:, :, :1], (1, 2, 2, 1))
    with pytest.raises(ValueError, match=r"max_unpool: values .* differ in rank, batch or channels"):
        pb.max_unpool(values, indices, (2, 2, 2, 1))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("p", [1, 2, 3.5])
def test_lp_pool_is_the_norm_of_each_window(layout: str, p: float) -> None:
    x = image(layout) - 10
    options: dict[str, Any] = {"stride": 2, "padding": 1, "layout": layout}
    y = pb.lp_pool(x, 3, p=p, **options)
    np.testing.assert_allclose(y, pb.avg_pool(np.abs(x) ** p, 3, divisor=1, **options) ** (1 / p), 1e-12)
    dy, t = np.random.default_rng(1).normal(size=y.shape), np.random.default_rng(2).normal(size=x.shape)
    gradient, step = pb.lp_pool_grad(dy, x, 3, p=p, **options), 1e-6
    ahead, behind = (pb.lp_pool(x + s * t, 3, p=p, **options) for s in (step, -step))
    np.testing.assert_allclose(np.vdot(gradient, t), np.vdot(dy, (ahead - behind) / (2 * step)), 1e-6)
    traced = pb.grad(lambda x: pb.lp_pool(x, 3, p=p, **options))(x, dy)
    np.testing.assert_allclose(traced, gradient, 1e-10, 1e-12)


def test_lp_pool_of_zeros_halves_and_bad_exponents() -> None:
    zeros = np.zeros((1, 4, 4, 1))
    np.testing.assert_array_equal(pb.lp_pool_grad(np.ones((1, 2, 2, 1)), zeros, 2), zeros)
    large = np.full((1, 2, 2, 1), 300, np.float16)
    np.testing.assert_array_equal(pb.lp_pool(large, 2), np.float16(600))
    for p in (0.5, np.inf, np.nan, "2x", None):
        with pytest.raises(ValueError, match="lp_pool: p is"):
            pb.lp_pool(zeros, 2, p=p)


def test_autograd_goes_through_adaptive_and_global_pools_twice() -> None:
    x = image("channels_last")
    for pool in (
        lambda x: pb.adaptive_avg_pool(x, 4), lambda x: pb.adaptive_max_pool(x, 4), pb.global_avg_pool, pb.global_max_pool,
        lambda x: pb.adaptive_max_pool(x, (4, 4), return_indices=True)[0],
    ):  # fmt: skip
        gradient = pb.grad(lambda x, pool=pool: pool(x) ** 2)
        np.testing.assert_allclose(gradient(x), pb.grad(pool)(x, 2 * pool(x)))
        twice, t = pb.grad(gradient), np.random.default_rng(3).normal(size=x.shape)
        np.testing.assert_allclose(twice(x, t), 2 * pb.grad(pool)(x, _tangent(pool, x, t)), atol=1e-7)
    dy = pb.adaptive_avg_pool(x, 4)
    np.testing.assert_array_equal(
        pb.grad(lambda d: pb.adaptive_max_pool_grad(d, x))(dy, x), pb.adaptive_max_pool(x, 4)
    )  # its adjoint, read at x itself


def _tangent(pool: Any, x: np.ndarray, t: np.ndarray) -> np.ndarray:
    """By difference quotient: exact for means, and for maxima until a winner changes."""
    step = 1e-4
    return np.asarray((pool(x + step * t) - pool(x)) / step)


def test_value_and_grads_gives_both_and_grad_one() -> None:
    x, w = image("channels_last"), np.ones((2, 2, 3, 1))
    value, (dx, dw) = pb.value_and_grads(pb.conv)([x, w])
    np.testing.assert_array_equal(value, pb.conv(x, w))
    for found, expected in zip((dx, dw), pb.grads(pb.conv)([x, w]), strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(pb.grad(lambda x: pb.conv(x, w))(x), dx)
    with pytest.raises(TypeError, match="f must be a function"):
        pb.value_and_grads(3)
