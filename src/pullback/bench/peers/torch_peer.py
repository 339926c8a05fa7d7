"""PyTorch on the CPU, in both memory formats; gradients by its backward ops themselves, so that nothing else is timed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from pullback.bench.cases import LAYOUTS, Task
from pullback.bench.data import Data, to_channels_last
from pullback.bench.peers.base import Prepared, UnsupportedError, package_missing, package_version
from pullback.rules import Array


class TorchPeer:
    """1-D cases run as 2-D ones of height 1, as PyTorch's own 1-D ops do, except where it has a 1-D kernel (max_pool1d)."""

    name = "torch"
    layouts = LAYOUTS
    slow = False

    def missing(self) -> str | None:
        return package_missing("torch", "bench")

    def version(self) -> str:
        return package_version("torch")

    def close(self) -> None:
        pass

    def prepare(self, task: Task, data: Data, threads: int) -> Prepared:
        torch: Any = import_module("torch")
        torch.set_num_threads(threads)
        op = _Op(torch, task, data.lifted())
        run = op.conv() if task.case.kind == "conv" else op.pool()

        def result() -> tuple[Array, ...]:
            try:
                got = run()
            except RuntimeError as refusal:  # avg_pool3d_backward wants an input no smaller than its window, padding or not
                raise UnsupportedError(str(refusal)) from refusal
            tensors = got if isinstance(got, tuple) else (got,)
            if task.op == "conv_grad_filter":
                return (np.moveaxis(_numpy(torch, tensors[0]), (0, 1), (-1, -2)),)
            return tuple(to_channels_last("channels_first", _numpy(torch, t)) for t in tensors)

        return Prepared(run, result)


def _numpy(torch: Any, tensor: Any) -> Array:
    return np.asarray(tensor.float().numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy())


class _Op:
    """A task's tensors and the calls over them."""

    def __init__(self, torch: Any, task: Task, data: Data) -> None:
        self.torch, self.aten, self.task = torch, torch.ops.aten, task
        case, window = data.case, data.case.window
        if window.pad_low != window.pad_high:
            raise UnsupportedError("no padding that differs at the two ends of an axis")
        if task.op.startswith("avg") and max(window.dilation) > 1:
            raise UnsupportedError("no dilated average pooling")
        self.rank, self.groups = window.rank, case.groups
        self.kernel, self.stride, self.dilation = list(window.kernel), list(window.stride), list(window.dilation)
        self.padding = list(window.pad_low)
        self.x, self.dy = (self._tensor(np.moveaxis(a, -1, 1)) for a in (data.x, data.dy))
        if case.kind == "conv":
            self.filter = self._tensor(np.moveaxis(data.filter, (-1, -2), (0, 1)))

    def _tensor(self, array: Array) -> Any:
        """A tensor of the task's memory format with data of its own."""
        torch = self.torch
        array = np.array(array, order="C")
        half = array.dtype.name == "bfloat16"
        tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if half else torch.from_numpy(array)
        if self.task.layout == "channels_first":
            return tensor.clone()  # in memory of PyTorch's own
        last = torch.channels_last if self.rank == 2 else torch.channels_last_3d
        return tensor.contiguous(memory_format=last)

    def _aten(self, name: str) -> Any:
        return getattr(self.aten, name.replace("#", str(self.rank))).default

    def conv(self) -> Callable[[], Any]:
        x, f, dy = self.x, self.filter, self.dy
        geometry = (self.stride, self.padding, self.dilation, False, [0] * self.rank, self.groups)
        if self.task.op == "conv":
            forward = self._aten("convolution")
            return lambda: forward(x, f, None, *geometry)
        backward = self._aten("convolution_backward")
        wanted = 0 if self.task.op == "conv_grad_input" else 1
        mask = [wanted == 0, wanted == 1, False]
        return lambda: backward(dy, x, f, None, *geometry, mask)[wanted]

    def pool(self) -> Callable[[], Any]:
        op, x, dy = self.task.op, self.x, self.dy
        if op == "max_pool":
            return self._max_values()
        if op in ("avg_pool", "avg_pool_grad", "avg_pair"):
            rules: tuple[Any, ...] = (self.kernel, self.stride, self.padding, False, False, None)
            avg, avg_grad = self._aten("avg_pool#d"), self._aten("avg_pool#d_backward")
            if op == "avg_pool":
                return lambda: avg(x, *rules)
            if op == "avg_pool_grad":
                return lambda: avg_grad(dy, x, *rules)
            return lambda: (avg(x, *rules), avg_grad(dy, x, *rules))
        rules = (self.kernel, self.stride, self.padding, self.dilation, False)
        with_indices, grad = self._aten("max_pool#d_with_indices"), self._aten("max_pool#d_with_indices_backward")
        if op == "max_pool_with_indices":
            return lambda: with_indices(x, *rules)
        if op == "max_pair":

            def max_pair() -> tuple[Any, Any]:
                y, indices = with_indices(x, *rules)
                return y, grad(dy, x, *rules, indices)

            return max_pair
        if not op.startswith("max_pool_grad"):
            raise UnsupportedError(f"no {op}")
        if op == "max_pool_grad":  # from x and dy alone: the winners have to be found again
            return lambda: grad(dy, x, *rules, with_indices(x, *rules)[1])
        saved = with_indices(x, *rules)[1]
        return lambda: grad(dy, x, *rules, saved)

    def _max_values(self) -> Callable[[], Any]:
        functional, x = self.torch.nn.functional, self.x
        if self.task.case.window.rank == 1 and self.task.layout == "channels_first":
            line, (k, s, p, d) = x.squeeze(2), (v[1] for v in (self.kernel, self.stride, self.padding, self.dilation))
            return lambda: functional.max_pool1d(line, k, s, p, d)
        pool = functional.max_pool2d if self.rank == 2 else functional.max_pool3d
        return lambda: pool(x, self.kernel, self.stride, self.padding, self.dilation)
