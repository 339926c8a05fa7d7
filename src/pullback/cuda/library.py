"""What PyTorch's own ops do on a GPU, as the last kernels of the lists: dense convolutions by cuDNN, gathers and sums by indices.

So every op answers there, and `pullback.torch` leaves such calls to PyTorch itself.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from pullback.cuda.pool import forward, gradient
from pullback.problem import IndexProblem, Problem
from pullback.window import Window, span

aten = torch.ops.aten
FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}


def _to_first(problem: Problem, tensor: torch.Tensor) -> torch.Tensor:
    """An activation with PyTorch's axes."""
    rank = problem.window.rank
    return tensor.permute(0, rank + 1, *range(1, rank + 1)) if problem.layout == "channels_last" else tensor


def _from_first(problem: Problem, tensor: torch.Tensor) -> torch.Tensor:
    rank = problem.window.rank
    return tensor.permute(0, *range(2, rank + 2), 1).contiguous() if problem.layout == "channels_last" else tensor.contiguous()


def _filter(problem: Problem, filter: torch.Tensor) -> torch.Tensor:
    """A filter with PyTorch's axes, in the memory order by which cuDNN chooses its kernels."""
    rank = problem.window.rank
    if problem.layout == "channels_first":
        return filter.contiguous()
    first = filter.permute(rank + 1, rank, *range(rank))
    return first.contiguous(memory_format=FORMATS[rank]) if rank in FORMATS else first.contiguous()


def _is_plain(window: Window, axis: int) -> bool:
    """Whether PyTorch has the same windows: it pads both sides alike, and has no window that ends beyond."""
    low, size = window.pad_low[axis], window.input_size[axis]
    room = size + 2 * low - span(window.kernel[axis], window.dilation[axis])
    return low >= 0 and window.readable(axis) == size and room // window.stride[axis] + 1 == window.output_size[axis]


class _Exact:
    """The input cut and padded so that windows without padding are those of the problem."""

    def __init__(self, problem: Problem) -> None:
        window = problem.window
        self.problem, self.pads, self.crops = problem, [], []
        for axis in range(window.rank):
            low, readable = window.pad_low[axis], window.readable(axis)
            needed = (window.output_size[axis] - 1) * window.stride[axis] + span(window.kernel[axis], window.dilation[axis])
            begin, end = max(0, -low), min(readable, needed - low)
            self.crops.append(slice(begin, max(begin, end)))
            self.pads.append((max(0, low), max(0, needed - max(0, low) - max(0, end - begin))))
        self.plain = all(_is_plain(window, axis) for axis in range(window.rank))

    def padding(self) -> list[int]:
        """What PyTorch pads by itself."""
        return list(self.problem.window.pad_low) if self.plain else [0] * len(self.pads)

    def into(self, x: torch.Tensor) -> torch.Tensor:
        if self.plain:
            return x
        flat = [side for pad in reversed(self.pads) for side in pad]
        return functional.pad(x[(slice(None), slice(None), *self.crops)], flat)

    def out_of(self, dx: torch.Tensor) -> torch.Tensor:
        if self.plain:
            return dx
        whole = dx.new_zeros((dx.shape[0], dx.shape[1], *self.problem.window.input_size))
        inner = [slice(low, low + crop.stop - crop.start) for (low, _), crop in zip(self.pads, self.crops, strict=True)]
        whole[(slice(None), slice(None), *self.crops)] = dx[(slice(None), slice(None), *inner)]
        return whole


def _options(problem: Problem, exact: _Exact) -> tuple[Any, ...]:
    window = problem.window
    zeros = [0] * window.rank
    return list(window.stride), exact.padding(), list(window.dilation), False, zeros, problem.groups


def conv(problem: Problem, x: torch.Tensor, filter: torch.Tensor) -> torch.Tensor:
    exact = _Exact(problem)
    y = aten.convolution(exact.into(_to_first(problem, x)), _filter(problem, filter), None, *_options(problem, exact))
    return _from_first(problem, y)


def conv_grad_input(problem: Problem, dy: torch.Tensor, filter: torch.Tensor) -> torch.Tensor:
    exact = _Exact(problem)
    x = exact.into(_to_first(problem, dy.new_empty(problem.input_shape)))
    dx, _, _ = aten.convolution_backward(
        _to_first(problem, dy), x, _filter(problem, filter), None, *_options(problem, exact), [True, False, False]
    )
    return _from_first(problem, exact.out_of(dx))


