"""Train ONNX models on the CPU: the training graph of a model, a session that runs it, and a trainer. Needs the extra `onnx`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pullback.onnx.errors import OnnxError
from pullback.onnx.hints import unknown_name

if TYPE_CHECKING:  # for readers of types and for the reference; at run time each comes when it is first asked for
    from pullback.onnx.executor.session import Session
    from pullback.onnx.graph.training_graph import training_graph
    from pullback.onnx.train.gradients import gradients
    from pullback.onnx.train.head import replace_head
    from pullback.onnx.train.images import ImageFolder
    from pullback.onnx.train.optimizers import SGD, Adam, AdamW
    from pullback.onnx.train.schedules import Constant, Cosine, Linear, OneCycle, ReduceOnPlateau, StepDecay
    from pullback.onnx.train.trainer import Trainer

_HOMES = {
    "graph.training_graph": ("training_graph",),
    "executor.session": ("Session",),
    "train.gradients": ("gradients",),
    "train.trainer": ("Trainer",),
    "train.optimizers": ("SGD", "Adam", "AdamW"),
    "train.schedules": ("Constant", "Cosine", "Linear", "OneCycle", "ReduceOnPlateau", "StepDecay"),
    "train.head": ("replace_head",),
    "train.images": ("ImageFolder",),
}

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "ImageFolder",
    "Linear",
    "OneCycle",
    "OnnxError",
    "ReduceOnPlateau",
    "Session",
    "StepDecay",
    "Trainer",
    "gradients",
    "replace_head",
    "training_graph",
]


def __getattr__(name: str) -> Any:
    """The public names, each imported from its module when it is first asked for: `import pullback.onnx` needs no onnx."""
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        unknown_name(name, __all__)
    try:
        module = importlib.import_module(f"{__name__}.{home}")
    except ImportError as error:
        if error.name != "onnx":
            raise
        raise ImportError(f"pullback.onnx.{name} needs onnx: pip install 'pullback[onnx]'", name="onnx") from None
    value = getattr(module, name)
    globals()[name] = value
    return value
