"""ReLU, sums and their gradients over flat memory: every size, every memory order, in place, NaN and infinities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cpu_calls import reals

import pullback as pb
from pullback import training_kernels
from pullback.cpu import elementwise
from pullback.cpu.elementwise.common import flat_pieces
from pullback.cpu.engine.machine import machine
from pullback.reference import elementwise as reference
from pullback.registry import MissingCode

V = machine().vector_bytes // 4
ARRAYS = {"relu": 1, "relu_grad": 2, "add": 2, "add_relu": 2, "relu_grad_of_sum": 3}
PIECE = flat_pieces(1 << 30, 4, 3)[0]
SIZES = (0, 1, V - 1, V, V + 1, 4 * V, 4 * V + 3, 8 * V - 1, PIECE // 5, PIECE + V + 1)


def functions(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return getattr(elementwise, name), getattr(reference, name)


@pytest.mark.parametrize("name", ARRAYS)
def test_a_map_is_that_of_numpy_for_every_size(name: str) -> None:
    ours, plain = functions(name)
    for size in SIZES:
        given = [reals((size,), seed) for seed in range(ARRAYS[name])]
        np.testing.assert_array_equal(ours(*given), plain(*given))


def test_limits() -> None:
    for size in SIZES:
        x, dy = reals((size,), 0), reals((size,), 1)
        for low, high in ((-0.5, 0.5), (0.0, 6.0), (-np.inf, 0.25), (1.0, -1.0)):
            np.testing.assert_array_equal(elementwise.clip(x, low, high), reference.clip(x, low, high))
            np.testing.assert_array_equal(elementwise.clip_grad(dy, x, low, high), reference.clip_grad(dy, x, low, high))
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, 6.0, 7.0] * V, np.float32)
    np.testing.assert_array_equal(elementwise.clip(odd, 0, 6), np.clip(odd, 0, 6))
    inf = np.full_like(odd, np.inf)
    np.testing.assert_array_equal(elementwise.clip_grad(inf, odd, 0, 6), np.where((odd >= 0) & (odd <= 6), inf, np.float32(0)))


def test_float64_keeps_its_digits() -> None:
    a, b, y = (reals((3 * V + 1,), seed, np.float64) for seed in range(3))
    found = elementwise.relu_grad_of_sum(a, b, y)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, reference.relu_grad_of_sum(a, b, y))


def test_nan_and_infinities() -> None:
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -1.0, 2.0] * V, np.float32)
    np.testing.assert_array_equal(elementwise.relu(odd), np.maximum(odd, 0))
    dy = np.full_like(odd, np.inf)
    np.testing.assert_array_equal(elementwise.relu_grad(dy, odd), np.where(odd > 0, np.float32(np.inf), np.float32(0)))
    nan = np.full_like(odd, np.nan)
    np.testing.assert_array_equal(elementwise.relu_grad_of_sum(nan, dy, -np.abs(odd)), np.zeros_like(odd))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_out_may_be_any_argument(place: int) -> None:
    given = [reals((2, 3, 5, 7), seed) for seed in range(3)]
    expected = reference.relu_grad_of_sum(*given)
    found = elementwise.relu_grad_of_sum(*given, out=given[place])
    assert found is given[place]
    np.testing.assert_array_equal(found, expected)


def test_every_memory_order_gives_the_same_and_keeps_its_own() -> None:
    first = reals((2, 3, 5, 7))
    last = np.ascontiguousarray(first.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    gaps = np.repeat(first, 2, axis=3)[..., ::2]
    wide = np.broadcast_to(first[:, :1], first.shape)
    y = reals(first.shape, 1)
    for x in (first, last, gaps, first[::-1]):
        out = np.empty_like(first[..., ::-1])[..., ::-1]
        np.testing.assert_array_equal(elementwise.relu_grad(x, y), reference.relu_grad(x, y))
        np.testing.assert_array_equal(elementwise.relu_grad(y, x, out=out), reference.relu_grad(y, x))
    np.testing.assert_array_equal(elementwise.add(wide, y), wide + y)
    assert elementwise.relu(last).strides == last.strides


def test_arrays_that_differ_are_refused() -> None:
    x = reals((4, 5))
    for other in (x[:3], x.astype(np.float64), x.reshape(5, 4)):
        with pytest.raises(ValueError, match="same shape and dtype"):
            elementwise.add(x, other)
        with pytest.raises(ValueError, match="same shape and dtype"):
            elementwise.relu(x, out=other)
    with pytest.raises(MissingCode, match="float16"):
        elementwise.relu(x.astype(np.float16))


def test_the_front_takes_numpy_where_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    x = reals((4, 5))
    for narrow in (x.astype(np.float16), x.astype(">f4")):
        np.testing.assert_array_equal(training_kernels.relu(narrow), np.maximum(narrow, 0))

    def refuse(*arguments: Any) -> None:
        raise AssertionError("the native kernel has run")

    monkeypatch.setattr(elementwise, "relu", refuse)
    training_kernels._native.cache_clear()
    with pb.backend("reference"):
        np.testing.assert_array_equal(training_kernels.relu(x), np.maximum(x, 0))
    with pb.backend("cpu"), pytest.raises(AssertionError, match="has run"):
        training_kernels.relu(x)
    training_kernels._native.cache_clear()
