"""The ops under the package autograd: gradients, tangents and their derivatives to the third order, and `grads(f)`."""

from __future__ import annotations

import inspect
import subprocess
import sys
from itertools import product
from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
import pytest
from autograd.test_util import check_grads

import pullback as pb
import pullback.autograd as traced
from pullback.derivatives import DERIVATIVES

SIZES, WINDOWS = (5, 4, 4), (2, 3, 2)
PLACES: list[dict[str, Any]] = [
    {"stride": 2, "padding": "same"},
    {"stride": 1, "padding": 1, "dilation": 2},
    {"stride": 2, "padding": 1, "rounding": "ceil"},
]
ranks_and_layouts = pytest.mark.parametrize(("rank", "layout"), list(product((1, 2, 3), ("channels_last", "channels_first"))))
every_place = pytest.mark.parametrize("place", PLACES, ids=str)


def image(rank: int, layout: str, channels: int = 2, seed: int = 0) -> np.ndarray:
    """Distinct values, so far apart that no difference quotient changes a winner."""
    shape = (2, *SIZES[:rank], channels) if layout == "channels_last" else (2, channels, *SIZES[:rank])
    return np.random.default_rng(seed).permutation(np.prod(shape)).reshape(shape) / np.prod(shape)


def weights(rank: int, layout: str) -> np.ndarray:
    window = WINDOWS[:rank]
    shape = (*window, 1, 4) if layout == "channels_last" else (4, 1, *window)
    return np.random.default_rng(1).normal(size=shape)


@every_place
@ranks_and_layouts
def test_conv_to_the_second_order(rank: int, layout: str, place: dict[str, Any]) -> None:
    keywords = place | {"layout": layout, "groups": 2}

    def f(x: Any, w: Any) -> Any:
        return anp.tanh(pb.conv(x, w, **keywords))

    check_grads(f, modes=["rev", "fwd"], order=2)(image(rank, layout), weights(rank, layout))


@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
def test_conv_transpose_3d_to_the_third_order(layout: str) -> None:
    def f(x: Any, w: Any) -> Any:
        return anp.sin(pb.conv_transpose(x, w, stride=2, padding=1, groups=2, layout=layout))

    x = image(3, layout, 4)[:, :2, :2, :2] if layout == "channels_last" else image(3, layout, 4)[..., :2, :2, :2]
    check_grads(f, modes=["rev"], order=3)(x, weights(3, layout))
    check_grads(f, modes=["fwd"], order=2)(x, weights(3, layout))


@every_place
@ranks_and_layouts
def test_pools_to_the_third_order(rank: int, layout: str, place: dict[str, Any]) -> None:
    keywords = place | {"layout": layout, "window": WINDOWS[:rank]}
    for op in (pb.max_pool, pb.avg_pool):

        def f(x: Any, op: Any = op) -> Any:
            return op(x, **keywords) ** 3

        x = image(rank, layout)
        check_grads(f, modes=["rev"], order=3)(x)
        check_grads(f, modes=["fwd"], order=2)(x)


