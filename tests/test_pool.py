"""Max and average pooling and their gradients, each kernel by name against the oracle, and the identities between them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import oracle
import pytest
from cases import LAYOUTS, Case, Fill, beyond_bound, call, cases, difference, integers, reals, report, terms, with_nan
from kernels import KernelUnderTest, kernels_of

import pullback as pb

DIVISORS = (None, 35)  # the cells of the one case whose window is the whole image: its kernels take no other number


def data(case: Case, fill: Fill) -> tuple[np.ndarray, np.ndarray]:
    """(x, dy)"""
    dy, x, _ = call("max_pool_grad", case, fill)[0]
    return x, dy


@cache
def exact_max(case: Case, fill: Fill) -> tuple[np.ndarray, np.ndarray]:
    keywords = case.max_keywords | {"storage_order": case.storage_order}
    return oracle.max_pool(data(case, fill)[0], case.kernel, **keywords)


def signed_difference(got: np.ndarray, exact: np.ndarray, dtype: np.dtype[Any]) -> str | None:
    """As `difference`, but a maximum is a cell of x, so that -0.0 must stay -0.0."""
    if (found := difference(got, exact, dtype)) is not None:
        return found
    numbers = ~np.isnan(exact)
    same = np.array_equal(np.signbit(got.astype(np.float64))[numbers], np.signbit(exact)[numbers])
    return None if same else "the sign of a zero differs"


@pytest.mark.parametrize("fill", [integers, reals, with_nan])
@kernels_of("max_pool")
def test_max_pool_and_indices_equal_the_oracle(kernel_under_test: KernelUnderTest, fill: Fill) -> None:
    found: dict[Any, str | None] = {}
    for case in cases():
        x, _ = data(case, fill)
        values, indices = exact_max(case, fill)
        got = kernel_under_test(x, case.kernel, **case.max_keywords)
        if got is not None:
            found[case, "values"] = signed_difference(got, values, case.dtype)
        pair = kernel_under_test(x, case.kernel, **case.max_keywords, return_indices=True, storage_order=case.storage_order)
        if pair is not None:
            found[case, "values with indices"] = signed_difference(pair[0], values, case.dtype)
            found[case, "indices"] = difference(pair[1], indices, np.dtype(np.int64))
    report(found)


@pytest.mark.parametrize("fill", [integers, with_nan])
@kernels_of("max_pool_grad")
def test_max_pool_grad_equals_the_oracle(kernel_under_test: KernelUnderTest, fill: Fill) -> None:
    found = {}
    for case in cases():
        x, dy = data(case, fill)
        got = kernel_under_test(dy, x, case.kernel, **case.max_keywords)
        if got is not None:
            found[case] = difference(got, oracle.max_pool_grad(dy, x, case.kernel, **case.max_keywords), case.dtype)
    report(found)


@pytest.mark.parametrize("fill", [integers, with_nan])
@kernels_of("max_pool_grad_from_winners")
def test_max_pool_grad_from_winners_equals_the_oracle(kernel_under_test: KernelUnderTest, fill: Fill) -> None:
    found = {}
    for case in cases():
        x, dy = data(case, fill)
        args, keywords = call("max_pool_grad_from_winners", case, fill)
        got = kernel_under_test(*args, **keywords)
        if got is not None:
            found[case] = difference(got, oracle.max_pool_grad(dy, x, case.kernel, **case.max_keywords), case.dtype)
    report(found)


@pytest.mark.parametrize("fill", [integers, with_nan])
@kernels_of("max_pool")
def test_winners_are_those_of_the_indices(kernel_under_test: KernelUnderTest, fill: Fill) -> None:
    """A winner's tap and its window give the index; checked through the reference, which turns one into the other."""
    for case in cases():
        x, _ = data(case, fill)
        got = kernel_under_test(x, case.kernel, return_winners=True, **case.max_keywords)
        if got is None:
            continue
        with pb.backend("reference"):
            values, winners = pb.max_pool(x, case.kernel, return_winners=True, **case.max_keywords)
        assert got[1].dtype == winners.dtype
        assert np.array_equal(got[1], winners), case
        assert np.array_equal(got[0].astype(np.float64), values.astype(np.float64), equal_nan=True), case


