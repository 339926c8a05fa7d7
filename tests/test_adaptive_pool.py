"""Adaptive pooling against a loop over windows: values, indices and gradients, on every backend, layout and dtype."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from pullback.window import AdaptiveWindow

# Sizes with unequal windows, more outputs than cells, equal windows, and one axis of each kind.
CASES = [((7,), (3,)), ((5,), (8,)), ((10, 7), (7, 3)), ((13, 6), (6, 6)), ((9, 4), (3, 5)), ((5, 6, 7), (3, 4, 5))]


def windows(size: tuple[int, ...], output: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Each output and the cells of its window, by the formula in real numbers."""
    for place in itertools.product(*map(range, output)):
        yield (
            place,
            tuple(
                slice(math.floor(y * n / o), math.ceil((y + 1) * n / o)) for y, n, o in zip(place, size, output, strict=True)
            ),
        )


def image(size: tuple[int, ...], channels: int, layout: str, dtype: Any = np.float64, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).integers(-4, 5, (2, *size, channels)).astype(dtype)
    return x if layout == "channels_last" else np.ascontiguousarray(np.moveaxis(x, -1, 1))


def last(array: np.ndarray, layout: str) -> np.ndarray:
    return array if layout == "channels_last" else np.moveaxis(array, 1, -1)


@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
@pytest.mark.parametrize(("size", "output"), CASES)
def test_values_and_gradients_are_those_of_a_loop(each_backend: str, size: Any, output: Any, layout: str) -> None:
    for channels, dtype in ((1, np.float32), (3, np.float64), (19, np.float32)):
        x = image(size, channels, layout, dtype)
        mean = pb.adaptive_avg_pool(x, output, layout=layout)
        best, indices = pb.adaptive_max_pool(x, output, layout=layout, return_indices=True)
        dy = np.random.default_rng(1).integers(-9, 9, mean.shape).astype(dtype)
        dx_mean = pb.adaptive_avg_pool_grad(dy, x, layout=layout)
        dx_max = pb.adaptive_max_pool_grad(dy, x, layout=layout)
        xl, dl = last(x, layout), last(dy, layout)
        want_mean, want_max = (np.zeros((2, *output, channels)) for _ in range(2))
        want_dx_mean, want_dx_max = (np.zeros(xl.shape) for _ in range(2))
        for place, cells in windows(size, output):
            at, flat = (slice(None), *place), xl[(slice(None), *cells)].reshape(2, -1, channels)
            want_mean[at], want_max[at] = flat.mean(axis=1, dtype=np.float64), flat.max(axis=1)
            want_dx_mean[(slice(None), *cells)] += (dl[at] / flat.shape[1])[(slice(None), *(None,) * len(size))]
            counted = want_dx_max[(slice(None), *cells)].reshape(flat.shape)
            np.put_along_axis(counted, flat.argmax(axis=1)[:, None], dl[at][:, None] + np.take_along_axis(
                counted, flat.argmax(axis=1)[:, None], 1), 1)  # fmt: skip
            want_dx_max[(slice(None), *cells)] = counted.reshape(want_dx_max[(slice(None), *cells)].shape)
        tolerance = 1e-5 if dtype is np.float32 else 1e-12
        np.testing.assert_allclose(last(mean, layout), want_mean, tolerance, tolerance)
        np.testing.assert_allclose(last(dx_mean, layout), want_dx_mean, tolerance, tolerance)
        np.testing.assert_array_equal(last(best, layout), want_max)
        np.testing.assert_array_equal(x.ravel()[indices], best)
        np.testing.assert_array_equal(last(dx_max, layout), want_dx_max)
        np.testing.assert_array_equal(pb.max_pool_grad_from_indices(dy, indices, x, layout=layout), dx_max)
        assert mean.dtype == best.dtype == dx_mean.dtype == dx_max.dtype == x.dtype


