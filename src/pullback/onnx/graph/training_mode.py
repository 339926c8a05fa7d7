"""Batch normalisation and dropout as they are while training: statistics of the batch, random masks."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from pullback.onnx.executor.registry import MICROSOFT
from pullback.onnx.graph.prepare import Prepared
from pullback.onnx.graph.tensor_type import TensorType
from pullback.rules import Array

SAVED = ("_saved_mean", "_saved_inv_std")


def to_training_mode(ready: Prepared, depends: set[str]) -> dict[str, str]:
    """Change the nodes in place; for each running statistic the output with its next value.

    A batch normalisation whose scale and bias are both frozen keeps its running statistics; every dropout drops.
    """
    running: dict[str, str] = {}
    for node in ready.graph.node:
        if node.op_type == "BatchNormalization" and depends.intersection(node.input[1:3]):
            _batch_norm(ready, node, running)
        elif node.op_type == "BatchNormalization":
            keep_statistics(node)
        elif node.op_type == "Dropout":
            _dropout(ready, node)
    return {name: output for name, output in running.items() if name in ready.tensors}


def keep_statistics(node: onnx.NodeProto) -> None:
    """A batch normalisation that uses its running statistics, also where the model was exported in training mode."""
    for attribute in [each for each in node.attribute if each.name == "training_mode"]:
        node.attribute.remove(attribute)
    del node.output[1:]


def _batch_norm(ready: Prepared, node: onnx.NodeProto, running: dict[str, str]) -> None:
    """BatchNormInternal of ONNX Runtime: y, next mean, next variance, and of the batch mean and 1 / standard deviation."""
    y, *given = node.output
    names = [f"{y}{ending}" for ending in ("_running_mean", "_running_var", *SAVED)]
    names[: len(given[:2])] = [name or names[i] for i, name in enumerate(given[:2])]
    del node.output[:]
    node.output.extend([y, *names])
    for place, output in zip((3, 4), names, strict=False):
        first = node.input[place]
        if first in running:  # two nodes share the statistics: the second goes on from what the first made of them
            node.input[place] = running[first]
        running[first] = output
        for saved in (output, names[place - 1]):
            ready.types[saved] = ready.types.get(first, TensorType(onnx.TensorProto.FLOAT, None))
    node.op_type, node.domain = "BatchNormInternal", MICROSOFT
    kept = [each for each in node.attribute if each.name in ("epsilon", "momentum")]
    copies = [onnx.AttributeProto() for _ in kept]
    for copy, attribute in zip(copies, kept, strict=True):
        copy.CopyFrom(attribute)
    del node.attribute[:]
    node.attribute.extend([*copies, onnx.helper.make_attribute("training_mode", 1)])


def _dropout(ready: Prepared, node: onnx.NodeProto) -> None:
    """training_mode, the third input, is true; the second, the ratio, is 0.5 unless it is given."""
    while len(node.input) < 3:
        node.input.append("")
    if not node.input[1]:
        node.input[1] = _scalar(ready, "dropout_ratio", np.array(0.5, np.float32))
    node.input[2] = _scalar(ready, "dropout_training", np.array(True))


def _scalar(ready: Prepared, name: str, value: Array) -> str:
    if name not in ready.tensors:
        tensor = numpy_helper.from_array(value, name)
        ready.graph.initializer.append(tensor)
        ready.tensors[name] = tensor
        ready.types[name] = TensorType(tensor.data_type, ())
    return name
