"""Winograd convolutions: accuracy at every edge, layout and window, bounds of memory, bits, NaN, and when they are used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conv_calls import conv_arguments
from cpu_calls import LAYOUTS, bits, guarded_calls

import pullback as pb
from pullback import settings
from pullback.cpu.engine.machine import machine
from pullback.cpu.winograd import ops as winograd
from pullback.cpu.winograd import tuning
from pullback.cpu.winograd.convolve import convolve_plans
from pullback.ops.explain import PREPARE

OPS: dict[str, Callable[..., np.ndarray]] = {
    "conv": winograd.conv,
    "conv_grad_input": winograd.conv_grad_input,
    "conv_grad_filter": winograd.conv_grad_filter,
}
BOUNDS = {"float32": 2e-5, "float64": 1e-12, "float16": 1e-3}
V = machine().vector_bytes // 4


def arrays(
    layout: str, batch: int, size: tuple[int, ...], c: int, m: int, kernel: tuple[int, ...], dtype: str, **keywords: Any
):
    """(op, arguments) of the three ops on real data; keywords as for the ops."""
    rng = np.random.default_rng([batch, *size, c, m])
    groups = keywords.get("groups", 1)
    x, f = (rng.standard_normal(shape).astype(dtype) for shape in ((batch, *size, c), (*kernel, c // groups, m)))
    if layout == "channels_first":
        x, f = np.ascontiguousarray(np.moveaxis(x, -1, 1)), np.ascontiguousarray(np.moveaxis(f, (-1, -2), (0, 1)))
    with pb.backend("reference"):
        y = pb.conv(x, f, layout=layout, **keywords)
    dy = rng.standard_normal(y.shape).astype(dtype)
    return {"conv": (x, f), "conv_grad_input": (dy, f, x.shape), "conv_grad_filter": (dy, x, f.shape)}


def run(op: str, arguments: tuple[Any, ...], **keywords: Any) -> np.ndarray:
    """The op by Winograd, whether it pays or not."""
    problem, *rest = PREPARE[op](*arguments, **keywords)
    return OPS[op](problem, *rest)


def check(layout: str, *shape: Any, dtype: str = "float32", **keywords: Any) -> None:
    for op, arguments in arrays(layout, *shape, dtype, **keywords).items():
        got = run(op, arguments, layout=layout, **keywords)
        wide = tuple(a.astype(np.float64) if isinstance(a, np.ndarray) else a for a in arguments)
        with pb.backend("reference"):
            truth = getattr(pb, op)(*wide, layout=layout, **keywords)
        assert (got.dtype, got.shape) == (np.dtype(dtype), truth.shape)
        error = np.linalg.norm(got.astype(np.float64) - truth) / np.linalg.norm(truth)
        assert error < BOUNDS[dtype], (op, shape, keywords, error)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", range(1, 14))
def test_every_size_of_an_edge(layout: str, size: int) -> None:
    check(layout, 2, (size, 9), 3, 5, (3, 3), padding=1)
    check(layout, 1, (6, size + 2), 5, 3, (3, 3))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [1, V - 1, V, V + 1, 2 * V, 4 * V, 5 * V + 1, 9 * V + 3])
def test_channels_around_the_vector_width(layout: str, channels: int) -> None:
    check(layout, 1, (6, 7), channels, 3, (3, 3), padding=1)
    check(layout, 1, (6, 7), 3, channels, (3, 3), padding=1)


GEOMETRIES: tuple[tuple[Any, ...], ...] = (
    ((9, 11), (3, 3), {"padding": [(2, 0), (0, 3)]}),
    ((9, 11), (3, 3), {"padding": [(-1, 2), (1, -2)]}),
    ((9, 11), (3, 3), {"padding": 5}),
    ((15, 17), (3, 3), {"padding": 2, "dilation": 2}),
    ((15, 17), (3, 3), {"padding": (2, 3), "dilation": (3, 5)}),
    ((9, 11), (5, 5), {"padding": 2}),
    ((9, 11), (2, 4), {"padding": [(1, 0), (2, 1)]}),
    ((9, 31), (1, 7), {"padding": (0, 3)}),
    ((9, 11), (3, 3), {"padding": 1, "groups": 3}),
    ((15, 16), (3, 3), {"padding": (1, 2), "dilation": 2, "stride": (2, 1)}),
    ((15, 16, 18), (3, 2, 3), {"padding": [(2, 1), (-1, 4), (3, 3)], "dilation": (2, 6, 3), "stride": (2, 3, 1)}),
    ((41,), (3,), {"padding": 1}),
    ((41,), (9,), {"padding": 8, "dilation": 2}),
    ((7, 9, 10), (3, 3, 3), {"padding": 1}),
    ((3, 5, 6), (4, 3, 2), {"padding": [(5, 4), (1, 1), (0, 1)]}),
    ((9, 6, 6), (3, 3, 3), {"padding": 2, "dilation": (2, 1, 2)}),
    ((4, 1, 9), (3, 1, 3), {"padding": (1, 0, 1)}),
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("size", "kernel", "keywords"), GEOMETRIES)
def test_geometries(layout: str, size: tuple[int, ...], kernel: tuple[int, ...], keywords: dict[str, Any]) -> None:
    check(layout, 3, size, 6, 21, kernel, **keywords)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_that_divide_the_dilation(layout: str) -> None:
    """In channels_first over a copy of the cells that are read: columns must lie side by side there."""
    check(layout, 2, (15, 17), 6, 21, (3, 3), padding=(1, 2), dilation=2, stride=2)
    check(layout, 2, (15, 17), 6, 21, (3, 5), padding=(-1, 3), dilation=(3, 4), stride=(3, 2))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_types(layout: str, dtype: str) -> None:
    check(layout, 2, (9, 11), 17, 19, (3, 3), dtype=dtype, padding=1)
    check(layout, 2, (9, 11), 19, 17, (5, 3), dtype=dtype, padding=1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_channels_and_tiles(layout: str) -> None:
    """More than a block of channels, of tiles and of shares."""
    check(layout, 2, (30, 34), 150, 139, (3, 3), padding=1)
    check(layout, 1, (9, 9), 70, 300, (3, 3), padding=1)
    check(layout, 1, (14, 20, 22), 19, 35, (3, 3, 3), padding=1)


@pytest.fixture
def transformed_ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Filters of any size are transformed just ahead of their products, as few channels at a time as can be."""
    monkeypatch.setattr(tuning, "AHEAD_CACHE", 0.0)
    monkeypatch.setattr(tuning, "CHUNK_CACHE", 0.0)
    convolve_plans.cache_clear()
    yield
    convolve_plans.cache_clear()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_filters_transformed_just_ahead_of_their_products(layout: str, transformed_ahead: None) -> None:
    check(layout, 2, (6, 7), 2 * V + 3, 5 * V + 1, (3, 3), padding=1)
    check(layout, 1, (5, 4), 4 * V + 2, 2 * V, (3, 3), padding=1, groups=2)
    check(layout, 3, (9,), V + 1, V - 1, (3,), padding=1)
    check(layout, 1, (3, 6, 5), V + 2, 3, (1, 3, 3), padding=(0, 1, 1))
    for op, arguments in arrays(layout, 1, (6, 7), 40, 37, (3, 3), "float32", padding=1).items():
        weights = arguments[1].copy() if op != "conv_grad_filter" else arguments[1]
        if op != "conv_grad_filter":
            weights[(1, 1, 3, 2) if layout == "channels_last" else (2, 3, 1, 1)] = np.nan
        with np.errstate(invalid="ignore"):
            found = run(op, (arguments[0], weights, *arguments[2:]), layout=layout, padding=1)
            with pb.backend("reference"):
                truth = getattr(pb, op)(arguments[0], weights, *arguments[2:], layout=layout, padding=1)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(truth))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_bits_on_any_number_of_threads(layout: str) -> None:
    for op, arguments in arrays(layout, 4, (37, 41), 20, 37, (3, 3), "float32", padding=1).items():
        found = []
        for count in (1, 2, 5):
            with pb.threads(count):
                found.append(bits((run(op, arguments, layout=layout, padding=1),)))
        assert found[0] == found[1] == found[2], op


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("op", OPS)
def test_what_is_not_finite_reaches_only_what_it_touches(op: str, place: int, value: float) -> None:
    """The answer of the next kernel: also for a number so large that only the transforms overflow."""
    arguments = list(arrays("channels_last", 1, (13, 14), 5, 18, (3, 3), "float32", padding=1)[op])
    arguments[place] = arguments[place].copy()
    arguments[place].flat[arguments[place].size // 3] = value
    got = run(op, tuple(arguments), padding=1)
    with pb.backend("reference"), np.errstate(all="ignore"):
        truth = getattr(pb, op)(*arguments, padding=1)
    np.testing.assert_allclose(got, truth, rtol=1e-5, atol=1e-4)
    assert np.array_equal(np.isnan(got), np.isnan(truth))


def scaled(op: str, arguments: tuple[Any, ...], dtype: str, first: float, second: float) -> tuple[Any, ...]:
    return (*((a * factor).astype(dtype) for a, factor in zip(arguments[:2], (first, second), strict=True)), *arguments[2:])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("dtype", "smallest"), [("float32", -149), ("float64", -1074)])
