"""Models of opset 11 and 12 written as opset 13, so that rules and nodes of the training graph know one form of each op."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from pullback.onnx.executor.read import opsets_of
from pullback.onnx.graph.types import types_of

AXES_AS_INPUT = ("Squeeze", "Unsqueeze", "ReduceSum")
LAST = 13


def raised_to_13(model: onnx.ModelProto) -> None:
    """Change a model of an older opset in place: 12 and 13 made inputs of Dropout's ratio, axes and split, and changed Softmax."""
    version = opsets_of(model)[""]
    if version >= LAST:
        return
    ranks = {name: None if kind.shape is None else len(kind.shape) for name, kind in types_of(model).items()}
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        nodes.extend(_raised(model.graph, node, ranks, version))
    fresh = [onnx.NodeProto() for _ in nodes]
    for copy, node in zip(fresh, nodes, strict=True):
        copy.CopyFrom(node)
    del model.graph.node[:]
    model.graph.node.extend(fresh)
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = LAST


def _raised(graph: onnx.GraphProto, node: onnx.NodeProto, ranks: dict[str, int | None], version: int) -> list[onnx.NodeProto]:
    if node.domain not in ("", "ai.onnx"):
        return [node]
    if node.op_type in AXES_AS_INPUT:
        _attribute_to_input(graph, node, "axes", np.int64)
    elif node.op_type == "Split":
        _attribute_to_input(graph, node, "split", np.int64)
    elif node.op_type == "Dropout" and version < 12:
        _attribute_to_input(graph, node, "ratio", np.float32)
    elif node.op_type in ("Softmax", "LogSoftmax", "Hardmax"):
        return _softmax(node, ranks.get(node.input[0]))
    return [node]


def _taken(node: onnx.NodeProto, name: str) -> onnx.AttributeProto | None:
    """An attribute, which the node loses."""
    for attribute in node.attribute:
        if attribute.name == name:
            copy = onnx.AttributeProto()
            copy.CopyFrom(attribute)
            node.attribute.remove(attribute)
            return copy
    return None


def _attribute_to_input(graph: onnx.GraphProto, node: onnx.NodeProto, name: str, dtype: type) -> None:
    attribute = _taken(node, name)
    if attribute is not None:
        tensor = numpy_helper.from_array(np.asarray(helper.get_attribute_value(attribute), dtype), f"{node.output[0]}_{name}")
        graph.initializer.append(tensor)
        node.input.append(tensor.name)


def _softmax(node: onnx.NodeProto, rank: int | None) -> list[onnx.NodeProto]:
    """Before 13 the axes from `axis` on were one: flattened, with axis 1 if the node says nothing."""
    attribute = _taken(node, "axis")
    axis = attribute.i if attribute else 1
    if axis == -1 or (rank is not None and axis % rank == rank - 1):
        node.attribute.append(helper.make_attribute("axis", -1))
        return [node]
    x, y = node.input[0], node.output[0]
    shape, flat, result = (f"{y}_{part}" for part in ("shape", "flat", "flat_result"))
    return [
        helper.make_node("Shape", [x], [shape]),
        helper.make_node("Flatten", [x], [flat], axis=axis),
        helper.make_node(node.op_type, [flat], [result], node.name, axis=-1),
        helper.make_node("Reshape", [result, shape], [y]),
    ]
