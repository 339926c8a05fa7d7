"""A node of the model as its rule sees it: its tensors, the gradients of its outputs, and which inputs need one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from pullback.onnx.errors import OnnxError
from pullback.onnx.executor.registry import MICROSOFT, Node
from pullback.onnx.graph.emit import Builder, Value
from pullback.onnx.graph.tensor_type import TensorType
from pullback.rules import Array


@dataclass
class NodeView:
    """`wanted`: for each input, whether its gradient is asked for. `dys`: of each output, None where the loss ignores it."""

    g: Builder
    node: Node
    proto: NodeProto
    dys: tuple[Value | None, ...]
    wanted: tuple[bool, ...]
    constant_of: Callable[[str], Array | None]

    def __post_init__(self) -> None:
        self.op, self.ms, self.own, self.attr = self.g.op, self.g.ms, self.g.own, self.node.attr

    @property
    def inputs(self) -> tuple[Value | None, ...]:
        return tuple(self.g.value(name) if name else None for name in self.node.inputs)

    def input(self, place: int) -> Value:
        name = self.node.inputs[place] if place < len(self.node.inputs) else ""
        if not name:
            raise OnnxError(f"{self.node.title}: input number {place + 1} is missing")
        return self.g.value(name)

    def given(self, place: int) -> Value | None:
        """An input that may be left out."""
        return self.input(place) if place < len(self.node.inputs) and self.node.inputs[place] else None

    @property
    def x(self) -> Value:
        return self.input(0)

    a = x

    @property
    def b(self) -> Value:
        return self.input(1)

    @property
    def y(self) -> Value:
        return self.g.value(self.node.outputs[0])

    @property
    def dy(self) -> Value:
        dy = self.dys[0]
        if dy is None:
            raise OnnxError(f"{self.node.title}: the loss depends on another output than the first, which has no gradient here")
        return dy

    def output(self, place: int, ending: str, kind: TensorType | None = None) -> Value:
        """An output of the node, added under the first output's name with this ending where it has none."""
        while len(self.proto.output) <= place:
            self.proto.output.append("")
        if not self.proto.output[place]:
            self.proto.output[place] = self.g.unique(self.node.outputs[0] + ending)
            self.g.types[self.proto.output[place]] = kind or TensorType(self.x.dtype, None)
        return self.g.value(self.proto.output[place])

    def constant(self, place: int) -> Array | None:
        """The value of an input that is known before the run."""
        value = self.given(place)
        return None if value is None else self.constant_of(value.name)

    def rank(self, value: Value | None = None) -> int:
        """The number of axes, which the rule needs to know."""
        value = value or self.x
        if value.rank is None:
            raise self.unknown(f"the number of axes of '{value.name}'")
        return value.rank

    def unknown(self, what: str) -> OnnxError:
        return OnnxError(
            f"{self.node.title}: {what} is not known before the run, and the gradient needs it; export the model with "
            "fixed sizes, or run onnx.shape_inference and look at what is missing"
        )

    def refuse(self, why: str) -> OnnxError:
        return OnnxError(f"{self.node.title}: {why}; freeze the parameters before this node, or replace it")

    def axes(self, *, newer: int = 13) -> tuple[int, ...] | None:
        """The axes of a reduction: an attribute, from opset `newer` on an input; counted from the front, None for all."""
        given = self.attr("axes")
        if self.node.opset >= newer and len(self.node.inputs) > 1 and self.node.inputs[1]:
            known = self.constant(1)
            if known is None:
                raise self.unknown("its axes")
            given = known.tolist() if np.ndim(known) else [int(known)]
        if not given:
            return None
        rank = self.rank()
        return tuple(sorted(axis % rank for axis in given))

    def zero(self, like: Value) -> Value:
        return self.g.constant(0, like.dtype)

    def attributes(self, *names: str) -> dict[str, Any]:
        """Those of these attributes that the node has."""
        return {name: self.node.attrs[name] for name in names if name in self.node.attrs}


def reduced_to(g: Builder, value: Value, target: Value, whole: Value) -> Value:
    """The gradient of an elementwise node's input, from that in the shape of its output: summed where the input was stretched."""
    small, large = target.shape, whole.shape
    if small is None or large is None or not all(_settled(*pair) for pair in _aligned(small, large)):
        return _reduced_in_the_run(g, value, target, whole)
    added = len(large) - len(small)
    stretched = [axis for axis, (size, full) in enumerate(_aligned(small, large)) if size == 1 and full != 1]
    if not stretched and not added:
        return value
    if all(axis < added for axis in stretched) or not added:
        axes = sorted({*range(added), *stretched})
        return g.sum_over(value, axes, keepdims=not added) if axes else value
    return g.reshape(g.sum_over(value, sorted({*range(added), *stretched})), target)


def _aligned(small: Sequence[Any], large: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip([1] * (len(large) - len(small)) + list(small), large, strict=True))


def _settled(size: Any, full: Any) -> bool:
    """Whether it is known if this axis was stretched: of a size that is open it is not, unless it has the result's name."""
    return isinstance(size, int) or (size is not None and size == full)


def _reduced_in_the_run(g: Builder, value: Value, target: Value, whole: Value) -> Value:
    """By ONNX Runtime's BroadcastGradientArgs, which compares the shapes when they are there."""
    axes, _ = g.all_of("BroadcastGradientArgs", MICROSOFT, (g.shape_of(target), g.shape_of(whole)), 2)
    g.types[axes.name] = TensorType(TensorProto.INT64, (None,))
    summed = g.op.ReduceSum(value, axes, keepdims=1, noop_with_empty_axes=1)
    return g.typed(g.op.Reshape(summed, g.shape_of(target)), target.type)
