"""Launching kernels: tiles by size, the device and stream that are current, results from PyTorch's allocator."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any, NamedTuple, TypeVar

import torch
import triton.language as tl
from triton import knobs

from pullback.problem import Problem

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # as Triton itself reads it: kernels run in Python on CPU tensors
MOST_32_BIT = 2**31 - 1
MOST_ROWS = 512  # of a tile, or columns where all cells are columns: see split_small in places_kernel.py
MOST_READY = 4096


What = TypeVar("What", bound=Hashable)  # a problem, or all that a normalization is compiled for


class Tile(NamedTuple):
    """Rows and columns of results that one program makes, both powers of two, and its warps."""

    rows: int
    columns: int
    warps: int


class Launch(NamedTuple):
    """What a kernel is launched with beside its tensors: numbers, which follow them, and what it is compiled for."""

    kernel: Any
    programs: int
    numbers: tuple[Any, ...]
    options: dict[str, Any]


class _Ready(NamedTuple):
    """A compiled kernel with all that it is launched with but its tensors."""

    compiled: Any
    programs: int
    rest: tuple[Any, ...]


_ready: dict[Any, _Ready] = {}


def sum_type(problem: Problem) -> Any:
    """The type that sums are made in."""
    return tl.float64 if problem.dtype.name == "float64" else tl.float32


def is_wide(problem: Problem) -> bool:
    """Whether places in one of its arrays need 64 bits."""
    return max(prod(problem.input_shape), prod(problem.output_shape)) > MOST_32_BIT


def power_of_two(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def tile_of(rows: int, columns: int, item_bytes: int, cells: int = 1024, most_columns: int = 256) -> Tile:
    """A tile of about so many cells: as many columns as fill it with little waste, since they are neighbours in memory."""
    if rows == 1:
        wide = min(power_of_two(columns), cells, MOST_ROWS)
        return Tile(1, wide, max(1, min(4, wide // 128)))
    wide = most_columns
    least = 32 // item_bytes  # elements of a sector
    while wide > least and wide > columns and wide // 2 >= columns:
        wide //= 2
    while wide > least and -(-columns // wide) * wide > 1.13 * columns:
        wide //= 2
    wide = min(wide, power_of_two(columns))
    high = min(1 << (max(cells // wide, 1).bit_length() - 1), power_of_two(rows), MOST_ROWS)
    return Tile(high, wide, max(1, min(4, high * wide // 128)))


def blocks(size: int, block: int) -> int:
    return -(-size // block)


def tiled(
    kernel: Any, problem: Problem, grid: tuple[int, int], numbers: tuple[Any, ...], cells: int = 1024, **options: Any
) -> Launch:
    """A kernel with a program for each tile of a grid of (rows, columns), which come before its other numbers."""
    rows, columns = grid
    tile = tile_of(rows, columns, problem.dtype.itemsize, cells)
    programs = blocks(rows, tile.rows) * blocks(columns, tile.columns)
    options |= {
        "SUM": sum_type(problem),
        "BR": tile.rows,
        "BC": tile.columns,
        "WIDE": is_wide(problem),
        "num_warps": tile.warps,
    }
    return Launch(kernel, programs, (rows, columns, *numbers), options)


def on_device(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """The tensor's device as the current one, on whose current stream PyTorch and Triton work."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return nullcontext()
    other: AbstractContextManager[Any] = torch.cuda.device(tensor.device)
    return other


def launch(plan: Callable[[What], Launch], problem: What, *tensors: torch.Tensor) -> None:
    """Launch what `plan(problem)` says on these tensors, on the current stream of the current device.

    Triton takes some 60 microseconds to find the compiled kernel of so many arguments. What it has found is kept, by the plan and
    the problem, which the numbers and options follow from, and by whether the tensors lie at multiples of 16 bytes.
    """
    if INTERPRETED or not tensors[0].is_cuda:
        planned = plan(problem)
        planned.kernel[(planned.programs,)](*tensors, *planned.numbers, **planned.options)
        return
    device, aligned = torch.cuda.current_device(), 0
    for tensor in tensors:
        aligned = 2 * aligned + (tensor.data_ptr() % 16 == 0)
    ready = _ready.get((plan, problem, device, aligned))
    if ready is None or _has_hooks():
        planned = plan(problem)
        compiled = planned.kernel[(planned.programs,)](*tensors, *planned.numbers, **planned.options)
        names = planned.kernel.arg_names[len(tensors) + len(planned.numbers) :]
        if len(_ready) >= MOST_READY:
            _ready.clear()
        rest = (*planned.numbers, *[planned.options[name] for name in names])
        _ready[plan, problem, device, aligned] = _Ready(compiled, planned.programs, rest)
        return
    compiled, programs, rest = ready
    compiled.run(
        programs, 1, 1, torch._C._cuda_getCurrentRawStream(device), compiled.function, compiled.packed_metadata, None, None, None,
        *tensors, *rest,
    )  # fmt: skip


def _has_hooks() -> bool:
    """Whether a profiler wants to hear of launches from Triton itself."""
    hook = knobs.runtime.launch_enter_hook
    return bool(getattr(hook, "calls", hook))
