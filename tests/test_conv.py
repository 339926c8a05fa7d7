"""conv and its two gradients, each kernel by name against the oracle, and the identities that tie them together."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import oracle
import pytest
from cases import LAYOUTS, Case, Fill, beyond_bound, beyond_norm, call, cases, difference, integers, reals, report, terms
from kernels import KernelUnderTest, kernels_of

import pullback as pb

CONV_OPS = ("conv", "conv_grad_input", "conv_grad_filter")
ORACLES: dict[str, Callable[..., np.ndarray]] = {op: getattr(oracle, op) for op in CONV_OPS}


def arguments(op: str, case: Case, fill: Fill) -> tuple[Any, ...]:
    return call(op, case, fill)[0]


@cache
def exact(op: str, case: Case, fill: Fill, absolute: bool = False) -> np.ndarray:
    args = arguments(op, case, fill)
    if absolute:
        args = tuple(np.abs(a.astype(np.float64)) if isinstance(a, np.ndarray) else a for a in args)
    return ORACLES[op](*args, **case.conv_keywords)


def judge(kernel: KernelUnderTest, case: Case, got: np.ndarray, truth: np.ndarray, fill: Fill) -> str | None:
    """Exactly equal; where the kernel's arithmetic is not exact even on integers, within the error it declares."""
    error = kernel.relative_error(case.dtype)
    if not error:
        return difference(got, truth, case.dtype)
    return beyond_norm(got, truth, exact(kernel.op, case, fill, absolute=True), error, case.dtype)


@kernels_of(*CONV_OPS)
def test_integer_data_equal_the_oracle_exactly(kernel_under_test: KernelUnderTest) -> None:
    op, found = kernel_under_test.op, {}
    for case in cases():
        got = kernel_under_test(*arguments(op, case, integers), **case.conv_keywords)
        if got is not None:
            found[case] = judge(kernel_under_test, case, got, exact(op, case, integers), integers)
    report(found)


@kernels_of(*CONV_OPS)
def test_real_data_stay_within_the_error_bound(kernel_under_test: KernelUnderTest) -> None:
    op, found = kernel_under_test.op, {}
    for case in cases():
        got = kernel_under_test(*arguments(op, case, reals), **case.conv_keywords)
        if got is not None:
            truth, absolute = exact(op, case, reals), exact(op, case, reals, absolute=True)
            if error := kernel_under_test.relative_error(case.dtype):
                found[case] = beyond_norm(got, truth, absolute, error, case.dtype)
            else:
                found[case] = beyond_bound(got, truth, absolute, terms(case, op), case.dtype)
    report(found)


@kernels_of(*CONV_OPS)
def test_nan_and_infinity_reach_only_what_they_touch(kernel_under_test: KernelUnderTest) -> None:
    op, found = kernel_under_test.op, {}
    for case in cases():
        args = list(arguments(op, case, integers))
        if args[0].size == 0:
            continue
        spoiled = args[0].copy()
        spoiled.flat[0], spoiled.flat[-1] = np.nan, np.inf
        got = kernel_under_test(spoiled, *args[1:], **case.conv_keywords)
        if got is not None:
            with np.errstate(invalid="ignore"):
                truth = ORACLES[op](spoiled, *args[1:], **case.conv_keywords)
            found[case] = judge(kernel_under_test, case, got, truth, integers)
    report(found)


def big_problem(rank: int, layout: str) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    rng = np.random.default_rng(rank)
    sizes, kernel = {1: ((997,), (5,)), 2: ((61, 47), (5, 3)), 3: ((13, 17, 11), (3, 2, 3))}[rank]
    x, f = rng.integers(-9, 10, (3, *sizes, 12)) * 1.0, rng.integers(-9, 10, (*kernel, 4, 15)) * 1.0
    if layout == "channels_first":
        x, f = np.moveaxis(x, -1, 1), np.moveaxis(f, (-1, -2), (0, 1))
    keywords = {"stride": (2, 1, 3)[:rank], "dilation": (1, 2, 1)[:rank], "padding": [(1, 2), (0, 3), (2, 0)][:rank]}
    return x, f, keywords | {"groups": 3, "layout": layout, "rounding": "ceil"}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_both_gradients_are_adjoint(each_backend: str, rank: int, layout: str) -> None:
    x, f, keywords = big_problem(rank, layout)
    y = pb.conv(x, f, **keywords)
    dy = np.random.default_rng(9).integers(-9, 10, y.shape) * 1.0
    dx = pb.conv_grad_input(dy, f, x.shape, **keywords)
    df = pb.conv_grad_filter(dy, x, f.shape, **keywords)
    product = np.vdot(y, dy)
    assert product != 0
    assert product == np.vdot(x, dx) == np.vdot(f, df)  # whole numbers below 2**53: no rounding anywhere