def test_errors_among_the_smallest_numbers(op: str, layout: str, dtype: str, smallest: int) -> None:
    """Beside the relative error an absolute one, in units of the smallest number: of inputs, of results, and of both."""
    c, m = 12, 18
    arguments = arrays(layout, 1, (13, 14), c, m, (3, 3), "float64", padding=1)[op]
    tiny, wide = np.ldexp(1.0, smallest), np.longdouble
    for exponent in (2, 9, 23, 30, 60):
        magnitude = np.ldexp(tiny, exponent)
        for first, second in ((magnitude, 1.0), (1.0, magnitude), (np.sqrt(magnitude), np.sqrt(magnitude)), (magnitude, 8.0)):
            given = scaled(op, arguments, dtype, first, second)
            found = run(op, given, layout=layout, padding=1).astype(wide)
            up = np.ldexp(1.0, 600 if dtype == "float64" else 120)  # exact: the truth in float64, far from its smallest numbers
            with pb.backend("reference"):
                truth = getattr(pb, op)(*(a.astype(np.float64) * up for a in given[:2]), *given[2:], layout=layout, padding=1)
            error = np.linalg.norm(found - truth.astype(wide) / up / up)
            channels = {"conv": c, "conv_grad_input": m}.get(op, 13 * 14)
            most = winograd.UNDERFLOW * channels * tiny * max(1.0, float(np.abs(given[0]).max()))
            relative = BOUNDS[dtype] * np.linalg.norm(truth.astype(wide) / up / up)
            assert error <= relative + most * np.sqrt(found.size), (exponent, first, second)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", OPS)
