"""Pooling on the cuda backend: every op by its kernel's name, against the reference, on numbers whose sums are exact."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

pytestmark = pytest.mark.torch

CL, CF = "channels_last", "channels_first"
KERNELS = {
    "max_pool": "windows",
    "avg_pool": "windows",
    "max_pool_grad": "winners",
    "max_pool_grad_from_winners": "gather",
    "avg_pool_grad": "gather",
}

# layout, size, batch, channels, kernel, stride, dilation, padding, rounding
CASES = {
    "1d": (CL, (9,), 2, 5, 3, 2, 1, 1, "floor"),
    "2x2": (CL, (6, 8), 1, 4, 2, 2, 1, 0, "floor"),
    "3x3": (CL, (4, 5), 2, 3, 3, 1, 1, 1, "floor"),
    "3x3 first": (CF, (5, 8), 1, 3, 3, 1, 1, 1, "floor"),
    "3x3 stride 2, rounded up, first": (CF, (6, 8), 1, 2, 3, 2, 1, 1, "ceil"),
    "uneven first": (CF, (8, 9), 1, 3, (3, 2), (2, 3), (2, 1), ((1, 2), (0, 1)), "ceil"),
    "stride and dilation 2": (CF, (8, 9), 1, 1, 3, 2, 2, 2, "floor"),
    "cropped": (CL, (8, 9), 1, 3, 3, (1, 2), 1, ((-1, 2), (2, -2)), "floor"),
    "cropped first": (CF, (8, 9), 1, 2, 3, (1, 2), 1, ((-1, 2), (2, -2)), "floor"),
    "windows in padding, first": (CF, (4, 3), 1, 1, 2, 2, 1, ((4, 0), (1, 3)), "floor"),
    "large strides first": (CF, (11, 12), 1, 1, (5, 2), (9, 5), (2, 1), ((0, 5), (0, 1)), "floor"),
    "large windows": (CL, (7, 8), 1, 2, 8, 4, 1, 3, "floor"),
    "large windows first": (CF, (7, 8), 1, 2, (9, 8), 3, 1, 2, "floor"),
    "global": (CL, (8, 8), 1, 3, 8, 1, 1, 0, "floor"),
    "3d": (CL, (3, 4, 5), 1, 3, (2, 3, 2), 1, 1, (1, 1, 0), "floor"),
    "3d stride 2": (CF, (4, 5, 4), 1, 1, (3, 2, 3), 2, 1, 1, "floor"),
}
DIVISORS = ({}, {"count_include_pad": True}, {"divisor": 4})
RULES = (("first", "propagate"), ("last", "ignore"), ("last", "propagate"), ("first", "ignore"))


def given(case, dtype=np.float32):
    layout, size, batch, channels, kernel, stride, dilation, padding, rounding = case
    shape = (batch, *size, channels) if layout == CL else (batch, channels, *size)
    x = np.random.default_rng(0).integers(-3, 4, shape).astype(dtype)
    return x, kernel, {"stride": stride, "dilation": dilation, "padding": padding, "rounding": rounding, "layout": layout}


def gradient_of(y):
    return np.random.default_rng(1).integers(-3, 4, y.shape).astype(y.dtype)


@pytest.fixture
def check(on_gpu, reference):
    """check(op, ...): what our kernel makes is what the reference makes, which is returned."""

    def same(op, *args, close=0.0, **keywords):
        wanted = reference(op, *args, **keywords)
        found = on_gpu(op, *args, kernel=KERNELS[op], **keywords)
        pairs = zip(wanted, found, strict=True) if isinstance(wanted, tuple) else [(wanted, found)]
        for a, b in pairs:
            assert a.dtype == b.dtype
            if a.dtype.kind in "iu":
                np.testing.assert_array_equal(b, a, err_msg=op)
            else:
                np.testing.assert_allclose(b.astype(np.float64), a.astype(np.float64), rtol=close, atol=close, err_msg=op)
        return wanted

    return same


@pytest.mark.parametrize("case", CASES)
def test_max(check, case):
    x, kernel, keywords = given(CASES[case])
    ties, nan = RULES[list(CASES).index(case) % 4]
    y, winners = check("max_pool", x, kernel, return_winners=True, ties=ties, nan=nan, **keywords)
    check("max_pool_grad_from_winners", gradient_of(y), winners, x.shape, kernel, **keywords)


@pytest.mark.parametrize("case", CASES)
def test_average(check, case):
    x, kernel, keywords = given(CASES[case])
    keywords |= DIVISORS[list(CASES).index(case) % 3]
    y = check("avg_pool", x, kernel, close=1e-6, **keywords)
    check("avg_pool_grad", gradient_of(np.round(y)), x.shape, kernel, close=1e-6, **keywords)


@pytest.mark.parametrize("case", ["uneven first", "3d"])
@pytest.mark.parametrize("storage_order", [0, 1])
def test_indices(check, case, storage_order):
    x, kernel, keywords = given(CASES[case])
    check("max_pool", x, kernel, return_indices=True, storage_order=storage_order, **keywords)


@pytest.mark.parametrize("case", ["2x2", "windows in padding, first"])
def test_gradient_from_x(check, case):
    x, kernel, keywords = given(CASES[case])
    y = check("max_pool", x, kernel, **keywords)
    check("max_pool_grad", gradient_of(y), x, kernel, **keywords)


@pytest.mark.parametrize("case", ["windows in padding, first"])
@pytest.mark.parametrize(("ties", "nan"), RULES)
def test_not_finite(check, case, ties, nan):
    """Also windows of nothing but -inf or NaN."""
    x, kernel, keywords = given(CASES[case])
    rng = np.random.default_rng(2)
    x = np.where(x < -1, np.nan, np.where(x < 2, -np.inf, np.where(x == 2, np.inf, x))).astype(x.dtype)
    x[rng.random(x.shape) < 0.3] = -np.inf
    x[..., :2] = np.nan if keywords["layout"] == CF else x[..., :2]
    check("max_pool", x, kernel, return_winners=True, ties=ties, nan=nan, **keywords)


@pytest.mark.parametrize("case", ["2x2"])
def test_gradients_that_are_not_finite(check, case):
    """NaN in dy stays with the winner, and reaches only the cells that were averaged."""
    x, kernel, keywords = given(CASES[case])
    y, winners = check("max_pool", x, kernel, return_winners=True, **keywords)
    dy = gradient_of(y)
    dy.flat[1], dy.flat[-2] = np.nan, np.inf
    check("max_pool_grad_from_winners", dy, winners, x.shape, kernel, **keywords)
    check("avg_pool_grad", dy, x.shape, kernel, close=1e-6, **keywords)


@pytest.mark.parametrize(("dtype", "close"), [(np.float64, 1e-15), (np.float16, 2e-3), (ml_dtypes.bfloat16, 1.6e-2)])
@pytest.mark.parametrize("case", ["2x2"])
def test_types(check, case, dtype, close):
    x, kernel, keywords = given(CASES[case], dtype)
    y, winners = check("max_pool", x, kernel, return_winners=True, **keywords)
    check("max_pool_grad_from_winners", gradient_of(y), winners, x.shape, kernel, **keywords)
    check("avg_pool", x, kernel, close=close, **keywords)
    check("avg_pool_grad", gradient_of(y), x.shape, kernel, close=close, **keywords)


@pytest.mark.parametrize(("layout", "kernel", "name"), [(CL, (16, 16), "uint16"), (CF, (17, 15), "uint8")])
def test_types_of_winners(check, layout, kernel, name):
    x, kernel, keywords = given((layout, (17, 16), 1, 1, kernel, 3, 1, 0, "floor"))
    _, winners = check("max_pool", x, kernel, return_winners=True, **keywords)
    assert winners.dtype == name
