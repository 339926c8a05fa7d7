"""Batch normalization and its gradient: against NumPy in every memory order, exactness, threads, NaN, in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cpu_calls import reals

import pullback as pb
from pullback import training_kernels
from pullback.cpu import norm
from pullback.cpu.engine.machine import machine
from pullback.reference import norm as reference

V = machine().vector_bytes // 4
SHAPES = (
    (2, 1, 3, 3), (3, V - 1, 5, 7), (4, V, 2, 2), (2, 2 * V + 1, 9, 4), (5, 3, 1, 1), (1, 4, 4 * V + 1), (7, 5),
    (31, 70, 11, 13), (2, 3, 150, 257), (70, 1100, 1, 1),
)  # fmt: skip


def in_memory(x: np.ndarray, order: str) -> np.ndarray:
    """The same array with its channels side by side, in C order, between other axes, or with gaps."""
    if order == "last":
        return np.moveaxis(np.moveaxis(x, 1, -1).copy(), -1, 1)
    if order == "between":
        return np.moveaxis(np.moveaxis(x, 0, -1).copy(), -1, 0)
    return np.repeat(x, 2, axis=0)[::2] if order == "gaps" else x.copy()


def given(shape: tuple[int, ...], order: str, dtype: Any) -> list[np.ndarray]:
    """x, dy, what is added, scale, bias."""
    arrays = [in_memory(reals(shape, seed, dtype), order) for seed in range(3)]
    arrays[0] *= 2
    arrays[0] += 3
    return [*arrays, reals(shape[1:2], 3, dtype), reals(shape[1:2], 4, dtype)]


def assert_near(found: Any, expected: Any, bound: float) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=bound, atol=bound * float(np.abs(theirs).max()))


@pytest.mark.parametrize(
    ("order", "dtype"), [("last", "float32"), ("first", "float32"), ("last", "float64"), ("first", "float64")]
)
def test_forward_and_gradient_are_those_of_numpy(order: str, dtype: str) -> None:
    bound = 3e-6 if dtype == "float32" else 1e-13
    for shape in SHAPES:
        x, dy, add, scale, bias = given(shape, order, dtype)
        forward = norm.batch_norm_train(x, scale, bias, 1e-3, relu=True, add=add)
        assert_near(forward, reference.batch_norm_train(x, scale, bias, 1e-3, relu=True, add=add), bound)
        assert_near(norm.batch_norm_train(x, scale, bias, 1e-3), reference.batch_norm_train(x, scale, bias, 1e-3), bound)
        y, mean, inv_std = forward
        for options in ({}, {"y": y}, {"y": y, "masked_out": True}, {"masked_out": True}):
            expected = reference.batch_norm_grad(dy, x, scale, mean, inv_std, **options)
            assert_near(norm.batch_norm_grad(dy, x, scale, mean, inv_std, **options), expected, 4 * bound)
        assert forward[0].dtype == x.dtype
        assert np.moveaxis(forward[0], 1, -1).flags.c_contiguous == np.moveaxis(x, 1, -1).flags.c_contiguous


@pytest.mark.parametrize("order", ["last", "first"])
@pytest.mark.parametrize("top", [None, 0.75])
def test_a_mask_made_again_from_x_is_that_of_the_result(order: str, top: float | None) -> None:
    for dtype, shape in (("float32", (3, V + 1, 5, 7)), ("float64", (2, 3, 9, 31))):
        x, dy, _, scale, bias = given(shape, order, dtype)
        y, mean, inv_std = norm.batch_norm_train(x, scale, bias, 1e-3, True, top=top)
        assert_near((y,), reference.batch_norm_train(x, scale, bias, 1e-3, True, top=top)[:1], 3e-6)
        assert top is None or 0 < (y == top).mean() < (y > 0).mean()
        expected = reference.batch_norm_grad(dy, x, scale, mean, inv_std, y, masked_out=True, top=top)
        for options in ({"y": y}, {"bias": bias}):
            for masked_out in (False, True):
                found = norm.batch_norm_grad(dy, x, scale, mean, inv_std, masked_out=masked_out, top=top, **options)
                assert_near(found, expected if masked_out else expected[:3], 2e-5)
        np.testing.assert_array_equal(found[3], np.where((y > 0) & (y < (top or np.inf)), dy, 0))


@pytest.mark.parametrize("order", ["last", "first"])
def test_running_statistics_move_in_place(order: str) -> None:
    for dtype in ("float32", "float64"):
        x, *_, mean, variance = given((3, 2 * V + 1, 4, 5), order, dtype)
        ours, theirs = [[array.copy() for array in (mean, variance)] for _ in range(2)]
        found = norm.training_statistics(x, 1e-3, (ours[0], ours[1]), 0.3)
        expected = reference.training_statistics(x, 1e-3, (theirs[0], theirs[1]), 0.3)
        assert_near((*found, *ours), (*expected, *theirs), 3e-6 if dtype == "float32" else 1e-13)
        unbiased = x.astype(np.float64).var(axis=(0, 2, 3), ddof=1)
        np.testing.assert_allclose(ours[1], 0.7 * variance.astype(np.float64) + 0.3 * unbiased, rtol=1e-5)
    with pytest.raises(ValueError, match="in place"):
        norm.training_statistics(x, 1e-3, (mean[::-1], variance), 0.3)


@pytest.mark.parametrize("order", ["between", "gaps"])
def test_other_memory_orders(order: str) -> None:
    x, dy, add, scale, bias = given((3, 4, 5, 6), order, np.float32)
    y, mean, inv_std = norm.batch_norm_train(x, scale, bias, 1e-3, True, np.ascontiguousarray(add))
    assert_near((y, mean, inv_std), reference.batch_norm_train(x, scale, bias, 1e-3, True, add), 3e-6)
    expected = reference.batch_norm_grad(dy, x, scale, mean, inv_std, y)
    assert_near(norm.batch_norm_grad(np.ascontiguousarray(dy), x, scale, mean, inv_std, y), expected, 1e-5)


@pytest.mark.parametrize("order", ["last", "first"])
@pytest.mark.parametrize("outlier", [0.0, 1e6])
def test_a_large_mean_costs_no_digits(order: str, outlier: float) -> None:
    """Mean 1e3, deviation 1: the statistics are right to the last digits, also where the first element is far from all others."""
    x = in_memory(reals((16, 5, 40, 40)) + np.float32(1000), order)
    x[0, :, 0, 0] += np.float32(outlier)
    mean, variance = norm.batch_statistics(x)
    expected = reference.batch_statistics(x.astype(np.float64))
    np.testing.assert_allclose(mean, expected[0], rtol=1.2e-7, atol=1e-6 * float(np.sqrt(expected[1].max())))
    np.testing.assert_allclose(variance, expected[1], rtol=1e-6)


def test_a_constant_channel_has_no_variance_below_zero() -> None:
    for order in ("last", "first"):
        mean, variance = norm.batch_statistics(in_memory(np.full((5, 3, 7, 11), 0.1, np.float32), order))
        np.testing.assert_array_equal(mean, np.float32(0.1))
        assert (variance >= 0).all()
        assert (variance < 1e-15).all()


@pytest.mark.parametrize("order", ["last", "first"])
def test_the_same_bits_for_any_number_of_threads(order: str) -> None:
    x, dy, add, scale, bias = given((9, 40, 33, 31), order, np.float32)
    answers = []
    for count in (1, 2, 5):
        with pb.threads(count):
            y, mean, inv_std = norm.batch_norm_train(x, scale, bias, 1e-3, True, add)
            gradients = norm.batch_norm_grad(dy, x, scale, mean, inv_std, y, masked_out=True)
            answers.append([array.tobytes() for array in (y, mean, inv_std, *gradients)])
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("order", ["last", "first"])
def test_nan_stays_in_its_channel_and_a_mask_hides_infinite_gradients(order: str) -> None:
    x, dy, _, scale, bias = given((3, 5, 4, 4), order, np.float32)
    y, mean, inv_std = norm.batch_norm_train(x, scale, bias, 1e-3, True)
    np.testing.assert_equal(norm.normalize(np.full_like(x, np.nan), mean, inv_std, scale, bias, relu=True), np.nan)
    hidden = np.where(y > 0, dy, np.float32(np.inf))
    assert_near(
        norm.batch_norm_grad(hidden, x, scale, mean, inv_std, y), norm.batch_norm_grad(dy, x, scale, mean, inv_std, y), 0
    )
    x[1, 2, 3, 1] = np.nan
    is_nan = [np.isnan(array) for array in norm.batch_statistics(x)]
    np.testing.assert_array_equal(is_nan, [[False, False, True, False, False]] * 2)


@pytest.mark.parametrize("order", ["last", "first"])
def test_out_may_be_an_argument(order: str) -> None:
    x, dy, add, scale, bias = given((3, V + 3, 4, 5), order, np.float32)
    y, mean, inv_std = norm.batch_norm_train(x, scale, bias, 1e-3, True, add)
    sums = norm.batch_norm_grad_sums(dy, x, mean, inv_std, y)
    dx = norm.batch_norm_grad_apply(dy, x, scale, mean, inv_std, *sums, 60, y)
    for place in (x, add):
        given_here = [place if array is place else array.copy(order="K") for array in (x, add)]
        before = place.copy(order="K")
        found = norm.normalize(given_here[0], mean, inv_std, scale, bias, True, given_here[1], out=place)
        assert found is place
        np.testing.assert_array_equal(found, y)
        place[...] = before
    assert norm.batch_norm_grad_apply(dy, x, scale, mean, inv_std, *sums, 60, y, out=dy) is dy
    np.testing.assert_array_equal(dy, dx)
    other = np.empty(x.shape[::-1], x.dtype).T
    np.testing.assert_array_equal(norm.normalize(x, mean, inv_std, scale, bias, True, add, out=other), y)


def test_what_does_not_go_together_is_refused() -> None:
    x, dy, _, scale, bias = given((3, 5, 4, 4), "first", np.float32)
    with pytest.raises(ValueError, match="scale must have the shape"):
        norm.batch_norm_train(x, scale[:4], bias, 1e-3)
    with pytest.raises(ValueError, match="same shape and dtype"):
        norm.batch_norm_grad(dy[:2], x, scale, bias, bias)
    frozen = x.copy()
    frozen.setflags(write=False)
    for library in (norm, reference):
        with pytest.raises(ValueError, match="read-only"):
            library.normalize(x, bias, scale, scale, bias, out=frozen)
        with pytest.raises(ValueError, match="shape"):
            library.batch_statistics(x[:0])


def test_the_front_takes_numpy_for_other_dtypes_and_under_the_reference() -> None:
    x, _, _, scale, bias = given((3, 5, 4, 4), "last", np.float32)
    half = [array.astype(np.float16) for array in (x, scale, bias)]
    assert training_kernels.batch_norm_train(*half, 1e-3)[0].dtype == np.float16
    with pb.backend("reference"):
        found = training_kernels.batch_norm_train(x, scale, bias, 1e-3)
    for ours, theirs in zip(found, reference.batch_norm_train(x, scale, bias, 1e-3), strict=True):
        np.testing.assert_array_equal(ours, theirs)
