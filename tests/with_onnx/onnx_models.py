"""Small models and data for the tests of the trainer, built by onnx.helper."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper

from pullback.rules import Array

CLASSES = 3


def model_of(
    nodes: list[Any], weights: dict[str, Array], x: list[Any], y: list[Any], *, opset: int = 17, dtype: Any = np.float32
) -> ModelProto:
    """A model with input "x" and output "y"."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", kind, x)],
        [helper.make_tensor_value_info("y", kind, y)],
        [
            numpy_helper.from_array(np.asarray(value, dtype if value.dtype.kind == "f" else None), name)
            for name, value in weights.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def mlp(*, batch: Any = "N", dropout: float = 0.0, hidden: int = 8, dtype: Any = np.float32, seed: int = 0) -> ModelProto:
    """Gemm, Relu, perhaps Dropout, Gemm: (N, 4) to (N, 3)."""
    rng = np.random.default_rng(seed)
    weights = {
        "w1": rng.standard_normal((hidden, 4)) * 0.5,
        "b1": rng.standard_normal(hidden) * 0.1,
        "w2": rng.standard_normal((CLASSES, hidden)) * 0.5,
        "b2": np.zeros(CLASSES),
    }
    nodes = [helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], transB=1), helper.make_node("Relu", ["h"], ["r"])]
    if dropout:
        weights["ratio"] = np.array(dropout)
        nodes.append(helper.make_node("Dropout", ["r", "ratio"], ["d"]))
    nodes.append(helper.make_node("Gemm", ["d" if dropout else "r", "w2", "b2"], ["y"], transB=1))
    return model_of(nodes, weights, [batch, 4], [batch, CLASSES], dtype=dtype)


def cnn(*, dropout: float = 0.0, dtype: Any = np.float32, seed: int = 0) -> ModelProto:
    """Conv, BatchNormalization, Relu, GlobalAveragePool, Flatten, perhaps Dropout, Gemm: (N, 2, 5, 5) to (N, 3)."""
    rng = np.random.default_rng(seed)
    weights = {
        "conv.w": rng.standard_normal((6, 2, 3, 3)) * 0.3,
        "norm.scale": np.ones(6),
        "norm.bias": np.zeros(6),
        "norm.mean": np.zeros(6),
        "norm.var": np.ones(6),
        "head.w": rng.standard_normal((CLASSES, 6)) * 0.5,
        "head.b": np.zeros(CLASSES),
    }
    nodes = [
        helper.make_node("Conv", ["x", "conv.w"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "norm.scale", "norm.bias", "norm.mean", "norm.var"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
    ]
    if dropout:
        weights["ratio"] = np.array(dropout)
        nodes.append(helper.make_node("Dropout", ["f", "ratio"], ["d"]))
    nodes.append(helper.make_node("Gemm", ["d" if dropout else "f", "head.w", "head.b"], ["y"], transB=1))
    return model_of(nodes, weights, ["N", 2, 5, 5], ["N", CLASSES], dtype=dtype)


def rows_for_mlp(count: int = 24, seed: int = 1, dtype: Any = np.float32) -> tuple[Array, Array]:
    """Rows whose class is where the largest of their first three numbers is."""
    x = np.random.default_rng(seed).standard_normal((count, 4)).astype(dtype)
    return x, x[:, :CLASSES].argmax(1)


def rows_for_cnn(count: int = 24, seed: int = 1, dtype: Any = np.float32) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, count)
    x = rng.standard_normal((count, 2, 5, 5)) + (y[:, None, None, None] - 1) * np.array([1.0, -1.0])[:, None, None]
    return x.astype(dtype), y
