"""conv_transpose: the adjoint of conv, sized as its keywords say, against PyTorch, and what it refuses."""

from __future__ import annotations

import importlib
from itertools import product
from typing import Any

import numpy as np
import pytest
from test_bad_input import assert_clear

import pullback as pb

SIZES, WINDOWS = (5, 4, 3), (3, 2, 4)
PLACES: list[dict[str, Any]] = [
    {},
    {"stride": 2},
    {"stride": 2, "padding": 1, "output_padding": 1},
    {"stride": 3, "dilation": 2, "padding": 1},
    {"stride": 3, "output_padding": 2, "dilation": 2},
]


def example(rank: int, layout: str, groups: int = 1, dtype: str = "float64") -> tuple[np.ndarray, np.ndarray]:
    """x with 6 channels and a filter that makes 4 of them."""
    rng = np.random.default_rng(rank)
    size, window = SIZES[:rank], WINDOWS[:rank]
    if layout == "channels_last":
        shapes: Any = ((2, *size, 6), (*window, 4 // groups, 6))
    else:
        shapes = ((2, 6, *size), (6, 4 // groups, *window))
    x, f = (rng.integers(-4, 5, shape).astype(dtype) for shape in shapes)
    return x, f


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("place", [*PLACES, {"stride": 2, "padding": "same"}, {"padding": "same_lower", "stride": 3}], ids=str)
@pytest.mark.parametrize(("rank", "layout"), list(product((1, 2, 3), ("channels_last", "channels_first"))))
def test_it_is_the_adjoint_of_conv(each_backend: str, rank: int, layout: str, place: dict[str, Any], groups: int) -> None:
    x, f = example(rank, layout, groups)
    y = pb.conv_transpose(x, f, layout=layout, groups=groups, **place)
    v = np.random.default_rng(0).integers(-4, 5, y.shape).astype(x.dtype)
    conv_place = {name: value for name, value in place.items() if name != "output_padding"}
    back = pb.conv(v, f, layout=layout, groups=groups, **conv_place)
    assert back.shape == x.shape
    assert np.vdot(y, v) == np.vdot(x, back)
    assert np.any(y)


def test_sizes() -> None:
    x, f = np.ones((1, 5, 4, 6)), np.ones((3, 2, 4, 6))
    assert pb.conv_transpose(x, f, stride=2, padding="same").shape == (1, 10, 8, 4)
    assert pb.conv_transpose(x, f, stride=2).shape == (1, 11, 8, 4)
    assert pb.conv_transpose(x, f, stride=2, output_padding=(1, 0)).shape == (1, 12, 8, 4)
    assert pb.conv_transpose(x, f, stride=2, padding=((1, 0), (2, 1))).shape == (1, 10, 5, 4)
    chosen = pb.conv_transpose(x, f, stride=2, padding="same", output_shape=(1, 9, 7, 4))
    assert chosen.shape == (1, 9, 7, 4)
    np.testing.assert_array_equal(chosen, pb.conv_grad_input(x, f, (1, 9, 7, 4), stride=2, padding="same"))


def test_the_readable_example() -> None:
    x, f = np.array([1.0, 10.0]).reshape(1, 2, 1), np.array([1.0, 2.0, 3.0]).reshape(3, 1, 1)
    assert pb.conv_transpose(x, f, stride=2).ravel().tolist() == [1, 2, 13, 20, 30]


X, F = example(2, "channels_last")
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"x": X.astype(np.float32)}, "convert one"),
    ({"x": X.astype(int)}, "dtype"),
    ({"x": X[0, 0]}, "needs 3, 4 or 5 axes"),
    ({"filter": F[0]}, "needs a filter of 4 axes"),
    ({"filter": F[..., :5]}, "must have"),
    ({"stride": 0}, "at least 1"),
    ({"stride": (1, 2, 3)}, "3 entries"),
    ({"stride": 2**31 - 1}, "largest size"),
    ({"padding": 9}, "make the padding smaller"),
    ({"padding": "full"}, "unknown padding"),
    ({"dilation": 1.5}, "integer"),
    ({"groups": 0}, "groups is 0"),
    ({"groups": 4}, "with groups=4"),
    ({"layout": "NWC"}, "layout"),
    ({"output_padding": 1}, "less than the stride"),
    ({"output_padding": -1}, "at least 0"),
    ({"output_padding": (0, 0, 0)}, "3 entries"),
    ({"output_padding": 1, "stride": 2, "padding": "same"}, "use output_shape"),
    ({"output_padding": 1, "stride": 2, "output_shape": (2, 12, 9, 4)}, "give one of them"),
    ({"output_shape": (12, 9)}, "must have 4 entries"),
    ({"output_shape": (2, 7, 5, 3)}, "4 channels"),
    ({"output_shape": (2, 9, 5, 4)}, "x has shape"),
    ({"output_shape": 7}, "sequence of integers"),
]


@pytest.mark.parametrize(("spoiled", "says"), REFUSED, ids=[str(list(spoiled)) for spoiled, _ in REFUSED])
def test_what_it_refuses(spoiled: dict[str, Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says) as caught:
        pb.conv_transpose(**({"x": X, "filter": F} | spoiled))
    assert_clear(caught.value, "conv_transpose")


def test_explain_names_the_kernel_of_the_input_gradient() -> None:
    assert str(pb.explain("conv_transpose", X, F, stride=2)).startswith("conv_grad_input (2, 11, 8, 4) -> (2, 5, 4, 6)")


@pytest.mark.torch
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize(("rank", "layout"), list(product((1, 2, 3), ("channels_last", "channels_first"))))
def test_it_is_pytorchs(rank: int, layout: str, place: dict[str, Any], groups: int, dtype: str) -> None:
    torch = importlib.import_module("torch")
    x, f = example(rank, layout, groups, dtype)
    y = pb.conv_transpose(x, f, layout=layout, groups=groups, **place)
    if layout == "channels_last":
        x, f, y = np.moveaxis(x, -1, 1), np.moveaxis(f, (-1, -2), (0, 1)), np.moveaxis(y, -1, 1)
    convolve = getattr(torch.nn.functional, f"conv_transpose{rank}d")
    truth = convolve(torch.tensor(x.copy()), torch.tensor(f.copy()), groups=groups, **place).numpy()
    np.testing.assert_array_equal(y, truth)  # whole numbers: exact
