"""Train ONNX models on the CPU: the training graph of a model, a session that runs it, and a trainer. Needs the extra `onnx`."""

from __future__ import annotations

import importlib
from typing import Any

from pullback.onnx.errors import OnnxError

_HOMES = {
    "training_graph": "graph.training_graph",
    "Session": "executor.session",
    "gradients": "train.gradients",
    "Trainer": "train.trainer",
    "SGD": "train.optimizers",
    "Adam": "train.optimizers",
    "AdamW": "train.optimizers",
    "replace_head": "train.head",
}

__all__ = ["OnnxError", *_HOMES]


def __getattr__(name: str) -> Any:
    """The public names, each imported from its module when it is first asked for: `import pullback.onnx` needs no onnx."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
