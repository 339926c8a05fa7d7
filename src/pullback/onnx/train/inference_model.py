"""A model as it is used after training: in inference mode, with the trained values in the places of the old ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx
from onnx import numpy_helper

from pullback.onnx.errors import OnnxError
from pullback.onnx.graph.training_mode import keep_statistics
from pullback.rules import Array

TRAINING_OUTPUTS = 5  # of BatchNormalization before version 14, which trains if it has them all


def inference_mode(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which BatchNormalization uses its running statistics and Dropout passes everything on."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    read = {name for node in copy.graph.node for name in node.input} | {value.name for value in copy.graph.output}
    for node in copy.graph.node:
        if node.op_type == "BatchNormalization":
            if read & set(node.output[1:]):
                raise OnnxError(
                    f"node '{node.name}' (BatchNormalization): something reads its statistics, which it has in training mode alone"
                )
            keep_statistics(node)
        elif node.op_type == "Dropout" and len(node.input) > 2:
            del node.input[2:]
    _remove_unread(copy.graph)
    return copy


def _remove_unread(graph: onnx.GraphProto) -> None:
    """Constants that nothing reads any more, such as Dropout's training mode."""
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    inputs = {value.name for value in graph.input}
    unread = [node for node in graph.node if node.op_type == "Constant" and not read & set(node.output)]
    for node in unread:
        graph.node.remove(node)
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in read | inputs]:
        graph.initializer.remove(tensor)


def places_of(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """The tensors that hold values: initializers, and the values of Constant nodes."""
    places = {
        node.output[0]: attribute.t
        for node in graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    }
    return places | {tensor.name: tensor for tensor in graph.initializer}


def _copy(model: onnx.ModelProto, initializers: Iterable[onnx.TensorProto]) -> onnx.ModelProto:
    """A copy with other initializers. Not a whole copy with something deleted: a protobuf message keeps what it once had."""
    copy = onnx.ModelProto()
    for field, value in model.ListFields():
        if field.name != "graph":
            _set(copy, field.name, value)
    for field, value in model.graph.ListFields():
        _set(copy.graph, field.name, initializers if field.name == "initializer" else value)
    return copy


def _set(message: Any, field: str, value: Any) -> None:
    if isinstance(value, str | bytes | int | float):
        setattr(message, field, value)
    elif hasattr(value, "CopyFrom"):
        getattr(message, field).CopyFrom(value)
    else:
        getattr(message, field).extend(value)


def _empty(tensor: onnx.TensorProto) -> onnx.TensorProto:
    return onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=b"")


def emptied(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """A copy in which these tensors have their shapes alone: their values are kept elsewhere."""
    wanted, tensors = set(names), model.graph.initializer
    copy = _copy(model, [_empty(tensor) if tensor.name in wanted else tensor for tensor in tensors])
    for name in wanted - {tensor.name for tensor in tensors}:
        tensor = places_of(copy.graph)[name]
        tensor.CopyFrom(_empty(tensor))
    return copy


def filled(model: onnx.ModelProto, values: Mapping[str, Array]) -> onnx.ModelProto:
    """A copy with these values in the tensors of the same names."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    places = places_of(copy.graph)
    for name, array in values.items():
        places[name].CopyFrom(numpy_helper.from_array(array, places[name].name))
    return copy


def as_inputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """A copy in which these tensors are inputs, so that each run is given their values."""
    wanted = set(names)
    copy = _copy(model, [tensor for tensor in model.graph.initializer if tensor.name not in wanted])
    known = {value.name for value in copy.graph.input}
    for node in [node for node in copy.graph.node if node.op_type == "Constant" and node.output[0] in wanted]:
        copy.graph.node.remove(node)
    for name, tensor in places_of(model.graph).items():
        if name in wanted and name not in known:
            copy.graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))
    return copy
