"""Networks to train, in PyTorch and without downloads: ResNet-18, VGG-11, MobileNet V1 and V2, a ResNeXt and a small 3-D U-Net."""

from __future__ import annotations

import torch
from torch import nn


def conv_norm(channels: int, out: int, window: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution and batch normalisation, keeping the size where the stride is 1."""
    conv = nn.Conv2d(channels, out, window, stride, window // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = conv_norm(channels, out, 3, stride), conv_norm(out, out, 3)
        same = stride == 1 and channels == out
        self.shortcut = nn.Identity() if same else conv_norm(channels, out, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


def resnet18(classes: int = 10) -> nn.Module:
    blocks: list[nn.Module] = []
    channels = 64
    for out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [BasicBlock(channels, out, stride), BasicBlock(out, out, 1)]
        channels = out
    stem = [*conv_norm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def vgg11(classes: int = 10) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        if width:
            conv = nn.Conv2d(channels, width, 3, padding=1)
            nn.init.kaiming_normal_(conv.weight)  # without it, and without normalisation, hardly anything comes through
            layers += [conv, nn.ReLU()]
            channels = width
        else:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class InvertedResidual(nn.Module):
    """Widen by 1x1, filter each channel by 3x3, narrow by 1x1."""

    def __init__(self, channels: int, out: int, stride: int, factor: int) -> None:
        super().__init__()
        wide = channels * factor
        widen = [*conv_norm(channels, wide, 1), nn.ReLU6()] if factor > 1 else []
        self.body = nn.Sequential(*widen, *conv_norm(wide, wide, 3, stride, wide), nn.ReLU6(), *conv_norm(wide, out, 1))
        self.same = stride == 1 and channels == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.body(x)
        return x + y if self.same else y


def mobilenet_v2(classes: int = 10) -> nn.Module:
    layers: list[nn.Module] = [*conv_norm(3, 32, 3, 2), nn.ReLU6()]
    channels = 32
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for factor, out, count, stride in stages:
        for i in range(count):
            layers.append(InvertedResidual(channels, out, stride if i == 0 else 1, factor))
            channels = out
    head = [*conv_norm(channels, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, classes)]
    return nn.Sequential(*layers, *head)


class ResNextBlock(nn.Module):
    """Narrow by 1x1, 3x3 in 32 groups, widen by 1x1."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        narrow = out // 2
        self.body = nn.Sequential(
            *conv_norm(channels, narrow, 1), nn.ReLU(), *conv_norm(narrow, narrow, 3, stride, 32), nn.ReLU(),
            *conv_norm(narrow, out, 1),
        )  # fmt: skip
        self.shortcut = nn.Sequential() if channels == out else conv_norm(channels, out, 1, stride)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.relu(self.body(x) + self.shortcut(x))
        return y


def resnext26(classes: int = 10) -> nn.Module:
    layers: list[nn.Module] = [*conv_norm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for out, stride in ((256, 1), (512, 2), (1024, 2), (2048, 2)):
        layers += [ResNextBlock(channels, out, stride), ResNextBlock(out, out, 1)]
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def mobilenet_v1(classes: int = 10) -> nn.Module:
    layers: list[nn.Module] = [*conv_norm(3, 32, 3, 2), nn.ReLU()]
    channels = 32
    for out, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)):
        layers += [*conv_norm(channels, channels, 3, stride, channels), nn.ReLU(), *conv_norm(channels, out, 1), nn.ReLU()]
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def double_conv3d(channels: int, out: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner in (channels, out):
        layers += [nn.Conv3d(inner, out, 3, padding=1, bias=False), nn.BatchNorm3d(out), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet3d(nn.Module):
    """Three levels down and up again, with what was left on the way down joined on the way up."""

    def __init__(self, channels: int = 1, width: int = 16, classes: int = 3) -> None:
        super().__init__()
        self.down1, self.down2 = double_conv3d(channels, width), double_conv3d(width, 2 * width)
        self.bottom = double_conv3d(2 * width, 4 * width)
        self.pool = nn.MaxPool3d(2)
        self.widen2 = nn.ConvTranspose3d(4 * width, 2 * width, 2, 2)
        self.up2 = double_conv3d(4 * width, 2 * width)
        self.widen1 = nn.ConvTranspose3d(2 * width, width, 2, 2)
        self.up1 = double_conv3d(2 * width, width)
        self.head = nn.Conv3d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fine = self.down1(x)
        middle = self.down2(self.pool(fine))
        coarse = self.bottom(self.pool(middle))
        middle = self.up2(torch.cat((middle, self.widen2(coarse)), 1))
        fine = self.up1(torch.cat((fine, self.widen1(middle)), 1))
        labels: torch.Tensor = self.head(fine)
        return labels


def example() -> tuple[nn.Module, torch.Tensor]:
    """For `pullback compare examples/models.py:example`."""
    return resnet18(), torch.randn(8, 3, 64, 64)
