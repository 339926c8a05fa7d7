"""All ops and gradients against PyTorch over a sampled product of parameters. The marker `torch` selects and requires it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

import pullback as pb

pytestmark = pytest.mark.torch

SIZES, WINDOWS = {1: (13,), 2: (11, 7), 3: (5, 7, 6)}, {1: (3,), 2: (3, 2), 3: (2, 3, 3)}
STRIDES, DILATIONS = ((1, 1, 1), (2, 1, 3), (3, 2, 2)), ((1, 1, 1), (2, 1, 2))


@pytest.fixture(scope="session")
def torch() -> Any:
    """PyTorch; a selected test fails where it is missing."""
    return importlib.import_module("torch")


def sample(count: int, seed: int, **choices: tuple[Any, ...]) -> list[Any]:
    """A seeded sample of the product of the choices."""
    everything = [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
    picked = np.random.default_rng(seed).choice(len(everything), min(count, len(everything)), replace=False)
    return [pytest.param(everything[i], id="-".join(map(str, everything[i].values())).replace(" ", "")) for i in sorted(picked)]


COMMON: dict[str, tuple[Any, ...]] = {
    "rank": (1, 2, 3),
    "dtype": ("float32", "float64"),
    "layout": ("channels_last", "channels_first"),
    "stride": STRIDES,
}
CONVS = sample(90, 1, **COMMON, dilation=DILATIONS, groups=(1, 2, 4), padding=("valid", 1, ((0, 2), (1, 0), (3, 1))))
MAXES = sample(90, 2, **COMMON, dilation=DILATIONS, pad=(0, 1), rounding=("floor", "ceil"))
MEANS = sample(90, 3, **COMMON, pad=(0, 1), rounding=("floor", "ceil"), count_include_pad=(False, True))


def cut(case: dict[str, Any]) -> dict[str, Any]:
    """A case's entries for its own number of axes."""
    rank = case["rank"]
    return {name: value[:rank] if isinstance(value, tuple) else value for name, value in case.items()}


def first(array: np.ndarray, layout: str) -> np.ndarray:
    """Channels first, as PyTorch has them."""
    return np.ascontiguousarray(array if layout == "channels_first" else np.moveaxis(array, -1, 1))


def ours(array: np.ndarray, layout: str) -> np.ndarray:
    """From channels first to the layout of a case."""
    return np.ascontiguousarray(array if layout == "channels_first" else np.moveaxis(array, 1, -1))


def filter_ours(array: np.ndarray, layout: str) -> np.ndarray:
    return np.ascontiguousarray(array if layout == "channels_first" else np.moveaxis(array, (0, 1), (-1, -2)))


def backends() -> Iterator[str]:
    """Each backend in turn, entered."""
    for name in pb.backends():
        with pb.backend(name):
            yield name


def assert_close(got: np.ndarray, expected: Any, layout: str) -> None:
    truth = ours(expected.detach().numpy(), layout)
    tolerance = 2e-5 if truth.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(got, truth, rtol=tolerance, atol=tolerance)
    assert got.dtype == truth.dtype


