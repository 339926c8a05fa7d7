"""The rules of the ORT dialect that no recorded case shows: geometry, windows without winner, trust, dtypes, memory."""

import contextlib

import numpy as np
import pytest

import pullback
from pullback import ort

LOWEST = np.finfo(np.float32).min
MODES = pytest.mark.parametrize("context", [contextlib.nullcontext, ort.quirks], ids=["default", "quirks"])

GEOMETRIES = [
    ((2, 3, 11), {"kernel_shape": [3], "strides": [2], "pads": [1, 2]}),
    ((2, 3, 11), {"kernel_shape": [1], "strides": [4], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 12), {"kernel_shape": [1], "strides": [5], "auto_pad": "SAME_LOWER"}),
    ((1, 2, 7, 9), {"kernel_shape": [2, 3], "strides": [2, 3], "dilations": [2, 1], "ceil_mode": 1}),
    ((1, 2, 7, 9), {"kernel_shape": [3, 2], "dilations": [1, 3], "pads": [2, 1, 0, 1]}),
    ((1, 2, 7, 9), {"kernel_shape": [3, 2], "dilations": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 1, 5, 6, 7), {"kernel_shape": [2, 3, 1], "strides": [1, 2, 2], "auto_pad": "SAME_LOWER"}),
    ((1, 1, 5, 6, 7), {"kernel_shape": [3, 2, 2], "strides": [2, 2, 3], "pads": [1, 0, 1, 1, 1, 0], "ceil_mode": 1}),
    ((1, 1, 6, 6), {"kernel_shape": [3, 3], "strides": [4, 4], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
    ((1, 1, 9, 5), {"kernel_shape": [4, 2], "strides": [3, 2], "auto_pad": "VALID", "pads": [1, 1, 1, 1]}),
]


def random(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("count_include_pad", [0, 1])
@pytest.mark.parametrize(("shape", "attrs"), GEOMETRIES)
def test_average_gradient_is_the_adjoint(shape, attrs, count_include_pad):
    attrs = attrs | {"count_include_pad": count_include_pad}
    v = random(shape)
    y = ort.average_pool({"X": v}, attrs)
    dy = random(y.shape, 1)
    dx = ort.average_pool_grad({"dY": dy}, attrs, output_shape=shape)
    assert np.vdot(y, dy) == pytest.approx(np.vdot(v, dx), rel=1e-12)


@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize(("shape", "attrs"), GEOMETRIES)
def test_max_gradient_reaches_the_winners(shape, attrs, storage_order):
    attrs = attrs | {"storage_order": storage_order}
    x = random(shape)
    y, indices = ort.max_pool({"X": x}, attrs)
    np.testing.assert_array_equal(
        ort.max_pool_grad({"dY": np.ones_like(y), "Indices": indices}, attrs, output_shape=shape) > 0, np.isin(x, y)
    )
    dy = random(y.shape, 1)
    dx = ort.max_pool_grad({"dY": dy, "Indices": indices}, attrs, output_shape=shape)
    assert np.vdot(y, dy) == pytest.approx(np.vdot(x, dx), rel=1e-12)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(("shape", "attrs"), GEOMETRIES)
def test_conv_gradients_are_adjoints(shape, attrs, group):
    attrs = {name: value for name, value in attrs.items() if name != "ceil_mode"} | {"group": group}
    if "auto_pad" in attrs:
        attrs = {name: value for name, value in attrs.items() if name not in ("pads", "dilations")}
    x = random((shape[0], 2 * shape[1], *shape[2:]))
    w = random((4, 2 * shape[1] // group, *attrs["kernel_shape"]), 2)
    y = ort.conv({"X": x, "W": w}, attrs)
    dy = random(y.shape, 3)
    dx, dw, db = ort.conv_grad({"dY": dy, "X": x, "W": w}, attrs)
    for gradient, variable in ((dx, x), (dw, w)):
        assert np.vdot(y, dy) == pytest.approx(np.vdot(gradient, variable), rel=1e-10)
    bias = random(4, 4)
    np.testing.assert_allclose(np.vdot(ort.conv({"X": x, "W": w, "B": bias}, attrs) - y, dy), np.vdot(bias, db), rtol=1e-10)


@MODES
@pytest.mark.parametrize(("auto_pad", "cells"), [("SAME_UPPER", [1, 4]), ("SAME_LOWER", [0, 3]), ("VALID", [0, 3])])
def test_same_pads_go_negative_and_round_towards_zero(context, auto_pad, cells):
    """Window 1, stride 3 on 6 cells: the total pad is -2, its head -1 or, for the lower kind, trunc(-1/2) = 0."""
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 6)
    attrs = {"kernel_shape": [1], "strides": [3], "auto_pad": auto_pad}
    with context():
        np.testing.assert_array_equal(ort.average_pool({"X": x}, attrs)[0, 0], cells)
        np.testing.assert_array_equal(ort.max_pool({"X": x}, attrs)[1][0, 0], cells)
        np.testing.assert_array_equal(ort.conv({"X": x, "W": np.ones((1, 1, 1), np.float32)}, attrs)[0, 0], cells)


@MODES
def test_conv_windows_may_lie_in_the_padding(context):
    x = np.ones((1, 1, 3), np.float32)
    with context():
        y = ort.conv({"X": x, "W": np.ones((1, 1, 1), np.float32)}, {"pads": [2, 3]})
    np.testing.assert_array_equal(y[0, 0], [0, 0, 1, 1, 1, 0, 0, 0])


@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize("size", [(4,), (4, 6), (4, 6, 2)])
def test_window_without_winner(size, storage_order):
    """1.19.2 puts the index one cell before the origin on every axis of the plane; current rules find a winner."""
    x = np.full((2, 2, *size), -np.inf, np.float32)
    x[1, 1] = np.nan
    rank = len(size)
    attrs = {"kernel_shape": [2] * rank, "strides": [2] * rank, "storage_order": storage_order}
    with ort.quirks():
        y, indices = ort.max_pool({"X": x}, attrs)
    assert (y == LOWEST).all()
    steps = np.cumprod((1, *(size[:-1] if storage_order else size[:0:-1])))
    planes = np.arange(4).reshape(2, 2, *(1,) * rank) * np.prod(size)
    np.testing.assert_array_equal(indices, np.broadcast_to(planes - steps.sum(), y.shape))
    y, indices = ort.max_pool({"X": x}, attrs)
    assert (y[0] == -np.inf).all()
    assert np.isnan(y[1, 1]).all()
    dx = ort.max_pool_grad({"dY": np.ones_like(y), "Indices": indices}, attrs, output_shape=x.shape)
    assert (dx[(..., *(slice(None, None, 2),) * rank)] == 1).all()
    assert dx.sum() == y.size


def test_a_dilated_window_beside_the_input_has_no_winner():
    """Its two taps fall one cell before and one past the two input cells; the gradient refuses its index."""
    attrs = {"kernel_shape": [2], "dilations": [3], "pads": [1, 1]}
    x = np.zeros((1, 2, 2), np.float32)
    y, indices = ort.max_pool({"X": x}, attrs)
    assert (y == LOWEST).all()
    np.testing.assert_array_equal(indices, [[[-1], [-1]]])
    with pytest.raises(ValueError, match="index value -1 at position 0"):
        ort.max_pool_grad({"dY": y, "Indices": indices}, attrs, output_shape=x.shape)
    np.testing.assert_array_equal(ort.average_pool({"X": x + 1}, attrs), [[[0], [0]]])


def test_max_gradient_sums():
    """Quirks add in float32 in the order of dY; the reference backend adds in float64 and rounds once."""
    inputs = {"dY": np.array([[[1e8, 1, -1e8, 3]]], np.float32), "Indices": np.array([[[1, 1, 1, 0]]])}
    with pullback.backend("reference"):
        np.testing.assert_array_equal(ort.max_pool_grad(inputs, output_shape=(1, 1, 2)), [[[3, 1]]])
    with ort.quirks():
        np.testing.assert_array_equal(ort.max_pool_grad(inputs, output_shape=(1, 1, 2)), [[[3, 0]]])


@MODES
@pytest.mark.parametrize(
    ("dy_shape", "declared", "shape"),
    [
        ((4,), (7,), (4,)),
        ((2, 2), ("N", 5), (2, 5)),
        ((2, 1, 2), (9, 3, 4), (2, 3, 4)),
        ((1, 2, 1, 2), (None, 1, 1, 1, 1, 6), (1, 1, 1, 1, 1, 6)),
    ],
)
def test_max_gradient_has_no_rank_of_its_own(context, dy_shape, declared, shape):
    """Indices are flat over dX whatever its shape; only its batch comes from dY."""
    dy = np.array([1, 2, 3, 4], np.float32).reshape(dy_shape)
    with context():
        dx = ort.max_pool_grad({"dY": dy, "Indices": np.array([0, 3, 3, 1]).reshape(dy_shape)}, output_shape=declared)
    assert dx.shape == shape
    np.testing.assert_array_equal(dx.reshape(-1)[:4], [1, 4, 0, 5])


@MODES
def test_empty_batch(context):
    x, w = np.zeros((0, 1, 4, 4), np.float32), np.ones((2, 1, 3, 3), np.float32)
    attrs = {"kernel_shape": [2, 2]}
    with context():
        y, indices = ort.max_pool({"X": x}, attrs)
        assert y.shape == indices.shape == (0, 1, 3, 3)
        assert ort.max_pool_grad({"dY": y, "Indices": indices}, attrs, output_shape=x.shape).shape == x.shape
        assert ort.average_pool({"X": x}, attrs).shape == (0, 1, 3, 3)
        assert ort.average_pool_grad({"dY": y}, attrs, output_shape=x.shape).shape == x.shape
        assert ort.conv({"X": x, "W": w}).shape == (0, 2, 2, 2)
    dx, dw, db = ort.conv_grad({"dY": np.zeros((0, 2, 2, 2), np.float32), "X": x, "W": w})
    assert dx.shape == x.shape
    assert (dw == 0).all()
    assert (db == 0).all()
    assert dw.shape == w.shape


def test_average_gradient_in_quirks_reads_symbolic_sizes_as_zero():
    dy, attrs = np.ones((2, 1, 2, 2), np.float32), {"kernel_shape": [2, 2], "strides": [2, 2]}
    with ort.quirks():
        assert ort.average_pool_grad({"dY": dy}, attrs, output_shape=("N", 1, 4, 4)).shape == (0, 1, 4, 4)
        assert ort.average_pool_grad({"dY": dy}, attrs, output_shape=(1, 1, "H", 4)).shape == (1, 1, 0, 4)
    assert (ort.average_pool_grad({"dY": dy}, attrs, output_shape=("N", 1, 4, 4)) == 0.25).all()


def test_quirks_trust_dy_while_it_is_long_enough():
    attrs = {"kernel_shape": [2], "strides": [2]}
    dy = np.arange(4, dtype=np.float32).reshape(1, 2, 2)
    with ort.quirks():
        as_batch = ort.average_pool_grad({"dY": dy}, attrs, output_shape=(2, 1, 4))
        np.testing.assert_array_equal(as_batch, [[[0, 0, 0.5, 0.5]], [[1, 1, 1.5, 1.5]]])
        x, w = np.ones((1, 1, 4), np.float32), np.ones((1, 1, 2), np.float32)
        extra_image = np.ones((2, 1, 3), np.float32)
        dx, dw, db = ort.conv_grad({"dY": extra_image, "X": x, "W": w})
        long_dy = ort.conv_grad({"dY": np.ones((1, 1, 6), np.float32), "X": x, "W": w}, outputs="dX")[0]
    np.testing.assert_array_equal(dx, [[[1, 2, 2, 1]]])
    np.testing.assert_array_equal(dw, [[[3, 3]]])
    np.testing.assert_array_equal(db, [3])
    np.testing.assert_array_equal(long_dy, [[[1, 2, 2, 2]]])


@MODES
def test_grouped_gradients_beyond_2d(context):
    """Shapes that made 1.19.2 write past dX and abort."""
    for shape, group in (((2, 8, 6, 6, 6), 8), ((1, 32, 500), 32)):
        x = random(shape).astype(np.float32)
        w = random((group, shape[1] // group, *(3,) * (len(shape) - 2)), 1).astype(np.float32)
        with context():
            y = ort.conv({"X": x, "W": w}, {"group": group})
            dx, dw, _ = ort.conv_grad({"dY": y, "X": x, "W": w}, {"group": group})
        norm = np.vdot(y.astype(float), y.astype(float))
        assert np.vdot(dx.astype(float), x) == pytest.approx(norm, rel=1e-5)
        assert np.vdot(dw.astype(float), w) == pytest.approx(norm, rel=1e-5)


@MODES
def test_unwanted_outputs_are_not_computed(context, monkeypatch):
    ops = []
    for module in ("convolution", "upstream_conv"):
        monkeypatch.setattr(f"pullback.ort.{module}.dispatch", lambda problem, *arrays: ops.append(problem.op))
    inputs = {
        "dY": np.ones((1, 1, 2, 2), np.float32),
        "X": np.ones((1, 1, 4, 4), np.float32),
        "W": np.ones((1, 1, 3, 3), np.float32),
    }
    with context():
        assert ort.conv_grad(inputs, outputs=("dB",)) == (None, None, 4)
        assert ops == []
        ort.conv_grad(inputs, outputs=("dX",))
        assert ops == ["conv_grad_input"]


def test_max_pool_outputs():
    x, attrs = random((1, 1, 4, 4)), {"kernel_shape": [2, 2]}
    y, indices = ort.max_pool({"X": x}, attrs)
    only_y, none = ort.max_pool({"X": x}, attrs, outputs=("Y",))
    np.testing.assert_array_equal(only_y, y)
    assert none is None
    np.testing.assert_array_equal(x.reshape(-1)[indices], y)


@pytest.mark.parametrize(
    ("spelled", "plain"),
    [
        ({"auto_pad": b"SAME_UPPER"}, {"auto_pad": "SAME_UPPER"}),
        ({"auto_pad": ""}, {}),
        ({"kernel_shape": np.array([2, 2]), "strides": (), "pads": [], "dilations": []}, {}),
        ({"ceil_mode": True, "strides": np.array([3, 3])}, {"ceil_mode": 1, "strides": [3, 3]}),
        ({"auto_pad": "NOTSET", "pads": (1, 0, 1, 1)}, {"pads": [1, 0, 1, 1]}),
        ({"strides": None}, {}),
    ],
)
def test_spellings_of_attributes(spelled, plain):
    x, kernel = random((1, 1, 5, 5)), {"kernel_shape": [2, 2]}
    np.testing.assert_array_equal(ort.average_pool({"X": x}, kernel | spelled), ort.average_pool({"X": x}, kernel | plain))


@MODES
def test_inputs_of_any_memory_layout_are_left_alone(context):
    """Read-only, transposed and byte-swapped arrays give the answer of plain ones."""
    x, w, dy = (random(shape).astype(np.float32) for shape in ((1, 2, 5, 4), (1, 2, 2, 2), (1, 1, 4, 3)))
    kernel = {"kernel_shape": [2, 2]}
    calls = [
        ("MaxPool", {"X": x}, kernel, {}),
        ("AveragePool", {"X": x}, kernel, {}),
        ("Conv", {"X": x, "W": w}, {}, {}),
        ("ConvGrad", {"dY": dy, "X": x, "W": w}, {}, {}),
        ("MaxPoolGrad", {"dY": dy, "Indices": np.arange(12)[::-1].reshape(dy.shape)}, {}, {"output_shape": (1, 1, 5, 4)}),
        ("AveragePoolGrad", {"dY": dy}, kernel, {"output_shape": (1, 1, 5, 4)}),
    ]
    for op, inputs, attrs, keywords in calls:
        plain = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        odd = {name: array.astype(array.dtype.newbyteorder(), order="F") for name, array in inputs.items()}
        for array in (*odd.values(), *plain.values()):
            array.setflags(write=False)
        with context():
            got, expected = (ort.run_kernel(op, some, attrs, **keywords) for some in (odd, plain))
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_kernels_come_from_the_library_registry():
    x = random((1, 1, 4, 4))
    with pullback.kernel("no such kernel"), pytest.raises(pullback.KernelError):
        ort.average_pool({"X": x}, {"kernel_shape": [2, 2]})