@pytest.mark.parametrize(
    ("taps", "nan", "dtype"),
    [(255, "ignore", "uint8"), (255, "propagate", "uint8"), (256, "propagate", "uint16"), (256, "ignore", "uint16")],
)
def test_winners_take_the_narrowest_type(each_backend: str, taps: int, nan: str, dtype: str) -> None:
    for layout in ("channels_last", "channels_first"):
        x = np.random.default_rng(taps).permutation(2 * (taps + 40)).astype(np.float32)
        x = x.reshape((1, -1, 2) if layout == "channels_last" else (1, 2, -1))
        y, winners = pb.max_pool(x, taps, stride=3, nan=nan, layout=layout, return_winners=True)
        assert winners.dtype == dtype
        dx = pb.max_pool_grad_from_winners(np.ones_like(y), winners, x.shape, taps, stride=3, nan=nan, layout=layout)
        assert np.array_equal(dx, pb.max_pool_grad(np.ones_like(y), x, taps, stride=3, nan=nan, layout=layout))
        assert dx.sum() == y.size


def test_the_last_of_256_taps_is_no_mark(each_backend: str) -> None:
    x = np.ones((1, 16, 17, 1), np.float32)
    assert pb.max_pool(x, 16, ties="last", return_indices=True)[1].ravel().tolist() == [15 * 17 + 15]
    assert pb.max_pool(x, 16, ties="last", return_winners=True)[1].ravel().tolist() == [255]


@pytest.mark.parametrize("fill", [integers, with_nan])
@kernels_of("max_pool_grad_from_indices")
def test_max_pool_grad_from_indices_equals_the_oracle(kernel_under_test: KernelUnderTest, fill: Fill) -> None:
    found = {}
    for case in cases():
        x, dy = data(case, fill)
        _, indices = exact_max(case, fill)
        got = kernel_under_test(dy, indices, x.shape, layout=case.layout, storage_order=case.storage_order)
        if got is not None:
            found[case] = difference(got, oracle.max_pool_grad(dy, x, case.kernel, **case.max_keywords), case.dtype)
    report(found)


@pytest.mark.parametrize("divisor", DIVISORS)
@kernels_of("avg_pool")
def test_avg_pool_of_integers_equals_the_oracle(kernel_under_test: KernelUnderTest, divisor: int | None) -> None:
    """The sum is exact and the one division correctly rounded, so that there is one right answer."""
    found = {}
    for case in cases():
        x, _ = data(case, integers)
        got = kernel_under_test(x, case.kernel, **case.mean_keywords, divisor=divisor)
        if got is not None:
            truth = oracle.avg_pool(x, case.kernel, **case.mean_keywords, divisor=divisor)
            found[case] = difference(got, truth, case.dtype)
    report(found)


@pytest.mark.parametrize("divisor", DIVISORS)
@pytest.mark.parametrize("fill", [integers, reals])
@kernels_of("avg_pool", "avg_pool_grad")
def test_averages_stay_within_the_error_bound(kernel_under_test: KernelUnderTest, fill: Fill, divisor: int | None) -> None:
    op, found = kernel_under_test.op, {}
    for case in cases():
        x, dy = data(case, fill)
        args: tuple[Any, ...] = (x, case.kernel) if op == "avg_pool" else (dy, x.shape, case.kernel)
        keywords = case.mean_keywords | {"divisor": divisor}
        got = kernel_under_test(*args, **keywords)
        if got is not None:
            slow = getattr(oracle, op)
            truth = slow(*args, **keywords)
            absolute = slow(np.abs(args[0].astype(np.float64)), *args[1:], **keywords)
            found[case] = beyond_bound(got, truth, absolute, terms(case, op), case.dtype)
    report(found)


@kernels_of("avg_pool", "avg_pool_grad")
def test_nan_and_infinity_reach_only_what_they_touch(kernel_under_test: KernelUnderTest) -> None:
    op, found = kernel_under_test.op, {}
    for case in cases():
        x, dy = (array.copy() for array in data(case, integers))
        if x.size == 0:
            continue
        for array in (x, dy):
            array.flat[0], array.flat[-1] = np.nan, -np.inf
        args: tuple[Any, ...] = (x, case.kernel) if op == "avg_pool" else (dy, x.shape, case.kernel)
        got = kernel_under_test(*args, **case.mean_keywords)
        if got is not None:
            with np.errstate(invalid="ignore"):
                truth = getattr(oracle, op)(*args, **case.mean_keywords)
            marks = [np.where(np.isfinite(a), 0, a).astype(np.float64) for a in (got.astype(np.float64), truth)]
            found[case] = difference(marks[0], marks[1], np.dtype(np.float64))
    report(found)


