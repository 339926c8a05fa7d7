"""The node tests of ONNX, made by the generators that its package has; those of an op by the name of their file."""

from __future__ import annotations

import importlib
import sys
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.case import node as generators

from pullback.onnx.executor.context import ALONE, Context
from pullback.onnx.executor.read import read_node
from pullback.onnx.executor.registry import Node, find_op


@dataclass
class NodeCase:
    name: str
    node: Node
    inputs: list[Any]
    outputs: list[Any]


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


@cache
def collected(file: str) -> list[NodeCase]:
    """The cases of a file: the module makes them when it is imported, and hands each to `expect`."""
    cases: list[NodeCase] = []

    def expect(proto: onnx.NodeProto, inputs: Any, outputs: Any, name: str, **keywords: Any) -> None:
        imports = keywords.get("opset_imports")
        latest = onnx.defs.get_schema(proto.op_type, domain=proto.domain).since_version
        opsets = {entry.domain: entry.version for entry in imports} if imports else {proto.domain: latest}
        given, made = map(_array, inputs), map(_array, outputs)
        cases.append(
            NodeCase(
                name,
                read_node(proto, opsets),
                [next(given) if entry else None for entry in proto.input],
                [next(made) if entry else None for entry in proto.output],
            )
        )

    original = generators.expect
    generators.expect = expect  # before the import, as modules take it by name
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            name = f"{generators.__name__}.{file}"
            if name in sys.modules:  # imported by another test, whose `expect` has had the cases
                importlib.reload(sys.modules[name])
            else:
                importlib.import_module(name)
    finally:
        generators.expect = original
    return cases


def run_node(node: Node, *inputs: Any, out: Any = None, context: Context = ALONE) -> tuple[Any, ...]:
    """What the executor would run for a node, as a tuple of arrays."""
    op = find_op(node)
    keywords: dict[str, Any] = {"context": context} if op.context else {}
    if op.overwrites and out is not None:
        keywords["out"] = out
    with np.errstate(all="ignore"):
        result = op.run(node, *inputs, **keywords)
    parts = result if isinstance(result, tuple) else (result,)
    return tuple(None if part is None else np.asarray(part) for part in parts)