def conv_grad_filter(problem: Problem, dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    exact = _Exact(problem)
    w = _filter(problem, x.new_empty(problem.filter_shape))
    _, df, _ = aten.convolution_backward(
        _to_first(problem, dy), exact.into(_to_first(problem, x)), w, None, *_options(problem, exact), [False, True, False]
    )
    rank = problem.window.rank
    return df.permute(*range(2, rank + 2), 1, 0) if problem.layout == "channels_last" else df


def _winning_cells(problem: Problem, winners: torch.Tensor) -> torch.Tensor:
    """The flat place of each winner in the input, 0 where there is none."""
    window, rank = problem.window, problem.window.rank
    last = problem.layout == "channels_last"
    lost = torch.iinfo(winners.dtype).max if winners.dtype is not torch.int64 else -1
    tap = winners.to(torch.int64)
    tap = torch.where((tap == lost) | (tap >= window.tap_count), 0, tap)
    place, distance = torch.zeros_like(tap), problem.channels_in if last else 1
    for axis in reversed(range(rank)):
        axes_behind = rank - 1 - axis + (1 if last else 0)
        starts = torch.as_tensor(window.starts(axis), device=winners.device).view(-1, *(1,) * axes_behind)
        cell = starts + tap % window.kernel[axis] * window.dilation[axis]
        place += cell.clamp(0, window.input_size[axis] - 1) * distance
        tap = tap // window.kernel[axis]
        distance *= window.input_size[axis]
    images = torch.arange(problem.batch, device=winners.device).view(-1, *(1,) * (rank + 1))
    channels = torch.arange(problem.channels_in, device=winners.device).view(-1, *(() if last else (1,) * rank))
    if last:
        return place + images * distance + channels
    return place + (images * problem.channels_in + channels) * distance


def max_pool_jvp_from_winners(problem: Problem, t: torch.Tensor, winners: torch.Tensor) -> torch.Tensor:
    """t at the winner of each window, 0 where there is none."""
    found = t.reshape(-1)[_winning_cells(problem, winners)]
    none = winners.to(torch.int64) >= problem.window.tap_count
    return torch.where(none, torch.zeros_like(found), found)


def max_pool_jvp(problem: Problem, t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The winners are found again."""
    _, winners = forward.max_pool(gradient.with_winners(problem), x)
    return max_pool_jvp_from_winners(problem, t, winners)


def _check_indices(problem: IndexProblem, indices: torch.Tensor) -> None:
    """ValueError for an index out of range, which on the device would end the program. (A graph's capture cannot wait for that.)"""
    if not indices.numel() or (indices.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    low, high = (int(value) for value in indices.aminmax())
    size = math.prod(problem.input_shape)
    if low < -1 or high >= size:
        raise ValueError(
            f"{problem.op}: index {low if low < -1 else high} in indices is out of range for input_shape {problem.input_shape}: "
            f"indices run from 0 to {size - 1}, and -1 stands for a window without a winner"
        )


def _row_major(problem: IndexProblem, indices: torch.Tensor) -> torch.Tensor:
    """Indices of storage_order=1, whose spatial part counts column-major, as plain ones."""
    if not problem.storage_order:
        return indices
    last = problem.layout == "channels_last"
    sizes = problem.input_shape[1:-1] if last else problem.input_shape[2:]
    inner, total = (problem.input_shape[-1] if last else 1), math.prod(sizes)
    outer, rest = indices // (total * inner), indices % (total * inner)
    spatial, channel = rest // inner, rest % inner
    flat = torch.zeros_like(spatial)
    for axis, size in enumerate(sizes):
        flat += spatial % size * math.prod(sizes[axis + 1 :])
        spatial = spatial // size
    return torch.where(indices < 0, -1, (outer * total + flat) * inner + channel)


def max_pool_grad_from_indices(problem: IndexProblem, dy: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """dy added at its indices: sorted by them first, as index_put_ does, so that the sums have one order."""
    _check_indices(problem, indices)
    flat = _row_major(problem, indices).reshape(-1)
    size = math.prod(problem.input_shape)
    sums = torch.float64 if dy.dtype is torch.float64 else torch.float32
    dx = torch.zeros(size + 1, dtype=sums, device=dy.device)  # the last place takes those without a winner
    dx.index_put_((torch.where((flat < 0) | (flat >= size), size, flat),), dy.reshape(-1).to(sums), accumulate=True)
    return dx[:size].to(dy.dtype).view(problem.input_shape)


def max_pool_jvp_from_indices(problem: IndexProblem, t: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    _check_indices(problem, indices)
    flat = _row_major(problem, indices)
    found = t.reshape(-1)[flat.clamp(0, t.numel() - 1)]
    return torch.where(flat < 0, torch.zeros_like(found), found)
