"""Our ops and PyTorch's on the same tensors of a GPU, as functions without arguments whose results can be compared."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from pullback.bench.cuda.cases import CudaCase
from pullback.cuda import call
from pullback.ops.explain import PREPARE
from pullback.torch.arrays import FIRST, LAST, from_last, to_last

Run = Callable[[], Any]
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
aten = torch.ops.aten


def formatted(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The tensor in a memory order; along one axis PyTorch has no name for channels_last."""
    if layout == FIRST:
        return tensor.contiguous()
    return tensor.permute(to_last(tensor.dim())).contiguous().permute(from_last(tensor.dim()))


class Data:
    """Random tensors of a case; PyTorch's axes (N, C, *size), in the memory order of the layout."""

    def __init__(self, case: CudaCase, layout: str, dtype: torch.dtype, device: str = "cuda") -> None:
        self.case, self.layout, self.dtype = case, layout, dtype
        generator = torch.Generator(device).manual_seed(1)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device=device).to(dtype)

        self.x = formatted(draw(case.batch, case.channels, *case.size), layout)
        self.dy = formatted(draw(case.batch, case.channels_out, *case.window.output_size), layout)
        self.w = draw(case.channels_out, case.channels // case.groups, *case.kernel)
        if layout == LAST and len(case.size) > 1:
            self.w = self.w.contiguous(memory_format=FORMATS[self.w.dim()])

    def in_layout(self, layout: str) -> Data:
        """The same numbers in the other memory order."""
        other = copy.copy(self)
        other.layout, other.x, other.dy = layout, formatted(self.x, layout), formatted(self.dy, layout)
        other.w = self.w.contiguous()
        return other


def ours(data: Data, op: str, kernel: str | None = None) -> Run:
    """`pb.<op>` on tensors that lie as the layout has them."""
    case, rank = data.case, len(data.case.size)
    last = data.layout == LAST
    axes = to_last(rank + 2)
    x, dy = (t.permute(axes) if last else t for t in (data.x, data.dy))
    w = data.w.permute((*range(2, rank + 2), 1, 0)) if last else data.w
    place = {"stride": case.stride, "padding": case.padding, "layout": data.layout}
    if case.family != "pool":
        place["groups"] = case.groups
        args = {"conv": (x, w), "conv_grad_input": (dy, w, tuple(x.shape)), "conv_grad_filter": (dy, x, tuple(w.shape))}[op]
        return lambda: call.run(PREPARE[op], *args, **place)
    shape, window = tuple(x.shape), case.kernel
    if op == "avg_pool_grad":
        return lambda: call.run(PREPARE[op], dy, shape, window, count_include_pad=True, **place)

    def forward() -> Any:
        return call.run(PREPARE["max_pool"], x, window, return_winners=True, **place)

    _, winners = forward()

    def gradient() -> Any:
        return call.run(PREPARE["max_pool_grad_from_winners"], dy, winners, shape, window, **place)

    return gradient if op == "max_pool_grad" else lambda: (forward(), gradient())


def pytorch(data: Data, op: str) -> Run:
    """PyTorch's own op, eager."""
    case, rank = data.case, len(data.case.size)
    stride, pads, ones = [case.stride] * rank, [case.padding] * rank, [1] * rank
    x, dy, w = data.x, data.dy, data.w
    if case.family != "pool":
        if op == "conv":
            return lambda: aten.convolution(x, w, None, stride, pads, ones, False, [0] * rank, case.groups)
        mask = [op == "conv_grad_input", op == "conv_grad_filter", False]
        which = 0 if mask[0] else 1
        return lambda: aten.convolution_backward(
            dy, x, w, None, stride, pads, ones, False, [0] * rank, case.groups, mask
        )[which]  # fmt: skip
    kernel = list(case.kernel)
    if op == "avg_pool_grad":
        backward = getattr(aten, f"avg_pool{rank}d_backward")
        return lambda: backward(dy, x, kernel, stride, pads, False, True, None)
    forward = getattr(aten, f"max_pool{rank}d_with_indices")
    backward = getattr(aten, f"max_pool{rank}d_with_indices_backward")
    _, indices = forward(x, kernel, stride, pads)

    def gradient() -> Any:
        return backward(dy, x, kernel, stride, pads, ones, False, indices)

    return gradient if op == "max_pool_grad" else lambda: (forward(x, kernel, stride, pads), gradient())


def compiled(data: Data, op: str) -> Run:
    """The same ops under torch.compile: a pair is the forward and backward of one function, as it would be in a network."""
    case, rank = data.case, len(data.case.size)
    pool = torch.nn.functional
    function = getattr(pool, f"{'avg' if op == 'avg_pool_grad' else 'max'}_pool{rank}d")
    x = data.x.detach().requires_grad_()

    def forward(x: torch.Tensor) -> torch.Tensor:
        # Something to fuse with: alone it would be PyTorch's own kernel again.
        y: torch.Tensor = function(x * 1.0, list(case.kernel), case.stride, case.padding)
        return y

    made = torch.compile(forward, dynamic=False)
    y = made(x)

    def gradient() -> Any:
        return torch.autograd.grad(y, x, data.dy, retain_graph=True)[0]

    if op == "max_pair":
        return lambda: torch.autograd.grad(made(x), x, data.dy)[0]
    return gradient


def last_of(found: Any) -> torch.Tensor:
    """The last tensor of a result: of a pair, its gradient."""
    while isinstance(found, tuple):
        found = found[-1]
    return found


def as_pytorch(data: Data, op: str, found: Any) -> torch.Tensor:
    """The gradient or result of ours with PyTorch's axes."""
    found = last_of(found)
    if data.layout == FIRST:
        return found
    return (
        found.permute((-1, -2, *range(found.dim() - 2))) if op == "conv_grad_filter" else found.permute(from_last(found.dim()))
    )
