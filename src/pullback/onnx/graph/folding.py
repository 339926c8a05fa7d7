"""Nodes that have one meaning before the run: constants that are computed, and operators that ONNX defines by others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper

from pullback.onnx.executor.read import opsets_of, read_node, to_array
from pullback.onnx.executor.registry import find_op
from pullback.onnx.graph.tensor_type import FLOATS, TensorType
from pullback.onnx.graph.types import types_of
from pullback.rules import Array

MOST_ENTRIES = 4096  # of a result: larger ones are computed in the run
WITHOUT_INPUTS = ("RandomNormal", "RandomUniform")
MADE_OF_OTHERS = ("Attention", "RotaryEmbedding")
EXPANDED = "ai.pullback.expanded"


def value_of_constant(node: onnx.NodeProto) -> Array:
    """The value of a Constant node, whichever attribute has it."""
    attribute = node.attribute[0]
    value = helper.get_attribute_value(attribute)
    if attribute.type == attribute.TENSOR:
        return to_array(value)
    return np.asarray(value, np.float32 if attribute.type in (attribute.FLOAT, attribute.FLOATS) else None)


def fold_constants(model: onnx.ModelProto) -> None:
    """Constant nodes in place of nodes that compute them from Constant nodes and whole-number initializers.

    Initializers of floating point may be trained, so nothing is computed of them beforehand.
    """
    graph, opsets = model.graph, opsets_of(model)
    known = {tensor.name: to_array(tensor) for tensor in graph.initializer if tensor.data_type not in FLOATS}
    nodes = []
    for proto in graph.node:
        if proto.op_type == "Constant" and not any(
            each.name.startswith(("sparse", "value_string")) for each in proto.attribute
        ):
            known[proto.output[0]] = value_of_constant(proto)
        elif proto.input and proto.op_type not in WITHOUT_INPUTS and all(not name or name in known for name in proto.input):
            results = _run(proto, opsets, known)
            if results is not None:
                known |= results
                nodes += [
                    helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))
                    for name, array in results.items()
                ]
                continue
        nodes.append(proto)
    if len(nodes) != len(graph.node) or any(a is not b for a, b in zip(nodes, graph.node, strict=True)):
        copies = [onnx.NodeProto() for _ in nodes]
        for copy, node in zip(copies, nodes, strict=True):
            copy.CopyFrom(node)
        del graph.node[:]
        graph.node.extend(copies)


def _run(proto: onnx.NodeProto, opsets: dict[str, int], known: Mapping[str, Array]) -> dict[str, Array] | None:
    """The results of a node of constants; None where it is not for now."""
    node = read_node(proto, opsets)
    try:
        found = find_op(node)
        if found.context or found.shaped:
            return None
        answer = found.run(node, *(known[name] if name else None for name in node.inputs))
    except (ValueError, TypeError, IndexError):  # the run says what is wrong, if it comes to that
        return None
    answers = answer if isinstance(answer, tuple) else (answer,)
    results = {name: np.asarray(array) for name, array in zip(node.outputs, answers, strict=False) if name}
    return results if all(array.size <= MOST_ENTRIES for array in results.values()) else None


def expand_operators(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with large operators written out as the many that ONNX defines them by."""
    chosen = [node for node in model.graph.node if node.domain in ("", "ai.onnx") and node.op_type in MADE_OF_OTHERS]
    if not chosen:
        return model
    version, types = opsets_of(model)[""], types_of(model)
    functions: list[tuple[str, str]] = []
    for node in chosen:
        body = _definition(node, version, types)
        if body is None:
            continue
        body.domain, body.name = EXPANDED, f"{node.op_type}_{len(functions)}"
        functions.append((body.domain, body.name))
        model.functions.append(body)
        node.domain, node.op_type = body.domain, body.name
    if not functions:
        return model
    model.opset_import.append(helper.make_opsetid(EXPANDED, 1))
    written_out = inliner.inline_selected_functions(model, functions, exclude=False)
    for entry in [each for each in written_out.opset_import if each.domain == EXPANDED]:
        written_out.opset_import.remove(entry)
    return written_out


def _definition(node: onnx.NodeProto, version: int, types: Mapping[str, TensorType]) -> onnx.FunctionProto | None:
    """What ONNX defines an operator by, for the types of this node."""
    schema: Any = onnx.defs.get_schema(node.op_type, version)
    if schema.has_function:
        data = schema.function_body.SerializeToString()
    elif schema.has_context_dependent_function and all(not name or name in types for name in node.input):
        kinds = [types[name].value_info(name).type.SerializeToString() if name else b"" for name in node.input]
        data = schema.get_context_dependent_function(node.SerializeToString(), kinds)
    else:
        return None
    body = onnx.FunctionProto()
    body.ParseFromString(data)
    return body if body.node else None
