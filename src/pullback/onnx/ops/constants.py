"""Constants and what is known of shapes and types alone: Constant, ConstantOfShape, Shape, Size, Range, Cast, EyeLike, OneHot."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from pullback.onnx.executor.registry import Node, op
from pullback.onnx.ops.arguments import axis_of, ints, refused, scalar
from pullback.rules import Array

# Types of fewer than 8 bits and those of quantised weights: nothing here computes in them.
_PLAIN = frozenset((*range(TensorProto.FLOAT, TensorProto.STRING), *range(TensorProto.BOOL, TensorProto.BFLOAT16 + 1)))


def dtype_of(node: Node, number: int) -> np.dtype[Any]:
    """The NumPy dtype of one of ONNX's types."""
    if number not in _PLAIN:
        name = TensorProto.DataType.Name(number) if number in TensorProto.DataType.values() else number
        raise refused(node, f"type {name} is not supported", "convert the model to float32 or float64")
    return np.dtype(helper.tensor_dtype_to_np_dtype(number))


@op("Constant")
def constant(node: Node) -> Array:
    attrs = node.attrs
    if "value" in attrs:
        return np.asarray(attrs["value"])
    for name, dtype in (("value_float", np.float32), ("value_int", np.int64)):
        for given in (name, f"{name}s"):
            if given in attrs:
                return np.asarray(attrs[given], dtype)
    raise refused(node, f"a constant of {', '.join(attrs) or 'nothing'}", "only tensors and numbers are supported")


@op("ConstantOfShape", sized_by=(0,))
def constant_of_shape(node: Node, shape: Array) -> Array:
    value = node.attr("value")
    if value is None:
        return np.zeros(ints(shape), np.float32)
    return np.full(ints(shape), value.reshape(-1)[0], value.dtype)


@op("Shape")
def shape(node: Node, x: Array) -> Array:
    return np.array(x.shape[slice(node.attr("start", 0), node.attr("end"))], np.int64)


@op("Size")
def size(node: Node, x: Array) -> Array:
    return np.array(x.size, np.int64)


@op("Range", sized_by=(0, 1, 2))
def range_of(node: Node, start: Array, limit: Array, delta: Array) -> Array:
    first, end, step = (value.reshape(-1)[0] for value in (start, limit, delta))
    if step == 0:
        raise refused(node, "delta is 0", "give a step other than 0")
    count = max(int(np.ceil((end - first) / step)), 0)
    return np.asarray(np.arange(count, dtype=start.dtype) * step + first, start.dtype)


def cast_to(x: Array, dtype: np.dtype[Any]) -> Array:
    """Floats lose their fraction on the way to integers; anything but 0 is True."""
    if dtype == x.dtype:
        return x
    if dtype == np.bool_:
        return np.asarray(x != 0)
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(dtype)


@op("Cast", views=(0,))
def cast(node: Node, x: Array) -> Array:
    return cast_to(x, dtype_of(node, node.attr("to")))


@op("CastLike", views=(0,))
def cast_like(node: Node, x: Array, like: Array) -> Array:
    return cast_to(x, like.dtype)


@op("EyeLike")
def eye_like(node: Node, x: Array) -> Array:
    number, (rows, columns) = node.attr("dtype"), x.shape
    return np.eye(rows, columns, node.attr("k", 0), dtype=x.dtype if number is None else dtype_of(node, number))


@op("OneHot", sized_by=(1,))
def one_hot(node: Node, indices: Array, depth: Array, values: Array) -> Array:
    """Where an index beyond the depth would be, all is `off`."""
    count = int(scalar(depth, 0))
    off, on = values.reshape(-1)
    axis = axis_of(node, node.attr("axis", -1), indices.ndim + 1)
    places = np.arange(count).reshape(-1, *(1,) * (indices.ndim - axis))
    wanted = np.expand_dims(np.where(indices < 0, indices + count, indices).astype(np.int64), axis)
    return np.asarray(np.where(wanted == places, on, off), values.dtype)