def wide_problem(rank: int, layout: str) -> tuple[np.ndarray, tuple[int, ...], dict[str, Any]]:
    """Overlapping windows on a large array of distinct values; no window is empty."""
    sizes, window = {1: ((997,), (5,)), 2: ((61, 47), (5, 3)), 3: ((13, 17, 11), (3, 2, 3))}[rank]
    x = np.random.default_rng(rank).permutation(3 * int(np.prod(sizes)) * 5).reshape(3, *sizes, 5) - 1000.0
    x = np.moveaxis(x, -1, 1) if layout == "channels_first" else x
    keywords = {"stride": (2, 1, 2)[:rank], "padding": [(1, 2), (1, 0), (0, 1)][:rank], "layout": layout, "rounding": "ceil"}
    return x, window, keywords


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_max_pool_gradient_loses_and_invents_nothing(each_backend: str, rank: int, layout: str) -> None:
    x, window, keywords = wide_problem(rank, layout)
    y, indices = pb.max_pool(x, window, return_indices=True, **keywords)
    assert np.array_equal(x.flatten()[indices], y)
    dy = np.random.default_rng(9).integers(-9, 10, y.shape) * 1.0
    dx = pb.max_pool_grad(dy, x, window, **keywords)
    assert dx.sum() == dy.sum() != 0
    assert np.array_equal(dx, pb.max_pool_grad_from_indices(dy, indices, x.shape, layout=layout))
    assert np.vdot(y, dy) == np.vdot(x, dx)  # y is linear in x while the winners stay


