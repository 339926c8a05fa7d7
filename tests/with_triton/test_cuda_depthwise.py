"""Depthwise convolution on the cuda backend: forward and both gradients, against the reference, on numbers whose sums are exact."""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest

pytestmark = pytest.mark.torch

CL, CF = "channels_last", "channels_first"

# size, batch, channels, kernel, stride, dilation, padding
CASES = {
    "1d causal": ((9,), 2, 5, 4, 1, 1, ((3, 0),)),
    "1d aligned": ((16,), 1, 8, 4, 1, 1, ((3, 0),)),
    "1d stride 3 dilation 2": ((13,), 1, 3, 3, 3, 2, 1),
    "3x3": ((6, 8), 2, 4, 3, 1, 1, 1),
    "3x3 uneven": ((5, 7), 2, 5, 3, 1, 1, 1),
    "3x3 stride 2": ((7, 8), 2, 6, 3, 2, 1, 1),
    "stride 2 and 3, dilation 2 and 1": ((9, 11), 1, 3, (3, 2), (2, 3), (2, 1), ((1, 2), (0, 3))),
    "stride 2, dilation 2": ((8, 9), 1, 3, 3, 2, 2, 2),
    "cropped": ((8, 9), 1, 4, 3, (1, 2), 1, ((-1, 2), (2, -2))),
    "7x7": ((5, 8), 1, 4, 7, 1, 1, 3),
    "5x5 no padding": ((7, 8), 2, 3, 5, 1, 1, 0),
    "stride 5": ((11, 12), 1, 3, 2, 5, 1, 0),
    "large stride": ((11, 3), 1, 3, (5, 2), (9, 2), 1, ((0, 5), (0, 1))),
    "3d": ((3, 4, 5), 1, 3, 3, 1, 1, 1),
    "3d stride 2": ((4, 5, 4), 1, 4, (3, 2, 3), 2, 1, 1),
    "3d many taps": ((3, 3, 4), 1, 2, (3, 3, 5), 1, 1, (1, 1, 2)),
    "small": ((3, 4), 1, 2, 3, 1, 1, 1),
    "small stride 2": ((4, 5), 1, 2, 3, 2, 1, 1),
    "one cell": ((1, 1), 1, 1, 1, 1, 1, 0),
    "11x11": ((3, 4), 1, 1, 11, 1, 1, 5),
}


def arrays(rng, layout, case, dtype):
    size, batch, channels, kernel, stride, dilation, padding = case
    rank = len(size)
    window = (kernel,) * rank if isinstance(kernel, int) else kernel
    x_shape = (batch, *size, channels) if layout == CL else (batch, channels, *size)
    f_shape = (*window, 1, channels) if layout == CL else (channels, 1, *window)
    x, f = (rng.integers(-3, 4, shape).astype(dtype) for shape in (x_shape, f_shape))
    return x, f, {"stride": stride, "dilation": dilation, "padding": padding, "groups": channels, "layout": layout}


def check(on_gpu, reference, x, f, keywords, rng, dy=None):
    y = reference("conv", x, f, **keywords)
    if dy is None:
        dy = rng.integers(-3, 4, y.shape).astype(x.dtype)
    for op, args in (
        ("conv", (x, f)),
        ("conv_grad_input", (dy, f, x.shape)),
        ("conv_grad_filter", (dy, x, f.shape)),
    ):
        wanted = reference(op, *args, **keywords)
        found = on_gpu(op, *args, kernel="depthwise", **keywords)
        assert found.dtype == wanted.dtype, op
        np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64), err_msg=op)


@pytest.mark.parametrize("layout", [CL, CF])
@pytest.mark.parametrize("case", CASES)
def test_against_the_reference(on_gpu, reference, case, layout):
    rng = np.random.default_rng(0)
    x, f, keywords = arrays(rng, layout, CASES[case], np.float32)
    check(on_gpu, reference, x, f, keywords, rng)


@pytest.mark.parametrize("layout", [CL, CF])
@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_types(on_gpu, reference, dtype, layout):
    rng = np.random.default_rng(1)
    x, f, keywords = arrays(rng, layout, CASES["3x3"], dtype)
    check(on_gpu, reference, x, f, keywords, rng)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, of the interpreter
