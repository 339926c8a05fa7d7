"""Launching kernels: tiles by size, the device and stream that are current, results from PyTorch's allocator."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import triton.language as tl

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # as Triton itself reads it: kernels run in Python on CPU tensors
MOST_32_BIT = 2**31 - 1

SUMS: dict[torch.dtype, Any] = {torch.float64: tl.float64}  # the type that sums are made in; else float32


def sum_type(tensor: torch.Tensor) -> Any:
    return SUMS.get(tensor.dtype, tl.float32)


class Tile(NamedTuple):
    """Rows and columns of results that one program makes, both powers of two, and its warps."""

    rows: int
    columns: int
    warps: int


def power_of_two(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def tile_of(rows: int, columns: int, item_bytes: int, cells: int = 1024, most_columns: int = 256) -> Tile:
    """A tile of about so many cells: as many columns as fill it with little waste, since they are neighbours in memory."""
    wide = most_columns
    least = 32 // item_bytes  # elements of a sector
    while wide > least and wide > columns and wide // 2 >= columns:
        wide //= 2
    while wide > least and -(-columns // wide) * wide > 1.13 * columns:
        wide //= 2
    wide = min(wide, power_of_two(columns))
    high = min(1 << (max(cells // wide, 1).bit_length() - 1), power_of_two(rows))
    return Tile(high, wide, max(1, min(4, high * wide // 128)))


def blocks(size: int, block: int) -> int:
    return -(-size // block)


def is_wide(*tensors: torch.Tensor) -> bool:
    """Whether places in one of these need 64 bits."""
    return any(tensor.numel() > MOST_32_BIT for tensor in tensors)


def on_device(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """The tensor's device as the current one, on whose current stream PyTorch and Triton work."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(tensor.device)


def launch(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
    """kernel[(programs,)](...) on the current device; nothing where there are no programs."""
    if programs:
        kernel[(programs,)](*arguments, **options)


def launch_tiles(
    kernel: Any, grid: tuple[int, int], tensors: tuple[torch.Tensor, ...], numbers: tuple[Any, ...], cells: int = 1024, **options: Any
) -> None:
    """A kernel with a program for each tile of a grid of (rows, columns), which it gets after its tensors."""
    rows, columns = grid
    tile = tile_of(rows, columns, tensors[0].element_size(), cells)
    programs = blocks(rows, tile.rows) * blocks(columns, tile.columns)
    launch(
        kernel, programs, *tensors, rows, columns, *numbers, BR=tile.rows, BC=tile.columns, num_warps=tile.warps, **options
    )  # fmt: skip
