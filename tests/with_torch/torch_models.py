"""Small PyTorch models of many architectures, and their exports to ONNX, for the tests of pullback.onnx."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable
from typing import Any

import onnx
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  (its usual name)


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * 4 * 4, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def vgg11(width: int = 8, classes: int = 10) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for step in (1, "M", 2, "M", 4, 4, "M", 8, 8, "M", 8, 8, "M"):
        if step == "M":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, width * int(step), 3, padding=1), nn.ReLU(inplace=True)]
            channels = width * int(step)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, classes))
    return nn.Sequential(*layers, *head)


def _norm(kind: str, channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(4, channels)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int, norm: str = "batch") -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False), _norm(norm, channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False), _norm(norm, channels)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False), _norm(norm, channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet18(width: int = 8, norm: str = "batch", classes: int = 10) -> nn.Module:
    blocks: list[nn.Module] = []
    channels = width
    for stage in range(4):
        for block in range(2):
            blocks.append(BasicBlock(channels, width << stage, 2 if stage and not block else 1, norm))
            channels = width << stage
    stem = (nn.Conv2d(3, width, 7, 2, 3, bias=False), _norm(norm, width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(channels, classes))


class InvertedResidual(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = channels_in * expand
        layers: list[nn.Module] = []
        if expand != 1:
            layers += [nn.Conv2d(channels_in, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6()]
        layers += [nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(hidden, channels, 1, bias=False), nn.BatchNorm2d(channels))
        self.residual = stride == 1 and channels_in == channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        return x + y if self.residual else y


def mobilenet_v2(classes: int = 10) -> nn.Module:
    blocks: list[nn.Module] = []
    channels = 8
    for expand, wider, count, stride in ((1, 8, 1, 1), (6, 12, 2, 2), (6, 16, 2, 2), (6, 24, 1, 1)):
        for place in range(count):
            blocks.append(InvertedResidual(channels, wider, stride if place == 0 else 1, expand))
            channels = wider
    stem = (nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
    last = (nn.Conv2d(channels, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU6())
    return nn.Sequential(*stem, *blocks, *last, MeanOverSpace(), nn.Dropout(0.2), nn.Linear(64, classes))


class MeanOverSpace(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean([2, 3])


class UNet3d(nn.Module):
    """One step down and up, by a transposed convolution."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv3d(1, width, 3, padding=1), nn.BatchNorm3d(width), nn.ReLU())
        self.pool = nn.MaxPool3d(2)
        self.middle = nn.Sequential(
            nn.Conv3d(width, 2 * width, 3, padding=1), nn.InstanceNorm3d(2 * width, affine=True), nn.ELU()
        )
        self.up = nn.ConvTranspose3d(2 * width, width, 2, stride=2)
        self.last = nn.Sequential(nn.Conv3d(2 * width, width, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv3d(width, 2, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side = self.down(x)
        return self.last(torch.cat([side, self.up(self.middle(self.pool(side)))], 1))


class UNet(nn.Module):
    """One step down and up, by interpolation."""

    def __init__(self, mode: str, width: int = 8) -> None:
        super().__init__()
        self.mode = mode
        self.down = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.PReLU(width))
        self.middle = nn.Sequential(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.SiLU())
        self.last = nn.Conv2d(3 * width, 2, 3, padding=1, padding_mode="reflect")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side = self.down(x)
        inside = self.middle(side)
        corners = {} if self.mode == "nearest" else {"align_corners": False}
        wide = F.interpolate(inside, size=side.shape[2:], mode=self.mode, **corners)
        return torch.sigmoid(self.last(torch.cat([wide, side], dim=1)))


class ConvNeXtBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.wide, self.narrow = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(0.1 * torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(F.gelu(self.wide(y)))
        return x + y.permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 4), ConvNeXtBlock(16), ConvNeXtBlock(16), MeanOverSpace(), nn.LayerNorm(16), nn.Linear(16, 10)
    )


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fewer, self.more = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = F.adaptive_avg_pool2d(x, 1)
        return x * torch.sigmoid(self.more(F.silu(self.fewer(gate))))


def efficientnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.SiLU(),
        nn.Conv2d(16, 16, 5, 2, 2, groups=16, bias=False), nn.BatchNorm2d(16), nn.Hardswish(), SqueezeExcite(16),
        nn.Conv2d(16, 24, 1, bias=False), nn.BatchNorm2d(24), nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(24, 10),
    )  # fmt: skip


class DenseLayer(nn.Module):
    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(channels), nn.Conv2d(channels, growth, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.conv(F.relu(self.norm(x)))], 1)


def densenet() -> nn.Module:
    layers = [DenseLayer(8 + 4 * place, 4) for place in range(3)]
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), *layers, nn.BatchNorm2d(20), nn.ReLU(), nn.Conv2d(20, 10, 1), nn.AvgPool2d(2, 2),
        MeanOverSpace(), nn.Linear(10, 10),
    )  # fmt: skip


