"""The physical limit of a task on this machine: the time a plain copy of its bytes, or its multiplications, would take."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pullback.bench.cases import Task, bytes_moved, flop

ROOFS = "pullback.cpu.roofs"


def _roofs() -> Any:
    """The module that measures the machine, or None where it is not there."""
    try:
        return import_module(ROOFS) if find_spec(ROOFS) else None
    except ModuleNotFoundError:  # the package above it is missing
        return None


@cache
def _copy_rate(footprint: int, threads: int) -> float:
    return float(_roofs().copy_rate(footprint, threads))


@cache
def _fma_rate(threads: int, dtype: str) -> float:
    return float(_roofs().fma_rate(threads, dtype))


def limit_seconds(task: Task, threads: int) -> float | None:
    """Least seconds for a task: pooling by its bytes at the copy rate, convolution by its flops at the FMA roof.

    None where the machine's roofs cannot be measured.
    """
    if _roofs() is None:
        return None
    if task.case.kind == "pool":
        moved = bytes_moved(task)
        return moved / _copy_rate(moved, threads)
    return flop(task) / _fma_rate(threads, task.dtype)
