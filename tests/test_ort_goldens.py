"""The ORT dialect against answers recorded from ONNX Runtime 1.19.2: value for value in quirks, mended by default."""

import numpy as np
import pytest

from pullback import golden, ort
from pullback.rules import Array

AVERAGE = golden.load("ort", "averagepool_grad")
MAXIMUM = golden.load("ort", "maxpool_grad")
CONV = golden.load("ort", "conv_grad")
ERRORS = golden.load("ort", "errors")


def named(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda case: case["name"])


def tensors(case, key):
    return golden.arrays(case.get(key, {}))


def assert_close(got: Array, expected: Array, relative: float) -> None:
    """Norm-wise: the largest error against the largest entry."""
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(got, expected, rtol=0, atol=relative * scale)


def assert_same_bits(got: Array, expected: Array) -> None:
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


def first_sentence(error: str) -> str:
    """The part of a recorded error that is the sentence itself, without status codes and source positions."""
    text = error.strip().rsplit(" was false. ", 1)
    text = text[1] if len(text) == 2 and text[1] else text[0].rsplit("Status Message: ", 1)[-1]
    for marker in (", Error ", "NOT_IMPLEMENTED : ", "This is an invalid model. ", "= float] "):
        text = text.rsplit(marker, 1)[-1]
    return text.strip()


@named(AVERAGE)
def test_average_pool_quirks(case):
    given, expected = tensors(case, "inputs"), tensors(case, "outputs")
    with ort.quirks():
        y = ort.average_pool({"X": given["X"]}, case["attrs"], opset=case["opset"])
        dx = ort.average_pool_grad({"dY": given["dY"]}, case["attrs"], opset=case["opset"], output_shape=given["X"].shape)
    assert_close(y, expected["Y"], 1e-6)
    assert_same_bits(dx, expected["dX"])


def drops_last_window(case):
    return case["name"].endswith("ceil_empty_last")


def divides_by_padded(case):
    return bool(case["attrs"].get("ceil_mode") and case["attrs"]["count_include_pad"])


@named(AVERAGE)
def test_average_pool_default(case):
    """Recorded values where upstream is right; where a rule changed, the gradient is the adjoint of the forward op."""
    given, expected = tensors(case, "inputs"), tensors(case, "outputs") | tensors(case, "true_outputs")
    x, dy, attrs, opset = given["X"], given["dY"], case["attrs"], case["opset"]
    y = ort.average_pool({"X": x}, attrs, opset=opset)
    dx = ort.average_pool_grad({"dY": dy}, attrs, opset=opset, output_shape=x.shape)
    inside = tuple(map(slice, y.shape))
    if not divides_by_padded(case):
        assert_close(y, expected["Y"][inside], 1e-6)
        assert_close(dx, expected["dX"], 1e-6)
    if drops_last_window(case):
        assert y.shape < dy.shape
    else:
        assert y.shape == dy.shape
    v = np.random.default_rng(len(case["name"])).standard_normal(x.shape)
    forward = ort.average_pool({"X": v}, attrs, opset=opset)
    gradient = ort.average_pool_grad({"dY": dy.astype(np.float64)}, attrs, opset=opset, output_shape=x.shape)
    np.testing.assert_allclose(np.vdot(forward, dy[inside]), np.vdot(v, gradient), rtol=1e-12, atol=1e-12)


def test_the_divisor_rule_matters():
    """The goldens hold cases where dividing by the padded part differs from dividing by the kernel."""
    cases = [case for case in AVERAGE if divides_by_padded(case)]
    differing = 0
    for case in cases:
        y = ort.average_pool({"X": tensors(case, "inputs")["X"]}, case["attrs"], opset=case["opset"])
        differing += y.shape == tensors(case, "outputs")["Y"].shape and not np.allclose(y, tensors(case, "outputs")["Y"])
    assert differing == sum(case["check"].get("Y_vs_torch") is False for case in cases) > 0


@named(MAXIMUM)
def test_max_pool_quirks(case):
    given, expected = tensors(case, "inputs"), tensors(case, "outputs")
    with ort.quirks():
        y, indices = ort.max_pool({"X": given["X"]}, case["attrs"], opset=case["opset"])
        gradient = {"dY": given["dY"], "Indices": expected["Indices"]}
        if "error" in case:
            with pytest.raises(ValueError, match=r"No Op registered|out of range"):
                ort.max_pool_grad(gradient, case["attrs"], opset=case["opset"], output_shape=given["X"].shape)
        else:
            dx = ort.max_pool_grad(gradient, case["attrs"], opset=case["opset"], output_shape=given["X"].shape)
            assert_same_bits(dx, expected["dX"])
    assert_same_bits(y, expected["Y"])
    assert_same_bits(indices, expected["Indices"])