def central_difference(loss: Callable[[np.ndarray], float], at: np.ndarray, step: float) -> np.ndarray:
    slope = np.zeros(at.shape)
    for place in np.ndindex(at.shape):
        up, down = at.copy(), at.copy()
        up[place] += step
        down[place] -= step
        slope[place] = (loss(up) - loss(down)) / (2 * step)
    return slope


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_gradients_are_finite_differences(each_backend: str, rank: int) -> None:
    rng = np.random.default_rng(40 + rank)
    x = rng.standard_normal((2, *(5, 4, 3)[:rank], 4))
    f = rng.standard_normal((*(3, 2, 2)[:rank], 2, 6))
    keywords: dict[str, Any] = {"stride": (2, 1, 1)[:rank], "padding": "same", "dilation": (1, 2, 1)[:rank], "groups": 2}
    dy = rng.standard_normal(pb.conv(x, f, **keywords).shape)
    by_x = central_difference(lambda at: float(np.vdot(pb.conv(at, f, **keywords), dy)), x, 1.0)
    by_f = central_difference(lambda at: float(np.vdot(pb.conv(x, at, **keywords), dy)), f, 1.0)
    # conv is linear in each argument, so the difference quotient is exact up to rounding for any step.
    np.testing.assert_allclose(pb.conv_grad_input(dy, f, x.shape, **keywords), by_x, rtol=0, atol=1e-11)
    np.testing.assert_allclose(pb.conv_grad_filter(dy, x, f.shape, **keywords), by_f, rtol=0, atol=1e-11)


def unlike(got: np.ndarray, other: np.ndarray) -> bool:
    return got.shape != other.shape or not np.array_equal(got, other)


# Pairs of values that leave every shape as it is, so that only the parameter's meaning can change the answer.
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "stride": ({"stride": (2, 1)}, {"stride": (3, 1)}),
    "dilation": ({"stride": 3, "dilation": (1, 1)}, {"stride": 3, "dilation": (2, 1)}),
    "padding": ({"padding": [(1, 0), (0, 0)]}, {"padding": [(0, 1), (0, 0)]}),
    "same_lower": ({"padding": "same"}, {"padding": "same_lower"}),
}


@pytest.mark.parametrize("parameter", CHANGES)
@pytest.mark.parametrize("op", CONV_OPS)
def test_each_parameter_matters(each_backend: str, op: str, parameter: str) -> None:
    before, after = CHANGES[parameter]
    rng = np.random.default_rng(5)
    # Sizes 5 and 6, window 2: two outputs on the first axis for stride 2 and 3, for dilation 1 and 2 at stride 3.
    x = rng.standard_normal((1, 6 if parameter == "dilation" else 5, 6, 2))
    f = rng.standard_normal((2, 2, 2, 3))
    shapes = {pb.conv(x, f, **keywords).shape for keywords in (before, after)}
    assert len(shapes) == 1
    dy = rng.standard_normal(shapes.pop())
    args = {"conv": (x, f), "conv_grad_input": (dy, f, x.shape), "conv_grad_filter": (dy, x, f.shape)}[op]
    assert unlike(getattr(pb, op)(*args, **before), getattr(pb, op)(*args, **after))


@pytest.mark.parametrize("op", CONV_OPS)
def test_layout_matters(each_backend: str, op: str) -> None:
    rng = np.random.default_rng(6)
    x, f, dy = (rng.standard_normal((4, 4, 4, 4)) for _ in range(3))
    args = {"conv": (x, f), "conv_grad_input": (dy, f, x.shape), "conv_grad_filter": (dy, x, f.shape)}[op]
    answers = [getattr(pb, op)(*args, layout=layout, padding=[(2, 1), (2, 1)]) for layout in LAYOUTS]
    assert answers[0].shape == answers[1].shape
    assert unlike(*answers)


