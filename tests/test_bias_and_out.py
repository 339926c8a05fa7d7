"""The bias of a convolution and its gradient, and results in the caller's own array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb

LAYOUTS = ["channels_last", "channels_first"]


def arrays(layout: str, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, f, b = rng.normal(size=(2, 6, 7, 3)), rng.normal(size=(2, 3, 3, 5)), rng.normal(size=5)
    if layout == "channels_first":
        x, f = np.moveaxis(x, -1, 1), np.moveaxis(f, (2, 3), (1, 0))
    return np.ascontiguousarray(x, dtype), np.ascontiguousarray(f, dtype), b.astype(dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_bias_is_added_to_its_channel(each_backend: str, layout: str) -> None:
    x, f, b = arrays(layout)
    shaped = b if layout == "channels_last" else b[:, None, None]
    np.testing.assert_array_equal(pb.conv(x, f, bias=b, layout=layout), pb.conv(x, f, layout=layout) + shaped)
    y, back = pb.conv(x, f, layout=layout), b[:3]
    shaped = back if layout == "channels_last" else back[:, None, None]
    np.testing.assert_array_equal(
        pb.conv_transpose(y, f, bias=back, layout=layout), pb.conv_transpose(y, f, layout=layout) + shaped
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 40, 41, 6), (1, 1, 1, 1), (2, 31, 33, 2, 5), (1, 2047, 3), (0, 3, 4)])
def test_the_gradient_of_the_bias_is_the_sum_over_all_but_its_axis(
    each_backend: str, layout: str, shape: tuple[int, ...]
) -> None:
    channels = len(shape) - 1 if layout == "channels_last" else 1
    dy = np.random.default_rng(1).integers(-9, 10, shape).astype(np.float32)
    found = pb.conv_grad_bias(dy, layout=layout)
    assert found.dtype == dy.dtype
    np.testing.assert_array_equal(found, dy.sum(axis=tuple(a for a in range(dy.ndim) if a != channels)))


def test_long_sums_of_a_bias_gradient_stay_exact() -> None:
    dy = np.full((1, 300_000, 2), 0.1, np.float32)
    np.testing.assert_allclose(pb.conv_grad_bias(dy), 300_000 * np.float64(np.float32(0.1)), rtol=1e-4)


def test_autograd_differentiates_through_the_bias() -> None:
    x, f, b = arrays("channels_last")
    value, gradients = pb.value_and_grads(lambda x, f, b: pb.conv(x, f, bias=b) ** 2)([x, f, b])
    y = pb.conv(x, f, bias=b)
    np.testing.assert_array_equal(value, y**2)
    np.testing.assert_allclose(gradients[2], pb.conv_grad_bias(2 * y))
    np.testing.assert_allclose(gradients[0], pb.conv_grad_input(2 * y, f, x))
    np.testing.assert_allclose(pb.grad(lambda b: pb.conv(x, f, bias=b))(b), pb.conv_grad_bias(np.ones_like(y)))


@pytest.mark.parametrize(
    ("bias", "kind", "words"),
    [
        (np.ones(4), ValueError, "bias has shape .* one entry for each of the 5"),
        (np.ones((5, 1)), ValueError, "bias has shape"),
        (np.ones(5, np.float32), TypeError, "bias is float32 but the arrays are float64"),
        ("b", ValueError, "bias has shape"),
    ],
)
def test_a_bias_that_does_not_fit_is_refused(bias: Any, kind: type[Exception], words: str) -> None:
    x, f, _ = arrays("channels_last")
    with pytest.raises(kind, match=f"conv: {words}"):
        pb.conv(x, f, bias=bias)


def calls() -> dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Ops with results large enough for memory of their own."""
    rng = np.random.default_rng(2)
    x, f = rng.normal(size=(4, 40, 40, 16)).astype(np.float32), rng.normal(size=(3, 3, 16, 16)).astype(np.float32)
    y = pb.conv(x, f)
    pooled, winners = pb.max_pool(x, 2, return_winners=True)
    _, indices = pb.max_pool(x, 2, return_indices=True)
    return {
        "conv": (pb.conv, (x, f), {"padding": "same"}),
        "conv_grad_input": (pb.conv_grad_input, (y, f, x.shape), {}),
        "conv_grad_filter": (pb.conv_grad_filter, (y, x, f.shape), {}),
        "conv_transpose": (pb.conv_transpose, (y, f), {}),
        "max_pool": (pb.max_pool, (x, 2), {}),
        "max_pool_grad": (pb.max_pool_grad, (pooled, x, 2), {}),
        "max_pool_grad_from_winners": (pb.max_pool_grad_from_winners, (pooled, winners, x.shape, 2), {}),
        "max_pool_grad_from_indices": (pb.max_pool_grad_from_indices, (pooled, indices, x.shape), {}),
        "avg_pool": (pb.avg_pool, (x, 2), {}),
        "avg_pool_grad": (pb.avg_pool_grad, (pooled, x.shape, 2), {}),
        "adaptive_avg_pool": (pb.adaptive_avg_pool, (x, 27), {}),
        "adaptive_avg_pool_grad": (pb.adaptive_avg_pool_grad, (pb.adaptive_avg_pool(x, 27), x.shape), {}),
        "global_max_pool_grad": (pb.global_max_pool_grad, (pb.global_max_pool(x), x), {}),
    }


@pytest.mark.parametrize("name", list(calls()))
def test_results_lie_in_out(each_backend: str, name: str) -> None:
    op, arguments, keywords = calls()[name]
    expected = op(*arguments, **keywords)
    for out in (np.full_like(expected, 7), np.full((*expected.shape, 2), 7, expected.dtype)[..., 0]):
        assert op(*arguments, **keywords, out=out) is out
        np.testing.assert_array_equal(out, expected)


def test_out_may_overlap_the_input_and_saves_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(3).normal(size=(4, 40, 40, 16)).astype(np.float32)
    f = np.random.default_rng(4).normal(size=(3, 3, 16, 16)).astype(np.float32)
    expected = pb.conv(x, f, padding="same")
    made = []
    with pb.backend("cpu"):
        monkeypatch.setattr(
            "pullback.cpu.engine.recycling.Shelf.new_array", lambda *given: made.append(given) or np.empty(*given[1:])
        )
        out = np.empty_like(x)
        pb.max_pool(x, 1, out=out)
        assert not made, "no second array of the result's size"
        pb.conv(x, f, padding="same", out=x)
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize(
    ("out", "kind", "words"),
    [
        (np.empty((1, 2, 2, 1)), ValueError, "out has shape"),
        (np.empty((1, 2, 3, 1), np.float32), TypeError, "out has dtype float32"),
        (np.broadcast_to(np.zeros(1), (1, 2, 3, 1)), TypeError, "writable"),
        ([1, 2], TypeError, "writable NumPy array"),
    ],
)
def test_an_out_that_does_not_fit_is_refused(out: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=f"max_pool: {words}|max_pool: out .*{words}"):
        pb.max_pool(np.ones((1, 4, 6, 1)), 2, out=out)


def test_out_takes_one_result_and_no_record_of_autograd() -> None:
    x = np.ones((1, 4, 6, 1))
    with pytest.raises(ValueError, match="out takes one array"):
        pb.max_pool(x, 2, out=np.empty((1, 2, 3, 1)), return_indices=True)
    with pytest.raises(TypeError, match="leave out= away"):
        pb.grad(lambda x: pb.avg_pool(x, 2, out=np.empty((1, 2, 3, 1))))(x)
