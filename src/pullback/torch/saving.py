"""Whether somebody watches what autograd keeps for the backward pass: a checkpoint, which must find the same tensors again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import checkpoint

TOP_HOOKS = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
HARMLESS: set[Callable[..., Any]] = set()  # hooks that only look


def is_watched() -> bool:
    if TOP_HOOKS is not None:
        hooks = TOP_HOOKS(False)
        return hooks is not None and hooks[0] not in HARMLESS
    frame: Any = sys._getframe()  # PyTorch 2.6 and 2.7 do not tell
    while frame is not None and frame.f_code.co_filename != checkpoint.__file__:
        frame = frame.f_back
    return frame is not None
