"""Networks of full size to train on a GPU, without downloads: ConvNeXt-T, EfficientNet-B0, MobileNetV2 and ResNeXt-50 32x4d.

Stochastic depth and dropout are left out, so that two runs see the same numbers.
"""

from __future__ import annotations

import torch
from models import ResNextBlock, conv_norm, mobilenet_v2
from torch import nn

__all__ = ["convnext_t", "efficientnet_b0", "mobilenet_v2", "resnext50"]


class ChannelNorm(nn.LayerNorm):
    """Layer normalization over the channels of each pixel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    """Filter each channel by 7x7, then widen and narrow every pixel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.filter = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.mix = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))
        # The paper begins at 1e-6: then the first steps would hardly show what the blocks compute.
        self.scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.filter(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.mix(y)).permute(0, 3, 1, 2)


def convnext_t(classes: int = 1000) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), ChannelNorm(96, eps=1e-6)]
    channels = 96
    for width, count in ((96, 3), (192, 3), (384, 9), (768, 3)):
        if width != channels:
            layers += [ChannelNorm(channels, eps=1e-6), nn.Conv2d(channels, width, 2, 2)]
            channels = width
        layers += [ConvNextBlock(width) for _ in range(count)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(channels, eps=1e-6), nn.Linear(channels, classes)]
    return nn.Sequential(*layers, *head)


class SqueezeExcite(nn.Module):
    """Weigh each channel by what all channels are on average."""

    def __init__(self, channels: int, narrow: int) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, narrow, 1), nn.SiLU(), nn.Conv2d(narrow, channels, 1), nn.Sigmoid()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weigh(x)


class MBConv(nn.Module):
    """Widen by 1x1, filter each channel, weigh the channels, narrow by 1x1."""

    def __init__(self, channels: int, out: int, factor: int, window: int, stride: int) -> None:
        super().__init__()
        wide = channels * factor
        widen = [*conv_norm(channels, wide, 1), nn.SiLU()] if factor > 1 else []
        self.body = nn.Sequential(
            *widen, *conv_norm(wide, wide, window, stride, wide), nn.SiLU(), SqueezeExcite(wide, channels // 4),
            *conv_norm(wide, out, 1),
        )  # fmt: skip
        self.same = stride == 1 and channels == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.body(x)
        return x + y if self.same else y


def efficientnet_b0(classes: int = 1000) -> nn.Module:
    layers: list[nn.Module] = [*conv_norm(3, 32, 3, 2), nn.SiLU()]
    channels = 32
    stages = (
        (1, 16, 1, 3, 1), (6, 24, 2, 3, 2), (6, 40, 2, 5, 2), (6, 80, 3, 3, 2),
        (6, 112, 3, 5, 1), (6, 192, 4, 5, 2), (6, 320, 1, 3, 1),
    )  # fmt: skip
    for factor, out, count, window, stride in stages:
        for i in range(count):
            layers.append(MBConv(channels, out, factor, window, stride if i == 0 else 1))
            channels = out
    head = [*conv_norm(channels, 1280, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, classes)]
    return nn.Sequential(*layers, *head)


def resnext50(classes: int = 1000) -> nn.Module:
    layers: list[nn.Module] = [*conv_norm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for out, count, stride in ((256, 3, 1), (512, 4, 2), (1024, 6, 2), (2048, 3, 2)):
        for i in range(count):
            layers.append(ResNextBlock(channels, out, stride if i == 0 else 1))
            channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
