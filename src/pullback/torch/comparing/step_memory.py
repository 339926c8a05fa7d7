"""What a step of a model takes in memory: bytes kept from its forward for its backward pass, and its peak of resident memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import pullback as pb
from pullback.cpu.engine.memory import trim
from pullback.torch.saving import HARMLESS

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def kept_bytes(model: nn.Module, step: Callable[[], Any]) -> int:
    """Bytes of the tensors that autograd keeps, each piece of memory once, without the parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters() if not parameter.is_meta}
    found: dict[int, tuple[int, torch.Tensor]] = {}  # tensors are held, so that no address is used twice

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes(), tensor.detach()
        return tensor.detach()

    HARMLESS.add(pack)
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            step()
    finally:
        HARMLESS.discard(pack)
    return sum(size for size, _ in found.values())


def peak_bytes(step: Callable[[], Any]) -> int | None:
    """The peak of resident memory in a step beyond what was resident before it; None elsewhere than on Linux.

    Memory kept for reuse is given back first. Linux's own record of the process's peak (VmHWM) begins anew.
    """
    pb.release_memory()
    trim()
    try:
        _CLEAR.write_text("5")
        before = _resident("VmRSS")
        step()
        return max(_resident("VmHWM") - before, 0)
    except (OSError, StopIteration):
        return None


def _resident(name: str) -> int:
    return next(int(line.split()[1]) << 10 for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
