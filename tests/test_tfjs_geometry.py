"""TF.js's output sizes and pads against its formulas in floating point, as JavaScript has them, and its tuple rules."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from pullback import tfjs
from pullback.tfjs.geometry import as_layout, make_window, per_axis, rounded, whole

MODES = (None, "floor", "ceil", "round")


def js_round(value: float, mode: str | None) -> int:
    return {None: math.trunc, "floor": math.floor, "ceil": math.ceil, "round": lambda v: math.floor(v + 0.5)}[mode](value)


def js_axis_2d(n: int, e: int, s: int, pad: Any, mode: str | None, e_height: int, s_height: int) -> tuple[int, int]:
    """Output size and leading pad of one axis, from the table of TF.js's 2-D rules."""
    if pad == "same":
        o = math.ceil(n / s)
        return o, math.floor(max(0, (o - 1) * s + e - n) / 2)
    if pad == "valid":
        return math.ceil((n - e + 1) / s), 0
    if isinstance(pad, int):
        return js_round((n - e_height + 2 * pad) / s_height + 1, mode), pad
    return js_round((n - e + sum(pad)) / s + 1, mode), pad[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pad", ["same", "valid", -1, 0, 1, 2, ((1, 2), (0, 3))], ids=str)
def test_2d_sizes_and_pads(pad: Any, mode: str | None) -> None:
    for n, k, s, d in product(((3, 8), (7, 5)), ((1, 3), (4, 2)), ((1, 1), (2, 3), (3, 2)), ((1, 1), (2, 1), (1, 3))):
        given = [[9, 9], *pad, [9, 9]] if isinstance(pad, tuple) else pad
        window = make_window("K", n, k, strides=s, dilations=d, pad=given, mode=mode)
        e = [k[a] if d[a] <= 1 else k[a] + (k[a] - 1) * (d[a] - 1) for a in range(2)]
        for a in range(2):
            axis_pad = pad[a] if isinstance(pad, tuple) else pad
            expected = js_axis_2d(n[a], e[a], s[a], axis_pad, mode, e[0], s[0])
            assert (window.output_size[a], window.pad_low[a]) == expected, (n, k, s, d, a)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pad", ["same", "valid", 0, 1, 3])
def test_3d_sizes_and_pads(pad: Any, mode: str | None) -> None:
    for n, k, s in product(((5, 4, 7), (1, 2, 6)), ((1, 3, 2), (4, 1, 5)), ((1, 2, 3), (3, 3, 1))):
        window = make_window("K", n, k, strides=s, dilations=1, pad=pad, mode=mode)
        for a in range(3):
            if pad == "same":
                o = math.ceil(n[a] / s[a])
                expected = (o, math.floor(((o - 1) * s[a] + k[a] - n[a]) / 2))
            else:
                p = 0 if pad == "valid" else pad
                expected = (0 if n[a] + 2 * p < k[a] else js_round((n[a] - k[a] + 2 * p) / s[a] + 1, mode), p)
            assert (window.output_size[a], window.pad_low[a]) == expected, (n, k, s, a)


def test_the_numeric_pad_uses_the_height_for_both_axes() -> None:
    x = np.arange(25, dtype=np.float32).reshape(1, 5, 5, 1)
    y = tfjs.run_kernel("MaxPool", {"x": x}, {"filterSize": [1, 3], "strides": 1, "pad": 0})
    assert y.shape == (1, 5, 5, 1)
    np.testing.assert_array_equal(y[0, 0, :, 0], [2, 3, 4, 4, 4])


def test_3d_same_pads_may_be_negative() -> None:
    x = np.arange(5, dtype=np.float32).reshape(1, 5, 1, 1, 1)
    attrs = {"filterSize": 1, "strides": [3, 1, 1], "pad": "same"}
    np.testing.assert_array_equal(tfjs.run_kernel("MaxPool3D", {"x": x}, attrs).reshape(-1), [1, 4])
    grad = tfjs.run_kernel("MaxPool3DGrad", {"dy": np.ones((1, 2, 1, 1, 1), np.float32), "input": x}, attrs)
    np.testing.assert_array_equal(grad.reshape(-1), [0, 1, 0, 0, 1])


def test_3d_valid_feels_the_rounding_mode_and_2d_does_not() -> None:
    attrs = {"filterSize": 2, "strides": 2, "pad": "valid", "dimRoundingMode": "ceil"}
    assert tfjs.run_kernel("MaxPool3D", {"x": np.ones((1, 5, 5, 5, 1), np.float32)}, attrs).shape == (1, 3, 3, 3, 1)
    assert tfjs.run_kernel("MaxPool", {"x": np.ones((1, 5, 5, 1), np.float32)}, attrs).shape == (1, 2, 2, 1)


@pytest.mark.parametrize(
    ("value", "rank", "expected"),
    [
        (2, 2, (2, 2)),
        (2, 3, (2, 2, 2)),
        ([3, 4], 2, (3, 4)),
        ([3, 4], 3, (3, 4, 1)),
        ((3, 4, 5), 2, (3, 4)),
        (np.array([3, 4, 5]), 3, (3, 4, 5)),
        (np.int64(2), 2, (2, 2)),
        (np.array(2), 2, (2, 2)),
        (2.0, 2, (2, 2)),
    ],
)
def test_tuple_arguments(value: Any, rank: int, expected: tuple[int, ...]) -> None:
    assert per_axis("K", "strides", value, rank) == expected


def test_rounding_half_up_and_toward_zero() -> None:
    assert [rounded(Fraction(n, 2), "round") for n in (3, 5, -1, -3)] == [2, 3, 0, -1]
    assert [rounded(Fraction(n, 2), None) for n in (3, -1, -3)] == [1, 0, -1]
    assert [rounded(Fraction(n, 2), "floor") for n in (3, -1)] == [1, -1]


def test_layouts() -> None:
    assert as_layout(2, "NCHW") == as_layout(3, "NCDHW") == "channels_first"
    assert as_layout(2, "NHWC") == as_layout(3, "NDHWC") == "channels_last"
    with pytest.raises(ValueError, match=r"^Unknown dataFormat NDHWC"):
        as_layout(2, "NDHWC")


@pytest.mark.parametrize("value", [True, "2", None, 1.5, float("nan"), [2]])
def test_what_is_no_whole_number(value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="whole numbers"):
        whole("K", "pad", value)
