"""A negative pad crops, in every op, on every kernel, under every rounding: the answer is that of the input cut by hand."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.registry import kernels_for

LAYOUTS = ("channels_last", "channels_first")
ROUNDINGS = ("floor", "ceil", "round")


def integers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(np.float32)


def test_the_mean_of_a_window_that_reaches_into_cropped_cells() -> None:
    x = np.arange(1.0, 7.0).reshape(1, 6, 1)
    keywords: dict[str, Any] = {"stride": 3, "rounding": "ceil", "count_include_pad": True}
    for backend in pb.backends():
        with pb.backend(backend):
            assert pb.avg_pool(x, 2, padding=((0, -2),), **keywords).ravel().tolist() == [1.5, 4.0]
            dx = pb.avg_pool_grad(np.array([[[2.0], [3.0]]]), x.shape, 2, padding=((0, -2),), **keywords)
            assert dx.ravel().tolist() == [1.0, 1.0, 0.0, 3.0, 0.0, 0.0]


def test_a_window_that_begins_in_cropped_cells_is_dropped() -> None:
    x = np.ones((1, 4, 3, 1), np.float32)
    for backend, rounding in product(pb.backends(), ROUNDINGS):
        with pb.backend(backend):
            y = pb.conv(x, np.ones((1, 2, 1, 1), np.float32), stride=(3, 1), padding=((0, -2), (0, 0)), rounding=rounding)
        assert y.ravel().tolist() == [2.0, 2.0], (backend, rounding)
        with pb.backend(backend):
            mean = pb.avg_pool(x, (1, 2), stride=(3, 1), padding=((0, -2), (0, 0)), rounding=rounding)
        assert mean.ravel().tolist() == [1.0, 1.0], (backend, rounding)


def cases() -> list[tuple[str, int, Any, Any, Any, Any]]:
    """(layout, channels, size, window, stride, padding): each has an axis whose last window reaches past a crop under "ceil"."""
    shapes: list[tuple[Any, Any, Any, Any]] = [
        ((9,), (2,), (3,), ((0, -2),)),
        ((7, 11), (2, 3), (3, 2), ((1, -1), (-2, -3))),
        ((5, 6, 7), (2, 2, 3), (3, 2, 2), ((0, -1), (-1, 2), (2, -3))),
        ((12,), (3,), (5,), ((-1, -2),)),
    ]
    return [(layout, channels, *shape) for layout, channels, shape in product(LAYOUTS, (1, 20), shapes)]


@pytest.mark.parametrize(("layout", "channels", "size", "window", "stride", "padding"), cases())
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_every_op_is_that_of_the_input_cut_by_hand(
    layout: str, channels: int, size: Any, window: Any, stride: Any, padding: Any, rounding: str
) -> None:
    last = layout == "channels_last"
    shape = (2, *size, channels) if last else (2, channels, *size)
    kept_cells = [slice(-min(p, 0), n + min(q, 0)) for n, (p, q) in zip(size, padding, strict=True)]
    kept = (slice(None), *kept_cells, slice(None)) if last else (slice(None), slice(None), *kept_cells)
    x, t = integers(shape, 1), integers(shape, 2)
    f = integers((*window, channels, 3) if last else (3, channels, *window), 3)
    common: dict[str, Any] = {"stride": stride, "layout": layout, "rounding": rounding}
    whole, cut = {**common, "padding": padding}, {**common, "padding": [(max(p, 0), max(q, 0)) for p, q in padding]}

    with pb.backend("reference"):
        y, winners = pb.max_pool(x[kept], window, **cut, return_winners=True)
        dy, dz = integers(y.shape, 4), integers(pb.conv(x[kept], f, **cut).shape, 5)
        by_hand = {
            "max_pool": (y, (x, window)),
            "max_pool_grad": (pb.max_pool_grad(dy, x[kept], window, **cut), (dy, x, window)),
            "max_pool_grad_from_winners": (
                pb.max_pool_grad_from_winners(dy, winners, x[kept].shape, window, **cut),
                (dy, winners, shape, window),
            ),
            "max_pool_jvp": (pb.max_pool_jvp(t[kept], x[kept], window, **cut), (t, x, window)),
            "avg_pool": (pb.avg_pool(x[kept], window, **cut), (x, window)),
            "avg_pool_grad": (pb.avg_pool_grad(dy, x[kept].shape, window, **cut), (dy, shape, window)),
            "conv": (pb.conv(x[kept], f, **cut), (x, f)),
            "conv_grad_input": (pb.conv_grad_input(dz, f, x[kept].shape, **cut), (dz, f, shape)),
            "conv_grad_filter": (pb.conv_grad_filter(dz, x[kept], f.shape, **cut), (dz, x, f.shape)),
        }
        expected_indices = pb.max_pool(x[kept], window, **cut, return_indices=True)[1]
    ran = 0
    for op, (expected, arguments) in by_hand.items():
        if expected.shape == x[kept].shape:
            set_in = np.zeros(shape, np.float32)
            set_in[kept] = expected
            expected = set_in
        for backend in pb.backends():
            for kernel in kernels_for(op, backend):
                with pb.backend(backend), pb.kernel(kernel.name):
                    try:
                        found = getattr(pb, op)(*arguments, **whole)
                    except pb.KernelError:
                        continue
                ran += 1
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3 if kernel.error else 1e-6, err_msg=kernel.name)
    assert ran > 2 * len(by_hand)
    for backend, order in product(pb.backends(), (0, 1)):  # an index counts the cells of the whole input
        with pb.backend(backend):
            values, indices = pb.max_pool(x, window, **whole, return_indices=True, storage_order=order)
        if order == 0:
            taken = np.where(indices < 0, -np.inf, x.ravel()[np.maximum(indices, 0)])
            np.testing.assert_array_equal(taken, values)
            assert ((indices < 0) == (expected_indices < 0)).all()
            inside = np.zeros(shape, np.bool_)
            inside[kept] = True
            assert inside.ravel()[indices[indices >= 0]].all()
        else:
            with pb.backend("reference"):
                np.testing.assert_array_equal(indices, pb.max_pool(x, window, **whole, return_indices=True, storage_order=1)[1])


def test_indices_of_many_images(each_backend: str) -> None:
    """NumPy's unravel_index gives wrong numbers for more than 8192 places that end in an axis of size 1."""
    x = np.ones((3, 2, 1365, 3), np.float32)
    options = {"padding": ((1, 0), (-1, -1)), "layout": "channels_first", "rounding": "ceil"}
    indices = pb.max_pool(x, (1, 2), return_indices=True, **options)[1].reshape(6, 1366)
    assert (indices[:, 0] == -1).all()
    assert np.array_equal(indices[:, 1:].ravel(), np.arange(6 * 1365) * 3 + 1)


def test_explain_names_the_kernel_that_crops() -> None:
    text = str(pb.explain("avg_pool", np.ones((1, 6, 1), np.float32), 2, stride=3, padding=((0, -2),), rounding="ceil"))
    assert "runs      cpu/crop" in text
    assert "cpu/rows: its windows would read cells that a negative pad crops" in text