@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
@pytest.mark.parametrize("rule", [{"ties": "first"}, {"ties": "last"}, {"nan": "ignore", "ties": "last"}, {"nan": "propagate"}])
def test_the_cpu_kernels_keep_to_the_rules_of_the_reference(rule: dict[str, Any], layout: str) -> None:
    x = image((11, 7), 21, layout, np.float32)
    x[x > 3] = np.nan
    x[0] = np.nan
    for storage_order in (0, 1):
        options = rule | {"layout": layout, "return_indices": True, "storage_order": storage_order}
        with pb.backend("reference"):
            expected = pb.adaptive_max_pool(x, (4, 5), **options)
        with pb.backend("cpu"), pb.kernel("channels"):
            found = pb.adaptive_max_pool(x, (4, 5), **options)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precisions(each_backend: str, dtype: Any) -> None:
    x = image((7, 9), 18, "channels_last", dtype)
    exact = x.astype(np.float64)
    assert pb.adaptive_avg_pool(x, 4).dtype == x.dtype
    np.testing.assert_allclose(pb.adaptive_avg_pool(x, 4).astype(np.float64), pb.adaptive_avg_pool(exact, 4), 1e-2, 1e-2)
    np.testing.assert_array_equal(pb.adaptive_max_pool(x, 4).astype(np.float64), pb.adaptive_max_pool(exact, 4))


def test_equal_windows_are_the_ordinary_op() -> None:
    x = image((8, 6), 3, "channels_last")
    for found in (pb.explain("adaptive_max_pool", x, (4, 2)), pb.explain("max_pool", x, (2, 3))):
        assert found.problem.op == "max_pool"
        assert found.problem.window.kernel == (2, 3)
    np.testing.assert_array_equal(pb.adaptive_max_pool(x, 2), pb.max_pool(x, (4, 3)))
    assert pb.explain("adaptive_max_pool", x, 5).problem.op == "adaptive_max_pool", "which no kernel of max_pool is asked about"


def test_output_sizes_may_be_left_out_or_whole_shapes() -> None:
    x = image((8, 6), 3, "channels_last")
    np.testing.assert_array_equal(pb.adaptive_avg_pool(x, (None, 4)), pb.adaptive_avg_pool(x, (8, 4)))
    np.testing.assert_array_equal(pb.adaptive_avg_pool(x, (2, 5, 4, 3)), pb.adaptive_avg_pool(x, (5, 4)))


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (0, "at least 1"), ((1, 2, 3), "3 entries for 2"), ((2.0, 2), "must be an integer"), (True, "must be an integer"),
        ((3, 5, 4, 3), "differs from .* in batch or channels"), ("2", "must be an integer"),
    ],
)  # fmt: skip
def test_bad_output_sizes(output: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"adaptive_max_pool: output_size.*{words}"):
        pb.adaptive_max_pool(np.ones((2, 4, 4, 3)), output)


def test_an_axis_of_no_cells_is_refused_and_an_empty_batch_is_not() -> None:
    with pytest.raises(ValueError, match="no cells"):
        pb.adaptive_avg_pool(np.ones((2, 0, 4, 3)), 2)
    assert pb.adaptive_avg_pool(np.ones((0, 5, 4, 3)), 3).shape == (0, 3, 3, 3)
    assert pb.adaptive_avg_pool_grad(np.ones((0, 3, 3, 3)), (0, 5, 4, 3)).shape == (0, 5, 4, 3)


def test_every_cell_has_a_reader_and_every_reader_its_cell() -> None:
    for n, o in itertools.product(range(1, 12), range(1, 12)):
        window = AdaptiveWindow((n,), (o,))
        readers = window.readers(0)
        pairs = {(i, y) for i in range(n) for y in range(readers.first[i], readers.first[i] + readers.count[i])}
        starts, ends = window.starts(0), window.ends(0)
        assert pairs == {(i, y) for y in range(o) for i in range(starts[y], ends[y])}
        assert window.kernel == (max(ends - starts),)