class ShuffleUnit(nn.Module):
    """Half of the channels go through, the other half by convolutions; then both are shuffled."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(
            nn.Conv2d(half, half, 1), nn.ReLU(), nn.Conv2d(half, half, 3, padding=1, groups=half), nn.Conv2d(half, half, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, dim=1)
        y = torch.cat([a, self.branch(b)], 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), ShuffleUnit(16), ShuffleUnit(16), MeanOverSpace(), nn.Linear(16, 10))


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(8, 4, 1)
        self.three = nn.Sequential(nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 6, 3, padding=1))
        self.asymmetric = nn.Sequential(nn.Conv2d(8, 4, (1, 7), padding=(0, 3)), nn.Conv2d(4, 4, (7, 1), padding=(3, 0)))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(8, 4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.one(x), self.three(x), self.asymmetric(x), self.pool(x), F.avg_pool2d(x, 3, 1, 1)]
        return torch.cat(parts, 1)


def inception() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), Inception(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(26, 10)
    )


def audio_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 8, 9, 4), nn.BatchNorm1d(8), nn.Mish(), nn.MaxPool1d(2), nn.Conv1d(8, 16, 3, dilation=2), nn.Softplus(),
        nn.AvgPool1d(3, 2, 1, ceil_mode=True), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 5), nn.LogSoftmax(dim=1),
    )  # fmt: skip


class PixelShuffler(nn.Module):
    """A small super-resolution net, with a padding that wraps around."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1, padding_mode="circular"), nn.GroupNorm(3, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.hardtanh(F.pixel_shuffle(F.hardsigmoid(self.conv(x)), 2), -1.0, 1.0)


# Of each: what makes it, the shape of an input, and the axes that may have any size.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, ...]]] = {
    "lenet": (lenet, (3, 1, 28, 28), (0,)),
    "vgg11": (vgg11, (2, 3, 32, 32), (0,)),
    "resnet18": (resnet18, (2, 3, 64, 64), (0, 2, 3)),
    "mobilenet_v2": (mobilenet_v2, (2, 3, 32, 32), (0, 2, 3)),
    "unet3d": (UNet3d, (2, 1, 8, 8, 8), (0,)),
    "unet_nearest": (lambda: UNet("nearest"), (2, 3, 18, 22), (0, 2, 3)),
    "unet_bilinear": (lambda: UNet("bilinear"), (2, 3, 18, 22), (0, 2, 3)),
    "convnext": (convnext, (2, 3, 32, 32), (0,)),
    "efficientnet": (efficientnet, (2, 3, 32, 32), (0, 2, 3)),
    "densenet": (densenet, (2, 3, 16, 16), (0, 2, 3)),
    "shufflenet": (shufflenet, (2, 3, 16, 16), (0, 2, 3)),
    "inception": (inception, (2, 3, 17, 17), (0,)),
    "audio_net": (audio_net, (3, 2, 200), (0,)),
    "groupnorm_resnet": (lambda: resnet18(norm="group"), (2, 3, 64, 64), (0,)),
    "pixel_shuffler": (PixelShuffler, (2, 3, 12, 10), (0, 2, 3)),
}


def make(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, torch.Tensor]:
    """A model in evaluation mode, whose running statistics are not their defaults, and an input."""
    torch.manual_seed(len(name))
    maker, shape, _ = MODELS[name]
    model = maker()
    for buffer_name, buffer in model.named_buffers():
        if buffer_name.endswith("running_mean"):
            buffer.normal_(0, 0.1)
        elif buffer_name.endswith("running_var"):
            buffer.uniform_(0.5, 2.0)
    return model.to(dtype).eval(), torch.randn(shape, dtype=dtype)


def export(
    model: nn.Module, x: torch.Tensor, *, opset: int, dynamo: bool = False, dynamic: tuple[int, ...] = (), **options: Any
) -> onnx.ModelProto:
    """The model as ONNX with the input "x", by PyTorch's exporter of TorchScript or (dynamo) of exported programs."""
    sizes = {axis: f"size_{axis}" for axis in dynamic}
    quiet = logging.getLogger("torch.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        level = quiet.level
        quiet.setLevel(logging.ERROR)
        try:
            if dynamo:
                shapes = dict.fromkeys(dynamic, torch.export.Dim.DYNAMIC)
                program = torch.onnx.export(
                    model, (x,), dynamo=True, opset_version=opset, input_names=["x"], output_names=["y"], verbose=False,
                    dynamic_shapes=(shapes,) if dynamic else None,
                    **options,
                )  # fmt: skip
                assert program is not None
                return program.model_proto
            file = io.BytesIO()
            torch.onnx.export(
                model, (x,), file, dynamo=False, opset_version=opset, input_names=["x"], output_names=["y"],
                dynamic_axes={"x": sizes} if sizes else None, **options,
            )  # fmt: skip
            return onnx.load_from_string(file.getvalue())
        finally:
            quiet.setLevel(level)
