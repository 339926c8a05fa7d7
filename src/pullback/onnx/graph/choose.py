"""Which tensors of a model are trained: all weights, or those that names and patterns choose."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from pullback.nearest import nearest
from pullback.onnx.checks import names_of
from pullback.onnx.errors import OnnxError
from pullback.onnx.graph.prepare import RUNNING_STATISTICS, WEIGHT_PLACES, Prepared
from pullback.onnx.graph.untie import filled, torch_tensors

Names = Iterable[str] | str | None


def candidates(ready: Prepared) -> list[str]:
    """Every floating-point initializer, except running statistics."""
    nodes = ready.graph.node
    running = {node.input[i] for node in nodes for i in RUNNING_STATISTICS.get(node.op_type, ()) if i < len(node.input)}
    return [name for name in ready.tensors if ready.types[name].floating and name not in running]


# Names that exporters make up: of PyTorch's two, of tf2onnx and Keras (results of TensorFlow's nodes, except variables), numbers.
MADE_UP = re.compile(r"^\d+$|^val_\d+$|^onnx::|scalar|const|__\d+$|^(?!.*ReadVariableOp).+:\d+$", re.IGNORECASE)


FILLED_BY_TORCH = re.compile(r"(new_)?(zeros|ones|full)")


def _literals(ready: Prepared) -> set[str]:
    """Single numbers of formulas: exponents, and those with made-up names outside the places of weights."""
    nodes = ready.graph.node
    weights = {node.input[i] for node in nodes for i in WEIGHT_PLACES.get(node.op_type, ()) if i < len(node.input)}
    exponents = {node.input[1] for node in nodes if node.op_type == "Pow"}
    single = [name for name in ready.tensors if not ready.types[name].shape and name not in weights]
    return {name for name in single if name in exponents or MADE_UP.search(name)}


def _constants_of_torch(ready: Prepared) -> set[str]:
    """What PyTorch's exporter of programs says is a buffer, and the tensors of one number that it made of nothing trained."""
    kinds = torch_tensors(ready.graph)
    buffers = {name for name, kind in kinds.items() if kind == "BUFFER"}
    plain = {name for node in ready.graph.node if node.op_type == "InstanceNormalization" for name in node.input[1:3]}
    made = [name for name in ready.tensors if kinds and name not in kinds and (name in plain or FILLED_BY_TORCH.match(name))]
    return buffers | {name for name in made if filled(ready.tensors[name])}


def _matching(patterns: Names, names: list[str], argument: str) -> list[str]:
    found: set[str] = set()
    for pattern in names_of(argument, patterns):
        hits = [name for name in names if name == pattern or fnmatchcase(name, pattern)]
        if not hits:
            near = nearest(pattern, names)
            meant = f"; did you mean {near!r}?" if near else "."
            shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
            raise OnnxError(
                f"{argument}: no parameter is called or matches {pattern!r}{meant} Parameters are {shown or 'none'}"
            )
        found.update(hits)
    return [name for name in names if name in found]


def chosen(ready: Prepared, trainable: Names, frozen: Names) -> list[str]:
    """The parameters to train, in the order of the model; whether the loss depends on them is not looked at here."""
    names = candidates(ready)
    held = set(_matching(frozen, names, "frozen"))
    if trainable is None:
        held |= _literals(ready) | _constants_of_torch(ready)
        return [name for name in names if name not in held]
    return [name for name in _matching(trainable, names, "trainable") if name not in held]