@named(MAXIMUM)
def test_max_pool_default(case):
    given, expected = tensors(case, "inputs"), tensors(case, "outputs") | tensors(case, "true_outputs")
    x, dy, attrs = given["X"], given["dY"], case["attrs"]
    opset = max(case["opset"], 9)  # one forward case is recorded below the gradient's first opset
    y, indices = ort.max_pool({"X": x}, attrs, opset=case["opset"])
    inside = tuple(map(slice, y.shape))
    if not case["name"].endswith("_nan"):
        assert_same_bits(y, expected["Y"][inside])
        assert_same_bits(indices, expected["Indices"][inside])
    else:
        assert np.isnan(y).any()
    dx = ort.max_pool_grad({"dY": dy[inside], "indices": indices}, attrs, opset=opset, output_shape=(None, *x.shape[1:]))
    if "dX" in expected:
        assert_close(dx, expected["dX"], 1e-6)  # summed in float64 here, in float32 upstream
    assert (y.shape != dy.shape) == drops_last_window(case)
    # Each dY lands on a cell that holds the maximum itself.
    assert dx.sum(dtype=np.float64) == pytest.approx(dy[inside].sum(dtype=np.float64), abs=1e-4)
    assert set(y[~np.isnan(y)].flat) <= set(x[~np.isnan(x)].flat)


@named(CONV)
def test_conv_quirks(case):
    given, expected = tensors(case, "inputs"), tensors(case, "outputs")
    defined = [name for name in expected if name != "Y" and name not in case.get("undefined_outputs", ())]
    gradient = {name: given[name] for name in ("dY", "X", "W")}
    with ort.quirks():
        y = ort.conv({name: array for name, array in given.items() if name != "dY"}, case["attrs"], opset=case["opset"])
        results = dict(zip(("dX", "dW", "dB"), ort.conv_grad(gradient, case["attrs"], outputs=defined), strict=True))
        if case.get("undefined_outputs"):
            with pytest.raises(ValueError, match=r"undefined .*outputs=\(\"dX\", \"dB\"\)"):
                ort.conv_grad(gradient, case["attrs"])
    assert_close(y, expected["Y"], 1e-5)
    for name, got in results.items():
        if name in defined:
            assert_close(got, expected[name], 1e-5)
        else:
            assert got is None


@named(CONV)
def test_conv_default(case):
    given, expected = tensors(case, "inputs"), tensors(case, "outputs") | tensors(case, "true_outputs")
    y = ort.conv({name: array for name, array in given.items() if name != "dY"}, case["attrs"], opset=case["opset"])
    results = ort.conv_grad({name: given[name] for name in ("dY", "X", "W")}, case["attrs"])
    assert_close(y, expected["Y"], 1e-5)
    for name, got in zip(("dX", "dW", "dB"), results, strict=True):
        if name in expected:
            assert_close(got, expected[name], 1e-5)
    dx, dw, db = results
    assert (dx.shape, dw.shape, db.shape) == (given["X"].shape, given["W"].shape, given["W"].shape[:1])


def run_recorded(case):
    op, declared = case["op"], case["declared"]
    keywords = {"opset": case["opset"]}
    if "Pool" in op and "Grad" in op and declared["dX"] != "noshape":
        keywords["output_shape"] = declared["dX"]
    result = ort.run_kernel(op, tensors(case, "inputs"), case["attrs"], **keywords)
    names = {"MaxPool": ("Y", "Indices"), "com.microsoft.ConvGrad": ("dX", "dW", "dB")}.get(op)
    return dict(zip(names, result, strict=True)) if names else {"dX" if "Grad" in op else "Y": result}


@named(ERRORS)
def test_refusals_quirks(case):
    with ort.quirks():
        if "error" not in case:
            got = run_recorded(case)
            for name, expected in tensors(case, "outputs").items():
                assert_same_bits(got[name], expected)
            return
        with pytest.raises((ValueError, TypeError, NotImplementedError)) as refusal:
            run_recorded(case)
    recorded = case["error"].get("error", "")
    assert first_sentence(recorded) in str(refusal.value)
    assert ("NOT_IMPLEMENTED" in recorded) == (refusal.type is NotImplementedError)
    assert ("Type Error" in recorded) == (refusal.type is TypeError)


MENDED = {
    "mpg_double": "float64 works",
    "apg_double": "float64 works",
    "ap_double": "float64 works",
    "apg_declared_batch_1_fed_2": "refused",
    "apg_auto_pad_ignored": "auto_pad counts",
    "apg_dX_inconsistent_smaller": "refused",
    "mp_storage_order_2": "refused",
}


@named(ERRORS)
def test_refusals_default(case):
    outcome = MENDED.get(case["name"])
    if outcome == "refused" or (outcome is None and "error" in case):
        with pytest.raises((ValueError, TypeError, NotImplementedError)):
            run_recorded(case)
        return
    got = run_recorded(case)
    if outcome is None:
        for name, expected in tensors(case, "outputs").items():
            assert_same_bits(got[name], expected)
    elif outcome == "float64 works":
        (result,) = got.values()
        assert result.dtype == np.float64
        inputs = {
            name: tensor | {"dtype": tensor["dtype"].replace("float64", "float32")} for name, tensor in case["inputs"].items()
        }
        single = case | {"inputs": inputs}
        np.testing.assert_array_equal(result, *run_recorded(single).values())
    else:
        # SAME_UPPER pads one cell on each side here, so the corner windows hold four cells and share them.
        np.testing.assert_array_equal(got["dX"][0, 0], np.array([[1, 3, 2], [4, 10, 6], [3, 7, 4]]) / 4)
