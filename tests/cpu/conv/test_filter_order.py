"""Filters that lie in memory in another order than their axes: read in place, with the same bits as a contiguous one."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from cases import LAYOUTS
from kernels import KernelUnderTest, kernels_of

import pullback as pb
from pullback.cpu.conv.filter_order import IN_LAST, TAPS_FIRST, TAPS_LAST, FilterOrder, in_known_order, memory_axes
from pullback.ops.explain import PREPARE

ORDERS = (TAPS_FIRST, TAPS_LAST, IN_LAST)
CASES: tuple[tuple[Any, ...], ...] = (  # batch, size, channels in and out, window, keywords
    (2, (9, 10), 20, 35, (3, 3), {"padding": 1}),
    (2, (9, 10), 20, 36, (3, 2), {"padding": 1, "stride": 2, "groups": 2}),
    (1, (6, 7), 3, 1, (3, 3), {}),
    (2, (5, 6), 17, 18, (1, 1), {}),
    (1, (5, 6), 1, 18, (5, 5), {"padding": 2}),
    (3, (19,), 4, 33, (3,), {"padding": 1}),
    (1, (5, 6, 7), 6, 19, (3, 2, 3), {"padding": 1}),
    (1, (8, 9), 12, 12, (3, 3), {"groups": 12}),
    (1, (8, 9), 12, 12, (3, 3), {"groups": 12, "padding": 1}),
    (1, (8, 9), 20, 20, (3, 3), {"groups": 20, "padding": 1}),
)


def laid_out(filter: np.ndarray, layout: Any, order: FilterOrder) -> np.ndarray:
    """The same filter, in memory in this order."""
    axes = memory_axes(layout, filter.ndim - 2, order)
    return np.ascontiguousarray(filter.transpose(axes)).transpose(np.argsort(axes))


@kernels_of("conv", "conv_grad_input")
def test_same_bits_in_every_order(kernel_under_test: KernelUnderTest) -> None:
    rng = np.random.default_rng(7)
    op = kernel_under_test.op
    for layout, (batch, size, c, m, window, keywords) in product(LAYOUTS, CASES):
        x, f = rng.standard_normal((batch, *size, c)), rng.standard_normal((*window, c // keywords.get("groups", 1), m))
        if layout == "channels_first":
            x, f = np.moveaxis(x, -1, 1), np.moveaxis(f, (-1, -2), (0, 1))
        x, f = np.ascontiguousarray(x, np.float32), np.ascontiguousarray(f, np.float32)
        with pb.backend("reference"):
            y = pb.conv(x, f, layout=layout, **keywords)
        arguments: list[Any] = [x, f] if op == "conv" else [y, f, x.shape]
        expected = kernel_under_test(*arguments, layout=layout, **keywords)
        if expected is None:
            continue
        for order in ORDERS:
            arguments[1] = laid_out(f, layout, order)
            problem = PREPARE[op](*arguments, layout=layout, **keywords)[0]
            assert in_known_order(problem, arguments[1])[0] is arguments[1]  # not copied
            np.testing.assert_array_equal(kernel_under_test(*arguments, layout=layout, **keywords), expected)


def test_another_order_is_copied() -> None:
    f = np.zeros((3, 4, 5, 6), np.float32).transpose(1, 0, 2, 3)
    problem = PREPARE["conv"](np.zeros((1, 9, 9, 5), np.float32), f)[0]
    given, order = in_known_order(problem, f)
    assert given.flags.c_contiguous
    assert order == TAPS_FIRST