@pytest.mark.parametrize("count_include_pad", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_avg_pool_gradient_is_adjoint(each_backend: str, rank: int, layout: str, count_include_pad: bool) -> None:
    x, window, keywords = wide_problem(rank, layout)
    y = pb.avg_pool(x, window, count_include_pad=count_include_pad, **keywords)
    dy = np.random.default_rng(9).standard_normal(y.shape)
    dx = pb.avg_pool_grad(dy, x.shape, window, count_include_pad=count_include_pad, **keywords)
    assert abs(np.vdot(y, dy) - np.vdot(x, dx)) <= 1e-13 * np.vdot(np.abs(y), np.abs(dy))


@pytest.mark.parametrize("op", ["max_pool", "avg_pool"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_gradients_are_finite_differences(each_backend: str, op: str, rank: int) -> None:
    shape = (2, *(5, 4, 3)[:rank], 2)
    rng = np.random.default_rng(50 + rank)
    x = rng.permutation(int(np.prod(shape))).reshape(shape) * 1.0  # cells at least 1 apart: a step of 1/4 changes no winner
    keywords: dict[str, Any] = {"stride": (2, 1, 1)[:rank], "padding": "same", "dilation": (1, 2, 1)[:rank]}
    window, forward = (3, 2, 2)[:rank], getattr(pb, op)
    dy = rng.standard_normal(forward(x, window, **keywords).shape)
    slope = np.zeros(shape)
    for place in np.ndindex(shape):
        up, down = x.copy(), x.copy()
        up[place] += 0.25
        down[place] -= 0.25
        slope[place] = np.vdot(forward(up, window, **keywords) - forward(down, window, **keywords), dy) / 0.5
    if op == "max_pool":
        indices = pb.max_pool(x, window, return_indices=True, **keywords)[1]
        np.testing.assert_allclose(pb.max_pool_grad_from_indices(dy, indices, shape), slope, rtol=0, atol=1e-12)
        dx = pb.max_pool_grad(dy, x, window, **keywords)
    else:
        dx = pb.avg_pool_grad(dy, shape, window, **keywords)
    np.testing.assert_allclose(dx, slope, rtol=0, atol=1e-12)


# Pairs of values that leave every shape as it is, so that only the parameter's meaning can change the answer.
ANY_POOL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "stride": ({"stride": (2, 1)}, {"stride": (3, 1)}),
    "dilation": ({"stride": 3, "dilation": (1, 1)}, {"stride": 3, "dilation": (2, 1)}),
    "padding": ({"stride": 1, "padding": [(1, 0), (0, 0)]}, {"stride": 1, "padding": [(0, 1), (0, 0)]}),
    "same_lower": ({"stride": 1, "padding": "same"}, {"stride": 1, "padding": "same_lower"}),
    "layout": ({"stride": 1, "padding": "same"}, {"stride": 1, "padding": "same", "layout": "channels_first"}),
}
MAX_POOL = ANY_POOL | {
    "ties": ({"ties": "first"}, {"ties": "last"}),
    "nan": ({"nan": "propagate"}, {"nan": "ignore"}),
}
MEAN_POOL = ANY_POOL | {
    "count_include_pad": ({"padding": 1}, {"padding": 1, "count_include_pad": True}),
    "divisor": ({"divisor": 2}, {"divisor": 3}),
}


def changes() -> list[Any]:
    by_op = {"max_pool": MAX_POOL, "max_pool_grad": MAX_POOL, "avg_pool": MEAN_POOL, "avg_pool_grad": MEAN_POOL}
    return [pytest.param(op, name, *pair, id=f"{op}-{name}") for op, table in by_op.items() for name, pair in table.items()]


@pytest.mark.parametrize(("op", "parameter", "before", "after"), changes())
def test_each_parameter_matters(
    each_backend: str, op: str, parameter: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    rng = np.random.default_rng(5)
    # Sizes 5 and 6, window 2: two outputs on the first axis for stride 2 and 3, for dilation 1 and 2 at stride 3.
    x = rng.standard_normal((1, 6 if parameter in ("dilation", "layout") else 5, 6, 6))
    if parameter == "ties":
        x = np.round(x)
    if parameter == "nan":
        x[0, 1, 1, 0] = np.nan
    keywords = [{"return_indices": True} | k if op == "max_pool" else k for k in (before, after)]
    means = ("count_include_pad", "divisor")
    shapes = {oracle.max_pool(x, 2, **{k: v for k, v in word.items() if k not in means})[0].shape
              for word in (before, after)}  # fmt: skip
    assert len(shapes) == 1
    dy = rng.standard_normal(shapes.pop())
    args = {"max_pool": (x,), "avg_pool": (x,), "max_pool_grad": (dy, x), "avg_pool_grad": (dy, x.shape)}[op]
    answers = [getattr(pb, op)(*args, 2, **word) for word in keywords]
    if op == "max_pool":
        answers = [answer[1] for answer in answers]
    assert answers[0].shape == answers[1].shape
    assert not np.array_equal(*answers, equal_nan=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_divisor_of_the_whole_image(each_backend: str, layout: str) -> None:
    """The kernels for one window per image divide by its cells: another divisor must not reach them."""
    x = np.arange(24.0).reshape(2, 3, 4, 1) if layout == "channels_last" else np.arange(24.0).reshape(2, 1, 3, 4)
    for divisor in (5, 12):
        y = pb.avg_pool(x, (3, 4), layout=layout, divisor=divisor)
        assert y.reshape(-1).tolist() == [66 / divisor, 210 / divisor]
        dx = pb.avg_pool_grad(np.ones_like(y), x.shape, (3, 4), layout=layout, divisor=divisor)
        np.testing.assert_allclose(dx, 1 / divisor, rtol=1e-15)


@pytest.mark.parametrize("op", ["max_pool", "avg_pool"])
def test_rounding_matters(each_backend: str, op: str) -> None:
    x = np.arange(6.0).reshape(1, 6, 1)
    forward, backward = getattr(pb, op), getattr(pb, f"{op}_grad")
    source = x if op == "max_pool" else x.shape
    grads = []
    for rounding, other in (("floor", "ceil"), ("ceil", "floor")):
        dy = np.ones_like(forward(x, 3, stride=2, rounding=rounding))
        grads.append(backward(dy, source, 3, stride=2, rounding=rounding))
        with pytest.raises(ValueError, match=f"{op}_grad: dy has shape"):
            backward(dy, source, 3, stride=2, rounding=other)
    assert (forward(x, 3, stride=2).size, forward(x, 3, stride=2, rounding="ceil").size) == (2, 3)
    assert not np.array_equal(*grads)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_storage_order_matters(each_backend: str, layout: str) -> None:
    shape = (2, 4, 5, 3) if layout == "channels_last" else (2, 3, 4, 5)
    x = np.random.default_rng(3).permutation(2 * 4 * 5 * 3).reshape(shape) * 1.0
    rows, columns = (pb.max_pool(x, 2, layout=layout, return_indices=True, storage_order=order)[1] for order in (0, 1))
    assert not np.array_equal(rows, columns)
    dy = np.ones(rows.shape)
    dx = pb.max_pool_grad_from_indices(dy, columns, x.shape, layout=layout, storage_order=1)
    assert np.array_equal(dx, pb.max_pool_grad(dy, x, 2, layout=layout))
    assert not np.array_equal(dx, pb.max_pool_grad_from_indices(dy, columns, x.shape, layout=layout, storage_order=0))


def test_layout_of_indices_matters(each_backend: str) -> None:
    """Under storage_order 1 the layout says which part of an index is spatial; under 0 it does not matter."""
    shape = (1, 3, 4, 5)
    indices = np.arange(60).reshape(shape)
    dy = np.arange(60.0).reshape(shape)
    order0, order1 = (
        [pb.max_pool_grad_from_indices(dy, indices, shape, layout=layout, storage_order=order) for layout in LAYOUTS]
        for order in (0, 1)
    )
    assert np.array_equal(*order0)
    assert not np.array_equal(*order1)


def test_windows_wholly_in_the_padding(each_backend: str) -> None:
    x = np.array([[[-5.0], [-7.0]]])
    padding = [(2, 3)]
    y, indices = pb.max_pool(x, 2, stride=2, padding=padding, return_indices=True)
    assert y[0, :, 0].tolist() == [-np.inf, -5, -np.inf]
    assert indices[0, :, 0].tolist() == [-1, 0, -1]
    assert pb.max_pool_grad(np.ones_like(y), x, 2, stride=2, padding=padding)[0, :, 0].tolist() == [1, 0]
    assert pb.max_pool_grad_from_indices(np.ones_like(y), indices, x.shape)[0, :, 0].tolist() == [1, 0]
    for include in (False, True):
        y = pb.avg_pool(x, 2, stride=2, padding=padding, count_include_pad=include)
        assert y[0, :, 0].tolist() == [0, -6, 0]
        dx = pb.avg_pool_grad(np.ones_like(y), x.shape, 2, stride=2, padding=padding, count_include_pad=include)
        assert dx[0, :, 0].tolist() == [0.5, 0.5]


def test_spatial_axes_of_size_zero_and_one(each_backend: str) -> None:
    empty = np.ones((1, 0, 5, 2))
    for forward, gradient in (
        (pb.max_pool, lambda dy: pb.max_pool_grad(dy, empty, 2, padding="same")),
        (pb.avg_pool, lambda dy: pb.avg_pool_grad(dy, empty.shape, 2, padding="same")),
    ):
        y = forward(empty, 2, padding="same")
        assert y.shape == (1, 0, 3, 2)
        assert gradient(y).shape == empty.shape
        assert (forward(np.full((1, 1, 1, 2), 3.0), 3, stride=1, padding="same") == 3).all()
    assert (pb.max_pool(empty, 2, stride=1, padding=1) == -np.inf).all()
    assert (pb.avg_pool(empty, 2, stride=1, padding=1) == 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_denormals_are_not_flushed(each_backend: str, dtype: type) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    x = np.array([0, 1, 3, 2], dtype)[None, :, None] * tiny
    assert (pb.max_pool(x, 2)[0, :, 0] == np.array([1, 3], dtype) * tiny).all()
    assert (pb.max_pool_grad(np.full((1, 2, 1), tiny, dtype), x, 2)[0, :, 0] == np.array([0, 1, 1, 0], dtype) * tiny).all()
    assert (pb.avg_pool(x * 2, 2)[0, :, 0] == np.array([1, 5], dtype) * tiny).all()
    assert (pb.avg_pool_grad(np.full((1, 2, 1), 2 * tiny, dtype), x.shape, 2) == tiny).all()
