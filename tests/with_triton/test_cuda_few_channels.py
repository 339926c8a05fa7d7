"""Gradients of first layers, of one to four input channels, on the cuda backend against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.registry import KernelError

pytestmark = pytest.mark.torch

Case = tuple[Any, ...]  # (size, kernel, stride, dilation, padding, channels in and out)
CASES: dict[str, Case] = {
    "first layer": ((9, 8), (7, 7), 2, 1, 3, 3, 16),
    "3x3": ((7, 6), (3, 3), 1, 1, 1, 3, 16),
    "3x3 stride": ((7, 6), (3, 3), 2, 1, 1, 3, 20),
    "stride 4": ((13, 12), (5, 5), 4, 1, 2, 3, 8),
    "stride over the kernel": ((9, 7), (2, 2), 3, 1, 0, 1, 5),
    "dilation": ((9, 8), (3, 2), (1, 2), (2, 3), 2, 2, 8),
    "dilated phases without taps": ((9, 8), (3, 3), 2, 2, 2, 2, 4),
    "asymmetric": ((6, 7), (3, 3), 1, 1, ((0, 2), (2, 1)), 4, 4),
    "cropped": ((8, 9), (3, 3), (2, 1), 1, ((-1, -2), (1, -1)), 3, 4),
    "many outputs": ((5, 4), (3, 3), 2, 1, 1, 3, 72),
    "1-D": ((17,), (5,), 1, 1, 2, 1, 4),
    "1-D stride": ((17,), (5,), 3, 1, 2, 3, 4),
    "3-D": ((3, 4, 5), (3, 2, 3), (1, 2, 1), 1, 1, 1, 4),
    "3-D stride": ((4, 3, 5), (2, 3, 2), 2, 1, 1, 3, 4),
}
LAYOUTS = ("channels_last", "channels_first")
ignore_invalid = pytest.mark.filterwarnings("ignore:invalid value")  # of NumPy, which Triton's interpreter computes with


def arrays(case: Case, layout: str, dtype: Any = "float32", batch: int = 2) -> tuple[Any, Any, Any, dict[str, Any]]:
    """(x, filter, dy, keywords), of small whole numbers."""
    size, kernel, stride, dilation, padding, a, b = case
    rng = np.random.default_rng(0)
    x, f = (batch, *size, a), (*kernel, a, b)
    if layout == "channels_first":
        x, f = (batch, a, *size), (b, a, *kernel)
    keywords = {"stride": stride, "dilation": dilation, "padding": padding, "layout": layout}
    xs, fs = rng.integers(-3, 4, x).astype(dtype), rng.integers(-3, 4, f).astype(dtype)
    with pb.backend("reference"):
        y = pb.conv(xs, fs, **keywords)
    return xs, fs, rng.integers(-2, 3, y.shape).astype(dtype), keywords


def check(on_gpu: Any, reference: Any, op: str, *args: Any, **keywords: Any) -> None:
    found = on_gpu(op, *args, kernel="few_channels", **keywords)
    np.testing.assert_array_equal(
        np.asarray(found).astype(np.float64), np.asarray(reference(op, *args, **keywords)).astype(np.float64), strict=True
    )


def check_both(on_gpu: Any, reference: Any, x: Any, f: Any, dy: Any, keywords: dict[str, Any]) -> None:
    check(on_gpu, reference, "conv_grad_input", dy, f, x.shape, **keywords)
    check(on_gpu, reference, "conv_grad_filter", dy, x, f.shape, **keywords)


@pytest.mark.parametrize(("name", "layout"), [(name, LAYOUTS[i % 2]) for i, name in enumerate(CASES)])
def test_cases(on_gpu: Any, reference: Any, name: str, layout: str) -> None:
    check_both(on_gpu, reference, *arrays(CASES[name], layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(on_gpu: Any, reference: Any, dtype: str, layout: str) -> None:
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    check_both(on_gpu, reference, *arrays(CASES["3x3 stride"], layout, dtype, batch=1))


@ignore_invalid
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("stride", "value"), [(1, np.nan), (2, np.inf)])
def test_what_is_not_finite_reaches_only_what_reads_it(
    on_gpu: Any, reference: Any, stride: int, layout: str, value: float
) -> None:
    case = ((4, 5), (2, 2), stride, 1, 1, 2, 3)
    x, f, dy, keywords = arrays(case, layout, batch=1)
    x.ravel()[7] = dy.ravel()[0] = value
    check_both(on_gpu, reference, x, f, dy, keywords)
    x, f, dy, keywords = arrays(case, layout, batch=1)
    f.ravel()[0] = value
    check(on_gpu, reference, "conv_grad_input", dy, f, x.shape, **keywords)


def test_many_chunks(on_gpu: Any, reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pullback.cuda.conv import few_channels

    monkeypatch.setattr(few_channels, "CHUNK_PROGRAMS", 3)
    x, f, dy, keywords = arrays(((9, 11), (3, 3), 1, 1, 1, 3, 4), "channels_last", batch=3)
    check(on_gpu, reference, "conv_grad_filter", dy, x, f.shape, **keywords)


@pytest.mark.parametrize(
    ("case", "dtype", "reason"),
    [
        (((4, 4), (3, 3), 1, 1, 1, 5, 8), "float32", "4 input channels"),
        (((12, 12), (12, 12), 1, 1, 1, 2, 4), "float32", "taps"),
        (((4, 4), (3, 3), 1, 1, 1, 2, 4), "float64", "float64"),
        (((16, 16), (7, 7), 6, 1, 1, 3, 4), "float32", "columns|channels together"),
    ],
)
def test_refusals(on_gpu: Any, case: Case, dtype: str, reason: str) -> None:
    x, f, dy, keywords = arrays(case, "channels_last", dtype)
    with pytest.raises(KernelError, match=reason):
        on_gpu("conv_grad_input", dy, f, x.shape, kernel="few_channels", **keywords)
