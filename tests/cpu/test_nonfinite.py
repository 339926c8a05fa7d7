"""Infinities and NaN in convolutions: every kernel of the cpu backend gives the reference's answer, and by itself.

Small whole numbers make finite sums exact, so that results must be equal: where there is a NaN, an infinity, and of which sign.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from conv_calls import CONV_OPS, conv_arguments, lanes
from cpu_calls import LAYOUTS

import pullback as pb
from pullback.cpu.engine.plan_cache import release_plans
from pullback.cpu.machine_code import find, warmup
from pullback.cpu.winograd import ops as winograd
from pullback.ops.explain import PREPARE
from pullback.reference import conv as reference_conv
from pullback.registry import kernels_for

V = lanes()
VALUES = (np.inf, -np.inf, np.nan)

# batch, channels in and out, size, options: for each kernel problems that it takes, in one layout at least.
CASES: dict[str, tuple[tuple[Any, ...], ...]] = {
    "direct": (
        (2, V + 4, 2 * V + 3, (7, 31), {"kernel": (3, 3), "padding": 1}),
        (1, V + 4, V + 3, (9, 8), {"kernel": (3, 4), "padding": [(2, 1), (3, 0)], "stride": 2}),
        (9, V + 4, V + 3, (5, 4), {"kernel": (3, 3), "padding": 1}),  # runs over images
        (1, 3, 20, (8, 33), {"kernel": (3, 5), "padding": 2}),  # taps of a row are one stretch, or channels
        (2, 1, 2 * V, (40,), {"kernel": (9,), "padding": 4, "stride": 3}),
        (1, 6, 2 * V, (4, 5, 6), {"kernel": (3, 2, 3), "padding": 1, "dilation": 2}),
        (1, 6, 4 * V, (6, 9), {"kernel": (3, 3), "padding": 1, "groups": 2}),
        (1, 2, 3, (6,), {"kernel": (13,), "padding": 9}),  # no output has all taps
        (1, 3, 20, (6000,), {"kernel": (3,), "padding": 2500, "dilation": 2500}),  # packed tap by tap
    ),
    "cells": (
        (2, 20, 3, (7, 33), {"kernel": (3, 3), "padding": 1}),
        (1, 40, 2, (9, 8), {"kernel": (3, 4), "padding": [(2, 1), (3, 0)], "stride": 2}),
        (1, 3, 4, (70,), {"kernel": (5,), "padding": 4, "dilation": 2}),
        (1, 3, 1, (4, 5, 6), {"kernel": (3, 2, 3), "padding": 1}),
    ),
    "pointwise": ((2, 20, 24, (16, 18), {"kernel": (1, 1)}),),
    "depthwise": (
        (2, V + 4, V + 4, (9, 3 * V - 5), {"kernel": (3, 3), "padding": 1}),
        (2, V + 4, V + 4, (9, 2 * V + 14), {"kernel": (3, 3), "padding": 1, "stride": 2}),
        (1, V + 4, V + 4, (4, V), {"kernel": (5, 5), "padding": 3}),
        (2, 5, 5, (6, 7), {"kernel": (3, 2), "padding": 1, "dilation": 2}),  # small planes
        (1, 5, 5, (9, 40), {"kernel": (4, 3), "padding": 2, "stride": 3}),
        (1, 5, 5, (7, 8, 9), {"kernel": (3, 3, 3), "padding": 1, "stride": 2}),
        (1, 5, 5, (50,), {"kernel": (31,), "padding": 15}),
        (1, 3, 3, (6000,), {"kernel": (3,), "padding": 2500, "dilation": 2500}),
    ),
    "grouped": (
        (2, 12, 12, (7, 23), {"kernel": (3, 3), "padding": 1, "groups": 4}),
        (1, 4, 12, (9, 8), {"kernel": (3, 4), "padding": [(2, 1), (3, 0)], "stride": 2, "groups": 4}),
        (1, 12, 4, (5, 6, 7), {"kernel": (3, 2, 3), "padding": 1, "groups": 2}),
    ),
}  # fmt: skip


def calls_of(family: str, layout: str, dtype: Any = np.float32) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    for batch, c_in, c_out, size, options in CASES[family]:
        if family == "depthwise":
            options = {**options, "groups": c_in}
        yield from conv_arguments(layout, batch, c_in, c_out, size, dtype=dtype, **options)


def sprinkled(arguments: tuple[Any, ...], seed: int) -> Iterator[tuple[Any, ...]]:
    """The arguments with numbers that are not finite in one array, in the other, in both, and everywhere in the second one."""
    rng = np.random.default_rng(seed)

    def some(array: np.ndarray) -> np.ndarray:
        made = array.copy()
        places = [0, made.size - 1, *rng.integers(0, made.size, 2)]
        made.flat[rng.choice(places, 2, replace=False)] = rng.choice(VALUES, 2)
        return made

    first, second, *rest = arguments
    yield some(first), second, *rest
    yield first, some(second), *rest
    yield some(first), some(second), *rest
    yield first, np.full_like(second, np.inf), *rest


def expected_of(op: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> np.ndarray:
    with pb.backend("reference"):
        return getattr(pb, op)(*arguments, **keywords)


@pytest.fixture
def no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that hands its work to the reference fails; the registry holds functions of its own."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("the reference was asked")

    for op in CONV_OPS:
        monkeypatch.setattr(reference_conv, op, refuse)


def check(family: str, layout: str, dtype: Any = np.float32) -> set[str]:
    """The ops for which the kernel took a case."""
    taken: set[str] = set()
    for number, (op, arguments, keywords) in enumerate(calls_of(family, layout, dtype)):
        for given in sprinkled(arguments, number):
            try:
                with pb.backend("cpu"), pb.kernel(family):
                    found = getattr(pb, op)(*given, **keywords)
            except pb.KernelError:
                break
            taken.add(op)
            expected = expected_of(op, given, keywords)
            assert not np.isfinite(expected).all()
            assert found.dtype == expected.dtype
            wide = np.float64  # in which NumPy knows that two NaN are alike; it does not in bfloat16
            np.testing.assert_array_equal(found.astype(wide), expected.astype(wide), f"{family} {op} {keywords}")
    return taken


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", CASES)
@pytest.mark.usefixtures("no_reference")
def test_every_kernel_gives_the_answer_of_the_reference(family: str, layout: str) -> None:
    taken = check(family, layout)
    expected = {op for op in CONV_OPS if any(kernel.is_named(family) for kernel in kernels_for(op, "cpu"))}
    if layout == "channels_first" or family != "pointwise":
        assert taken == expected
    else:
        assert not taken


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("family", ["direct", "cells", "depthwise", "grouped"])
@pytest.mark.usefixtures("no_reference")
def test_other_types(family: str, dtype: str, layout: str) -> None:
    kind = np.dtype(dtype) if dtype != "bfloat16" else np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    assert check(family, layout, kind)


def by_winograd(op: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> np.ndarray:
    """Whether it pays or not."""
    problem, *rest = PREPARE[op](*arguments, **keywords)
    return {"conv": winograd.conv, "conv_grad_input": winograd.conv_grad_input, "conv_grad_filter": winograd.conv_grad_filter}[op](
        problem, *rest
    )  # fmt: skip


WINOGRAD: tuple[tuple[Any, ...], ...] = (
    (2, V + 4, 2 * V + 3, (14, 33), {"kernel": (3, 3), "padding": 1}),
    (1, 5, 18, (30, 10), {"kernel": (5, 3), "padding": (0, 2)}),
    (1, 6, 8, (9, 10, 11), {"kernel": (3, 3, 3), "padding": 1}),
    (2, 12, 20, (60,), {"kernel": (3,), "padding": 2}),
    (1, 12, 20, (13, 14), {"kernel": (3, 3), "padding": 1, "groups": 2}),
    (1, 12, 20, (13, 14), {"kernel": (3, 3), "padding": 2, "dilation": 2, "stride": 2}),
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", WINOGRAD, ids=lambda case: "x".join(map(str, case[3])))
@pytest.mark.usefixtures("no_reference")
def test_winograd_keeps_them_to_what_they_touch(case: tuple[Any, ...], layout: str) -> None:
    *shape, options = case
    for number, (op, arguments, keywords) in enumerate(conv_arguments(layout, *shape, **options)):
        reached = 0
        for place, given in product((0, 1), sprinkled(arguments, number)):
            if place:  # all of one array: what a NaN touches is known without a sum
                given = (given[0], np.full_like(given[1], np.nan), *given[2:])
            found, expected = by_winograd(op, given, keywords), expected_of(op, given, keywords)
            odd = ~np.isfinite(expected)
            reached += odd.any()
            np.testing.assert_array_equal(~np.isfinite(found), odd, f"{op} {keywords}")
            np.testing.assert_array_equal(found[odd], expected[odd], f"{op} {keywords}")
            scale = np.abs(expected[~odd]).max(initial=1)
            np.testing.assert_allclose(found[~odd], expected[~odd], atol=1e-4 * scale)
        assert reached > 4


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("place", [0, 1])
def test_winograd_makes_again_no_more_than_it_must(layout: str, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One infinity in x, or in one filter of many: the other results are those without it, bit for bit, far from it."""
    rng = np.random.default_rng(0)
    [(_, (x, f), keywords), *_] = conv_arguments(layout, 1, 24, 40, (56, 56), kernel=(3, 3), padding=1)
    arguments = [rng.standard_normal(a.shape).astype(np.float32) for a in (x, f)]
    plain = by_winograd("conv", tuple(arguments), keywords)
    arguments[place].flat[arguments[place].size // 2] = np.inf
    found = by_winograd("conv", tuple(arguments), keywords)
    same = found.view(np.int32) == plain.view(np.int32)
    assert same.mean() > 0.7
    assert not np.isfinite(found).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bits_do_not_depend_on_threads(layout: str) -> None:
    rng = np.random.default_rng(1)
    [(_, (x, f), keywords), *_] = conv_arguments(layout, 2, 24, 40, (30, 31), kernel=(3, 3), padding=1)
    x, f = (rng.standard_normal(a.shape).astype(np.float32) for a in (x, f))
    x.flat[[7, x.size // 2]] = np.inf, np.nan
    found = []
    for count in (1, 2, 5):
        with pb.threads(count), np.errstate(all="ignore"):
            found.append(by_winograd("conv", (x, f), keywords).tobytes())
    assert found[0] == found[1] == found[2]


def test_a_warmup_compiles_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "_loaded", {})
    release_plans()
    for family in ("direct", "cells", "depthwise", "grouped"):
        for layout in LAYOUTS:
            check(family, layout)
    assert len(find._loaded) > 10
    assert set(find._loaded) <= set(warmup.wanted(["float32"]))
