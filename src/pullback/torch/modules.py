"""Layers that run on our kernels where these are expected to win, and on PyTorch's elsewhere.

Each is a subclass of PyTorch's layer without any state of its own, so that `accelerate` can turn one into the other in place. All
of PyTorch's keep their arguments, parameters and state_dict.
"""

from __future__ import annotations

from torch import nn

from pullback.torch.layers import (
    AdaptiveAvgPoolLayer,
    AdaptiveMaxPoolLayer,
    AvgPoolLayer,
    ConvLayer,
    ConvTransposeLayer,
    MaxPoolLayer,
)
from pullback.torch.norm_layers import BatchNormLayer, LayerNormLayer


class Conv1d(ConvLayer, nn.Conv1d):
    """torch.nn.Conv1d on our kernels."""

    spatial_rank = 1


class Conv2d(ConvLayer, nn.Conv2d):
    """torch.nn.Conv2d on our kernels."""

    spatial_rank = 2


class Conv3d(ConvLayer, nn.Conv3d):
    """torch.nn.Conv3d on our kernels."""

    spatial_rank = 3


class ConvTranspose1d(ConvTransposeLayer, nn.ConvTranspose1d):
    """torch.nn.ConvTranspose1d on our kernels."""

    spatial_rank = 1


class ConvTranspose2d(ConvTransposeLayer, nn.ConvTranspose2d):
    """torch.nn.ConvTranspose2d on our kernels."""

    spatial_rank = 2


class ConvTranspose3d(ConvTransposeLayer, nn.ConvTranspose3d):
    """torch.nn.ConvTranspose3d on our kernels."""

    spatial_rank = 3


class MaxPool1d(MaxPoolLayer, nn.MaxPool1d):
    """torch.nn.MaxPool1d on our kernels."""

    spatial_rank = 1


class MaxPool2d(MaxPoolLayer, nn.MaxPool2d):
    """torch.nn.MaxPool2d on our kernels."""

    spatial_rank = 2


class MaxPool3d(MaxPoolLayer, nn.MaxPool3d):
    """torch.nn.MaxPool3d on our kernels."""

    spatial_rank = 3


class AvgPool1d(AvgPoolLayer, nn.AvgPool1d):
    """torch.nn.AvgPool1d on our kernels."""

    spatial_rank = 1


class AvgPool2d(AvgPoolLayer, nn.AvgPool2d):
    """torch.nn.AvgPool2d on our kernels."""

    spatial_rank = 2


class AvgPool3d(AvgPoolLayer, nn.AvgPool3d):
    """torch.nn.AvgPool3d on our kernels."""

    spatial_rank = 3


class AdaptiveMaxPool1d(AdaptiveMaxPoolLayer, nn.AdaptiveMaxPool1d):
    """torch.nn.AdaptiveMaxPool1d on our kernels."""

    spatial_rank = 1


class AdaptiveMaxPool2d(AdaptiveMaxPoolLayer, nn.AdaptiveMaxPool2d):
    """torch.nn.AdaptiveMaxPool2d on our kernels."""

    spatial_rank = 2


class AdaptiveMaxPool3d(AdaptiveMaxPoolLayer, nn.AdaptiveMaxPool3d):
    """torch.nn.AdaptiveMaxPool3d on our kernels."""

    spatial_rank = 3


class AdaptiveAvgPool1d(AdaptiveAvgPoolLayer, nn.AdaptiveAvgPool1d):
    """torch.nn.AdaptiveAvgPool1d on our kernels."""

    spatial_rank = 1


class AdaptiveAvgPool2d(AdaptiveAvgPoolLayer, nn.AdaptiveAvgPool2d):
    """torch.nn.AdaptiveAvgPool2d on our kernels."""

    spatial_rank = 2


class AdaptiveAvgPool3d(AdaptiveAvgPoolLayer, nn.AdaptiveAvgPool3d):
    """torch.nn.AdaptiveAvgPool3d on our kernels."""

    spatial_rank = 3


class BatchNorm1d(BatchNormLayer, nn.BatchNorm1d):
    """torch.nn.BatchNorm1d on our kernels."""

    spatial_rank = 1


class BatchNorm2d(BatchNormLayer, nn.BatchNorm2d):
    """torch.nn.BatchNorm2d on our kernels."""

    spatial_rank = 2


class BatchNorm3d(BatchNormLayer, nn.BatchNorm3d):
    """torch.nn.BatchNorm3d on our kernels."""

    spatial_rank = 3


class LayerNorm(LayerNormLayer, nn.LayerNorm):
    """torch.nn.LayerNorm on our kernels, on a GPU."""


_OURS = (
    Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d,
    MaxPool1d, MaxPool2d, MaxPool3d, AvgPool1d, AvgPool2d, AvgPool3d,
    AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d, AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d,
    BatchNorm1d, BatchNorm2d, BatchNorm3d,
)  # fmt: skip
SWAPS: dict[type[nn.Module], type[nn.Module]] = {getattr(nn, ours.__name__): ours for ours in _OURS}
GPU_SWAPS: dict[type[nn.Module], type[nn.Module]] = {nn.LayerNorm: LayerNorm}  # where the parameters are on a GPU
BACK: dict[type[nn.Module], type[nn.Module]] = {ours: theirs for theirs, ours in (SWAPS | GPU_SWAPS).items()}
