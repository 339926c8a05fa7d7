"""TF.js's gradients of ops and its refusals, as recorded: theirs in quirks, word for word, and true gradients by default."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest

from pullback import golden, tfjs
from pullback.check import tfjs_gradients as recorded
from pullback.check.compare import is_slope
from pullback.tfjs.backprop_ops import conv3d_backprop_filter

GRADIENTS, REFUSALS = (golden.load("tfjs", name) for name in ("Gradients", "OpErrors"))
ANSWERED, REFUSED = ([case for case in GRADIENTS if ("error" in case) == refused] for refused in (False, True))
LACKING = [case for case in REFUSED if "supported in gradients" in case["error"] or "not yet supported" in case["error"]]
LACKING += [case for case in REFUSED if "gradient function not found" in case["error"]]
both_modes = pytest.mark.parametrize("mode", [nullcontext, tfjs.quirks], ids=["default", "quirks"])
X = np.arange(1, 10, dtype=np.float32).reshape(1, 3, 3, 1)


def every(cases: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=[case["name"] for case in cases])


def gradients(case: dict[str, Any]) -> list[np.ndarray]:
    xs, dy = recorded.tensors(case)
    return tfjs.grads(recorded.function(case))(xs, dy)


def true_gradients(case: dict[str, Any]) -> list[np.ndarray]:
    """By exact differences of the op itself, cell by cell: its data are moved so that no maximum changes hands."""
    f, (xs, dy) = recorded.function(case), recorded.tensors(case)
    found, step = [], np.float32(2.0**-10)
    for place, x in enumerate(xs):
        gradient = np.zeros(x.shape)
        for cell in np.ndindex(*x.shape):
            ends = []
            for sign in (1, -1):
                moved = x.astype(np.float32)
                moved[cell] += sign * step
                y = np.asarray(f(*(moved if i == place else other for i, other in enumerate(xs))), np.float64)
                ends.append(np.sum(y * (1 if dy is None else dy)))
            gradient[cell] = (ends[0] - ends[1]) / (2 * float(step))
        found.append(gradient)
    return found


def test_all_records_are_held() -> None:
    assert (len(GRADIENTS), len(REFUSALS)) == (43, 48)
    assert len(ANSWERED) + len(REFUSED) == 43
    scenes = {case["name"] for case in REFUSALS if case["op"] not in recorded.OPS}
    assert scenes == set(recorded.SCENES)


@every(ANSWERED)
def test_quirks_give_upstreams_gradients(case: dict[str, Any]) -> None:
    with tfjs.quirks():
        found = gradients(case)
    for ours, theirs in zip(found, case["outputs"], strict=True):
        expected = golden.array(theirs)
        assert ours.dtype == expected.dtype
        np.testing.assert_array_equal(ours, expected)


TIED = [case for case in ANSWERED if case["name"].endswith(("v=equal", "v=ints"))]


@every(TIED)
def test_of_equal_maxima_the_first_wins_by_default_too(case: dict[str, Any]) -> None:
    np.testing.assert_array_equal(gradients(case)[0], golden.array(case["outputs"][0]))


@every([case for case in [*ANSWERED, *LACKING] if case not in TIED])
def test_default_gradients_are_true(case: dict[str, Any]) -> None:
    for ours, truth in zip(gradients(case), true_gradients(case), strict=True):
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, truth, rtol=1e-3, atol=5e-3)


@every(REFUSED)
def test_quirks_refuse_in_upstreams_words(case: dict[str, Any]) -> None:
    with tfjs.quirks(), pytest.raises(Exception) as caught:  # noqa: PT011 (the whole text is compared)
        gradients(case)
    assert str(caught.value) == case["error"]


@every([case for case in REFUSED if case not in LACKING])
def test_rules_are_refused_by_default_too(case: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        gradients(case)
    assert str(caught.value) == case["error"]


@both_modes
@every(REFUSALS)
def test_refusals_of_ops(case: dict[str, Any], mode: Any) -> None:
    call = recorded.refusal(case)
    if mode is nullcontext and "gradient function not found" in case["error"]:
        np.testing.assert_array_equal(call(), tfjs.grad(lambda x: tfjs.max_pool(x, 2, 1, "valid"))(np.ones((1, 3, 3, 1))))
        return
    with mode(), pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
        call()
    assert str(caught.value) == case["error"]


def test_the_check_judges_as_these_tests_do() -> None:
    outcomes = list(recorded.replay())
    assert len(outcomes) == recorded.size() == 91
    assert not [outcome for outcome in outcomes if outcome.verdict == "failed"]
    wrong = dict(ANSWERED[0], outputs=[dict(ANSWERED[0]["outputs"][0])])
    wrong["outputs"][0]["values"] = [value + 1 for value in wrong["outputs"][0]["values"]]
    assert recorded._judge_gradient(wrong).verdict == "failed"
    assert recorded._judge_refusal(REFUSALS[0] | {"error": "another"}).verdict == "failed"


@both_modes
def test_the_first_example(mode: Any) -> None:
    with mode():
        (dx,) = tfjs.grads(lambda x: tfjs.max_pool(x, 2, 1, "valid"))([X])
    np.testing.assert_array_equal(dx[0, :, :, 0], [[0, 0, 0], [0, 1, 1], [0, 1, 1]])


OPS: dict[str, Any] = {
    "max_pool": lambda x: tfjs.max_pool(x, [2, 3], [2, 1], "same"),
    "avg_pool": lambda x: tfjs.avg_pool(x, [2, 3], [1, 2], "same"),
    "avg_pool of empty windows": lambda x: anp.nan_to_num(tfjs.avg_pool(x, 1, 1, 2)),
    "max_pool_with_argmax": lambda x: tfjs.max_pool_with_argmax(x, 2, 1, "valid")[0],
    "dilated max": lambda x: tfjs.pool(x, 2, "max", "same", [2, 1]),
    "dilated mean": lambda x: tfjs.pool(x, [3, 2], "avg", "valid", [1, 2]),
    "conv2d": lambda x: tfjs.conv2d(x, np.full((2, 3, 2, 2), 0.5, np.float32), 1, "same", "NHWC", [2, 1]),
    "conv2d ceil": lambda x: tfjs.conv2d(x, np.full((2, 2, 2, 2), 0.5, np.float32), 2, 0, "NHWC", 1, "ceil"),
    "depthwise": lambda x: tfjs.depthwise_conv2d(x, np.full((2, 2, 2, 2), 0.5, np.float32), 1, "same", "NHWC", 2),
    "conv2d_transpose": lambda x: tfjs.conv2d_transpose(x, np.full((2, 2, 3, 2), 0.5, np.float32), [1, 6, 5, 3], 1, "valid"),
}


@pytest.mark.parametrize("name", OPS)
def test_higher_derivatives(name: str) -> None:
    """The gradient of a gradient, in float32: against differences of the gradient, which are exact enough for whole numbers."""
    rng = np.random.default_rng(0)
    x = rng.permutation(40).reshape(1, 5, 4, 2).astype(np.float32) / 8
    first = tfjs.grad(lambda x: anp.sum(OPS[name](x) ** 2))
    v, u = (rng.integers(-2, 3, x.shape).astype(np.float32) for _ in range(2))
    second = tfjs.grad(lambda x: anp.sum(first(x) * v))(x)
    step = np.float32(2.0**-6)
    change = np.sum((first(x + step * u).astype(np.float64) - first(x - step * u)) * v) / (2 * float(step))
    assert np.sum(second.astype(np.float64) * u) == pytest.approx(change, rel=1e-3, abs=1e-2)
    third = tfjs.grad(lambda x: anp.sum(tfjs.grad(lambda x: anp.sum(first(x) * v))(x) * x))(x)
    assert third.shape == x.shape


def test_conv3d_transpose_is_trained() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((2, 2, 3, 2), (2, 1, 2, 3, 2)))
    dy = rng.integers(-3, 4, (4, 2, 6, 3)).astype(np.float32)
    place = {"strides": [2, 1, 2], "pad": "same"}
    dx, dw = tfjs.grads(lambda x, w: tfjs.conv3d_transpose(x, w, dy.shape, **place))([x, w], dy)
    np.testing.assert_array_equal(dx, tfjs.conv3d(dy, w, **place))
    np.testing.assert_array_equal(dw, conv3d_backprop_filter(dy, x, w.shape, **place))


def test_dilation2d() -> None:
    rng = np.random.default_rng(1)
    x, w = rng.permutation(50).reshape(5, 5, 2).astype(np.float32), rng.integers(0, 3, (2, 2, 2)).astype(np.float32) / 4
    dy = rng.integers(-3, 4, x.shape).astype(np.float32)

    def f(x: Any, w: Any) -> Any:
        return tfjs.dilation2d(x, w, 1, "same")

    dx, dw = tfjs.grads(f)([x, w], dy)
    assert dx.sum() == dw.sum() == dy.sum()
    assert is_slope(lambda v: f(v, w), x, dy, dx, 0.125)
    assert is_slope(lambda v: f(x, v), w, dy, dw, 0.125)
    with pytest.raises(RuntimeError, match="gradient function not found for Dilation2DBackpropInput"):
        tfjs.grad(tfjs.grad(lambda x: f(x, w)))(x)


def test_pool_pads_a_dilated_window_with_zeros() -> None:
    np.testing.assert_array_equal(tfjs.pool(X, 2, "max", "same", 2).ravel(), [5, 6, 5, 8, 9, 8, 5, 6, 5])
    np.testing.assert_array_equal(tfjs.pool(-X, 2, "max", "same", 2).ravel(), [0, 0, 0, 0, -1, 0, 0, 0, 0])
    np.testing.assert_array_equal(tfjs.pool(X, 2, "max", 0), tfjs.max_pool(X, 2, 1, "valid"))
    with tfjs.quirks():
        np.testing.assert_array_equal(tfjs.pool(X, 2, "max", 1, 2).ravel(), [9])  # the pad is lost
    for arguments, says in (
        ((2, "max", 1, 2), "use 'same' or 'valid'"),
        ((2, "min", "valid"), "pooling type"),
        ((2, "max", "same", 2, 2), "Either strides or dilations must be 1"),
    ):
        with pytest.raises(ValueError, match=says):
            tfjs.pool(X, *arguments)


def test_variable_grads() -> None:
    w, bias = tfjs.variable(np.ones((2, 2, 1, 1), np.float32), name="w"), tfjs.variable(0.5, name="bias")
    fixed = tfjs.variable(2.0, trainable=False, name="fixed")

    def loss() -> Any:
        return anp.sum((tfjs.conv2d(X, w, 1, "valid") + bias.value) * fixed.value)

    value, grads = tfjs.variable_grads(loss)
    assert value == 2 * (80 + 2)
    assert set(grads) == {"w", "bias"}
    np.testing.assert_array_equal(grads["w"].ravel(), [24, 32, 48, 56])
    assert grads["bias"] == 8
    assert tfjs.variable_grads(loss, [bias, fixed]).grads == {"bias": 8, "fixed": None}
    w.assign(np.zeros((2, 2, 1, 1), np.float32))
    assert tfjs.variable_grads(loss).value == 4
    with pytest.raises(ValueError, match="already registered"):
        tfjs.variable(1.0, name="w")
    with pytest.raises(ValueError, match="shape of the new value"):
        w.assign(np.zeros(3, np.float32))
    with pytest.raises(TypeError, match="dtype of the new value"):
        w.assign(np.zeros((2, 2, 1, 1), np.int32))
    with pytest.raises(ValueError, match="must return a scalar, but it returned a rank-4"):
        tfjs.variable_grads(lambda: tfjs.conv2d(X, w, 1, "valid"))
    with pytest.raises(ValueError, match="must be an array of variables"):
        tfjs.variable_grads(loss, [X])  # type: ignore[list-item]


def test_custom_grad() -> None:
    runs = []

    def cube(x: Any, save: Any) -> Any:
        runs.append(x)
        save([x])
        return x * x * x, lambda dy, saved: dy * 3 * saved[0] ** 2

    op = tfjs.custom_grad(cube)
    x = np.array([1.0, 2.0], np.float32)
    np.testing.assert_array_equal(op(x), [1, 8])
    del runs[:]
    np.testing.assert_array_equal(tfjs.grad(op)(x), [3, 12])
    assert len(runs) == 1
    np.testing.assert_array_equal(tfjs.grad(tfjs.grad(op))(x), [6, 12])
    with pytest.raises(ValueError, match="must all be tensors"):
        op([1.0])
    with pytest.raises(TypeError, match="must have 'float32' dtype, but has 'int32'"):
        tfjs.grad(tfjs.custom_grad(lambda x, save: (x * x, lambda dy, saved: np.ones(2, np.int32))))(x)
    with pytest.raises(ValueError, match=r"`obj.gradFunc` is a function\."):
        tfjs.custom_grad(lambda x, save: (x * x, 3))(x)


def test_values_come_with_gradients() -> None:
    value, gradient = tfjs.value_and_grad(lambda x: tfjs.avg_pool(x, 3, 1, "valid"))(X)
    assert value == 5
    np.testing.assert_allclose(gradient, np.full_like(X, 1 / 9))
    result = tfjs.value_and_grads(lambda a, b: anp.sum(a * b))([X, 2 * X], np.float32(3))
    np.testing.assert_array_equal(result.grads[0], 6 * X)
    for dy, says in (([1.0], "dy passed in valueAndGrad"), (np.ones((1, 2, 1, 1), np.float32), "has shape 1,2,1,1")):
        with pytest.raises(ValueError, match=says):
            tfjs.value_and_grad(lambda x: tfjs.avg_pool(x, 3, 1, "valid"))(X, dy)


def test_an_unused_argument_is_refused() -> None:
    for f in (lambda a, b: X, lambda a, b: a * 2):
        with pytest.raises(ValueError, match=r"Cannot compute gradient of y=f\(x\)"):
            tfjs.grads(f)([X, X])
    with pytest.raises(TypeError, match="must be an array of"):
        tfjs.grads(lambda x: x)(X)


def test_a_registered_gradient_is_used() -> None:
    default = tfjs.get_gradient("MaxPool")
    assert default is not None
    seen = []

    def gradient(dy: Any, saved: list[Any], attrs: Any) -> Any:
        seen.append((saved[1].shape, attrs["pad"]))
        return {"x": lambda: anp.zeros(saved[0].shape, anp.float32)}

    tfjs.register_gradient(tfjs.GradConfig("MaxPool", gradient, ["x"], [True]))
    try:
        assert not tfjs.grad(lambda x: tfjs.max_pool(x, 2, 1, "valid"))(X).any()
        assert seen == [((1, 2, 2, 1), "valid")]
        tfjs.register_gradient(tfjs.GradConfig("MaxPool", lambda dy, saved, attrs: {}, save_all_inputs=True))
        with pytest.raises(ValueError, match="Cannot backprop through input x"):
            tfjs.grad(lambda x: tfjs.max_pool(x, 2, 1, "valid"))(X)
        tfjs.unregister_gradient("MaxPool")
        with pytest.raises(RuntimeError, match="gradient function not found for MaxPool"):
            tfjs.grad(lambda x: tfjs.max_pool(x, 2, 1, "valid"))(X)
    finally:
        tfjs.register_gradient(default)
    assert tfjs.grad(lambda x: tfjs.max_pool(x, 2, 1, "valid"))(X).sum() == 4


def test_a_kernel_of_the_users_own_is_differentiated() -> None:
    """Two outputs, both differentiable, and a gradient from a saved output: the derivative of exp is itself."""

    def both(*, inputs: Any, attrs: Any, backend: Any) -> Any:
        return np.exp(inputs["x"]), attrs["scale"] * inputs["x"]

    def gradient(dys: Any, saved: list[Any], attrs: Any) -> Any:
        return {"x": lambda: dys[0] * saved[0] + dys[1] * np.float32(attrs["scale"])}

    tfjs.register_kernel(tfjs.KernelConfig("Both", "cpu", both))
    tfjs.register_gradient(tfjs.GradConfig("Both", gradient, outputs_to_save=[True, False]))
    try:

        def f(x: Any) -> Any:
            exponential, scaled = tfjs.run_kernel("Both", {"x": x}, {"scale": np.float32(3)})
            return exponential + 2 * scaled

        np.testing.assert_allclose(tfjs.grad(f)(X), np.exp(X) + 6, rtol=1e-6)
        np.testing.assert_allclose(tfjs.grad(tfjs.grad(f))(X), np.exp(X), rtol=1e-6)
    finally:
        tfjs.unregister_kernel("Both", "cpu")
        tfjs.unregister_gradient("Both")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: tfjs.max_pool(None, 2, 1, "valid"), "must be a tensor or numbers, but got NoneType"),
        (lambda: tfjs.max_pool([[1.0], [1.0, 2.0]], 2, 1, "valid"), "maxPool: x is not an array"),
        (lambda: tfjs.max_pool(X, 2, None, "valid"), "strides must be a number"),
        (lambda: tfjs.max_pool(X, 2, 1, None), "Unknown padding parameter: undefined"),
        (lambda: tfjs.max_pool(X, 2, 1, [[0, 0], [1, 0.5], [0, 0], [0, 0]], "floor"), "got pad 0.5"),
        (lambda: tfjs.max_pool3d(X, 2, 0, "valid"), "Stride must be > 0, but got '0'"),
        (lambda: tfjs.conv2d(X, np.ones((2, 2, 1, 1)), None, "same"), "Strides should be larger than 0"),
        (lambda: tfjs.conv2d(X, np.ones((2, 2, 1, 1)), 1, "same", "HWCN"), "Unknown dataFormat HWCN"),
        (lambda: tfjs.conv2d_transpose(X, np.ones((2, 2, 1, 1)), 4, 1, "valid"), "inShape must be a list of sizes, but got 4"),
        (lambda: conv3d_backprop_filter(X, X, 3, 1, "same"), "filterShape must be a list of sizes, but got 3"),
        (lambda: tfjs.depthwise_conv2d(X, np.ones((2, 2, 3, 1)), 1, "same"), r"input channels \(1\) must match"),
        (lambda: tfjs.dilation2d(X, np.ones((2, 2, 1)), 1, "same", 1, "NCHW"), "Only NHWC"),
        (lambda: tfjs.pool(X, 2, "max", np.ones((4, 2)), 2), "use 'same' or 'valid'|pad must hold whole"),
        (lambda: tfjs.variable("text"), "dtype"),
    ],
)
def test_other_refusals(call: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        call()


def test_lists_are_tensors_and_other_floats_become_float32() -> None:
    assert tfjs.avg_pool([[[1], [3]], [[5], [7]]], 2, 1, "valid").tolist() == [[[4.0]]]
    assert (
        tfjs.grad(lambda x: tfjs.conv2d(x * 2.0, np.ones((2, 2, 1, 1)), 1, "valid"))(X.astype(np.float64)).dtype == np.float32
    )
    kernel = tfjs.max_pool(inputs={"x": X}, attrs={"filterSize": 2, "strides": 1, "pad": "valid"})
    np.testing.assert_array_equal(kernel, tfjs.max_pool(X, 2, 1, "valid"))
