"""How the ORT dialect finds a kernel: names, domains, versions, types, registration, and the two voices."""

import contextlib
import threading

import ml_dtypes
import numpy as np
import pytest

from pullback import ort

X = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
DY = np.ones((1, 1, 2, 2), np.float32)
INDICES = np.array([0, 5, 10, 15]).reshape(1, 1, 2, 2)
POOL = {"kernel_shape": [2, 2], "strides": [2, 2]}

default = contextlib.nullcontext


def call(op, dtype=np.float32, **keywords):
    """A valid call of an operator in a dtype."""
    x, dy, w = (a.astype(dtype) for a in (X, DY, np.ones((1, 1, 3, 3))))
    shape = X.shape
    calls = {
        "MaxPool": ({"X": x}, POOL, {}),
        "AveragePool": ({"X": x}, POOL, {}),
        "Conv": ({"X": x, "W": w}, {}, {}),
        "MaxPoolGrad": ({"dY": dy, "Indices": INDICES}, {}, {"output_shape": shape}),
        "AveragePoolGrad": ({"dY": dy}, POOL, {"output_shape": shape}),
        "ConvGrad": ({"dY": dy, "X": x, "W": w}, {}, {}),
        "ConvTransposeGrad": ({"dY": dy, "X": dy, "W": w}, {}, {}),
    }
    inputs, attrs, extra = calls[op.replace("::", ".").rpartition(".")[2]]
    return ort.run_kernel(op, inputs, attrs, **extra, **keywords)


def first(result):
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("name", ["ConvGrad", "com.microsoft.ConvGrad", "com.microsoft::ConvGrad"])
def test_names_with_a_domain(name):
    for got, expected in zip(call(name), call("ConvGrad", domain="com.microsoft"), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", ["ai.onnx::MaxPoolGrad", "ai.onnx.MaxPoolGrad", "MaxPoolGrad"])
@pytest.mark.parametrize("domain", [None, "", "ai.onnx"])
def test_names_of_the_default_domain(name, domain):
    np.testing.assert_array_equal(call(name, domain=domain), call("MaxPoolGrad"))


@pytest.mark.parametrize("context", [default, ort.quirks])
@pytest.mark.parametrize(
    ("op", "keywords", "message"),
    [
        ("MaxPoolGrad", {"opset": 8}, "No Op registered for MaxPoolGrad with domain_version of 8"),
        ("AveragePoolGrad", {"opset": 8}, "No Op registered for AveragePoolGrad with domain_version of 8"),
        ("MaxPoolGrad", {"domain": "com.microsoft"}, r"com\.microsoft:MaxPoolGrad\(-1\) is not a registered function/op"),
        ("com.microsoft::Conv", {}, r"com\.microsoft:Conv\(-1\) is not a registered function/op"),
        ("Conv", {"domain": "acme"}, r"acme:Conv\(-1\) is not a registered function/op"),
        ("ConvGrad", {"domain": "", "opset": 17}, "No Op registered for ConvGrad with domain_version of 17"),
        ("Conv", {"opset": 0}, "opset 0"),
        ("Conv", {"opset": 23}, "opset 23"),
    ],
)
def test_unregistered_operators(context, op, keywords, message):
    with context(), pytest.raises(ValueError, match=message):
        call(op, **keywords)


def test_unknown_operator():
    with pytest.raises(ValueError, match="No Op registered for LpPool with domain_version of 17"):
        ort.run_kernel("LpPool", {"X": X}, opset=17)
    with pytest.raises(TypeError, match="op_type"):
        ort.run_kernel(None, {})


def test_quirks_know_opset_21_at_most():
    assert call("Conv", opset=22) is not None
    with ort.quirks(), pytest.raises(ValueError, match="till opset 21"):
        call("Conv", opset=22)


@pytest.mark.parametrize("opset", [9, 17, 21])
def test_gradients_load_from_opset_9(opset):
    with ort.quirks():
        assert call("MaxPoolGrad", opset=opset).shape == X.shape
        assert call("AveragePoolGrad", opset=opset).shape == X.shape


UPSTREAM_TYPES = {
    ("MaxPool", 17, "float64"): None,
    ("MaxPool", 7, "float64"): "MaxPool(1)",
    ("AveragePool", 17, "float64"): "AveragePool(11)",
    ("AveragePool", 19, "float64"): "AveragePool(19)",
    ("Conv", 17, "float64"): "Conv(11)",
    ("MaxPoolGrad", 17, "float64"): "MaxPoolGrad(9)",
    ("AveragePoolGrad", 17, "float64"): "AveragePoolGrad(9)",
    ("ConvGrad", 17, "float64"): "ConvGrad(1)",
    ("ConvTransposeGrad", 17, "float32"): "ConvTransposeGrad(1)",
    ("MaxPoolGrad", 17, "float16"): "MaxPoolGrad(9)",
    ("AveragePoolGrad", 17, "float16"): "AveragePoolGrad(9)",
    ("ConvGrad", 17, "float16"): None,
    ("Conv", 17, "float16"): None,
    ("MaxPool", 17, "float16"): None,
    ("AveragePool", 17, "float16"): None,
}


@pytest.mark.parametrize(("op", "opset", "dtype"), UPSTREAM_TYPES)
def test_types(op, opset, dtype):
    """Upstream's type limits hold in quirks only; what works by default equals the float32 answer."""
    lacking = UPSTREAM_TYPES[op, opset, dtype]
    with ort.quirks():
        if lacking is None:
            result = first(call(op, dtype, opset=opset))
            assert result.dtype == dtype
            np.testing.assert_array_equal(result, first(call(op, opset=opset)))
        else:
            with pytest.raises(NotImplementedError) as refusal:
                call(op, dtype, opset=opset)
            assert str(refusal.value) == f"Could not find an implementation for {lacking} node with name ''"
    if op == "ConvTransposeGrad":
        with pytest.raises(NotImplementedError):
            call(op, dtype, opset=opset)
    else:
        result = first(call(op, dtype, opset=opset))
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, first(call(op, opset=opset)))


