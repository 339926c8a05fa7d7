"""Writing ONNX nodes as expressions: values whose operators, and names like `op.Where`, append a node to a graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import FunctionProto, NodeProto, TensorProto, helper, numpy_helper

from pullback.onnx.executor.registry import MICROSOFT, PULLBACK
from pullback.onnx.graph.tensor_type import Shape, TensorType, broadcast
from pullback.rules import Array

BOOLS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "And", "Or", "Not", "IsNaN")
ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Pow", "Neg", "Abs", "Sqrt", "Exp", "Log", "Sign", "Where", "Sum", "Max", "Min",
               "Reciprocal", "Sigmoid", "Tanh", "Softplus", "Sin", "Cos", "Erf", *BOOLS)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the graph under construction."""

    name: str
    graph: Builder

    @property
    def type(self) -> TensorType:
        return self.graph.types.get(self.name, TensorType(TensorProto.UNDEFINED, None))

    @property
    def dtype(self) -> int:
        return self.type.dtype or TensorProto.FLOAT

    @property
    def shape(self) -> Shape | None:
        return self.type.shape

    @property
    def rank(self) -> int | None:
        shape = self.type.shape
        return None if shape is None else len(shape)

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape where all of it is known."""
        shape = self.type.shape
        if shape is None:
            return None
        sizes = tuple(size for size in shape if isinstance(size, int))
        return sizes if len(sizes) == len(shape) else None

    def __add__(self, other: Operand) -> Value:
        return self.graph.op.Add(self, other)

    def __sub__(self, other: Operand) -> Value:
        return self.graph.op.Sub(self, other)

    def __rsub__(self, other: Operand) -> Value:
        return self.graph.op.Sub(other, self)

    def __mul__(self, other: Operand) -> Value:
        return self if _is_one(other) else self.graph.op.Mul(self, other)

    def __truediv__(self, other: Operand) -> Value:
        return self if _is_one(other) else self.graph.op.Div(self, other)

    def __neg__(self) -> Value:
        return self.graph.op.Neg(self)

    def __gt__(self, other: Operand) -> Value:
        return self.graph.op.Greater(self, other)

    __radd__, __rmul__ = __add__, __mul__


Operand = Value | float | Array | None


def _is_one(value: Operand) -> bool:
    return isinstance(value, int | float) and value == 1


class Ops:
    """The operators of a domain as functions of one result: `op.Where(condition, a, b, **attributes)`."""

    def __init__(self, graph: Builder, domain: str) -> None:
        self._graph, self._domain = graph, domain

    def __getattr__(self, op_type: str) -> Callable[..., Value]:
        def emit(*inputs: Operand, **attributes: Any) -> Value:
            (result,) = self._graph.several(op_type, self._domain, inputs, (True,), **attributes)
            assert result is not None
            return result

        return emit


@dataclass
class Builder:
    """Nodes that are being written. `scope` begins the names of new nodes; numbers among the inputs become constants."""

    opset: int
    types: dict[str, TensorType] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    nodes: list[NodeProto] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)
    functions: dict[str, tuple[int, FunctionProto]] = field(default_factory=dict)
    following: dict[str, list[NodeProto]] = field(
        default_factory=dict
    )  # nodes to run as soon as a tensor of the model is there
    of_model: frozenset[str] = frozenset()
    made: set[str] = field(default_factory=set)  # tensors that nodes written here give
    renamed: dict[str, str] = field(default_factory=dict)
    scope: str = ""
    in_function: bool = False
    _constants: dict[tuple[Any, ...], Value] = field(default_factory=dict)
    _shapes: dict[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.op, self.ms, self.own = Ops(self, ""), Ops(self, MICROSOFT), Ops(self, PULLBACK)

    def value(self, name: str) -> Value:
        return Value(name, self)

    def unique(self, wish: str) -> str:
        """The name, or with a number behind where it is taken."""
        name, count = wish, 0
        while name in self.names:
            count += 1
            name = f"{wish}_{count}"
        self.names.add(name)
        return name

    def constant(self, value: Any, dtype: int = TensorProto.INT64) -> Value:
        """A constant of the graph; equal ones are one."""
        array = np.asarray(value, helper.tensor_dtype_to_np_dtype(dtype))
        key = (dtype, array.shape, array.tobytes())
        if key not in self._constants:
            name = self.unique("constant")
            tensor = numpy_helper.from_array(array, name)
            if self.in_function:
                self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
            else:
                self.initializers.append(tensor)
            self.types[name] = TensorType(dtype, array.shape)
            self._constants[key] = Value(name, self)
        return self._constants[key]

    def several(
        self, op_type: str, domain: str, inputs: Sequence[Operand], wanted: Sequence[bool], **attributes: Any
    ) -> tuple[Value | None, ...]:
        """Append a node with several outputs; those that are not wanted are None. So are attributes that the node does not have."""
        kind = next((each.dtype for each in inputs[op_type == "Where" :] if isinstance(each, Value)), TensorProto.FLOAT)
        values = [each if isinstance(each, Value) or each is None else self.constant(each, kind) for each in inputs]
        name = self.unique(f"{self.scope}/{op_type}" if self.scope else op_type)
        results = [Value(self.unique(f"{name}_out"), self) if want else None for want in wanted]
        node = helper.make_node(
            op_type, [each.name if each else "" for each in values], [each.name if each else "" for each in results],
            name, domain=domain, **{key: value for key, value in attributes.items() if value is not None},
        )  # fmt: skip
        for place in (node.input, node.output):
            while place and not place[-1]:
                place.pop()
        self.nodes.append(node)
        found = self._type(op_type, domain, kind, values, attributes)
        for each in results:
            if each is not None:
                self.types[each.name] = found
                self.made.add(each.name)
        return tuple(results)

    def all_of(self, op_type: str, domain: str, inputs: Sequence[Operand], count: int, **attributes: Any) -> tuple[Value, ...]:
        """Append a node with so many outputs, all of them wanted."""
        return tuple(each for each in self.several(op_type, domain, inputs, (True,) * count, **attributes) if each)

    def _type(
        self, op_type: str, domain: str, kind: int, values: Sequence[Value | None], attributes: Mapping[str, Any]
    ) -> TensorType:
        given = [each for each in values if each is not None]
        if domain == "" and op_type in ("Shape", "Size"):
            return TensorType(TensorProto.INT64, (given[0].rank,) if op_type == "Shape" else ())
        if domain == "" and op_type == "Cast":
            return TensorType(attributes["to"], given[0].shape)
        if domain == "" and op_type in ELEMENTWISE:
            return TensorType(TensorProto.BOOL if op_type in BOOLS else kind, broadcast([each.shape for each in given]))
        return TensorType(kind, None)

    def right_after(self, tensor: Value, make: Callable[[], Any]) -> Any:
        """What `make` emits runs as soon as a tensor of the model is there, so that it need not be kept for the way back."""
        if tensor.name not in self.of_model:
            return make()
        kept, self.nodes = self.nodes, []
        try:
            result = make()
        finally:
            made, self.nodes = self.nodes, kept
        self.following.setdefault(tensor.name, []).extend(made)
        return result

    def shape_of(self, x: Value) -> Value:
        """The shape of a tensor as a tensor: a constant where it is known."""
        if x.static_shape is not None:
            return self.constant(x.static_shape)
        if x.name not in self._shapes:
            self._shapes[x.name] = self.right_after(x, lambda: self.op.Shape(x))
        return self._shapes[x.name]

    def reshape(self, value: Value, like: Value) -> Value:
        """With the shape of another tensor; one open size is left for Reshape to work out."""
        shape = like.shape
        if shape is not None and sum(not isinstance(size, int) for size in shape) <= 1 and 0 not in shape:
            target = self.constant([size if isinstance(size, int) else -1 for size in shape])
        else:
            target = self.shape_of(like)
        return self.typed(self.op.Reshape(value, target), like.type)

    def typed(self, value: Value, kind: TensorType) -> Value:
        self.types[value.name] = kind
        return value

    def sum_over(self, value: Value, axes: Sequence[int], keepdims: bool = True) -> Value:
        if not axes:
            return value
        result = self.op.ReduceSum(value, self.constant(list(axes)), keepdims=int(keepdims))
        if value.shape is not None:
            dropped = {axis % len(value.shape) for axis in axes}
            sizes = tuple(1 if axis in dropped else size for axis, size in enumerate(value.shape))
            self.types[result.name] = TensorType(
                value.dtype, sizes if keepdims else tuple(size for axis, size in enumerate(sizes) if axis not in dropped)
            )
        return result

    def number(self, value: Value, like: Value) -> Value:
        """An integer tensor as a factor for another."""
        return self.op.Cast(value, to=like.dtype)

    def call(self, name: str, body: Callable[..., Value], *inputs: Value) -> Value:
        """A node with a body, of one result; see `call_all`."""
        return self.call_all(name, body, inputs, 1)[0]

    def call_all(
        self, name: str, body: Callable[..., Value | Sequence[Value]], inputs: Sequence[Value], outputs: int
    ) -> Sequence[Value]:
        """A node of the domain ai.pullback with a body in stock operators, which other runtimes put in its place.

        The body is written once for a model, for one floating-point type; for a second type it stands in the graph itself.
        """
        kind = inputs[0].dtype
        if name not in self.functions:
            self.functions[name] = (kind, self._function(name, body, kind, outputs))
        if self.functions[name][0] == kind:
            return self.all_of(name, PULLBACK, inputs, outputs)
        made = body(self, *inputs)
        return [made] if isinstance(made, Value) else made

    def _function(self, name: str, body: Callable[..., Value | Sequence[Value]], kind: int, outputs: int) -> FunctionProto:
        formal = list(inspect.signature(body).parameters)[1:]
        inner = Builder(self.opset, names=set(formal), in_function=True)
        for each in formal:
            inner.types[each] = TensorType(kind, None)
        made = body(inner, *(inner.value(each) for each in formal))
        results = [made] if isinstance(made, Value) else list(made)
        assert len(results) == outputs, f"{name} has {len(results)} results, not {outputs}"
        return helper.make_function(
            PULLBACK, name, formal, [each.name for each in results], inner.nodes, [helper.make_opsetid("", self.opset)]
        )

    def rename(self, value: Value, wish: str) -> str:
        """Give a new tensor the name that it is known by; the nodes get it at the end."""
        name = self.unique(wish)
        self.renamed[value.name] = name
        self.types[name] = value.type
        return name

    def finished(self, nodes: Sequence[NodeProto]) -> list[NodeProto]:
        """The nodes under the names that their tensors were given."""
        for node in nodes:
            for place in (node.input, node.output):
                for index, name in enumerate(place):
                    if name in self.renamed:
                        place[index] = self.renamed[name]
        return list(nodes)