def test_small_results_that_are_not_among_the_smallest_keep_the_bound(op: str, layout: str) -> None:
    arguments = arrays(layout, 1, (13, 14), 64, 64, (3, 3), "float64", padding=1)[op]
    for first, second in ((1e-33, 1.0), (1.0, 1e-33), (1e-17, 1e-16)):
        given = scaled(op, arguments, "float32", first, second)
        found = run(op, given, layout=layout, padding=1).astype(np.float64)
        with pb.backend("reference"):
            truth = getattr(pb, op)(*(a.astype(np.float64) for a in given[:2]), *given[2:], layout=layout, padding=1)
        assert np.linalg.norm(found - truth) < BOUNDS["float32"] * np.linalg.norm(truth)


def test_precision_decides(variable: Any) -> None:
    x, f = np.ones((1, 56, 56, 64), np.float32), np.ones((3, 3, 64, 64), np.float32)

    def chosen() -> str:
        explanation = pb.explain("conv", x, f, padding=1)
        assert explanation.chosen is not None
        return explanation.chosen.name

    with pb.backend("cpu"):
        assert chosen() == "winograd"
        text = str(pb.explain("conv", x, f, padding=1))
        assert 'runs      cpu/winograd (relative error up to about 1e-05; not under precision "exact")' in text
        with pb.precision("exact"):
            assert chosen() != "winograd"
            assert 'precision "exact" asks for' in str(pb.explain("conv", x, f, padding=1))
            with pb.precision("fast"):
                assert chosen() == "winograd"
        variable(settings.PRECISION_VARIABLE, "exact")
        assert chosen() != "winograd"
        variable(settings.PRECISION_VARIABLE, "vague")
        with pytest.raises(ValueError, match="PULLBACK_PRECISION: unknown precision 'vague'; there are fast, exact"):
            chosen()
    with pytest.raises(ValueError, match="unknown precision 1"), pb.precision(1):  # type: ignore[arg-type]
        pass


