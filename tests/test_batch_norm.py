"""batch_norm and its gradient: against their formulas in float64, finite differences and autograd, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb

LAYOUTS = ["channels_last", "channels_first"]
ACTIVATIONS = [None, "relu", "relu6"]
SHAPES = [(3, 2, 5, 7), (2, 19, 4), (5, 3), (2, 1, 3, 2, 4)]  # channels second
BOUNDS = {"float32": 1e-5, "float64": 1e-12}
Arrays = dict[str, np.ndarray]


def in_layout(a: np.ndarray, layout: str) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(a, 1, -1)) if layout == "channels_last" else a


def given(shape: tuple[int, ...], layout: str, dtype: Any = np.float64, *, fixed: bool = False, add: bool = False) -> Arrays:
    """The arguments of a call, read-only, with activations that cut at both ends."""
    rng, channels = np.random.default_rng(sum(shape)), shape[1]
    x, dy, added = (in_layout(rng.normal(size=shape) * by, layout) for by in (2, 1, 3))
    arrays = {"dy": dy, "x": x + 1, "scale": rng.normal(size=channels) * 4, "bias": rng.normal(size=channels) + 2}
    if fixed:
        arrays |= {"mean": rng.normal(size=channels), "variance": rng.uniform(0.5, 2, channels)}
    if add:
        arrays["add"] = added
    arrays = {name: array.astype(dtype) for name, array in arrays.items()}
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


def expected(arrays: Arrays, layout: str, activation: str | None, eps: float = 1e-5) -> tuple[Any, ...]:
    """(y, mean, variance, [dx, dscale, dbias, dadd]), one channel after the other, in float64."""
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    axis = -1 if layout == "channels_last" else 1
    dy, x, add = (np.moveaxis(wide.get(name, np.zeros_like(wide["x"])), axis, 0) for name in ("dy", "x", "add"))
    y, dx, dadd = (np.empty_like(x) for _ in range(3))
    mean, variance, dscale, dbias = (np.empty(len(x)) for _ in range(4))
    for c, (a, scale, bias) in enumerate(zip(x, wide["scale"], wide["bias"], strict=True)):
        mean[c], variance[c] = (wide["mean"][c], wide["variance"][c]) if "mean" in wide else (a.mean(), a.var())
        spread = np.sqrt(variance[c] + eps)
        h = (a - mean[c]) / spread
        v = h * scale + bias + add[c]
        y[c] = v if activation is None else np.clip(v, 0, 6 if activation == "relu6" else np.inf)
        g = np.where(y[c] == v, dy[c], 0)
        dadd[c], dbias[c], dscale[c] = g, g.sum(), (g * h).sum()
        dx[c] = scale / spread * (g if "mean" in wide else g - g.mean() - h * (g * h).mean())
    y, dx, dadd = (np.moveaxis(a, 0, axis) for a in (y, dx, dadd))
    return y, mean, variance, [dx, dscale, dbias, *([dadd] if "add" in wide else [])]


def both(arrays: Arrays, **keywords: Any) -> tuple[Any, ...]:
    """What `expected` gives, by the ops."""
    forward = {name: array for name, array in arrays.items() if name != "dy"}
    y, mean, variance = pb.batch_norm(**forward, **keywords, return_statistics=True)
    np.testing.assert_array_equal(pb.batch_norm(**forward, **keywords), y)
    return y, mean, variance, list(pb.batch_norm_grad(**arrays, **keywords))


def assert_near(found: tuple[Any, ...], right: tuple[Any, ...], bound: float) -> None:
    ours, theirs = [*found[:3], *found[3]], [*right[:3], *right[3]]
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a.astype(np.float64), b, rtol=bound, atol=bound * max(1, np.abs(b).max()))


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_are_those_of_the_formulas(
    each_backend: str, layout: str, activation: str | None, fixed: bool, add: bool
) -> None:
    for shape in SHAPES:
        for dtype, bound in BOUNDS.items():
            arrays = given(shape, layout, dtype, fixed=fixed, add=add)
            found = both(arrays, layout=layout, activation=activation, eps=1e-3)
            assert_near(found, expected(arrays, layout, activation, 1e-3), bound)
            assert {a.dtype for a in (*found[:3], *found[3])} == {np.dtype(dtype)}
            assert not any(np.shares_memory(a, b) for a in (*found[:3], *found[3]) for b in arrays.values())


def test_activations_cut_at_both_ends() -> None:
    y = expected(given(SHAPES[0], "channels_last"), "channels_last", "relu6")[0]
    assert 0.05 < (y == 0).mean() < 0.95
    assert 0.05 < (y == 6).mean() < 0.95


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_gradient_is_that_of_finite_differences(activation: str | None, fixed: bool) -> None:
    arrays = given((3, 4, 5, 2), "channels_last", fixed=fixed, add=True)
    dy, step = arrays["dy"], 1e-6
    forward = {name: array for name, array in arrays.items() if name != "dy"}
    found = pb.batch_norm_grad(**arrays, activation=activation)
    for name, gradient in zip(("x", "scale", "bias", "add"), found, strict=True):
        t = np.random.default_rng(7).normal(size=gradient.shape)
        ahead, behind = (
            pb.batch_norm(**(forward | {name: forward[name] + by * t}), activation=activation) for by in (step, -step)
        )
        np.testing.assert_allclose(np.vdot(gradient, t), np.vdot(dy, (ahead - behind) / (2 * step)), rtol=1e-6)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_autograd_differentiates_it_twice(layout: str, fixed: bool) -> None:
    arrays = given((2, 3, 4), layout, fixed=fixed, add=True)
    dy, names = arrays["dy"], ["x", "scale", "bias", "add"]
    fixed_ones = {name: arrays[name] for name in ("mean", "variance") if fixed}

    def forward(*values: Any) -> Any:
        return pb.batch_norm(**dict(zip(names, values, strict=True)), **fixed_ones, activation="relu6", layout=layout)

    value, gradients = pb.value_and_grads(forward)([arrays[name] for name in names], dy)
    _, _, _, right = expected(arrays, layout, "relu6")
    np.testing.assert_allclose(value, expected(arrays, layout, "relu6")[0], rtol=1e-10, atol=1e-10)
    for a, b in zip(gradients, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)

    def squares(x: Any) -> Any:  # of gradients
        options: dict[str, Any] = {**fixed_ones, "activation": "relu6", "layout": layout}
        dx, dscale, _ = pb.batch_norm_grad(dy, x, arrays["scale"], arrays["bias"], **options)
        return (dx**2).sum() + (dscale**2).sum()

    t, step = np.random.default_rng(5).normal(size=dy.shape), 1e-6
    second = pb.grad(squares)(arrays["x"])
    ahead, behind = (squares(arrays["x"] + by * t) for by in (step, -step))
    np.testing.assert_allclose(np.vdot(second, t), (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precisions_are_computed_in_float32(each_backend: str, dtype: Any) -> None:
    arrays = given((4, 5, 6, 3), "channels_last", dtype, add=True)
    found = both(arrays, activation="relu")
    assert {a.dtype for a in (found[0], *found[3])} == {np.dtype(dtype)}
    assert found[1].dtype == found[2].dtype == np.float32
    rounded = float(ml_dtypes.finfo(dtype).eps)
    assert_near(found, expected(arrays, "channels_last", "relu"), rounded)
    # Statistics and parameters of float32 go with them, and gradients have the dtypes of what they belong to.
    mixed = arrays | {name: arrays[name].astype(np.float32) for name in ("scale", "bias")}
    mixed |= {"mean": found[1], "variance": found[2]}
    again = both(mixed, activation="relu")
    np.testing.assert_array_equal(again[0], found[0])
    assert [a.dtype for a in again[3]] == [dtype, np.float32, np.float32, dtype]
    large = np.array([-60000, 60000], np.float16).reshape(2, 1)
    one = np.ones(1, np.float16)
    assert pb.batch_norm(large, one, one, return_statistics=True)[2] == np.float32(3.6e9)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_may_lie_in_memory_as_they_like(each_backend: str, layout: str) -> None:
    arrays = given((3, 5, 4, 6), layout, np.float32, add=True)
    right = expected(arrays, layout, "relu")
    spoils: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
        np.asfortranarray,
        lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
        lambda a: np.ascontiguousarray(a[::-1])[::-1],
        lambda a: np.frombuffer(b"." + a.tobytes(), a.dtype, offset=1).reshape(a.shape),  # not aligned
        lambda a: a.astype(a.dtype.newbyteorder()),
    )
    for spoil in spoils:
        assert_near(both({name: spoil(array) for name, array in arrays.items()}, layout=layout, activation="relu"), right, 1e-5)
    mixed = {name: spoils[number % 3](array) for number, (name, array) in enumerate(arrays.items())}
    assert_near(both(mixed, layout=layout, activation="relu"), right, 1e-5)
    same = np.broadcast_to(np.float32(3), arrays["x"].shape)  # every element is the same one: no variance
    y, mean, variance = pb.batch_norm(same, arrays["scale"], arrays["bias"], layout=layout, return_statistics=True)
    np.testing.assert_array_equal(mean, 3)
    np.testing.assert_array_equal(variance, 0)
    np.testing.assert_allclose(y, in_layout(np.broadcast_to(arrays["bias"].reshape(1, 5, 1, 1), (3, 5, 4, 6)), layout))


def test_no_images_and_no_channels(each_backend: str) -> None:
    for shape in ((0, 4, 3), (2, 4, 0)):
        arrays = {"x": np.ones(shape), **{name: np.ones(shape[2]) for name in ("scale", "bias", "mean", "variance")}}
        assert pb.batch_norm(**arrays).shape == shape
        dx, dscale, dbias = pb.batch_norm_grad(arrays["x"], **arrays)
        assert dx.shape == shape
        np.testing.assert_array_equal((dscale, dbias), np.zeros((2, shape[2])))
        with pytest.raises(ValueError, match=r"batch_norm: x .* no elements to take statistics of"):
            pb.batch_norm(arrays["x"], arrays["scale"], arrays["bias"])


def test_nan_infinity_and_a_deviation_of_zero_warn_of_nothing(each_backend: str) -> None:
    arrays = given((2, 3, 4), "channels_last")
    x = arrays["x"].copy()
    x[0, 1, 1], x[1, 2, 2] = np.nan, np.inf
    with np.errstate(all="raise"):
        y = pb.batch_norm(x, arrays["scale"], arrays["bias"])
        dx, *_ = pb.batch_norm_grad(arrays["dy"], x, arrays["scale"], arrays["bias"])
        flat = pb.batch_norm(np.ones((2, 3, 1)), [1.0], [2.0], eps=0.0)
    for found in (y, dx):
        np.testing.assert_array_equal(np.isnan(found).all(axis=(0, 1)), [False, True, True])
    assert np.isnan(flat).all()


X, C = np.ones((2, 5, 7, 4)), np.ones(4)
NOT_NUMBERS = (None, "1", True, -1e-9, np.inf, np.nan, [1e-5, 1e-5], 1j, object())


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"x": np.ones(4)}, r"x has shape \(4,\); it needs 2 to 5 axes"),
        ({"x": np.ones((1,) * 6)}, "it needs 2 to 5 axes"),
        ({"x": X.astype(int)}, "x has dtype int64; the dtypes are"),
        ({"x": None}, "x has dtype object"),
        ({"scale": np.ones(5)}, r"scale has shape \(5,\) but must have \(4,\): one number for each of the 4 channels"),
        ({"bias": np.ones((4, 1))}, r"bias has shape \(4, 1\)"),
        ({"bias": C.astype(np.float32)}, "bias is float32 but x is float64"),
        ({"mean": C}, "mean is given without variance"),
        ({"variance": C}, "variance is given without mean"),
        ({"mean": C, "variance": np.ones(3)}, r"variance has shape \(3,\)"),
        ({"mean": C, "variance": C.astype(np.float16)}, "variance is float16 but x is float64"),
        ({"add": X[:1]}, r"add has shape \(1, 5, 7, 4\) but must have \(2, 5, 7, 4\)"),
        ({"add": X.astype(np.float32)}, "add is float32 but x is float64"),
        ({"activation": "gelu"}, "activation is 'gelu'; it must be one of None, 'relu', 'relu6'"),
        ({"activation": True}, "activation is True"),
        ({"layout": "NCW"}, "layout 'NCW' has 3 axes but the array has 4"),
        ({"layout": "first"}, "unknown layout"),
        ({"epsilon": 1e-3}, "there is no 'epsilon'; it is called 'eps' here"),
        ({"gamma": C}, "there is no 'gamma'; it is called 'scale' here"),
        *(({"eps": eps}, "eps is .*; it must be a finite number") for eps in NOT_NUMBERS),
    ],
)
@pytest.mark.parametrize("op", ["batch_norm", "batch_norm_grad"])
def test_wrong_arguments_are_one_clear_exception(op: str, keywords: dict[str, Any], words: str) -> None:
    good: dict[str, Any] = {"x": X, "scale": C, "bias": C} | ({"dy": X} if op == "batch_norm_grad" else {})
    getattr(pb, op)(**good)
    with pytest.raises((TypeError, ValueError), match=f"^{op}: .*{words}") as caught:
        getattr(pb, op)(**(good | keywords))
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert "\n" not in str(caught.value)


def test_wrong_arguments_of_one_of_them() -> None:
    with pytest.raises(ValueError, match=r"batch_norm_grad: dy has shape \(2, 5, 7\) but must have"):
        pb.batch_norm_grad(X[..., 0], X, C, C)
    with pytest.raises(TypeError, match="batch_norm_grad: dy is float32 but x is float64"):
        pb.batch_norm_grad(X.astype(np.float32), X, C, C)
    with pytest.raises(ValueError, match="batch_norm: return_statistics is 1; it must be one of False, True"):
        pb.batch_norm(X, C, C, return_statistics=1)
    with pytest.raises(AttributeError, match=r"use pullback\.batch_norm"):
        pb.BatchNorm2d  # noqa: B018