@pytest.mark.parametrize("whole", CONVS)
def test_conv(torch: Any, whole: dict[str, Any]) -> None:
    case = cut(whole)
    rank, layout, groups, padding = case["rank"], case["layout"], case["groups"], case["padding"]
    rng = np.random.default_rng(rank)
    x = rng.standard_normal((3, 4, *SIZES[rank])).astype(case["dtype"])
    f = rng.standard_normal((8, 4 // groups, *WINDOWS[rank])).astype(case["dtype"])
    tx, tf = torch.tensor(x, requires_grad=True), torch.tensor(f, requires_grad=True)
    pairs = {"valid": ((0, 0),) * rank, 1: ((1, 1),) * rank}.get(padding, padding)
    padded = torch.nn.functional.pad(tx, [p for pair in reversed(pairs) for p in pair])
    convolve = getattr(torch.nn.functional, f"conv{rank}d")
    ty = convolve(padded, tf, stride=case["stride"], dilation=case["dilation"], groups=groups)
    dy = rng.standard_normal(ty.shape).astype(case["dtype"])
    ty.backward(torch.tensor(dy))
    keywords = {name: case[name] for name in ("stride", "dilation", "groups", "padding", "layout")}
    xs, fs, dys = ours(x, layout), filter_ours(f, layout), ours(dy, layout)
    for _ in backends():
        assert_close(pb.conv(xs, fs, **keywords), ty, layout)
        assert_close(pb.conv_grad_input(dys, fs, xs.shape, **keywords), tx.grad, layout)
        df = pb.conv_grad_filter(dys, xs, fs.shape, **keywords)
        tolerance = 1e-4 if case["dtype"] == "float32" else 1e-12
        np.testing.assert_allclose(df, filter_ours(tf.grad.numpy(), layout), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("whole", MAXES)
def test_max_pool(torch: Any, whole: dict[str, Any]) -> None:
    case = cut(whole)
    rank, layout, window = case["rank"], case["layout"], WINDOWS[case["rank"]]
    rng = np.random.default_rng(rank)
    x = rng.integers(-4, 5, (2, 3, *SIZES[rank])).astype(case["dtype"])  # few values: ties in most windows
    tx = torch.tensor(x, requires_grad=True)
    pool = getattr(torch.nn.functional, f"max_pool{rank}d")
    ty, planes = pool(
        tx, window, stride=case["stride"], padding=case["pad"], dilation=case["dilation"],
        ceil_mode=case["rounding"] == "ceil", return_indices=True,
    )  # fmt: skip
    dy = rng.integers(-4, 5, ty.shape).astype(case["dtype"])
    ty.backward(torch.tensor(dy))
    xs, dys = ours(x, layout), ours(dy, layout)
    # PyTorch counts within a plane, we within the whole array in its own layout.
    numbers = first(np.arange(x.size).reshape(xs.shape), layout).reshape(2, 3, -1)
    expected = np.take_along_axis(numbers, planes.numpy().reshape(2, 3, -1), -1).reshape(planes.shape)
    keywords = {name: case[name] for name in ("stride", "dilation", "layout", "rounding")} | {"padding": case["pad"]}
    for _ in backends():
        y, indices = pb.max_pool(xs, window, return_indices=True, **keywords)
        assert np.array_equal(first(y, layout), ty.detach().numpy())
        assert np.array_equal(first(indices, layout), expected)
        truth = tx.grad.numpy()
        assert np.array_equal(first(pb.max_pool_grad(dys, xs, window, **keywords), layout), truth)
        assert np.array_equal(first(pb.max_pool_grad_from_indices(dys, indices, xs.shape, layout=layout), layout), truth)


@pytest.mark.parametrize("whole", MEANS)
def test_avg_pool(torch: Any, whole: dict[str, Any]) -> None:
    case = cut(whole)
    rank, layout, window = case["rank"], case["layout"], WINDOWS[case["rank"]]
    rng = np.random.default_rng(rank)
    x = rng.standard_normal((2, 3, *SIZES[rank])).astype(case["dtype"])
    tx = torch.tensor(x, requires_grad=True)
    pool = getattr(torch.nn.functional, f"avg_pool{rank}d")
    include, ceil = case["count_include_pad"], case["rounding"] == "ceil"
    ty = pool(tx, window, stride=case["stride"], padding=case["pad"], ceil_mode=ceil, count_include_pad=include)
    dy = rng.standard_normal(ty.shape).astype(case["dtype"])
    ty.backward(torch.tensor(dy))
    names = ("stride", "layout", "rounding", "count_include_pad")
    keywords = {name: case[name] for name in names} | {"padding": case["pad"]}
    xs, dys = ours(x, layout), ours(dy, layout)
    for _ in backends():
        assert_close(pb.avg_pool(xs, window, **keywords), ty, layout)
        assert_close(pb.avg_pool_grad(dys, xs.shape, window, **keywords), tx.grad, layout)


def test_nan_is_propagated_as_pytorch_does(torch: Any) -> None:
    x = np.random.default_rng(4).choice([np.nan, 1.0, 2.0], (2, 3, 11, 7))
    truth = torch.nn.functional.max_pool2d(torch.tensor(x), (3, 2), stride=(2, 1)).numpy()
    assert 0 < np.isnan(truth).sum() < truth.size
    for _ in backends():
        np.testing.assert_array_equal(pb.max_pool(x, (3, 2), stride=(2, 1), layout="NCHW"), truth)
