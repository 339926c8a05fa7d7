"""PyTorch's indices of max pooling from our winners: a flat position in the image instead of the number of a tap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def indices_of(winners: torch.Tensor, size: Sequence[Any], keywords: Mapping[str, Any]) -> torch.Tensor:
    """The int64 index of each winner within its image."""
    tap = winners.to(torch.int64)
    rank = len(size)
    index = torch.zeros_like(tap)
    distance = 1
    for axis in reversed(range(rank)):
        k, s, d = (keywords[name][axis] for name in ("window", "stride", "dilation"))
        starts = torch.arange(winners.shape[2 + axis], device=winners.device) * s - keywords["padding"][axis][0]
        cell = starts.view(-1, *(1,) * (rank - 1 - axis)) + tap % k * d
        tap = tap // k
        index.add_(cell * distance)  # in place: it lies as the winners do
        distance = distance * size[axis]
    return index
