"""Code ported from TF.js: its spelling, its configs, misspelt attributes, and a small network with relu that trains."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from test_tfjs_bad_input import VALID

from pullback import KernelError, tfjs
from pullback.tfjs import camel_case
from pullback.tfjs.attributes import OF_SOME_KERNEL

X = np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1)
POOL = {"filterSize": 2, "strides": 2, "pad": "valid"}


@pytest.mark.parametrize("kernel", VALID)
def test_a_misspelt_attribute_is_named_with_the_right_one(kernel: str) -> None:
    inputs, attrs = VALID[kernel]
    shapes = {"inputShape": "inputshape", "filterShape": "filter_shape"}
    misspelt = {"filterSize": "filter_size", "strides": "stride", "pad": "padding", **shapes}
    for name, wrong in misspelt.items():
        if name not in attrs:
            continue
        rest = {key: value for key, value in attrs.items() if key != name}
        meant = rf"^{kernel}: there is no attribute '{wrong}'; did you mean '{name}'\? The attributes of {kernel} are .*{name}"
        with pytest.raises(ValueError, match=meant):
            tfjs.run_kernel(kernel, inputs, rest | {wrong: attrs[name]})


def test_the_whole_sentence() -> None:
    with pytest.raises(ValueError, match="stride") as caught:
        tfjs.run_kernel("MaxPool", {"x": X}, {"filterSize": 2, "stride": 2, "pad": "valid"})
    assert str(caught.value) == (
        "MaxPool: there is no attribute 'stride'; did you mean 'strides'? "
        "The attributes of MaxPool are filterSize, strides, pad, dimRoundingMode"
    )
    with pytest.raises(ValueError, match=r"^MaxPool: there is no attribute 'zzz'\. The attributes of MaxPool are filterSize"):
        tfjs.run_kernel("MaxPool", {"x": X}, POOL | {"zzz": 1})
    with pytest.raises(ValueError, match=r"^Relu: there is no attribute 'zzz'\. There are none$"):
        tfjs.run_kernel("Relu", {"x": X}, {"zzz": 1})


def test_an_attribute_that_may_be_left_out_is_not_lost() -> None:
    """The dilation here was ignored, and the answer that of an undilated convolution."""
    attrs = {"strides": 1, "pad": "valid", "dilation": 2}
    with pytest.raises(ValueError, match="did you mean 'dilations'"):
        tfjs.run_kernel("DepthwiseConv2dNative", {"x": X, "filter": np.ones((2, 2, 1, 1), np.float32)}, attrs)


def test_attributes_of_other_kernels_are_ignored_as_there() -> None:
    expected = tfjs.run_kernel("MaxPool", {"x": X}, POOL)
    elsewhere = dict.fromkeys(OF_SOME_KERNEL - {"filterSize", "strides", "pad", "dimRoundingMode"}, 3)
    assert {"dilations", "dataFormat", "activation", "alpha", "keepDims"} <= elsewhere.keys()
    assert np.array_equal(tfjs.run_kernel("MaxPool", {"x": X}, POOL | elsewhere), expected)
    assert np.array_equal(tfjs.run_kernel("MaxPool", {"x": X}, POOL | {"not_given": None}), expected)
    with tfjs.quirks():
        assert np.array_equal(tfjs.run_kernel("MaxPool", {"x": X}, POOL | {"anything": 1}), expected)
    dx = tfjs.grad(lambda x: tfjs.run_kernel("MaxPool", {"x": x}, POOL | elsewhere))(X)  # handed on to MaxPoolGrad
    assert dx.sum() == 4


def double(*, inputs: Any, attrs: Any, backend: Any = None) -> Any:
    return inputs["x"] * np.float32(attrs["factor"])


@pytest.fixture
def doubling() -> Iterator[dict[str, Any]]:
    config = {"kernelName": "Double", "backendName": "cpu", "kernelFunc": double}
    yield config
    if tfjs.get_kernel("Double", "cpu") is not None:
        tfjs.unregister_kernel("Double", "cpu")
    if tfjs.get_gradient("Double") is not None:
        tfjs.unregister_gradient("Double")


def test_configs_as_tfjs_writes_them(doubling: dict[str, Any]) -> None:
    tfjs.registerKernel(doubling)
    assert tfjs.getKernel("Double", "cpu") == tfjs.KernelConfig("Double", "cpu", double)
    assert np.array_equal(tfjs.runKernel("Double", {"x": X}, {"factor": 2}), 2 * X)
    tfjs.registerGradient(
        {
            "kernelName": "Double",
            "inputsToSave": ["x"],
            "gradFunc": lambda dy, saved, attrs: {"x": lambda: dy * np.float32(attrs["factor"]) + 0 * saved[0]},
        }
    )
    assert (tfjs.grad(lambda x: tfjs.runKernel("Double", {"x": x}, {"factor": 3}))(X) == 3).all()
    tfjs.unregisterGradient("Double")
    with pytest.raises(KernelError, match="gradient function not found for Double"):
        tfjs.grad(lambda x: tfjs.runKernel("Double", {"x": x}, {"factor": 3}))(X)


def test_hooks_and_our_names_in_a_dict(doubling: dict[str, Any]) -> None:
    seen: list[Any] = []
    tfjs.register_kernel({"kernel_name": "Double", "backend_name": "cpu", "kernel_func": double, "setupFunc": seen.append})
    tfjs.set_backend("cpu")
    assert seen == [tfjs.find_backend("cpu")]


@pytest.mark.parametrize(
    ("change", "error", "complaint"),
    [
        ({"kernel": "Double"}, ValueError, "no 'kernel' in a config; did you mean 'kernel(Name|Func)'"),
        ({"kernelFunc": 3}, TypeError, "kernelFunc must be a function, not 3"),
        ({"kernelFunc": None}, ValueError, "the config lacks kernelFunc; it has 'kernelName', 'backendName', 'kernelFunc'"),
        (
            {7: 3},
            ValueError,
            r"there is no 7 in a config\. Its names are kernelName, backendName, kernelFunc, setupFunc",
        ),
    ],
)
def test_wrong_configs(doubling: dict[str, Any], change: dict[Any, Any], error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=f"^register_kernel: .*{complaint}"):
        tfjs.register_kernel(doubling | change)
    assert tfjs.get_kernel("Double", "cpu") is None


def test_what_is_no_config() -> None:
    with pytest.raises(TypeError, match=r"^register_kernel: the config must be a KernelConfig or a dict, not 'Double'$"):
        tfjs.register_kernel("Double")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^register_gradient: the config lacks kernelName, gradFunc; it has nothing$"):
        tfjs.register_gradient({})
    with pytest.raises(ValueError, match="'inputToSave' in a config; did you mean 'inputsToSave'"):
        tfjs.register_gradient({"kernelName": "Double", "gradFunc": double, "inputToSave": ["x"]})


def test_every_name_in_tfjs_spelling_is_ours() -> None:
    for name in camel_case.__all__:
        ours = re.sub(r"(?=[A-Z])", "_", name).lower()
        assert ours != name
        assert getattr(tfjs, name) is getattr(tfjs, ours)
        assert {name, ours} <= set(tfjs.__all__)
    assert {"registerKernel", "unregisterKernel", "getKernel", "getKernelsForBackend", "runKernel"} <= set(camel_case.__all__)
    assert {"registerGradient", "unregisterGradient", "getGradient", "copyRegisteredKernels"} <= set(camel_case.__all__)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_relu(backend: str) -> None:
    for x in ([-1.5, -0.0, 0.0, 2.5, np.inf, -np.inf, np.nan], [3, -2, 0, 7, 1, 1, -9]):  # the second call is remembered
        values = np.array(x, np.float32)
        y = tfjs.run_kernel("Relu", {"x": values}, {}, backend)
        np.testing.assert_array_equal(y, np.where(values <= 0, 0, values))
        assert y.dtype == np.float32
        assert not np.signbit(y[values <= 0]).any()
    assert tfjs.relu(np.array([[-3, 4]])).tolist() == [[0, 4]]
    assert tfjs.relu(np.array([[-3, 4]])).dtype == np.int32
    assert tfjs.relu(inputs={"x": np.array([True, False])}, attrs={}).tolist() == [True, False]
    with pytest.raises(TypeError, match=r"^Relu does not support complex64 tensors in the CPU backend\.$"):
        tfjs.run_kernel("Relu", {"x": np.array([1j])}, {}, backend)


def test_gradients_of_relu() -> None:
    x, dy = np.array([-1, -0.0, 0, 2, np.nan], np.float32), np.array([1, 2, 3, 4, 5], np.float32)
    np.testing.assert_array_equal(tfjs.grad(tfjs.relu)(x, dy), np.array([0, 0, 0, 4, np.nan], np.float32))
    with np.errstate(all="raise"):  # TF.js multiplies by the slope
        assert np.isnan(tfjs.grad(tfjs.relu)(np.float32([-1]), np.float32([np.inf]))).all()
    twice = tfjs.grad(lambda v: anp.sum(tfjs.grad(lambda u: anp.sum(tfjs.relu(u) ** 3))(v)))
    np.testing.assert_array_equal(twice(np.array([-2, 1, 3], np.float32)), [0, 6, 18])
    assert tfjs.get_gradient("Relu") is not None


def test_a_small_network_trains() -> None:
    """Which of two images holds a bar, by a convolution, relu, a pool and the mean of what is left."""
    rng = np.random.default_rng(4)
    images = rng.normal(0, 0.1, (8, 6, 6, 1)).astype(np.float32)
    wanted = np.arange(8) % 2
    images[wanted == 1, :, 2:4] += 1
    filters = tfjs.variable(rng.normal(0, 0.3, (3, 3, 1, 2)).astype(np.float32))
    weights = tfjs.variable(rng.normal(0, 0.3, (2,)).astype(np.float32))

    def loss() -> Any:
        pooled = tfjs.maxPool(tfjs.relu(tfjs.conv2d(images, filters, 1, "valid")), 2, 2, "valid")
        return anp.mean((anp.mean(pooled, (1, 2)) @ weights.value - wanted) ** 2)

    losses = []
    for _ in range(40):
        value, gradients = tfjs.variableGrads(loss)
        losses.append(float(value))
        for each in (filters, weights):
            each.assign(each.value - 0.2 * gradients[each.name])
    assert losses[-1] < 0.1 * losses[0]