def test_a_remembered_call_heeds_the_precision() -> None:
    """Ones of 64 channels: exact sums are whole numbers, and the kernels are told apart by their calls."""
    calls: list[str] = []
    x, f = np.ones((1, 24, 24, 64), np.float32), np.ones((3, 3, 64, 64), np.float32)

    def note(problem: Any, *_: Any) -> np.ndarray:
        calls.append(problem.op)
        return np.zeros(problem.output_shape, problem.dtype)

    pb.register_kernel("conv", "cpu", "noting", winograd.can, note, before="winograd", pays=winograd.pays)
    try:
        with pb.backend("cpu"):
            for _ in range(2):
                pb.conv(x, f, padding=1)
                with pb.precision("exact"):
                    pb.conv(x, f, padding=1)
    finally:
        pb.unregister_kernel("conv", "cpu", "noting")
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("size", "channels", "kernel", "keywords", "label", "reason"),
    [
        ((56, 56), 64, (3, 3), {"stride": 2}, "refused", "strides of 1, or such that divide"),
        ((56, 56), 64, (1, 1), {}, "refused", "several taps"),
        ((56, 56), 64, (3, 3), {"groups": 32}, "slower", "times the work of plain sums"),
        ((90, 90), 64, (30, 30), {}, "slower", "read too often"),
        ((4, 4), 4, (3, 3), {}, "slower", "times the work of plain sums"),
        ((56, 56), 64, (3, 1), {"layout": "channels_first"}, "refused", "along the last axis"),
    ],
)
def test_refusals(
    size: tuple[int, ...], channels: int, kernel: tuple[int, ...], keywords: dict[str, Any], label: str, reason: str
) -> None:
    last = keywords.get("layout") != "channels_first"
    per_group = channels // keywords.get("groups", 1)
    x = np.zeros((1, *size, channels) if last else (1, channels, *size), np.float32)
    f = np.zeros((*kernel, per_group, channels) if last else (channels, per_group, *kernel), np.float32)
    with pb.backend("cpu"):
        [line] = [line for line in str(pb.explain("conv", x, f, **keywords)).splitlines() if "winograd" in line]
    assert line.startswith(f"  {label} ")
    assert reason in line


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("padding", [((-2, 3),), ((3, -2),), ((9, 9),), ((-1, 0),), ((0, 1),), ((30, -26),)], ids=str)
def test_sums_of_nothing_are_exactly_zero(padding: Any, layout: str) -> None:
    """An output, a cell or a tap that meets nothing is no number near 0 that the other cells of its tile have left there."""
    for op, whole, keywords in conv_arguments(layout, 1, 32, 32, (25,), kernel=(3,), padding=padding):
        arguments = [np.abs(value) + 0.7 if isinstance(value, np.ndarray) else value for value in whole]
        arguments = [value.astype(np.float32) if isinstance(value, np.ndarray) else value for value in arguments]
        with pb.backend("reference"):
            expected = getattr(pb, op)(*arguments, **keywords)  # 0 where there is no term, since all terms are positive
        try:
            with pb.kernel("winograd"):
                found = getattr(pb, op)(*arguments, **keywords)
        except pb.KernelError:
            found = getattr(pb, op)(*arguments, **keywords)
        assert not np.any(found[expected == 0]), op


def test_a_small_problem_by_name_runs_though_it_does_not_pay() -> None:
    rng = np.random.default_rng(1)
    x, f = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 8, 8, 8), (3, 3, 8, 8)))
    with pb.backend("reference"):
        expected = pb.conv(x, f)
    with pb.backend("cpu"):
        assert pb.explain("conv", x, f).chosen.name != "winograd"
        with pb.kernel("winograd"):
            assert "runs      cpu/winograd" in str(pb.explain("conv", x, f))
            assert "asked for by name; slower: its transforms cost more" in str(pb.explain("conv", x, f))
            found = pb.conv(x, f)
            with pb.precision("exact"), pytest.raises(pb.KernelError, match='precision "exact"'):
                pb.conv(x, f)
    assert not np.array_equal(found, expected), "no transform was made"
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is protected by Linux's mprotect")
@pytest.mark.parametrize("side", ["above", "below"])
def test_no_byte_outside_the_arrays(side: str) -> None:
    assert guarded_calls("guarded_winograd.py", side)["calls"] >= 60