@pytest.mark.parametrize("op", sorted(DERIVATIVES))
def test_every_op_is_traced_by_place_and_by_name(op: str) -> None:
    x, f = image(2, "channels_last"), weights(2, "channels_last")
    kept: dict[str, Any] = {
        "x": x,
        "filter": f,
        "t": x,
        "window": 2,
        "groups": 2,
        "input_shape": x.shape,
        "filter_shape": f.shape,
        "output_size": 2,
        "output_shape": x.shape,
        "values": pb.max_pool(x, 2),
    }
    kept["dy"] = pb.conv(x, f, groups=2) if op.startswith("conv") else x if op == "max_unpool_grad" else pb.avg_pool(x, 2)
    kept["indices"], kept["winners"] = (pb.max_pool(x, 2, **{f"return_{k}": True})[1] for k in ("indices", "winners"))
    rule = DERIVATIVES[op]
    parameters = inspect.signature(getattr(pb, op)).parameters.values()
    named = {p.name: kept[p.name] for p in parameters if p.name in kept}
    placed = [named[p.name] for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    options = {name: value for name, value in named.items() if name == "groups"}
    first = rule.arrays[0]
    expected = autograd.elementwise_grad(lambda a: getattr(traced, op)(a, *placed[1:], **options))(placed[0])
    for functions in (traced, pb):
        found = autograd.elementwise_grad(lambda a, fs=functions: getattr(fs, op)(**(named | {first: a})))(placed[0])
        np.testing.assert_array_equal(found, expected)
    assert np.any(expected)
    assert inspect.signature(getattr(traced, op)) == inspect.signature(getattr(pb, op))
    for plain in (getattr(traced, op)(*placed, **options),):
        np.testing.assert_array_equal(plain, getattr(pb, op)(**named))


@pytest.mark.parametrize("kept", ["indices", "winners"])
def test_the_places_of_the_maxima_come_with_differentiable_values(kept: str) -> None:
    x, options = image(2, "channels_last"), {f"return_{kept}": True, "stride": 1, "dilation": 2}
    _, expected = pb.max_pool(x, 2, **options)

    def f(x: Any) -> Any:
        values, places = pb.max_pool(x, 2, **options)
        np.testing.assert_array_equal(places, expected)
        return anp.sum(values**2)

    dy = 2 * pb.max_pool(x, 2, stride=1, dilation=2)
    np.testing.assert_array_equal(autograd.grad(f)(x), pb.max_pool_grad(dy, x, 2, stride=1, dilation=2))


def test_maxima_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(*args: Any, **keywords: Any) -> Any:
        raise AssertionError("searched again")

    monkeypatch.setattr("pullback.ops.max_pool.prepare_max_pool_grad", again)
    x = image(2, "channels_last")
    assert autograd.grad(lambda x: anp.sum(pb.max_pool(x, 2, ties="last", nan="ignore")))(x).sum() == 2 * 2 * 2 * 2


def test_jacobian_and_piecewise_constant_arrays() -> None:
    x = np.arange(1.0, 10.0).reshape(1, 3, 3, 1)
    jacobian = autograd.jacobian(lambda x: pb.max_pool(x, 2, stride=1))(x).reshape(4, 9)
    np.testing.assert_array_equal(jacobian.argmax(1), [4, 5, 7, 8])
    dy = np.ones((1, 2, 2, 1))
    assert not autograd.grad(lambda x: anp.sum(pb.max_pool_grad(dy, x, 2, stride=1)))(x).any()
    _, tangent = autograd.make_jvp(lambda x: pb.max_pool_grad(dy, x, 2, stride=1))(x)(x)
    assert not tangent.any()


def test_gradients_keep_the_dtype_of_the_values() -> None:
    x, f = image(2, "channels_last").astype(np.float32), weights(2, "channels_last").astype(np.float32)
    double = np.linspace(0.0, 1.0, 4)  # makes the rest of the program float64

    def loss(x: Any, f: Any) -> Any:
        return anp.sum(pb.max_pool(pb.conv(x, f, groups=2), 2) * double)

    for gradient in autograd.grad(loss, (0, 1))(x, f):
        assert gradient.dtype == np.float32


@pytest.mark.parametrize("functions", [pb, traced])
def test_bad_arguments_are_refused_as_by_the_plain_op(functions: Any) -> None:
    x = np.ones((1, 4, 4, 1))
    for call, says in (
        (lambda x: functions.max_pool(x, 5), "max_pool: a window of 5"),
        (lambda x: functions.max_pool(x, 2, return_winners="yes"), "max_pool: return_winners"),
        (lambda x: functions.max_pool(x, 2, return_indices=True, return_winners=True), "ask for one"),
        (lambda x: functions.conv(x, np.ones((2, 2, 1, 1), np.float32)), "conv: x is float64, filter is float32"),
        (lambda x: functions.conv_transpose(x, np.ones((2, 2, 1, 1)), output_padding=1), "conv_transpose: output_padding"),
    ):
        with pytest.raises((TypeError, ValueError), match=says):
            autograd.elementwise_grad(call)(x)
    with pytest.raises(TypeError, match=r"max_pool.*window"):
        functions.max_pool(x)


def test_grads() -> None:
    x, w = image(2, "channels_last", 1), np.random.default_rng(0).normal(size=(2, 2, 1, 3))
    dx, dw = pb.grads(lambda x, w: pb.conv(x, w))([x, w])
    ones = np.ones((2, 4, 3, 3))
    np.testing.assert_array_equal(dx, pb.conv_grad_input(ones, w, x.shape))
    np.testing.assert_array_equal(dw, pb.conv_grad_filter(ones, x, w.shape))
    (dx,) = pb.grads(lambda x: pb.conv(x, w))((x,), dy=3 * ones)
    np.testing.assert_allclose(dx, pb.conv_grad_input(3 * ones, w, x.shape))
    used, unused = pb.grads(lambda a, b: anp.sum(a))([x, w])
    assert used.all()
    assert unused.shape == w.shape
    assert not unused.any()


def test_grads_of_grads() -> None:
    x = np.arange(1.0, 10.0).reshape(1, 3, 3, 1)
    inner = pb.grads(lambda x: pb.max_pool(x, 2, stride=1) ** 3)
    (second,) = pb.grads(lambda x: inner([x])[0])([x])
    np.testing.assert_array_equal(second.ravel(), [0, 0, 0, 0, 30, 36, 0, 48, 54])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: pb.grads(3), "f must be a function"),
        (lambda x: pb.grads(lambda a: a)(x), "as a list of arrays"),
        (lambda x: pb.grads(lambda a: a)([]), "as a list of arrays"),
        (lambda x: pb.grads(lambda a: a)([np.arange(3)]), "argument 0 has dtype int64"),
        (lambda x: pb.grads(lambda a: a)(["text"]), "argument 0 has dtype"),
        (lambda x: pb.grads(lambda a: 1.0)([x]), "does not depend on its arguments"),
        (lambda x: pb.grads(lambda a: a)([x], dy=np.ones(7)), r"dy has shape \(7,\)"),
        (lambda x: pb.grads(lambda a: [a])([x]), "must return one array"),
    ],
)
def test_what_grads_refuses(call: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        call(np.ones((2, 2)))


def in_new_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_autograd_is_imported_only_when_asked_for() -> None:
    assert in_new_process("import sys, pullback, pullback.tfjs; print('autograd' in sys.modules)").strip() == "False"


@pytest.mark.parametrize("use", ["import pullback.autograd", "pb.grads(abs)", "tfjs.grad(abs)(np.ones(2, np.float32))"])
def test_a_missing_package_is_named(use: str) -> None:
    code = f"""
import sys
sys.modules["autograd"] = None
import numpy as np, pullback as pb
from pullback import tfjs
try:
    {use}
except ImportError as error:
    print(error)
"""
    assert in_new_process(code).strip().endswith("pip install 'pullback[autograd]'")


def test_ops_of_the_dialect_run_without_the_package() -> None:
    code = """
import sys
sys.modules["autograd"] = None
import numpy as np
from pullback import tfjs
print(tfjs.max_pool(np.ones((3, 3, 1), np.float32), 2, 1, "valid").sum())
"""
    assert in_new_process(code).strip() == "4.0"
