"""The rules for ties, NaN and dtypes: the winner of every small window, forward and backward agreeing, special values."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import oracle
import pytest
from cases import DTYPES, LAYOUTS
from kernels import KernelUnderTest, kernels_of

import pullback as pb
from pullback.rules import FLOAT_NAMES, PUBLIC_NAN_RULES, TIES, WinnerRule, is_supported_float

VALUES = (np.nan, -np.inf, np.inf, -0.0, 0.0, 1.0)
RULES = list(product(TIES, PUBLIC_NAN_RULES))

# Every window of four of these values, each a channel of one array: all orders, all ties, all mixtures with NaN.
EVERY_WINDOW = np.array(list(product(VALUES, repeat=4))).T
FORMS = ((4,), (2, 2), (1, 2, 2))


def scan(rule: WinnerRule, cells: tuple[float, ...]) -> int:
    """The cell that wins when `wins` is asked of one cell after another; -1 if none does."""
    best, winner = np.zeros(1), -1
    for t, cell in enumerate(cells):
        if rule.wins(np.array([cell]), best, np.array([winner >= 0]))[0]:
            best, winner = np.array([cell]), t
    return winner


@pytest.mark.parametrize(("ties", "nan"), RULES)
def test_wins_is_the_rule_in_words(ties: Any, nan: Any) -> None:
    for cells in product(VALUES, repeat=3):
        expected = oracle.winning_cell([(value, (t,)) for t, value in enumerate(cells)], ties, nan)
        assert scan(WinnerRule(ties, nan), cells) == (-1 if expected is None else expected[1][0]), cells


def test_leading_nan_wins_only_in_front() -> None:
    leading = WinnerRule(nan="leading")
    assert scan(leading, (np.nan, 1.0, 2.0)) == 0
    assert scan(leading, (1.0, np.nan, 2.0)) == 2
    assert scan(leading, (1.0, np.nan, 0.0)) == 0


def test_above_bars_cells_from_winning() -> None:
    barred = WinnerRule(above=-np.inf)
    assert scan(barred, (-np.inf, -np.inf, -np.inf)) == -1
    assert scan(barred, (-np.inf, -5.0, -np.inf)) == 1
    assert scan(WinnerRule(), (-np.inf, -np.inf, -np.inf)) == 0
    assert scan(WinnerRule(ties="last"), (-np.inf, -np.inf, -np.inf)) == 2


def test_rules_are_values() -> None:
    assert WinnerRule("last", "ignore") == WinnerRule("last", "ignore")
    assert hash(WinnerRule()) == hash(WinnerRule("first", "propagate", None))
    assert WinnerRule() != WinnerRule("last")


@kernels_of("max_pool", "max_pool_grad")
def test_every_small_window(kernel_under_test: KernelUnderTest) -> None:
    """Forward and backward choose the same cell in each of the 1296 windows, under every rule."""
    for (ties, nan), layout, window, dtype in product(RULES, LAYOUTS, FORMS, DTYPES):
        last = EVERY_WINDOW.reshape(1, *window, -1).astype(dtype)
        x = last if layout == "channels_last" else np.ascontiguousarray(np.moveaxis(last, -1, 1))
        keywords = {"ties": ties, "nan": nan, "layout": layout}
        values, indices = oracle.max_pool(x, window, **keywords)
        if kernel_under_test.op == "max_pool":
            got = kernel_under_test(x, window, return_indices=True, **keywords)
            if got is not None:
                np.testing.assert_array_equal(got[0].astype(np.float64), values)
                np.testing.assert_array_equal(np.signbit(got[0])[values == 0], np.signbit(values)[values == 0])
                np.testing.assert_array_equal(got[1], indices)
        else:
            dy = (np.arange(values.size) % 7 + 1.0).reshape(values.shape).astype(dtype)
            got = kernel_under_test(dy, x, window, **keywords)
            if got is not None:
                expected = oracle.max_pool_grad(dy, x, window, **keywords)
                np.testing.assert_array_equal(got.astype(np.float64), expected)


@kernels_of("max_pool_grad", "max_pool_grad_from_indices")
def test_special_gradients_stay_with_their_winner(kernel_under_test: KernelUnderTest) -> None:
    """Two rows of windows, the second all zeros with its winner in front; NaN times the zeros beside it would show."""
    for dtype, rank, channels in product(DTYPES, (1, 2), (1, 64)):
        x = np.array([[3, 1, 2, 5, 4, 0, 7, 6], [0] * 8][:rank]).reshape(1, *(2, 8)[-rank:], 1).astype(dtype)
        dy = np.array([np.nan, np.inf, -np.inf, 1]).reshape(1, *(1, 4)[-rank:], 1).astype(dtype)
        x, dy = np.repeat(x, channels, axis=-1), np.repeat(dy, channels, axis=-1)
        if kernel_under_test.op == "max_pool_grad":
            got = kernel_under_test(dy, x, 2)
        else:
            cells = np.array([0, 3, 4, 6]).reshape(*dy.shape[:-1], 1)
            got = kernel_under_test(dy, cells * channels + np.arange(channels), x.shape)
        if got is not None:
            expected = np.array([np.nan, 0, 0, np.inf, -np.inf, 0, 1, 0])
            for channel in np.moveaxis(got.astype(np.float64), -1, 0):
                np.testing.assert_array_equal(channel.ravel()[:8], expected)
                assert (channel.ravel()[8:] == 0).all()
    if kernel_under_test.op == "max_pool_grad":
        whole = kernel_under_test(np.full((1, 1, 1), np.nan), np.array([3.0, 1.0]).reshape(1, 2, 1), 2)
        if whole is not None:
            np.testing.assert_array_equal(whole.ravel(), [np.nan, 0])


def test_all_nan_windows(each_backend: str) -> None:
    x, dy = np.full((1, 4, 1), np.nan), np.ones((1, 2, 1))
    y, indices = pb.max_pool(x, 2, return_indices=True)
    assert np.isnan(y).all()
    assert indices.ravel().tolist() == [0, 2]
    assert pb.max_pool_grad(dy, x, 2).ravel().tolist() == [1, 0, 1, 0]
    y, indices = pb.max_pool(x, 2, nan="ignore", return_indices=True)
    assert (y == -np.inf).all()
    assert (indices == -1).all()
    assert (pb.max_pool_grad(dy, x, 2, nan="ignore") == 0).all()
    assert (pb.max_pool_grad_from_indices(dy, indices, x.shape) == 0).all()
    assert np.isnan(pb.avg_pool(x, 2)).all()


def test_a_window_of_minus_infinity_has_a_winner(each_backend: str) -> None:
    x, dy = np.full((1, 4, 1), -np.inf), np.ones((1, 2, 1))
    for ties, winners in (("first", [0, 2]), ("last", [1, 3])):
        y, indices = pb.max_pool(x, 2, ties=ties, return_indices=True)
        assert (y == -np.inf).all()
        assert indices.ravel().tolist() == winners
        assert np.flatnonzero(pb.max_pool_grad(dy, x, 2, ties=ties)).tolist() == winners


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_sums_in_float32(each_backend: str, dtype: Any) -> None:
    """Sums of half-precision ones would stall at 2048 (float16) or 256 (bfloat16)."""
    ones = np.ones((1, 4099, 1), dtype)
    assert float(pb.conv(ones, np.ones((4096, 1, 1), dtype))[0, 0, 0]) == 4096
    assert float(pb.avg_pool(ones, 4096)[0, 0, 0]) == 1
    assert float(pb.conv_grad_filter(np.ones((1, 4096, 1), dtype), ones, (4, 1, 1))[0, 0, 0]) == 4096


def test_supported_dtypes() -> None:
    assert {dtype.name for dtype in DTYPES} == set(FLOAT_NAMES)
    assert all(is_supported_float(dtype) for dtype in DTYPES)
    assert is_supported_float(np.dtype(">f4"))
    refused = ("int32", "complex64", "bool", "object", "U3", "M8[s]", ml_dtypes.float8_e5m2)
    assert not any(is_supported_float(np.dtype(name)) for name in refused)
