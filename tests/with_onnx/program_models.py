"""Small graphs for the tests of the executor, written as text."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(0)


def whole(*shape: int) -> np.ndarray:
    """Small whole numbers, whose sums are exact."""
    return RNG.integers(-4, 5, shape).astype(np.float32)


def model(
    nodes: list[onnx.NodeProto], inputs: dict[str, Any], outputs: list[str], weights: dict[str, np.ndarray] | None = None
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    domain = "com.microsoft" if op_type in ("ReluGrad", "BatchNormInternal", "BatchNormalizationGrad", "ConvGrad") else ""
    return helper.make_node(op_type, inputs.split(), outputs.split(), domain=domain, **attributes)
