"""The physical limits of a task on this machine: a plain copy of its bytes, writing those it must write, its multiplications."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pullback.bench.cases import Task, bytes_moved, bytes_written, flop
from pullback.bench.peers.base import Prepared

ROOFS = "pullback.cpu.engine.roofs"
COPY, WRITES = "limit: copy", "limit: writes"


def _roofs() -> Any:
    """The module that measures the machine, or None where it is not there."""
    try:
        return import_module(ROOFS) if find_spec(ROOFS) else None
    except ModuleNotFoundError:  # the package above it is missing
        return None


@cache
def _fma_rate(threads: int, dtype: str) -> float:
    return float(_roofs().fma_rate(threads, dtype))


def prepare_limits(task: Task) -> dict[str, Prepared]:
    """What takes turns with the participants of a pooling task: copying as many bytes as it must move, writing as many as it
    must write. A convolution needs none; nor can they be made where the machine's roofs cannot be measured.
    """
    roofs = _roofs()
    if roofs is None or task.case.kind != "pool":
        return {}
    runs = {COPY: roofs.copier(bytes_moved(task)), WRITES: roofs.filler(bytes_written(task))}
    return {name: Prepared(run, lambda: ()) for name, run in runs.items()}


def fma_seconds(task: Task, threads: int) -> float | None:
    """Seconds of a convolution's multiply-adds at the roof; None where it cannot be measured."""
    return None if _roofs() is None else flop(task) / _fma_rate(threads, task.dtype)