@pytest.mark.parametrize("op", ["MaxPoolGrad", "AveragePoolGrad", "ConvGrad", "Conv", "MaxPool", "AveragePool"])
def test_bfloat16_by_default(op):
    result = first(call(op, ml_dtypes.bfloat16))
    assert result.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(result.astype(np.float32), first(call(op)))
    with ort.quirks(), pytest.raises(TypeError, match=r"tensor\(bfloat16\)"):
        call(op, ml_dtypes.bfloat16)


def test_version_sets_the_attributes_and_outputs():
    dilated = POOL | {"dilations": [1, 1]}
    with pytest.raises(ValueError, match="Unrecognized attribute: dilations for operator AveragePool"):
        ort.average_pool({"X": X}, dilated, opset=18)
    assert ort.average_pool({"X": X}, dilated, opset=19).shape == (1, 1, 2, 2)
    with pytest.raises(ValueError, match="Unrecognized attribute: storage_order"):
        ort.max_pool({"X": X}, POOL | {"storage_order": 1}, opset=7)
    y, indices = ort.max_pool({"X": X}, POOL, opset=7)
    assert indices is None
    np.testing.assert_array_equal(y, ort.max_pool({"X": X}, POOL)[0])
    with pytest.raises(ValueError, match="choose from Y"):
        ort.max_pool({"X": X}, POOL, opset=7, outputs=("Y", "Indices"))
    with pytest.raises(NotImplementedError, match=r"AveragePool\(1\)"):
        ort.average_pool({"X": X}, POOL, opset=6)


def test_a_misspelt_attribute_is_named_with_the_right_one():
    for run in (ort.max_pool, ort.average_pool):
        with pytest.raises(ValueError, match=r"^Unrecognized attribute: stride for .*; did you mean 'strides'\? Its .* pads"):
            run({"X": X}, {"kernel_shape": [2, 2], "stride": [2, 2]})
    with pytest.raises(
        ValueError, match=r"padding for operator Conv .* did you mean 'pads'\? Its attributes are auto_.* group$"
    ):
        ort.conv({"X": X, "W": np.ones((1, 1, 3, 3), np.float32)}, {"padding": [1, 1, 1, 1]})
    with pytest.raises(ValueError, match=r"dilations for operator AveragePool .*; it has this attribute since opset 19$"):
        ort.average_pool({"X": X}, POOL | {"dilations": [1, 1]}, opset=18)
    with pytest.raises(
        ValueError, match=r"foo for operator MaxPool .version 8.\. Its attributes are auto_pad, .*, storage_order$"
    ):
        ort.max_pool({"X": X}, POOL | {"foo": 1}, opset=8)


