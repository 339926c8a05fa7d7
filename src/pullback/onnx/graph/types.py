"""What is known of every tensor of a model before it runs: ONNX's shape inference, and names for sizes that it leaves open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import shape_inference

from pullback.onnx.errors import OnnxError
from pullback.onnx.executor.read import opsets_of, read_node, static_shape
from pullback.onnx.executor.registry import Node
from pullback.onnx.graph.tensor_type import Dim, Shape, TensorType
from pullback.onnx.model_files import without_weights
from pullback.window import span

SHAPES_FOLLOWED = 14  # since when the inference follows computed shapes through Reshape
WINDOWS = ("Conv", "MaxPool", "AveragePool", "LpPool")
STRETCHING = ("Add", "Sub", "Mul", "Div", "Pow", "Sum", "Mean", "Max", "Min", "Where", "PRelu")


def types_of(model: onnx.ModelProto) -> dict[str, TensorType]:
    """The type of every tensor, as far as it can be known."""
    light = without_weights(model)
    _for_inference(light)
    try:
        inferred = shape_inference.infer_shapes(light, data_prop=True).graph
    except Exception as error:
        raise OnnxError(f"the shapes of the model contradict each other: {str(error).strip()}") from error
    types = {}
    for value in (*inferred.value_info, *inferred.input, *inferred.output):
        shape = static_shape(value)
        sizes = None if shape is None else tuple(size if size != "" else None for size in shape)
        types[value.name] = TensorType(value.type.tensor_type.elem_type, sizes)
    for tensor in model.graph.initializer:
        types[tensor.name] = TensorType(tensor.data_type, tuple(tensor.dims))
    return _with_equal_sizes(model, types)


def _for_inference(light: onnx.ModelProto) -> None:
    """Change what the inference cannot deal with, and leave the shapes as they are."""
    _doubt(light.graph)
    raised = False
    for entry in light.opset_import:
        if entry.domain in ("", "ai.onnx") and entry.version == SHAPES_FOLLOWED - 1:
            entry.version, raised = SHAPES_FOLLOWED, True
    for node in light.graph.node:
        if node.op_type == "GroupNormalization":  # whose first form is refused
            node.op_type = "Identity"
            del node.input[1:], node.attribute[:]
        elif raised and node.op_type == "BatchNormalization":  # which had five outputs before
            del node.output[1:]


def _doubt(graph: onnx.GraphProto) -> None:
    """Of a model whose inputs have open sizes, forget the sizes of tensors that are said to have none, but for the channels.

    PyTorch's exporter of TorchScript writes those of its example where it loses sight of an open size.
    """
    given = {tensor.name for tensor in graph.initializer}
    if all(_numbers(value) for value in graph.input if value.name not in given):
        return
    for value in (*graph.output, *graph.value_info):
        if _numbers(value):
            for axis, size in enumerate(value.type.tensor_type.shape.dim):
                if axis != 1:
                    size.Clear()


def _numbers(value: onnx.ValueInfoProto) -> bool:
    return all(isinstance(size, int) for size in static_shape(value) or ())


def _with_equal_sizes(model: onnx.ModelProto, types: dict[str, TensorType]) -> dict[str, TensorType]:
    """The same size under the same name: of windows that slide over an open size, the formula is the name of the result.

    So the two branches of a residual block are known to agree, and nothing has to be compared in the run.
    """
    names: dict[str, Dim] = {}
    opsets = opsets_of(model)

    def shape_of(name: str) -> Shape | None:
        shape = types[name].shape if name in types else None
        return None if shape is None else tuple(names.get(size, size) if isinstance(size, str) else size for size in shape)

    for proto in model.graph.node:
        if proto.op_type not in WINDOWS and proto.op_type not in STRETCHING:
            continue
        node = read_node(proto, opsets)
        result, shapes = shape_of(node.outputs[0]), [shape_of(name) for name in node.inputs if name]
        if result is None or None in shapes:
            continue
        known = [shape for shape in shapes if shape is not None]
        expected = _windows(node, known) if node.op_type in WINDOWS else _stretched(known)
        for size, new in zip(result, expected, strict=False):
            if isinstance(size, str) and size.startswith("unk__") and new is not None:
                names[size] = new
    return {name: TensorType(kind.dtype, shape_of(name)) for name, kind in types.items()}


def _windows(node: Node, shapes: Sequence[Shape]) -> Shape:
    """The shape of a window op's result, with formulas for open sizes."""
    x, rank = shapes[0], len(shapes[0]) - 2
    attrs: Mapping[str, Any] = node.attrs
    kernel: Sequence[Any] = attrs.get("kernel_shape") or (shapes[1][2:] if len(shapes) > 1 else ())
    if attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "") or attrs.get("ceil_mode", 0) or len(kernel) != rank:
        return (None,) * len(x)
    ones = [1] * rank
    strides, dilations = attrs.get("strides") or ones, attrs.get("dilations") or ones
    pads = attrs.get("pads") or [0] * (2 * rank)
    sizes = []
    for axis in range(rank):
        added = pads[axis] + pads[axis + rank] - span(kernel[axis], dilations[axis])
        size, stride = x[2 + axis], strides[axis]
        sizes.append(_formula(size, added, stride) if isinstance(size, str) else None)
    return (None, None, *sizes)


def _formula(size: str, added: int, stride: int) -> str:
    """floor((size + added) / stride) + 1."""
    if stride == 1:
        more = added + 1
        return size if more == 0 else f"({size}{more:+d})"
    return f"(({size}{added:+d})//{stride}+1)"


def _stretched(shapes: Sequence[Shape]) -> Shape:
    """Of an elementwise op: sizes on which all inputs agree."""
    rank = max(map(len, shapes))
    columns = zip(*((1,) * (rank - len(shape)) + tuple(shape) for shape in shapes), strict=True)
    return tuple(column[0] if len(set(column)) == 1 else None for column in columns)
