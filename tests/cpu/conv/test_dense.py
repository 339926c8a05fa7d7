"""The cpu convolution kernels, each by its own name: exact around the vector width, within their arrays, same bits always."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conv_calls import CONV_OPS, conv_arguments, lanes, small_calls
from cpu_calls import LAYOUTS, guarded_calls, run_python, skip_unless_it_runs
from kernels import KernelUnderTest, kernels_of

import pullback as pb
from pullback.cpu.conv.direct import direct_plan
from pullback.cpu.conv.filter_order import in_known_order
from pullback.cpu.conv.records import MIDDLES_AND_COLUMNS, ROWS_OF_CELLS, DirectSweep
from pullback.cpu.engine.pieces import stream_from
from pullback.cpu.engine.plan_cache import release_plans
from pullback.ops.conv import prepare_conv
from pullback.registry import kernels_for

DENSE = ("direct", "cells", "pointwise")  # the others have test files of their own


def reference(op: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> np.ndarray:
    with pb.backend("reference"):
        result: np.ndarray = getattr(pb, op)(*arguments, **keywords)
    return result


def answers_by_kernel(op: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """(name, result) of each cpu kernel that takes the call."""
    for kernel in kernels_for(op, "cpu"):
        if kernel.backend != "cpu":
            continue
        with pb.backend("cpu"), pb.kernel(kernel.name):
            try:
                result = getattr(pb, op)(*arguments, **keywords)
            except pb.KernelError:
                continue
        yield kernel.name, result


@kernels_of(*CONV_OPS, names=DENSE)
def test_whole_numbers_are_exact_around_the_vector_width(kernel_under_test: KernelUnderTest) -> None:
    for op, arguments, keywords in small_calls():
        if op == kernel_under_test.op:
            found = kernel_under_test(*arguments, **keywords)
            if found is not None:
                np.testing.assert_array_equal(found, reference(op, arguments, keywords), str(keywords))


def test_long_rows_are_read_in_place_although_they_are_padded() -> None:
    """Of the small calls that all tests of edges make, some must be of this form."""
    found = set()
    for op, arguments, keywords in small_calls():
        if op == "conv" and keywords["layout"] == "channels_last" and keywords.get("padding"):
            problem, _, f = prepare_conv(*arguments, **keywords)
            plan = direct_plan(problem, in_known_order(problem, f)[1]).sweep
            found.add(tuple(int(plan.template[DirectSweep.place(name)]) for name in ("in_place", "runs")))
    assert {(1, MIDDLES_AND_COLUMNS), (0, ROWS_OF_CELLS)} <= found


LARGE: tuple[dict[str, Any], ...] = (
    {"batch": 2, "c_in": 200, "c_out": 40, "size": (29, 31), "kernel": (3, 3), "padding": 1},
    {"batch": 9, "c_in": 300, "c_out": 70, "size": (7, 5), "kernel": (3, 3), "padding": 1},
    {"batch": 1, "c_in": 5, "c_out": 3, "size": (3000,), "kernel": (9,), "padding": 4, "stride": 2},
    {"batch": 1, "c_in": 70, "c_out": 3, "size": (65, 67), "kernel": (5, 5), "padding": 2, "stride": 2},
    {"batch": 2, "c_in": 20, "c_out": 24, "size": (9, 14, 13), "kernel": (3, 2, 3), "padding": 1, "stride": (1, 2, 1)},
    {"batch": 3, "c_in": 40, "c_out": 36, "size": (24, 23), "kernel": (1, 1), "stride": 2, "groups": 2},
    {"batch": 2, "c_in": 48, "c_out": 40, "size": (91, 67), "kernel": (1, 1)},
    {"batch": 2, "c_in": 37, "c_out": 74, "size": (5001,), "kernel": (1,)},
    {"batch": 2, "c_in": 96, "c_out": 51, "size": (17, 19), "kernel": (1, 1), "groups": 3},
    {"batch": 2, "c_in": 96, "c_out": 24, "size": (40, 41), "kernel": (1, 1)},
    {"batch": 1, "c_in": 40, "c_out": 70, "size": (7, 23), "kernel": (6, 5), "padding": 2, "stride": (2, 3)},
    {"batch": 2, "c_in": 6, "c_out": 9, "size": (5, 139), "kernel": (3, 4), "padding": 1, "stride": 4},
    {"batch": 1, "c_in": 90, "c_out": 50, "size": (6, 3), "kernel": (2, 3), "stride": (3, 5), "padding": (0, 4)},
)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_weight_that_is_not_finite_is_seen(layout: str) -> None:
    """A filter is packed in several pieces: whichever holds the infinity, padding must not turn it into NaN."""
    case: dict[str, Any] = {"batch": 1, "c_in": 33, "c_out": 64, "size": (4, 3), "kernel": (3, 3), "padding": 1}
    for op, (source, f, *shape), keywords in conv_arguments(layout, **case)[:2]:
        for place in (0, f.size // 2, f.size - 1):
            weights = f.copy()
            weights.flat[place] = np.inf
            with np.errstate(invalid="ignore"):
                expected = reference(op, (source, weights, *shape), keywords)
            for name, found in answers_by_kernel(op, (source, weights, *shape), keywords):
                np.testing.assert_array_equal(np.isnan(found), np.isnan(expected), f"{name} {op} {place}")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", LARGE, ids=lambda case: "x".join(map(str, (*case["size"], case["c_in"], case["c_out"]))))
def test_blocks_and_threads_do_not_show(case: dict[str, Any], layout: str) -> None:
    """Problems of several blocks: whole numbers exact, real ones with the same bits for any number of threads."""
    rng = np.random.default_rng(5)
    for op, arguments, keywords in conv_arguments(layout, **case):
        reals = tuple(rng.standard_normal(a.shape).astype(a.dtype) if isinstance(a, np.ndarray) else a for a in arguments)
        expected = reference(op, arguments, keywords)
        for name, found in answers_by_kernel(op, arguments, keywords):
            if name in DENSE:
                np.testing.assert_array_equal(found, expected, f"{op} {name}")
            answers = []
            for count in (1, 2, 5):
                with pb.backend("cpu"), pb.kernel(name), pb.threads(count):
                    answers.append(getattr(pb, op)(*reals, **keywords).tobytes())
            assert answers[0] == answers[1] == answers[2], f"{op} {name}"


@pytest.mark.parametrize(
    ("layout", "kernel", "options"),
    [
        *(
            ("channels_last", "direct", options)
            for options in ({}, {"stride": 2}, {"groups": 2}, {"kernel": (3, 2), "padding": 1})
        ),
        ("channels_first", "pointwise", {"size": (16, 20)}),
        ("channels_first", "pointwise", {"size": (24, 22), "groups": 2}),
    ],
    ids=str,
)
def test_results_past_the_cache_are_the_same(layout: str, kernel: str, options: dict[str, Any]) -> None:
    calls = conv_arguments(layout, 2, 64, 160, **{"size": (21, 19), "kernel": (1, 1), **options})
    for op, arguments, keywords in calls[:2]:
        stream_from(0)
        release_plans()
        with pb.backend("cpu"), pb.kernel(kernel):
            found = getattr(pb, op)(*arguments, **keywords)
        stream_from(None)
        release_plans()
        np.testing.assert_array_equal(found, reference(op, arguments, keywords))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", ["conv", "conv_grad_input"])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_filter_that_is_not_finite_touches_no_padding(op: str, layout: str, value: float) -> None:
    calls = {name: rest for name, *rest in conv_arguments(layout, 2, 7, 20, (6, 5), kernel=(3, 3), padding=1)}
    (first, f, *shape), keywords = calls[op]
    f = f.copy()
    f.flat[[3, -7]] = value
    expected = reference(op, (first, f, *shape), keywords)
    assert np.isfinite(expected).any()
    for name, found in answers_by_kernel(op, (first, f, *shape), keywords):
        if name == "winograd":  # right but for its rounding; NaN and infinities lie where they should
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-2, err_msg=name)
        else:
            np.testing.assert_array_equal(found, expected, name)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_gradient_that_is_not_finite_touches_no_padding(layout: str, value: float) -> None:
    """Few input channels, whose filter gradient pads x with zeros."""
    calls = {name: rest for name, *rest in conv_arguments(layout, 2, 3, 20, (6, 5), kernel=(3, 3), padding=1)}
    (dy, *rest), keywords = calls["conv_grad_filter"]
    dy = dy.copy()
    dy.flat[[0, -1]] = value
    expected = reference("conv_grad_filter", (dy, *rest), keywords)
    assert np.isfinite(expected).any()
    with pb.backend("cpu"), pb.kernel("direct"):
        np.testing.assert_array_equal(pb.conv_grad_filter(dy, *rest, **keywords), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_dtypes(dtype: str, layout: str) -> None:
    """Whole numbers small enough that even half types hold every answer."""
    kind = np.dtype(dtype) if dtype != "bfloat16" else np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    v = lanes()
    for c_in, c_out, options in ((3, v + 3, {"stride": 2}), (v + 5, 3, {"dilation": 2}), (2 * v + 1, v - 1, {})):
        for op, arguments, keywords in conv_arguments(
            layout, 2, c_in, c_out, (7, 9), kernel=(3, 2), padding=1, dtype=kind, **options
        ):  # fmt: skip
            expected = reference(op, arguments, keywords)
            for name, found in answers_by_kernel(op, arguments, keywords):
                if name in DENSE:
                    np.testing.assert_array_equal(found, expected, f"{op} {name}")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("channels", "size", "options"),
    [
        ((1, 1), (6,), {"kernel": (3,), "padding": [(-1, 0)]}),
        ((3, 8), (9, 40), {"kernel": (3, 3), "padding": [(0, 0), (-1, -1)]}),
        ((8, 1), (3,), {"kernel": (1,), "stride": 2, "padding": [(0, 2)]}),
        ((64, 3), (3, 3), {"kernel": (1, 1), "stride": 2, "padding": [(0, 2), (0, 2)]}),
    ],
    ids=str,
)
def test_windows_that_begin_elsewhere_than_their_input(
    channels: tuple[int, int], size: tuple[int, ...], options: dict[str, Any], layout: str
) -> None:
    for op, arguments, keywords in conv_arguments(layout, 2, *channels, size, **options):
        for name, found in answers_by_kernel(op, arguments, keywords):
            if name in DENSE:
                np.testing.assert_array_equal(found, reference(op, arguments, keywords), f"{op} {name}")


@pytest.mark.skipif(sys.platform != "linux", reason="memory is protected by Linux's mprotect")
@pytest.mark.parametrize(
    ("dtype", "side"),
    [
        ("float32", "above"),
        pytest.param("float32", "below", marks=pytest.mark.slow),
        pytest.param("float16", "above", marks=pytest.mark.slow),
    ],
)
def test_no_convolution_leaves_its_arrays(dtype: str, side: str) -> None:
    seen = guarded_calls("guarded_conv.py", dtype, side)
    registered = {f"{op}/{kernel.name}" for op in CONV_OPS for kernel in kernels_for(op, "cpu") if kernel.name in DENSE}
    if dtype == "float16":  # whose sums pointwise cannot narrow
        registered -= {f"{op}/pointwise" for op in CONV_OPS}
    assert set(seen) >= registered  # by name others run too
    assert min(seen.values()) >= 10, seen


NARROW = """
import sys, numpy as np, pullback as pb
from conv_calls import small_calls
from pullback.cpu.engine.machine import machine
assert machine().vector_bytes < 64
for op, arguments, keywords in small_calls():
    with pb.backend("reference"):
        expected = getattr(pb, op)(*arguments, **keywords)
    with pb.backend("cpu"), pb.kernel("direct"):
        np.testing.assert_array_equal(getattr(pb, op)(*arguments, **keywords), expected)
"""


@pytest.mark.slow
@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3"])
def test_lesser_levels_give_the_same_results(level: str) -> None:
    skip_unless_it_runs(level)
    run_python(NARROW, timeout=900, PULLBACK_LEVEL=level)
