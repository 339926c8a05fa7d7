"""Further small PyTorch models, for the tests of training: what real exports have beyond the models of torch_models.py."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  (its usual name)


def conv_norm(channels_in: int, channels: int, kernel: int = 3, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    padding = dilation * (kernel // 2)
    conv = nn.Conv2d(channels_in, channels, kernel, stride, padding, dilation, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels), nn.ReLU())


class GoogLeNet(nn.Module):
    """Local response normalisation, which exports as a branch on a size, and pools that round up."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 5, 2, 2), nn.MaxPool2d(3, 2, ceil_mode=True), nn.LocalResponseNorm(5, 1e-2))
        self.one, self.three = conv_norm(8, 4, 1), nn.Sequential(conv_norm(8, 4, 1), conv_norm(4, 6))
        self.head = nn.Linear(10, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        return self.head(torch.cat([self.one(y), self.three(y)], 1).mean((2, 3)))


class DeepLab(nn.Module):
    """Dilated convolutions side by side, and sizes that are those of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 8, stride=2)
        self.rates = nn.ModuleList([conv_norm(8, 6, dilation=rate) for rate in (1, 2, 4)])
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 6, 1), nn.ReLU())
        self.head = nn.Conv2d(24, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        parts = [rate(y) for rate in self.rates]
        parts.append(F.interpolate(self.pooled(y), size=y.shape[-2:], mode="bilinear", align_corners=False))
        return F.interpolate(self.head(torch.cat(parts, 1)), size=x.shape[-2:], mode="bilinear", align_corners=False)


def autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(4 * 36, 8), nn.Linear(8, 4 * 36), nn.SELU(),
        nn.Unflatten(1, (4, 6, 6)), nn.ConvTranspose2d(4, 1, 3, 2, 1, output_padding=1), nn.Sigmoid(),
    )  # fmt: skip


class CausalLayer(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.filter, self.gate = (nn.Conv1d(channels, channels, 2, dilation=dilation) for _ in range(2))
        self.out = nn.Conv1d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        past = F.pad(x, (self.dilation, 0))
        return x + self.out(torch.tanh(self.filter(past)) * torch.sigmoid(self.gate(past)))


def wavenet() -> nn.Module:
    return nn.Sequential(nn.Conv1d(1, 6, 1), *(CausalLayer(6, 1 << step) for step in range(3)), nn.Conv1d(6, 4, 1))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, einsum: bool) -> None:
        super().__init__()
        self.heads, self.einsum = heads, einsum
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, tokens, width = x.shape
        scale = (width // self.heads) ** -0.5
        if self.einsum:
            q, k, v = (part.reshape(n, tokens, self.heads, -1) for part in self.qkv(x).chunk(3, -1))
            weights = (torch.einsum("bnhd,bmhd->bhnm", q, k) * scale).softmax(-1)
            y = torch.einsum("bhnm,bmhd->bnhd", weights, v)
        else:
            q, k, v = self.qkv(x).reshape(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = (((q @ k.transpose(-2, -1)) * scale).softmax(-1) @ v).transpose(1, 2)
        return self.out(y.reshape(n, tokens, width))


class VisionTransformer(nn.Module):
    def __init__(self, einsum: bool = False, width: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.first = nn.Parameter(torch.randn(1, 1, width) * 0.1)
        self.place = nn.Parameter(torch.randn(1, 10, width) * 0.1)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])
        self.attention = Attention(width, 2, einsum)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU("tanh" if einsum else "none"), nn.Linear(2 * width, width)
        )
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.first.expand(y.shape[0], -1, -1), y], 1) + self.place
        y = y + self.attention(self.norms[0](y))
        y = y + self.mlp(self.norms[1](y))
        return self.head(self.norms[2](y)[:, 0])


def style_net() -> nn.Module:
    return nn.Sequential(
        nn.ReflectionPad2d(2), nn.Conv2d(3, 6, 5), nn.InstanceNorm2d(6, affine=True), nn.ReLU(), nn.Conv2d(6, 8, 3, 2, 1),
        nn.InstanceNorm2d(8, affine=True), nn.ReLU(), nn.Upsample(scale_factor=2, mode="nearest"), nn.ReflectionPad2d(1),
        nn.Conv2d(8, 3, 3),
    )  # fmt: skip


class Recurrent(nn.Module):
    """The same convolution, normalisation and product three times."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.norm = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.mix, self.head = nn.Linear(6, 6, bias=False), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        for _ in range(3):
            y = F.relu(self.norm(self.conv(y))) + y
        return self.head(self.mix(torch.tanh(self.mix(y.mean((2, 3))))) @ self.mix.weight)


class Standardised(nn.Module):
    """Arithmetic on parameters: a convolution with standardised weights, a cosine head with a temperature, gates by position."""

    def __init__(self) -> None:
        super().__init__()
        self.filters, self.classes = nn.Parameter(torch.randn(6, 3, 3, 3)), nn.Parameter(torch.randn(5, 6))
        self.temperature, self.gate = nn.Parameter(torch.tensor(3.0)), nn.Conv2d(2, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = self.filters - self.filters.mean((1, 2, 3), keepdim=True)
        y = F.silu(F.conv2d(x, centred / (centred.std((1, 2, 3), keepdim=True) + 1e-5), padding=1))
        y = y * torch.sigmoid(self.gate(torch.cat([y.mean(1, keepdim=True), y.amax(1, keepdim=True)], 1)))
        return self.temperature * F.normalize(y.flatten(2).mean(-1), dim=1) @ F.normalize(self.classes, dim=1).t()


class Pools(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 4, 3), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x) + 3.0
        whole, inside = (F.avg_pool2d(y, 3, 2, 1, ceil_mode=True, count_include_pad=each) for each in (True, False))
        parts = [
            whole.mean((2, 3)),
            inside.amax((2, 3)),
            F.lp_pool2d(y, 2.0, 2).mean((2, 3)),
            F.adaptive_max_pool2d(y, 1)[..., 0, 0],
        ]
        return self.head(torch.cat(parts, 1))


# Of each: what makes it, the shape of an input, the axes that may have any size, and the loss.
MORE_MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, ...], str]] = {
    "googlenet": (GoogLeNet, (3, 3, 17, 17), (0,), "cross_entropy"),
    "deeplab": (DeepLab, (3, 3, 17, 13), (0, 2, 3), "cross_entropy"),
    "autoencoder": (autoencoder, (3, 1, 12, 12), (0,), "mse"),
    "wavenet": (wavenet, (3, 1, 20), (0, 2), "huber"),
    "transformer": (VisionTransformer, (3, 3, 12, 12), (0,), "soft_cross_entropy"),
    "transformer_einsum": (lambda: VisionTransformer(einsum=True), (3, 3, 12, 12), (0,), "cross_entropy"),
    "style_net": (style_net, (3, 3, 8, 10), (0, 2, 3), "l1"),
    "recurrent": (Recurrent, (3, 3, 7, 7), (0, 2, 3), "cross_entropy"),
    "standardised": (Standardised, (3, 3, 6, 6), (0, 2, 3), "bce_with_logits"),
    "pools": (Pools, (3, 2, 9, 10), (0,), "cross_entropy"),
}
