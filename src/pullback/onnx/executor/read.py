"""From ONNX's protobuf messages to the executor's nodes and arrays."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from pullback.onnx.errors import OnnxError
from pullback.onnx.executor.registry import Node
from pullback.rules import Array

TENSOR = onnx.AttributeProto.TENSOR
GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
DOMAINS = {"ai.onnx": ""}
SHORT, SIMPLE = 6, 100  # digits of a decimal, and the largest denominator, that somebody may have written


def opsets_of(model: onnx.ModelProto) -> dict[str, int]:
    """The version of each domain."""
    return {DOMAINS.get(entry.domain, entry.domain): entry.version for entry in model.opset_import}


def _value(attribute: onnx.AttributeProto) -> Any:
    if attribute.type == TENSOR:
        return to_array(attribute.t)
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, float):
        return _meant(value)
    if isinstance(value, str | int) or attribute.type in GRAPHS:
        return value
    if attribute.type == onnx.AttributeProto.STRINGS:
        return [entry.decode() for entry in value]
    return list(value) if hasattr(value, "__iter__") else value


def _meant(value: float) -> float:
    """The number that an attribute was before float32 rounded it, for graphs of float64: a short decimal or a simple fraction."""
    single = np.float32(value)
    decimal = float(str(single))
    if not np.isfinite(single) or len(f"{decimal:.9g}".replace(".", "").lstrip("-0").split("e")[0]) <= SHORT:
        return decimal
    fraction = float(Fraction(value).limit_denominator(SIMPLE))
    return fraction if np.float32(fraction) == single else decimal


def to_array(tensor: onnx.TensorProto) -> Array:
    """The values of a tensor, in an array of its own."""
    try:
        return np.array(numpy_helper.to_array(tensor))
    except Exception as error:
        raise OnnxError(f"the values of tensor '{tensor.name}' cannot be read: {error}") from error


def read_node(proto: onnx.NodeProto, opsets: dict[str, int]) -> Node:
    """A node with its attributes as Python values."""
    domain = DOMAINS.get(proto.domain, proto.domain)
    attrs = {attribute.name: _value(attribute) for attribute in proto.attribute}
    node = Node(proto.op_type, domain, proto.name, tuple(proto.input), tuple(proto.output), attrs, opsets.get(domain, 1))
    if any(attribute.type in GRAPHS for attribute in proto.attribute):
        raise OnnxError(
            f"{node.title}: the executor has no control flow (If, Loop, Scan); export the model without it, "
            "for example with the branch that is taken written out"
        )
    return node


def static_shape(value: onnx.ValueInfoProto) -> tuple[int | str | None, ...] | None:
    """The declared shape, with names or None where a size is open; None where the rank is."""
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else (dim.dim_param if dim.HasField("dim_param") else None)
        for dim in kind.shape.dim
    )


def declared_dtype(value: onnx.ValueInfoProto) -> np.dtype[Any] | None:
    kind = value.type.tensor_type.elem_type
    return np.dtype(helper.tensor_dtype_to_np_dtype(kind)) if kind else None


@dataclass(frozen=True)
class Argument:
    """An input or output of a model; open sizes are names or None."""

    name: str
    shape: tuple[int | str | None, ...] | None
    dtype: np.dtype[Any] | None


def argument(value: onnx.ValueInfoProto) -> Argument:
    return Argument(value.name, static_shape(value), declared_dtype(value))
