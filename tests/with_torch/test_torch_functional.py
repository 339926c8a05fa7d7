"""pullback.torch.functional against torch.nn.functional and against finite differences, to the second derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as theirs

from pullback.torch import functional as ours
from pullback.torch.kernels import RULES

pytestmark = pytest.mark.torch

# The rows are arguments of the tests below, in their order.
SIZES, WINDOW = {1: (13,), 2: (9, 7), 3: (5, 6, 4)}, (3, 2, 3)
CONVS = (
    (1, 0, 1, 1),
    (2, 1, 1, 2),
    (1, "same", 2, 1),
    (3, (2, 1, 0), 1, 4),
    (1, "valid", 1, 2),
)
TRANSPOSED = (
    (1, 0, 0, 1, 1),
    (2, 1, 1, 2, 1),
    (3, 1, 2, 1, 1),
    (1, 0, 1, 1, 2),
)
POOLS = (
    (2, None, 0, 1, False),
    (3, 2, 1, 1, True),
    (3, 2, 1, 2, True),
    (2, 3, 1, 1, True),
)
FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}
EACH = pytest.mark.parametrize(("rank", "last"), [(1, False), (2, False), (2, True), (3, False), (3, True)])


def tensor(*shape: int, last: bool = False, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    values = torch.from_numpy(np.random.default_rng(sum(shape)).standard_normal(shape)).to(dtype)
    return (values.to(memory_format=FORMATS[len(shape) - 2]) if last else values).requires_grad_()


def assert_same(mine: Callable[..., Any], other: Callable[..., Any], *inputs: torch.Tensor, last: bool) -> None:
    """Equal values and gradients, in the memory format of the input."""
    y, expected = mine(*inputs), other(*inputs)
    torch.testing.assert_close(y, expected, check_stride=False)
    if last:
        assert y.is_contiguous(memory_format=FORMATS[y.dim() - 2])
    dy = torch.from_numpy(np.random.default_rng(1).standard_normal(tuple(y.shape)))
    for got, truth in zip(torch.autograd.grad(y, inputs, dy), torch.autograd.grad(expected, inputs, dy), strict=True):
        torch.testing.assert_close(got, truth, check_stride=False)


@EACH
@pytest.mark.parametrize(("stride", "padding", "dilation", "groups"), CONVS)
def test_conv(rank: int, last: bool, stride: int, padding: Any, dilation: int, groups: int) -> None:
    x, w, b = tensor(2, 4, *SIZES[rank], last=last), tensor(8, 4 // groups, *WINDOW[:rank], last=last), tensor(8)
    pads = padding[:rank] if isinstance(padding, tuple) else padding
    mine, other = (getattr(module, f"conv{rank}d") for module in (ours, theirs))
    arguments = (stride, pads, dilation, groups)
    assert_same(lambda *given: mine(*given, *arguments), lambda *given: other(*given, *arguments), x, w, b, last=last)


@EACH
@pytest.mark.parametrize(("stride", "padding", "extra", "groups", "dilation"), TRANSPOSED)
def test_conv_transpose(rank: int, last: bool, stride: int, padding: int, extra: int, groups: int, dilation: int) -> None:
    x, w, b = tensor(2, 4, *SIZES[rank], last=last), tensor(4, 6 // groups, *WINDOW[:rank], last=last), tensor(6)
    mine, other = (getattr(module, f"conv_transpose{rank}d") for module in (ours, theirs))
    arguments = (stride, padding, extra, groups, dilation)
    assert_same(lambda *given: mine(*given, *arguments), lambda *given: other(*given, *arguments), x, w, b, last=last)


@EACH
@pytest.mark.parametrize(("window", "stride", "padding", "dilation", "ceil"), POOLS)
def test_pools(rank: int, last: bool, window: int, stride: int | None, padding: int, dilation: int, ceil: bool) -> None:
    x = tensor(2, 4, *SIZES[rank], last=last)
    arguments = (window, stride, padding, dilation, ceil)
    mine, other = getattr(ours, f"max_pool{rank}d"), getattr(theirs, f"max_pool{rank}d")
    assert_same(lambda x: mine(x, *arguments), lambda x: other(x, *arguments), x, last=last)
    torch.testing.assert_close(mine(x, *arguments, True)[1], other(x, *arguments, True)[1], check_stride=False)
    mine, other = getattr(ours, f"avg_pool{rank}d"), getattr(theirs, f"avg_pool{rank}d")
    for counted in (True, False):
        average = (window, stride, padding, ceil, counted)
        assert_same(lambda x, a=average: mine(x, *a), lambda x, a=average: other(x, *a), x, last=last)


CHECKED = {
    "conv": (lambda x, w, b: ours.conv2d(x, w, b, 2, 1, 1, 2),
        lambda last: (tensor(1, 4, 5, 4, last=last), tensor(4, 2, 3, 2), tensor(4))),
    "conv_transpose": (lambda x, w: ours.conv_transpose1d(x, w, None, 2, 1, 1), lambda _: (tensor(2, 3, 4), tensor(3, 2, 3))),
    "conv3d": (lambda x, w: ours.conv3d(x, w, None, 1, 1), lambda last: (tensor(1, 2, 3, 2, 3, last=last), tensor(2, 2, 2, 3, 2))),
    "max_pool": (lambda x: ours.max_pool2d(x, 3, 2, 1), lambda last: (tensor(1, 2, 5, 6, last=last),)),
    "avg_pool": (lambda x: ours.avg_pool3d(x, 2, 1, 1, True), lambda last: (tensor(1, 2, 3, 2, 3, last=last),)),
}  # fmt: skip


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", CHECKED)
def test_first_and_second_derivatives(name: str, last: bool) -> None:
    function, make = CHECKED[name]
    assert torch.autograd.gradcheck(function, make(last), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, make(last))


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_registered_ops(layout: str) -> None:
    """PyTorch's own checks of schema, autograd registration, fake results and static and dynamic tracing."""
    last = layout == "channels_last"
    x, w, y = tensor(2, 4, 6, 5, last=last), tensor(6, 2, 3, 3, last=last), tensor(2, 6, 6, 5, last=last)
    conv = ([1, 1], [1, 1, 1, 1], [1, 1], layout, "floor", 2)
    pool = ([3, 2], [2, 2], [1, 1, 0, 0], [1, 1], layout, "ceil")
    values, winners = torch.ops.pullback.max_pool(x, *pool)
    pooled, size = values.detach().requires_grad_(), list(x.shape)
    calls: dict[str, tuple[Any, ...]] = {
        "conv": (x, w, *conv), "conv_grad_input": (y, w, size, *conv), "conv_grad_filter": (y, x, list(w.shape), *conv),
        "max_pool": (x, *pool), "max_pool_grad_from_winners": (pooled, winners, size, *pool),
        "max_pool_jvp_from_winners": (x, winners, *pool), "avg_pool": (x, *pool, True, None),
        "avg_pool_grad": (pooled, size, *pool, True, 7), "conv_transpose": (y, w, *conv, [0, 0]),
        "adaptive_avg_pool": (x, [2, 4, 4, 2], layout), "adaptive_avg_pool_grad": (pooled, size, layout),
    }  # fmt: skip
    assert set(calls) == set(RULES)
    for name, arguments in calls.items():
        torch.library.opcheck(getattr(torch.ops.pullback, name).default, arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    x, w, b = tensor(2, 5, 9, 9, dtype=dtype), tensor(7, 5, 3, 3, dtype=dtype), tensor(7, dtype=dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 5e-2
    y, expected = ours.conv2d(x, w, b, padding=1), theirs.conv2d(x.double(), w.double(), b.double(), padding=1)
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == dtype
    pooled = ours.max_pool2d(x, 2)
    torch.testing.assert_close(pooled, theirs.max_pool2d(x, 2))


def test_no_copies() -> None:
    from pullback.torch.arrays import activation, filter_array, result

    for last in (False, True):
        layout = "channels_last" if last else "channels_first"
        x = tensor(2, 3, 4, 5, last=last).detach()
        array = activation(x, layout)
        assert array.__array_interface__["data"][0] == x.data_ptr()
        assert result(array, layout).data_ptr() == x.data_ptr()
        assert filter_array(x, layout).__array_interface__["data"][0] == x.data_ptr()


def test_without_a_batch() -> None:
    x, w = tensor(4, 6, 7).detach(), tensor(5, 4, 3, 3)
    torch.testing.assert_close(ours.conv2d(x, w), theirs.conv2d(x, w))
    torch.testing.assert_close(ours.max_pool2d(x, 2), theirs.max_pool2d(x, 2))


X, W = torch.zeros(1, 2, 5, 5), torch.zeros(3, 2, 3, 3)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: ours.conv2d(X.int(), W), TypeError, "input has dtype torch.int32"),
        (lambda: ours.conv2d(X, W.double()), TypeError, "weight is torch.float64 and the input torch.float32"),
        (lambda: ours.conv2d(X.to_sparse(), W), ValueError, "dense CPU tensor"),
        (lambda: ours.conv2d(X[0, 0], W), ValueError, "needs 4 axes"),
        (lambda: ours.conv2d(X, W[0]), ValueError, "weight has shape"),
        (lambda: ours.conv2d(X, W, torch.zeros(2)), ValueError, "bias has shape"),
        (lambda: ours.conv2d(X, W, padding="full"), ValueError, "unknown padding"),
        (lambda: ours.conv2d(X, W, padding="same", stride=2), ValueError, "needs a stride of 1"),
        (lambda: ours.conv2d(X, W, padding=-1), ValueError, "padding is -1; it must be at least 0"),
        (lambda: ours.conv2d(X, W, stride=(1, 1, 1)), ValueError, "stride is"),
        (lambda: ours.conv2d(X, W, groups=2), ValueError, "groups=2"),
        (lambda: ours.conv_transpose2d(X, W.transpose(0, 1), output_padding=1), ValueError, "output_padding is 1"),
        (lambda: ours.max_pool2d(X, 2, padding=2), ValueError, "at most half"),
        (lambda: ours.max_pool2d(X, 9), ValueError, "window"),
        (lambda: ours.avg_pool2d(X, 2, divisor_override=0), ValueError, "divisor_override is 0"),
        (lambda: ours.conv2d(np.zeros((1, 2, 5, 5)), W), TypeError, "must be a tensor"),
    ],
)  # fmt: skip
def test_bad_input(call: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()