def test_gradients_let_through_what_is_no_misspelling():
    """Upstream reads nothing of it; a lost stride would be another gradient."""
    wrong = {"kernel_shape": [2, 2], "stride": [2, 2]}
    with pytest.raises(ValueError, match=r"stride for operator AveragePoolGrad .*; did you mean 'strides'"):
        ort.average_pool_grad({"dY": DY}, wrong, output_shape=X.shape)
    with pytest.raises(ValueError, match=r"groups for operator ConvGrad .*; did you mean 'group'"):
        ort.conv_grad({"dY": DY, "X": X, "W": np.ones((1, 1, 3, 3), np.float32)}, {"groups": 1})
    expected = ort.average_pool_grad({"dY": DY}, POOL, output_shape=X.shape)
    for more in ({"foo": 3}, {"storage_order": 0}, {"stride": [7, 7]}, {"__backwardpass": 1}):  # beside the right strides
        np.testing.assert_array_equal(ort.average_pool_grad({"dY": DY}, POOL | more, output_shape=X.shape), expected)
    with ort.quirks():
        ort.average_pool_grad({"dY": np.ones((1, 1, 3, 3), np.float32)}, wrong, output_shape=X.shape)


def test_bytes_since_version_12():
    x = np.array([[[-128, -128, 3, 2]]], np.int8)
    attrs = {"kernel_shape": [2], "strides": [2]}
    y, indices = ort.max_pool({"X": x}, attrs, opset=12)
    assert y.dtype == np.int8
    np.testing.assert_array_equal(y, [[[-128, 3]]])
    np.testing.assert_array_equal(indices, [[[0, 2]]])
    with ort.quirks():
        np.testing.assert_array_equal(ort.max_pool({"X": x}, attrs, opset=12)[1], [[[-1, 2]]])
    with pytest.raises(TypeError, match=r"tensor\(int8\)"):
        ort.max_pool({"X": x}, attrs, opset=11)


@contextlib.contextmanager
def registered(kernel, **keywords):
    ort.register_kernel(kernel, **keywords)
    try:
        yield
    finally:
        ort.unregister_kernel(kernel, **keywords)


def test_a_kernel_of_ones_own():
    kernel = ort.KernelDef("com.microsoft", "ConvTransposeGrad", 1, None, {"T": ("float32",)}, lambda node: node.wanted)
    with registered(kernel):
        assert ort.find_kernel("com.microsoft", "ConvTransposeGrad", None, {"T": np.float32}) is kernel
        assert call("ConvTransposeGrad", outputs=["dW"]) == {"dW"}
        with pytest.raises(NotImplementedError):
            call("ConvTransposeGrad", np.float64)
        with ort.quirks(), pytest.raises(NotImplementedError):
            call("ConvTransposeGrad")
    with registered(kernel, quirks=True), ort.quirks():
        assert call("ConvTransposeGrad", outputs="dX") == {"dX"}
    with pytest.raises(NotImplementedError):
        call("ConvTransposeGrad")


def test_conflicting_kernels_are_refused():
    kernel = ort.KernelDef("", "AveragePool", 11, 11, {"T": ("float32", "int32")}, print)
    with pytest.raises(ValueError, match="Conflicting with a registered kernel"):
        ort.register_kernel(kernel)
    older = ort.KernelDef("", "AveragePool", 1, 6, {"T": ("float32",)}, lambda node: node.op_type)
    with registered(older):
        assert call("AveragePool", opset=6) == "AveragePool"
        assert first(call("AveragePool", opset=7)).shape == (1, 1, 2, 2)
    with pytest.raises(ValueError, match="unregister_kernel: no kernel for AveragePool 1"):
        ort.unregister_kernel(older)


def test_versions_and_types_choose_the_kernel():
    in_range = ort.find_kernel("", "MaxPool", 11, {"T": "float32"})
    assert (in_range.since_version, in_range.end_version) == (1, 11)
    assert ort.find_kernel("", "MaxPool", 12, {"T": "uint8"}).since_version == 12
    assert ort.find_kernel(None, "MaxPool", None, {"T": "float16"}).since_version == 22
    with ort.quirks():
        assert ort.find_kernel("", "MaxPool", 11, {"T": "float64"}).since_version == 8
    with pytest.raises(NotImplementedError, match=r"MaxPool\(11\)"):
        ort.find_kernel("", "MaxPool", 11, {"T": "uint8"})
    # An open-ended kernel serves the version it starts at, not one it has never heard of.
    assert not ort.KernelDef("", "Conv", 11, None, {}, print).serves(22)


def test_quirks_nest_and_end():
    seen = []

    def in_quirks():
        try:
            call("MaxPoolGrad", np.float64)
        except NotImplementedError:
            return True
        return False

    with ort.quirks():
        with ort.quirks():
            assert in_quirks()
        assert in_quirks()
        thread = threading.Thread(target=lambda: seen.append(in_quirks()))
        thread.start()
        thread.join()
    assert not in_quirks()
    with pytest.raises(RuntimeError), ort.quirks():
        raise RuntimeError
    assert not in_quirks()
    assert seen == [False]  # a new thread starts in the default voice
