"""Grouped convolutions of the cuda backend against the reference: forward, input gradient, filter gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.registry import KernelError

pytestmark = pytest.mark.torch

Case = tuple[Any, ...]  # (size, kernel, stride, dilation, padding, groups, input and output channels a group)
CASES: dict[str, Case] = {
    "3x3": ((7, 6), (3, 3), 1, 1, 1, 4, 4, 4),
    "stride": ((7, 6), (3, 3), 2, 1, 1, 4, 4, 4),
    "stride over the kernel": ((9, 7), (2, 2), 3, 1, 0, 2, 8, 8),
    "dilation": ((9, 8), (3, 2), (1, 2), (2, 3), 2, 2, 8, 8),
    "dilated phases without taps": ((9, 8), (3, 3), 2, 2, 2, 2, 4, 4),
    "asymmetric": ((6, 7), (3, 3), 1, 1, ((0, 2), (2, 1)), 2, 4, 4),
    "cropped": ((8, 9), (3, 3), (2, 1), 1, ((-1, -2), (1, -1)), 2, 4, 4),
    "more out than in": ((5, 6), (3, 3), 1, 1, 1, 3, 4, 8),
    "more in than out": ((5, 6), (3, 3), 1, 1, 1, 3, 6, 3),
    "no power of two": ((5, 6), (3, 3), 1, 1, 1, 5, 3, 3),
    "wide groups": ((3, 4), (2, 3), 1, 1, 1, 2, 24, 24),
    "widest groups": ((4, 4), (2, 2), 2, 1, 1, 2, 32, 32),
    "multiplier": ((5, 6), (3, 3), 1, 1, 1, 6, 1, 2),
    "1x1": ((5, 6), (1, 1), 1, 1, 0, 2, 8, 8),
    "1-D": ((17,), (5,), 2, 1, 2, 4, 4, 4),
    "3-D": ((3, 4, 5), (3, 2, 3), (1, 2, 1), 1, 1, 2, 4, 4),
    "3-D stride": ((4, 3, 5), (2, 2, 2), 3, 1, 1, 2, 4, 4),
    "large window": ((7, 7), (5, 5), 1, 1, 2, 2, 4, 4),
}
SMALL: dict[str, Case] = {
    "small": ((4, 3), (2, 3), 1, 1, 1, 3, 2, 3),
    "small stride": ((5, 4), (2, 2), 2, 1, ((-1, -1), (1, 0)), 3, 3, 2),
}
ignore_invalid = pytest.mark.filterwarnings("ignore:invalid value")  # of NumPy, which Triton's interpreter computes with
LAYOUTS = ("channels_last", "channels_first")


def arrays(case: Case, layout: str, dtype: Any = "float32", batch: int = 2, seed: int = 0) -> tuple[Any, Any, dict[str, Any]]:
    """(x, filter, keywords), of small whole numbers."""
    size, kernel, stride, dilation, padding, groups, a, b = case
    rng = np.random.default_rng(seed)
    x, f = (batch, *size, groups * a), (*kernel, a, groups * b)
    if layout == "channels_first":
        x, f = (batch, groups * a, *size), (groups * b, a, *kernel)
    keywords = {"stride": stride, "dilation": dilation, "padding": padding, "groups": groups, "layout": layout}
    return rng.integers(-3, 4, x).astype(dtype), rng.integers(-3, 4, f).astype(dtype), keywords


def like_y(x: Any, f: Any, keywords: dict[str, Any]) -> Any:
    with pb.backend("reference"):
        y = pb.conv(x, f, **keywords)
    return np.random.default_rng(1).integers(-2, 3, y.shape).astype(x.dtype)


def check(on_gpu: Any, reference: Any, kernel: str, op: str, *args: Any, **keywords: Any) -> None:
    found = on_gpu(op, *args, kernel=kernel, **keywords)
    np.testing.assert_array_equal(
        np.asarray(found).astype(np.float64), np.asarray(reference(op, *args, **keywords)).astype(np.float64), strict=True
    )


def check_all(on_gpu: Any, reference: Any, x: Any, f: Any, keywords: dict[str, Any]) -> None:
    dy = like_y(x, f, keywords)
    check(on_gpu, reference, "grouped", "conv", x, f, **keywords)
    check(on_gpu, reference, "grouped", "conv_grad_input", dy, f, x.shape, **keywords)
    check(on_gpu, reference, "grouped", "conv_grad_filter", dy, x, f.shape, **keywords)


@pytest.mark.parametrize(("name", "layout"), [(name, LAYOUTS[i % 2]) for i, name in enumerate(CASES)])
def test_cases(on_gpu: Any, reference: Any, name: str, layout: str) -> None:
    check_all(on_gpu, reference, *arrays(CASES[name], layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(on_gpu: Any, reference: Any, dtype: str, layout: str) -> None:
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    check_all(on_gpu, reference, *arrays(CASES["stride"], layout, dtype, batch=1))


@ignore_invalid
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "value"), [("small", np.inf), ("small stride", np.nan)])
def test_what_is_not_finite_reaches_only_what_reads_it(
    on_gpu: Any, reference: Any, name: str, layout: str, value: float
) -> None:
    x, f, keywords = arrays(SMALL[name], layout, batch=1)
    dy = like_y(x, f, keywords)
    for flat in (x.ravel(), dy.ravel()):
        flat[len(flat) // 2] = value
    check(on_gpu, reference, "grouped", "conv", x, f, **keywords)
    check(on_gpu, reference, "grouped", "conv_grad_input", dy, f, x.shape, **keywords)
    check(on_gpu, reference, "grouped", "conv_grad_filter", dy, x, f.shape, **keywords)


@ignore_invalid
@pytest.mark.parametrize("layout", LAYOUTS)
def test_infinite_weights_and_gradients_at_the_border(on_gpu: Any, reference: Any, layout: str) -> None:
    x, f, keywords = arrays(SMALL["small"], layout, batch=1)
    dy = like_y(x, f, keywords)
    f.ravel()[0] = dy.ravel()[0] = np.inf
    check(on_gpu, reference, "grouped", "conv", x, f, **keywords)
    check(on_gpu, reference, "grouped", "conv_grad_input", dy, f, x.shape, **keywords)
    check(on_gpu, reference, "grouped", "conv_grad_filter", dy, x, f.shape, **keywords)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_filter_in_other_strides(on_gpu: Any, reference: Any, layout: str) -> None:
    """As PyTorch has weights: the taps of a pair of channels side by side."""
    import torch

    from pullback.cuda.conv import grouped
    from pullback.ops.explain import PREPARE

    x, f, keywords = arrays(CASES["3-D"], layout)
    other = torch.from_numpy(f).transpose(0, -1).contiguous().transpose(0, -1)
    problem = PREPARE["conv"](x, f, **keywords)[0]
    if torch.cuda.is_available():
        other = other.cuda()
    found = grouped.conv(problem, torch.from_numpy(x).to(other.device), other)
    np.testing.assert_array_equal(found.cpu().numpy(), reference("conv", x, f, **keywords))


def test_many_chunks(on_gpu: Any, reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pullback.cuda.conv import grouped

    monkeypatch.setattr(grouped, "CHUNK_PROGRAMS", 6)
    x, f, keywords = arrays(((9, 11), (3, 3), 1, 1, 1, 4, 4, 4), "channels_last", batch=3)
    dy = like_y(x, f, keywords)
    check(on_gpu, reference, "grouped", "conv_grad_filter", dy, x, f.shape, **keywords)


@pytest.mark.parametrize(
    ("case", "dtype", "reason"),
    [
        (((4, 4), (3, 3), 1, 1, 1, 1, 8, 8), "float32", "only one"),
        (((4, 4), (3, 3), 1, 1, 1, 2, 33, 8), "float32", "32 channels"),
        (((12, 12), (12, 12), 1, 1, 1, 2, 4, 4), "float32", "taps"),
        (((4, 4), (3, 3), 1, 1, 1, 2, 4, 4), "float64", "float64"),
    ],
)
def test_refusals(on_gpu: Any, case: Case, dtype: str, reason: str) -> None:
    x, f, keywords = arrays(case, "channels_last", dtype)
    with pytest.raises(KernelError, match=reason):
        on_gpu("conv", x, f, kernel="grouped", **keywords)
