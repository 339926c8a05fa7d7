"""A model made ready for differentiation: no functions, weights as initializers, nodes with names, types of all tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import onnx
from onnx import inliner

from pullback.onnx.executor.read import opsets_of, to_array
from pullback.onnx.executor.registry import PULLBACK
from pullback.onnx.graph.folding import fold_constants, value_of_constant
from pullback.onnx.graph.opset13 import raised_to_13
from pullback.onnx.graph.tensor_type import FLOATS, TensorType
from pullback.onnx.graph.types import types_of
from pullback.onnx.graph.untie import filled, untie
from pullback.rules import Array
from pullback.window import same_pads

# The inputs of an op where weights stand, even when an exporter wrote them as Constant nodes.
WEIGHT_PLACES = {
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gemm": (0, 1, 2),
    "MatMul": (0, 1),
    "BatchNormalization": (1, 2, 3, 4),
    "LayerNormalization": (1, 2),
    "GroupNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "PRelu": (1,),
    "Gather": (0,),
}
RUNNING_STATISTICS = {"BatchNormalization": (3, 4)}
MIN_IR = 8  # the first with functions in a model


def inference_form(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model in a form that can be trained: what training changes are initializers, each with one name.

    The graph has the parameters of the training graph under the same names, and computes what the model computes. (A training graph
    is made of this, and a trained model is this with other weights.) Changes its argument.
    """
    functions = [(each.domain, each.name) for each in model.functions if each.domain != PULLBACK]
    if functions:
        model = inliner.inline_selected_functions(model, functions, exclude=False)
    model.ir_version = max(model.ir_version, MIN_IR)
    raised_to_13(model)
    graph = model.graph
    given = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in given]
    del graph.input[:]
    graph.input.extend(inputs)
    _weights_as_initializers(graph)
    _own_weights(graph)
    untie(model)
    fold_constants(model)
    drop_unused(graph)
    name_nodes(graph)
    explicit_pads(model)
    return model


def _weights_as_initializers(graph: onnx.GraphProto) -> None:
    """Constant nodes that stand where weights go become initializers of the same name.

    Not those of one number: exporters write a normalisation without scale and bias with ones and zeros.
    """
    places = {node.input[i] for node in graph.node for i in WEIGHT_PLACES.get(node.op_type, ()) if i < len(node.input)}
    for node in [node for node in graph.node if node.op_type == "Constant" and node.output[0] in places]:
        tensor = next((each.t for each in node.attribute if each.name == "value"), None)
        if tensor is not None and tensor.data_type in FLOATS and not filled(tensor):
            weight = onnx.TensorProto()
            weight.CopyFrom(tensor)
            weight.name = node.output[0]
            graph.initializer.append(weight)
            graph.node.remove(node)


def _own_weights(graph: onnx.GraphProto) -> None:
    """Of Identity nodes that give an initializer a second name, an initializer of that name.

    PyTorch's exporter writes parameters so that happen to have equal values, such as the scales of fresh normalisations. Where the
    initializer has no other reader it keeps its own name instead.
    """
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    outputs = {value.name for value in graph.output}
    readers = Counter(name for node in graph.node for name in node.input if node.op_type not in ("Shape", "Size"))
    for node in [node for node in graph.node if node.op_type == "Identity"]:
        source, name = node.input[0], node.output[0]
        tensor = tensors.get(source)
        if tensor is None or tensor.data_type not in FLOATS or name in outputs:
            continue
        graph.node.remove(node)
        if readers[source] == 1:
            _rename(graph, name, source)
            readers[source] = readers[name]
            continue
        copy = graph.initializer.add()
        copy.CopyFrom(tensor)
        copy.name = name
        tensors[name] = copy


def _rename(graph: onnx.GraphProto, name: str, new: str) -> None:
    """Let all readers of a tensor read another."""
    for node in graph.node:
        for place, each in enumerate(node.input):
            if each == name:
                node.input[place] = new


def drop_unused(graph: onnx.GraphProto) -> None:
    """Without nodes and initializers that no output depends on."""
    needed = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    if len(kept) < len(graph.node):
        kept = [_copy(node) for node in reversed(kept)]
        del graph.node[:]
        graph.node.extend(kept)
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in needed]:
        graph.initializer.remove(tensor)


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


def name_nodes(graph: onnx.GraphProto) -> None:
    """A name for each node that has none, or one that another node has."""
    taken: set[str] = set()
    for node in graph.node:
        wish = node.name or f"{node.op_type}_{next((name for name in node.output if name), '')}"
        name, count = wish, 0
        while name in taken:
            count += 1
            name = f"{wish}_{count}"
        taken.add(name)
        node.name = name


def explicit_pads(model: onnx.ModelProto) -> None:
    """auto_pad SAME as numbers where the sizes are known: ONNX Runtime's gradients of convolution and average pooling forget it."""
    windows = [node for node in model.graph.node if node.op_type in ("Conv", "AveragePool")]
    if not any(attribute.name == "auto_pad" for node in windows for attribute in node.attribute):
        return
    types = types_of(model)
    for node in windows:
        attrs = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        shape, auto = types[node.input[0]].shape if node.input[0] in types else None, attrs.get("auto_pad", b"")
        kernel = attrs.get("kernel_shape") or (types[node.input[1]].shape or ())[2:]
        if auto not in (b"SAME_UPPER", b"SAME_LOWER") or shape is None or len(kernel) != len(shape) - 2:
            continue
        sizes = [size for size in shape[2:] if isinstance(size, int)]
        strides = attrs.get("strides") or [1] * len(kernel)
        windows_of_ones = all(d == 1 for d in attrs.get("dilations", ()))
        if len(sizes) < len(kernel) or not windows_of_ones or any(k < s for k, s in zip(kernel, strides, strict=True)):
            continue
        pads = [same_pads(size, k, s, lower=auto == b"SAME_LOWER") for size, k, s in zip(sizes, kernel, strides, strict=True)]
        for attribute in [each for each in node.attribute if each.name in ("auto_pad", "pads")]:
            node.attribute.remove(attribute)
        node.attribute.append(onnx.helper.make_attribute("pads", [low for low, _ in pads] + [high for _, high in pads]))


@dataclass(frozen=True)
class Prepared:
    """A model in its inference form, with what is known of its tensors."""

    model: onnx.ModelProto
    types: dict[str, TensorType]

    @property
    def graph(self) -> onnx.GraphProto:
        return self.model.graph

    @property
    def opset(self) -> int:
        return opsets_of(self.model)[""]

    @cached_property
    def tensors(self) -> dict[str, onnx.TensorProto]:
        return {tensor.name: tensor for tensor in self.graph.initializer}

    @cached_property
    def _constants(self) -> dict[str, onnx.NodeProto]:
        return {node.output[0]: node for node in self.graph.node if node.op_type == "Constant"}

    def constant_of(self, name: str) -> Array | None:
        """The value of an initializer or of a Constant node."""
        if name in self.tensors:
            return to_array(self.tensors[name])
        return value_of_constant(self._constants[name]) if name in self._constants else None


def names_in(graph: onnx.GraphProto) -> Iterable[str]:
    """All names of tensors and nodes."""
    for node in graph.node:
        yield node.name
        yield from node.input
        yield from node.output
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
    for tensor in graph.initializer:
        yield tensor.name


def prepare(model: onnx.ModelProto) -> Prepared:
    """The inference form of a model that may be changed, and its types."""
    ready = inference_form(model)
    return Prepared(ready, types_of(ready))