@pytest.mark.parametrize("layout", [CL, CF])
@pytest.mark.parametrize("case", ["small", "small stride 2", "large stride"])
def test_padding_makes_no_nan(on_gpu, reference, case, layout):
    """Infinite and NaN weights and dy reach only what they touch."""
    rng = np.random.default_rng(2)
    x, f, keywords = arrays(rng, layout, CASES[case], np.float32)
    x[x == 0] = 1
    f.flat[1], f.flat[-1] = np.inf, np.nan
    dy = rng.integers(1, 4, reference("conv", x, f, **keywords).shape).astype(np.float32)
    dy.flat[0], dy.flat[-1] = np.nan, -np.inf
    check(on_gpu, reference, x, f, keywords, rng, dy)


@pytest.mark.parametrize("layout", [CL, CF])
def test_many_chunks(on_gpu, reference, layout, monkeypatch):
    """Sums of many programs are added in a second step."""
    from pullback.cuda.depthwise import filter_gradient

    monkeypatch.setattr(filter_gradient, "PROGRAMS", 6)
    monkeypatch.setattr(filter_gradient, "THREADS", 32)
    rng = np.random.default_rng(3)
    x, f, keywords = arrays(rng, layout, ((16, 24), 3, 2, 3, 1, 1, 1), np.float32)
    dy = rng.integers(-3, 4, x.shape).astype(np.float32)
    filter_gradient.plan_of.cache_clear()
    wanted = reference("conv_grad_filter", dy, x, f.shape, **keywords)
    np.testing.assert_array_equal(on_gpu("conv_grad_filter", dy, x, f.shape, kernel="depthwise", **keywords), wanted)
    filter_gradient.plan_of.cache_clear()


def test_weights_by_strides(on_gpu, reference):
    """A permuted view of (channels, 1, *kernel), as PyTorch keeps its weights."""
    import torch

    from pullback.cuda.depthwise.gather import packed
    from pullback.ops.conv import prepare_conv

    rng = np.random.default_rng(4)
    x, f, keywords = arrays(rng, CL, CASES["3x3"], np.float32)
    view = torch.from_numpy(np.ascontiguousarray(f.transpose(3, 2, 0, 1))).permute(2, 3, 1, 0)
    problem = prepare_conv(x, f, **keywords)[0]
    np.testing.assert_array_equal(packed(problem, view).numpy(), f.reshape(9, 4))


@pytest.mark.parametrize("layout", [CL, CF])
@pytest.mark.parametrize("case", ["3x3 uneven", "small stride 2", "large stride"])
@pytest.mark.parametrize("beside", [0.0, np.nan])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, of the interpreter
def test_bias(reference, case, layout, beside):
    """It is added once to each result, also where a tile is made again because of a NaN."""
    import torch

    from pullback.cuda.depthwise.gather import conv
    from pullback.ops.conv import prepare_conv

    rng = np.random.default_rng(5)
    x, f, keywords = arrays(rng, layout, CASES[case], np.float32)
    f.flat[-1] += beside
    bias = rng.integers(-9, 9, keywords["groups"]).astype(np.float32)
    problem = prepare_conv(x, f, **keywords)[0]
    device = "cpu" if os.environ["TRITON_INTERPRET"] == "1" else "cuda"
    found = conv(problem, *(torch.from_numpy(a).to(device) for a in (x, f, bias)))
    np.testing.assert_array_equal(found.cpu().numpy(), reference("conv", x, f, bias=bias, **keywords))


def test_refusals(on_gpu):
    x, f = np.zeros((1, 30, 4), np.float32), np.zeros((12, 1, 4), np.float32)
    with pytest.raises(Exception, match="11 taps"):
        on_gpu("conv", x, f, kernel="depthwise", groups=4, layout=CL)
    with pytest.raises(Exception, match="one channel in"):
        on_gpu("conv", x, np.zeros((3, 4, 4), np.float32), kernel="depthwise", groups=1, layout=CL)
