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
SIZES = ("Shape", "Size")
OPEN = np.iinfo(np.int64).min  # stands for a size that is not known
MOVING = ("Concat", "Gather", "Identity", "Slice", "Squeeze", "Unsqueeze")  # which do not look at the numbers they move
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
    """Constant nodes in place of nodes that compute them from Constant nodes, whole-number initializers and known sizes.

    Initializers of floating point may be trained, so nothing is computed of them beforehand. Each constant may let the shape
    inference see further, so this goes on until nothing new comes out.
    """
    while _fold_once(model):
        pass


def _fold_once(model: onnx.ModelProto) -> bool:
    """Whether a node became a constant. `partly`: lists of sizes of which some are open, as those of a dynamic batch."""
    graph, opsets = model.graph, opsets_of(model)
    types = types_of(model) if any(node.op_type in SIZES for node in graph.node) else {}
    known = {tensor.name: to_array(tensor) for tensor in graph.initializer if tensor.data_type not in FLOATS}
    partly: dict[str, Array] = {}
    nodes = []
    for proto in graph.node:
        results = None
        if proto.op_type == "Constant" and not any(
            each.name.startswith(("sparse", "value_string")) for each in proto.attribute
        ):
            known[proto.output[0]] = value_of_constant(proto)
        elif proto.op_type == "If" and proto.input[0] in known:
            nodes += _branch(graph, proto, taken=bool(known[proto.input[0]]))
            continue
        elif proto.op_type in SIZES:
            results = _sizes(proto, types)
        elif proto.input and all(not name or name in known for name in proto.input):
            results = _run(proto, opsets, known) if proto.op_type not in WITHOUT_INPUTS else None
        elif proto.op_type == "Reshape" and _one_open(partly.get(proto.input[1])):
            nodes += _reshape(proto, partly[proto.input[1]])
            continue
        elif proto.op_type in MOVING and _moves_sizes(proto, known, partly):
            results = _run(proto, opsets, known | partly)
        if results is not None and any((array == OPEN).any() for array in results.values() if array.dtype == np.int64):
            partly |= results
        elif results is not None:
            known |= results
            nodes += [helper.make_node("Constant", [], [name], value=numpy_helper.from_array(a)) for name, a in results.items()]
            continue
        nodes.append(proto)
    if all(a is b for a, b in zip(nodes, graph.node, strict=False)) and len(nodes) == len(graph.node):
        return False
    replace_nodes(graph, nodes)
    return True


def _one_open(sizes: Array | None) -> bool:
    """Whether Reshape can work out the one size that is open."""
    return sizes is not None and (sizes == OPEN).sum() == 1 and -1 not in sizes


def _reshape(proto: onnx.NodeProto, sizes: Array) -> list[onnx.NodeProto]:
    """Reshape to sizes that are known but for one, which it works out itself."""
    shape, known = f"{proto.output[0]}_folded_shape", np.where(sizes == OPEN, -1, sizes)
    fresh = onnx.NodeProto()
    fresh.CopyFrom(proto)
    fresh.input[1] = shape
    return [helper.make_node("Constant", [], [shape], value=numpy_helper.from_array(known)), fresh]


def _moves_sizes(proto: onnx.NodeProto, known: Mapping[str, Array], partly: Mapping[str, Array]) -> bool:
    """Whether a node moves sizes that are known in part to places that are known."""
    moved, places = (proto.input, []) if proto.op_type == "Concat" else (proto.input[:1], proto.input[1:])
    return all(name in known or name in partly for name in moved) and all(not name or name in known for name in places)


def _branch(graph: onnx.GraphProto, node: onnx.NodeProto, *, taken: bool) -> list[onnx.NodeProto]:
    """The nodes of an If whose condition is known; PyTorch's exporter asks so whether a size is 1."""
    name = "then_branch" if taken else "else_branch"
    branch = next(each.g for each in node.attribute if each.name == name)
    graph.initializer.extend(branch.initializer)
    results = zip(branch.output, node.output, strict=False)
    return [*branch.node, *(helper.make_node("Identity", [inner.name], [outer]) for inner, outer in results if outer)]


def replace_nodes(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    """Other nodes for a graph, some of which may be its own."""
    copies = [onnx.NodeProto() for _ in nodes]
    for copy, node in zip(copies, nodes, strict=True):
        copy.CopyFrom(node)
    del graph.node[:]
    graph.node.extend(copies)


def _sizes(proto: onnx.NodeProto, types: Mapping[str, TensorType]) -> dict[str, Array] | None:
    """What Shape and Size give, with OPEN in place of sizes that the run decides."""
    shape = types[proto.input[0]].shape if proto.input[0] in types else None
    if shape is None:
        return None
    sizes = np.array([size if isinstance(size, int) else OPEN for size in shape], np.int64)
    if proto.op_type == "Size":
        return None if OPEN in sizes else {proto.output[0]: np.asarray(sizes.prod())}
    ends = {each.name: each.i for each in proto.attribute}
    return {proto.output[0]: sizes[ends.get("start", 0) : ends.get("end")]}


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
