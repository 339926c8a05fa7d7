"""Convolution and pooling nodes in both memory layouts: the answers of pullback.ort, results that lie as their input does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from node_cases import run_node

import pullback as pb
from pullback import ort
from pullback.onnx.executor.layout import as_layout, channels_last
from pullback.onnx.executor.registry import FUSED, Node, find_op

pytestmark = pytest.mark.usefixtures("on_the_reference")

RNG = np.random.default_rng(0)
SIZES = {1: (11,), 2: (9, 7), 3: (5, 6, 7)}
POOLS: tuple[dict[str, Any], ...] = (
    {"kernel_shape": [3]},
    {"kernel_shape": [2], "strides": [2], "ceil_mode": 1},
    {"kernel_shape": [3], "strides": [2], "pads": [1, 0]},
    {"kernel_shape": [3], "strides": [2], "auto_pad": "SAME_LOWER"},
    {"kernel_shape": [2], "strides": [3], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [2], "dilations": [2], "pads": [1, 1]},
)


@pytest.fixture
def on_the_reference() -> Iterator[None]:
    """What the kernels compute has tests of its own."""
    with pb.backend("reference"):
        yield


def for_rank(attrs: dict[str, Any], rank: int) -> dict[str, Any]:
    """Attributes of one spatial axis for several."""
    return {name: value * rank if name in ("kernel_shape", "strides", "dilations", "output_padding") else
            [value[0]] * rank + [value[1]] * rank if name == "pads" else value for name, value in attrs.items()}  # fmt: skip


def images(rank: int, channels: int = 3, dtype: Any = np.float32) -> Any:
    # Few values, so that windows have ties.
    return RNG.integers(-4, 5, (2, channels, *SIZES[rank])).astype(dtype)


def node(op_type: str, outputs: int = 1, domain: str = "", opset: int = 22, **attrs: Any) -> Node:
    return Node(op_type, domain, "n", ("x",), tuple(f"y{place}" for place in range(outputs)), attrs, opset)


def both_layouts(what: Node, x: Any, *others: Any) -> tuple[Any, ...]:
    """The results in C order; those in channels_last are the same and lie channels_last."""
    first = run_node(what, x, *others)
    last = run_node(what, as_layout(x, last=True), *others)
    for a, b in zip(first, last, strict=True):
        assert a.flags.c_contiguous
        assert channels_last(b)
        np.testing.assert_array_equal(a, b)
    return first


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("attrs", POOLS)
def test_pools(attrs: dict[str, Any], rank: int) -> None:
    x, given = images(rank), for_rank(attrs, rank)
    y, indices = both_layouts(node("MaxPool", 2, **given), x)
    expected, expected_indices = ort.max_pool({"X": x}, given)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(indices, expected_indices)
    (alone,) = both_layouts(node("MaxPool", **given), x)
    np.testing.assert_array_equal(alone, expected)
    for include in (0, 1):
        (y,) = both_layouts(node("AveragePool", **given, count_include_pad=include), x)
        np.testing.assert_array_equal(y, ort.average_pool({"X": x}, given | {"count_include_pad": include}))


def test_lp_pool_is_the_norm_of_each_window() -> None:
    x = images(2)
    (y,) = both_layouts(node("LpPool", kernel_shape=[2, 2], strides=[2, 2], p=1), x)
    np.testing.assert_allclose(y, np.abs(x[:, :, :8, :6]).reshape(2, 3, 4, 2, 3, 2).sum((3, 5)), rtol=1e-6)


@pytest.mark.parametrize("rank", [2, 3])
def test_indices_in_column_major_order(rank: int) -> None:
    x, given = images(rank), for_rank({"kernel_shape": [2], "strides": [2], "storage_order": 1}, rank)
    _, indices = both_layouts(node("MaxPool", 2, **given), x)
    np.testing.assert_array_equal(indices, ort.max_pool({"X": x}, given)[1])


def test_windows_beside_the_input_have_no_index() -> None:
    x, given = images(1)[:, :, :3], {"kernel_shape": [2], "dilations": [4], "pads": [1, 1]}
    y, indices = both_layouts(node("MaxPool", 2, **given), x)
    expected, expected_indices = ort.max_pool({"X": x}, given)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(indices, expected_indices)
    assert (indices == -1).all()


def test_bytes_are_pooled_as_bytes() -> None:
    x = images(2, dtype=np.int8)
    y, indices = both_layouts(node("MaxPool", 2, kernel_shape=[3, 3]), x)
    assert y.dtype == np.int8
    np.testing.assert_array_equal(indices, ort.max_pool({"X": x}, {"kernel_shape": [3, 3]})[1])


def test_winners_and_their_gradient_are_those_of_the_indices() -> None:
    x, given = images(2), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    y, indices = run_node(node("MaxPool", 2, **given), x)
    dy = RNG.standard_normal(y.shape).astype(np.float32)
    expected = ort.max_pool_grad({"dY": dy, "Indices": indices}, output_shape=x.shape)
    for last in (False, True):
        _, winners = run_node(node("MaxPoolWinners", 2, FUSED, **given), as_layout(x, last))
        assert winners.dtype == np.uint8
        gradient = node("MaxPoolGradFromWinners", 1, FUSED, **given)
        dx = find_op(gradient).run(gradient, as_layout(dy, last), winners, shape=x.shape)
        np.testing.assert_allclose(dx, expected, rtol=1e-6)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    "attrs",
    [{}, {"pads": [2, 1], "strides": [2]}, {"dilations": [2], "pads": [1, 1]}, {"auto_pad": "SAME_LOWER", "strides": [2]}],
)
def test_convolutions(attrs: dict[str, Any], rank: int) -> None:
    for groups in (1, 2):
        x, w = images(rank, 4), RNG.integers(-2, 3, (6, 4 // groups, *(3, 2, 2)[:rank])).astype(np.float32)
        bias = np.arange(6, dtype=np.float32)
        given = for_rank(attrs, rank) | {"group": groups}
        expected = ort.conv({"X": x, "W": w, "B": bias}, given)
        (y,) = both_layouts(node("Conv", **given), x, w, bias)
        np.testing.assert_array_equal(y, expected)
        reordered = np.ascontiguousarray(w.transpose(*range(2, w.ndim), 1, 0)).transpose(-1, -2, *range(rank))
        np.testing.assert_array_equal(run_node(node("Conv", **given), as_layout(x, True), reordered, bias)[0], expected)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_dilated_convolutions_of_the_same_size(auto_pad: str) -> None:
    x, w = images(2), RNG.integers(-2, 3, (4, 3, 2, 3)).astype(np.float32)
    (y,) = both_layouts(node("Conv", auto_pad=auto_pad, dilations=[3, 2]), x, w)
    pads = [1, 2, 2, 2] if auto_pad == "SAME_UPPER" else [2, 2, 1, 2]  # 3 and 4 cells around the spans of 4 and 5
    np.testing.assert_array_equal(y, ort.conv({"X": x, "W": w}, {"pads": pads, "dilations": [3, 2]}))
    assert y.shape[2:] == x.shape[2:]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("attrs", "size", "cut"),
    [
        ({}, lambda n: n + 1, 0),
        ({"strides": [3], "pads": [1, 0], "output_padding": [1]}, lambda n: (n - 1) * 3 + 2, 1),
        ({"auto_pad": "SAME_UPPER"}, lambda n: n, 0),
        ({"auto_pad": "SAME_LOWER"}, lambda n: n, 1),
        ({"strides": [3], "auto_pad": "SAME_LOWER"}, lambda n: 3 * n, 0),
        ({"strides": [2], "dilations": [2]}, lambda n: (n - 1) * 2 + 3, 0),
    ],
)
def test_transposed_convolutions(attrs: dict[str, Any], size: Any, cut: int, rank: int) -> None:
    """Each input cell lays the filter, times itself, over the output, of which `cut` cells are cut off in front."""
    x, w = images(rank, 4), RNG.integers(-2, 3, (4, 3, *(2,) * rank)).astype(np.float32)
    given = for_rank(attrs, rank)
    (y,) = both_layouts(node("ConvTranspose", **given), x, w)
    strides, dilations = given.get("strides", [1] * rank), given.get("dilations", [1] * rank)
    sizes = tuple(map(size, x.shape[2:]))
    whole = np.zeros((2, 3, *[4 * n for n in x.shape[2:]]))
    everything = (slice(None), slice(None))
    for tap in np.ndindex(*w.shape[2:]):
        axes = zip(tap, dilations, x.shape[2:], strides, strict=True)
        places = tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in axes)
        whole[(*everything, *places)] += np.einsum("nc...,cm->nm...", x, w[(*everything, *tap)])
    np.testing.assert_array_equal(y, whole[(*everything, *(slice(cut, cut + n) for n in sizes))])


def test_global_pools() -> None:
    for rank in (1, 2, 3):
        x, axes = images(rank), tuple(range(2, rank + 2))
        (mean,) = both_layouts(node("GlobalAveragePool"), x)
        np.testing.assert_allclose(mean, x.mean(axes, keepdims=True), rtol=1e-5, atol=1e-6)
        (most,) = both_layouts(node("GlobalMaxPool"), x)
        np.testing.assert_array_equal(most, x.max(axes, keepdims=True))
        (norm,) = both_layouts(node("GlobalLpPool", p=2), x)
        np.testing.assert_allclose(norm, np.sqrt(np.square(x).sum(axes, keepdims=True)), rtol=1e-5)
