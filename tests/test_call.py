"""Remembered calls: the same call is quick the second time, and a different one is never mistaken for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.ops import call

X = np.arange(1.0, 37.0, dtype=np.float32).reshape(1, 6, 6, 1)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    call._remembered.clear()


def test_a_call_is_remembered_and_answers_the_same() -> None:
    first = pb.avg_pool(X, 2)
    assert len(call._remembered) == 1
    assert np.array_equal(pb.avg_pool(X, 2), first)
    assert np.array_equal(pb.avg_pool(X * 2, 2), first * 2)
    assert len(call._remembered) == 1


@pytest.mark.parametrize("stride", [True, 2.0, "2", None])
def test_equal_looking_arguments_are_not_the_same_call(stride: object) -> None:
    pb.conv(X, np.ones((2, 2, 1, 1), np.float32), stride=1)
    pb.conv(X, np.ones((2, 2, 1, 1), np.float32), stride=2)
    with pytest.raises(TypeError, match="stride"):
        pb.conv(X, np.ones((2, 2, 1, 1), np.float32), stride=stride)  # type: ignore[arg-type]


def test_shape_dtype_and_keywords_tell_calls_apart() -> None:
    results = {pb.max_pool(X, 2, stride=s, padding=p).shape for s in (1, 2) for p in (0, 1)}
    assert len(results) == 4
    assert pb.max_pool(X.astype(np.float64), 2).dtype == np.float64
    assert pb.max_pool(X, 2).dtype == np.float32
    assert pb.max_pool(X[:, :4], 2).shape != pb.max_pool(X, 2).shape


def test_a_new_kernel_is_used_at_once() -> None:
    expected = pb.avg_pool(X, 2)
    first = pb.explain("avg_pool", X, 2).chosen
    assert first is not None
    pb.register_kernel(
        "avg_pool",
        first.backend,
        "test-zero",
        lambda p: None,
        lambda p, x: np.zeros(p.output_shape, p.dtype),
        before=first.name,
    )
    try:
        assert not pb.avg_pool(X, 2).any()
    finally:
        pb.unregister_kernel("avg_pool", first.backend, "test-zero")
    assert np.array_equal(pb.avg_pool(X, 2), expected)


def test_converted_arrays_are_not_remembered() -> None:
    pb.avg_pool(X.astype(">f4"), 2)
    pb.avg_pool(X.tolist(), 2)
    assert not call._remembered


def test_memory_of_calls_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "MOST_REMEMBERED", 3)
    for size in range(2, 12):
        pb.avg_pool(np.ones((1, size, 1), np.float32), 2)
    assert len(call._remembered) <= 3


def test_keywords_given_as_arrays_are_not_mistaken_for_each_other() -> None:
    x = np.arange(16.0).reshape(1, 4, 4, 1)
    for stride in (1, 2, 3):
        got = pb.max_pool(x, 2, stride=np.array([stride, stride]))  # type: ignore[arg-type]
        np.testing.assert_array_equal(got, pb.max_pool(x, 2, stride=stride))


NUMBERS = (np.int64, np.int8, np.uint32, np.array, lambda n: [np.int64(n)] * 2, lambda n: np.array([n, n], np.int16))


@pytest.mark.parametrize("number", NUMBERS)
def test_numpy_numbers_are_remembered(number: Any) -> None:
    """As each of its kind and value alone: what is refused as one may be allowed as another."""
    for _ in range(2):
        for stride in (1, 2):
            found = pb.max_pool(X, 2, stride=number(stride), padding=((number(0),) * 2, (0, 0)) if number is np.int64 else 0)
            np.testing.assert_array_equal(found, pb.max_pool(X, 2, stride=stride))
        assert len(call._remembered) == 4
    for keywords in (
        {"stride": np.bool_(True)},
        {"stride": np.float64(1)},
        {"stride": np.array(1.0)},
        {"stride": np.array(True)},
    ):
        with pytest.raises(TypeError, match="stride"):
            pb.max_pool(X, 2, **keywords)
    assert len(call._remembered) == 4


def test_a_remembered_number_does_not_allow_its_equals() -> None:
    for order in (0, 1):
        pb.max_pool(X, 2, return_indices=True, storage_order=order)
        for equal in (np.int64(order), bool(order), float(order), np.array(order)):
            with pytest.raises(ValueError, match="storage_order"):
                pb.max_pool(X, 2, return_indices=True, storage_order=equal)
