"""The published shapes of the cuda benchmark: what networks have, large enough that no cache holds them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pullback.window import Window

Family = Literal["pool", "depthwise", "grouped", "first"]
POOL_OPS = ("max_pool_grad", "max_pair", "avg_pool_grad")
CONV_OPS = ("conv", "conv_grad_input", "conv_grad_filter")


@dataclass(frozen=True)
class CudaCase:
    """One shape. `bytes_of` and `flop` say what an op must move and multiply at the least."""

    name: str
    family: Family
    batch: int
    channels: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: int = 1
    padding: int = 0
    groups: int = 1
    out: int = 0

    @property
    def window(self) -> Window:
        rank = len(self.size)
        pads = ((self.padding, self.padding),) * rank
        return Window.make(self.size, self.kernel, (self.stride,) * rank, (1,) * rank, pads)

    @property
    def channels_out(self) -> int:
        return self.out or self.channels

    @property
    def ops(self) -> tuple[str, ...]:
        if self.family == "pool":
            return POOL_OPS
        return ("conv_grad_input", "conv_grad_filter") if self.family == "first" else CONV_OPS

    def bytes_of(self, op: str, item: int) -> int:
        x = self.batch * self.channels * math.prod(self.size) * item
        outputs = self.batch * self.channels_out * math.prod(self.window.output_size)
        y, winners = outputs * item, outputs
        return {"max_pool_grad": x + y + winners, "max_pair": 2 * (x + y + winners)}.get(op, x + y)

    def flop(self, op: str) -> int:
        if self.family == "pool":
            return 0
        outputs = self.batch * self.channels_out * math.prod(self.window.output_size)
        return 2 * outputs * self.window.tap_count * (self.channels // self.groups)


def _depthwise(name: str, batch: int, channels: int, size: tuple[int, ...], kernel: int, stride: int = 1) -> CudaCase:
    rank = len(size)
    return CudaCase(name, "depthwise", batch, channels, size, (kernel,) * rank, stride, kernel // 2, channels)


def _grouped(name: str, batch: int, channels: int, size: int, groups: int, stride: int = 1) -> CudaCase:
    return CudaCase(name, "grouped", batch, channels, (size, size), (3, 3), stride, 1, groups)


CASES = (
    CudaCase("pool-3x3s2", "pool", 128, 64, (112, 112), (3, 3), 2, 1),
    CudaCase("pool-2x2", "pool", 128, 64, (112, 112), (2, 2), 2),
    CudaCase("pool-3x3s1", "pool", 64, 192, (56, 56), (3, 3), 1, 1),
    CudaCase("pool-3d-2", "pool", 8, 64, (48, 64, 64), (2, 2, 2), 2),
    CudaCase("pool-3d-3s2", "pool", 8, 64, (48, 64, 64), (3, 3, 3), 2, 1),
    _depthwise("dw-3x3", 128, 144, (56, 56), 3),
    _depthwise("dw-3x3-wide", 128, 576, (14, 14), 3),
    _depthwise("dw-3x3s2", 128, 96, (112, 112), 3, 2),
    _depthwise("dw-3x3s2-deep", 128, 192, (56, 56), 3, 2),
    _depthwise("dw-5x5", 128, 240, (28, 28), 5),
    _depthwise("dw-5x5s2", 128, 144, (56, 56), 5, 2),
    _depthwise("dw-7x7", 128, 96, (56, 56), 7),
    _depthwise("dw-7x7-deep", 128, 384, (14, 14), 7),
    _depthwise("dw-3d", 8, 64, (32, 56, 56), 3),
    CudaCase("dw-1d-4", "depthwise", 4, 12288, (2048,), (4,), 1, 3, 12288),
    _grouped("g32x4", 128, 128, 56, 32),
    _grouped("g32x8", 128, 256, 28, 32),
    _grouped("g32x16", 128, 512, 14, 32),
    _grouped("g32x8s2", 128, 256, 56, 32, 2),
    _grouped("g32x32", 128, 1024, 7, 32),
    _grouped("g14x24", 128, 336, 28, 14),
    CudaCase("first-7x7s2", "first", 64, 3, (224, 224), (7, 7), 2, 3, 1, 64),
    CudaCase("first-3x3s2", "first", 64, 3, (224, 224), (3, 3), 2, 1, 1, 32),
    CudaCase("first-4x4s4", "first", 64, 3, (224, 224), (4, 4), 4, 0, 1, 96),
)
