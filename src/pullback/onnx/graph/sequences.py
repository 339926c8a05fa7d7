"""Sequences written out: a tensor that is split into a sequence of which parts are taken by number is a plain Split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from pullback.onnx.executor.read import opsets_of
from pullback.onnx.graph.folding import fold_constants, replace_nodes, value_of_constant
from pullback.onnx.graph.types import types_of
from pullback.rules import Array

SIZES_AS_INPUT = 13  # since when Split takes the sizes as an input


def write_out_sequences(model: onnx.ModelProto) -> None:
    """Change a model in place, where the number and sizes of the parts are known: so PyTorch writes chunk and split."""
    if opsets_of(model)[""] < SIZES_AS_INPUT or not any(node.op_type == "SplitToSequence" for node in model.graph.node):
        return
    fold_constants(model)
    graph, types = model.graph, types_of(model)
    known: dict[str, Array] = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer if len(tensor.dims) < 2}
    known |= {node.output[0]: value_of_constant(node) for node in graph.node if node.op_type == "Constant"}
    nodes: list[onnx.NodeProto] = []
    taken: set[str] = set()
    for node in graph.node:
        if node.op_type == "SplitToSequence":
            readers = [other for other in graph.node if node.output[0] in other.input]
            shape = types[node.input[0]].shape if node.input[0] in types else None
            size = None if shape is None else shape[_attribute(node, "axis", 0)]
            by_number = all(each.op_type == "SequenceAt" and each.input[1] in known for each in readers)
            if isinstance(size, int) and by_number and all(name in known for name in node.input[1:]):
                sizes = _sizes(node, size, known)
                nodes += _split(node, sizes, [(each, int(known[each.input[1]]) % len(sizes)) for each in readers])
                taken.update(each.output[0] for each in readers)
                continue
        if node.op_type != "SequenceAt" or node.output[0] not in taken:
            nodes.append(node)
    replace_nodes(graph, nodes)


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((each.i for each in node.attribute if each.name == name), default)


def _sizes(node: onnx.NodeProto, whole: int, known: dict[str, Array]) -> list[int]:
    """Of each part: as listed, or equal ones with a smaller last; one by one where the node says nothing."""
    split = known[node.input[1]] if len(node.input) > 1 else np.array(1)
    if split.ndim:
        return [int(size) for size in split]
    return [min(int(split), whole - start) for start in range(0, whole, int(split))]


def _split(
    node: onnx.NodeProto, sizes: list[int], readers: Sequence[tuple[onnx.NodeProto, int]]
) -> list[onnx.NodeProto]:
    """Split, and for each reader its part under the name that it gives it."""
    sequence, axis = node.output[0], _attribute(node, "axis", 0)
    parts = [f"{sequence}_{number}" for number in range(len(sizes))]
    listed, along = f"{sequence}_sizes", f"{sequence}_axis"
    squeezed = len(node.input) < 2 and not _attribute(node, "keepdims", 1)
    nodes = [
        helper.make_node("Constant", [], [listed], value=numpy_helper.from_array(np.array(sizes, np.int64))),
        helper.make_node("Split", [node.input[0], listed], parts, node.name, axis=axis),
    ]
    if squeezed:
        nodes.append(helper.make_node("Constant", [], [along], value=numpy_helper.from_array(np.array([axis], np.int64))))
    for reader, number in readers:
        inputs = [parts[number], along] if squeezed else [parts[number]]
        nodes.append(helper.make_node("Squeeze" if squeezed else "Identity", inputs, reader.output, reader.name))
    return nodes