@pytest.mark.parametrize("op", CONV_OPS)
def test_rounding_matters(each_backend: str, op: str) -> None:
    """A ceil window past the end is an output of its own; a gradient that drops it loses the last cells."""
    rng = np.random.default_rng(7)
    x, f = rng.standard_normal((1, 6, 2)), rng.standard_normal((3, 2, 2))
    floor, ceil = (pb.conv(x, f, stride=2, rounding=rounding) for rounding in ("floor", "ceil"))
    assert (floor.shape[1], ceil.shape[1]) == (2, 3)
    if op == "conv":
        return
    answers = []
    for rounding, dy in (("floor", np.ones_like(floor)), ("ceil", np.ones_like(ceil))):
        args = {"conv_grad_input": (dy, f, x.shape), "conv_grad_filter": (dy, x, f.shape)}[op]
        answers.append(getattr(pb, op)(*args, stride=2, rounding=rounding))
        other = {"floor": "ceil", "ceil": "floor"}[rounding]
        with pytest.raises(ValueError, match=f"{op}: dy has shape"):
            getattr(pb, op)(*args, stride=2, rounding=other)
    assert unlike(*answers)


@pytest.mark.parametrize("op", CONV_OPS)
def test_groups_matter(each_backend: str, op: str) -> None:
    """Groups follow from the shapes, so their meaning is tested: a group sees its own channels and no others."""
    rng = np.random.default_rng(8)
    x, f = rng.standard_normal((2, 5, 4)), rng.standard_normal((3, 2, 6))
    dense = np.zeros((3, 4, 6))
    dense[:, :2, :3], dense[:, 2:, 3:] = f[..., :3], f[..., 3:]
    dy = rng.standard_normal((2, 3, 6))
    if op == "conv":
        got, expected = pb.conv(x, f, groups=2), pb.conv(x, dense)
        other = pb.conv(x[..., ::-1].copy(), f, groups=2)
    elif op == "conv_grad_input":
        got, expected = pb.conv_grad_input(dy, f, x.shape, groups=2), pb.conv_grad_input(dy, dense, x.shape)
        other = pb.conv_grad_input(dy[..., ::-1].copy(), f, x.shape, groups=2)
    else:
        whole = pb.conv_grad_filter(dy, x, dense.shape)
        got = pb.conv_grad_filter(dy, x, f.shape, groups=2)
        expected = np.concatenate([whole[:, :2, :3], whole[:, 2:, 3:]], axis=-1)
        other = pb.conv_grad_filter(dy, x[..., ::-1].copy(), f.shape, groups=2)
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert unlike(got, other)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_denormals_are_not_flushed(each_backend: str, dtype: type) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    x, f, dy = (np.full(shape, value, dtype) for shape, value in (((1, 4, 1), tiny), ((2, 1, 1), 1), ((1, 3, 1), tiny)))
    assert (pb.conv(x, f) == 2 * tiny).all()
    assert (pb.conv_grad_input(dy, f, x.shape) == np.array([1, 2, 2, 1], dtype)[None, :, None] * tiny).all()
    assert (pb.conv_grad_filter(np.ones_like(dy), x, f.shape) == 3 * tiny).all()


def test_a_filter_without_outputs_or_inputs(each_backend: str) -> None:
    x = np.ones((2, 5, 3))
    assert pb.conv(x, np.ones((2, 3, 0))).shape == (2, 4, 0)
    assert (pb.conv_grad_input(np.ones((2, 4, 0)), np.ones((2, 3, 0)), x.shape) == 0).all()
    assert pb.conv_grad_filter(np.ones((2, 4, 0)), x, (2, 3, 0)).shape == (2, 3, 0)
    assert (pb.conv(np.ones((2, 5, 0)), np.ones((2, 0, 4))) == np.zeros((2, 4, 4))).all()


def test_a_one_tap_filter_keeps_every_window_of_a_padded_input(each_backend: str) -> None:
    """Under "floor" nothing is dropped: padding 1 adds two outputs, also where a window holds padding only."""
    y = pb.conv(np.ones((1, 5, 1)), np.full((1, 1, 1), 2.0), padding=1)
    assert y[0, :, 0].tolist() == [0, 2, 2, 2, 2, 2, 0]


def test_spatial_axes_of_size_zero_and_one(each_backend: str) -> None:
    f = np.ones((3, 3, 1, 2))
    assert pb.conv(np.ones((1, 0, 5, 1)), f, padding="same").shape == (1, 0, 5, 2)
    assert pb.conv_grad_input(np.ones((1, 0, 5, 2)), f, (1, 0, 5, 1), padding="same").shape == (1, 0, 5, 1)
    assert (pb.conv_grad_filter(np.ones((1, 0, 5, 2)), np.ones((1, 0, 5, 1)), f.shape, padding="same") == 0).all()
    assert (pb.conv(np.ones((1, 1, 1, 1)), f, padding="same") == 1).all()
    assert (pb.conv(np.ones((1, 0, 0, 1)), f, padding=2) == 0).all()
