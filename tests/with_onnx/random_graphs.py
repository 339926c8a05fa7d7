"""Random small graphs for the tests of the executor and of gradients: their nodes share tensors, view, stretch and reduce them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import pullback as pb
from pullback.onnx.errors import OnnxError
from pullback.onnx.executor.context import ALONE
from pullback.onnx.executor.read import opsets_of, read_node, to_array
from pullback.onnx.executor.registry import find_op
from pullback.rules import Array

OPSET = 18
LARGEST, MOST_ELEMENTS = 50.0, 2000
NEAR = 1e-4  # so close to a kink no value may lie: rounding, or a step of a finite difference, could carry it across
# Smooth, or with one kink, which is at 0.
UNARY = ("Relu", "Relu", "Relu", "Neg", "Abs", "Tanh", "Sigmoid", "LeakyRelu", "Elu", "Softplus", "Identity", "Erf", "Exp")
KINKED = ("Relu", "Abs", "LeakyRelu", "Max", "Min")


def by_nodes(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Every tensor of a graph, one node after the other: nothing planned, nothing fused, all arrays copied and in C order."""
    env = {tensor.name: to_array(tensor) for tensor in model.graph.initializer} | dict(feeds)
    opsets = opsets_of(model)
    with np.errstate(all="ignore"), pb.backend("reference"):
        for proto in model.graph.node:
            run_one(proto, opsets, env)
    return env


def run_one(proto: onnx.NodeProto, opsets: dict[str, int], env: dict[str, Array]) -> None:
    """One node by itself; its results go among the tensors."""
    node = read_node(proto, opsets)
    op = find_op(node)
    keywords: dict[str, Any] = {"context": ALONE} if op.context else {}
    if op.shaped:
        keywords["shape"] = env[node.attr("shape_of")].shape
    result = op.run(node, *(np.array(env[name], order="C") if name else None for name in node.inputs), **keywords)
    for name, array in zip(node.outputs, result if isinstance(result, tuple) else (result,), strict=False):
        if name:
            env[name] = np.array(array, order="C")


@dataclass
class RandomGraph:
    """A graph that grows node by node, each run at once, so that one with unfit results is given up."""

    rng: np.random.Generator
    dtype: Any
    env: dict[str, Array] = field(default_factory=dict)
    feeds: dict[str, Array] = field(default_factory=dict)
    weights: dict[str, Array] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    made: list[str] = field(default_factory=list)

    def pick(self, fits: Callable[[Array], bool] = lambda array: True) -> str | None:
        """A tensor that fits, the later the likelier."""
        names = [name for name in (*self.feeds, *self.made) if fits(self.env[name])]
        return names[max(self.rng.integers(len(names), size=2))] if names else None

    def weight(self, *shape: int) -> str:
        """A new parameter."""
        return self.constant(self.rng.uniform(0.3, 1.0, shape) * self.rng.choice([-1, 1], shape), "w")

    def constant(self, value: Any, ending: str = "c") -> str:
        array = np.asarray(value)
        name = f"{ending}{len(self.weights)}"
        self.weights[name] = self.env[name] = array.astype(self.dtype) if array.dtype.kind == "f" else array
        return name

    def add(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> bool:
        """A node, unless it cannot be run or gives values that are too many, too large or too near to a kink."""
        names = [f"t{len(self.nodes)}_{i}" if i else f"t{len(self.nodes)}" for i in range(outputs)]
        proto = helper.make_node(op_type, inputs, names, **attributes)
        trial = dict(self.env)
        try:
            with np.errstate(all="ignore"), pb.backend("reference"):
                run_one(proto, {"": OPSET}, trial)
        except (OnnxError, ValueError, IndexError):
            return False
        if op_type in KINKED and self._near_a_kink([self.env[name] for name in inputs]):
            return False
        for name in names:
            array = trial[name]
            if not 0 < array.size <= MOST_ELEMENTS or not np.isfinite(array).all() or np.abs(array).max() > LARGEST:
                return False
        self.env = trial
        self.nodes.append(proto)
        self.made += names
        return True

    def _near_a_kink(self, arrays: list[Array]) -> bool:
        difference = arrays[0] if len(arrays) == 1 else arrays[0] - arrays[-1]
        return bool((np.abs(difference) < NEAR).any())

    def grow(self) -> bool:
        """A node of a random kind."""
        kinds = (self._unary, self._binary, self._binary, self._view, self._view, self._reduce, self._window, self._norm,
                 self._neighbours)  # fmt: skip
        if self.made and self.rng.random() < 0.4:
            return self._after_the_last()
        return kinds[self.rng.integers(len(kinds))]()

    def _after_the_last(self) -> bool:
        """What is often joined with the node before it."""
        last = self.made[-1]
        other = self.pick(lambda array: array.shape == self.env[last].shape)
        pair = [last, other or last]
        self.rng.shuffle(pair)
        return self.add("Relu", last) if self.rng.random() < 0.6 else self.add("Add", *pair)

    def _unary(self) -> bool:
        x = self.pick()
        return x is not None and self.add(str(self.rng.choice(UNARY)), x)

    def _binary(self) -> bool:
        """Of a tensor with itself, with another that stretches to it, or with a weight."""
        a = self.pick()
        assert a is not None
        shape = self.env[a].shape
        stretched = tuple(n if self.rng.random() < 0.6 else 1 for n in shape)[self.rng.integers(len(shape) + 1) :]
        b = self.weight(*stretched) if self.rng.random() < 0.3 else self.pick(lambda array: _stretches(array.shape, shape))
        pair = [a, b or a]
        self.rng.shuffle(pair)
        op_type = str(self.rng.choice(["Add", "Add", "Mul", "Sub", "Sum", "Max", "Where"]))
        if op_type == "Where":
            return self.add("Where", self.constant(self.rng.random(shape) < 0.5), *pair)
        return self.add(op_type, *pair, *([a] if op_type == "Sum" else []))

    def _view(self) -> bool:
        x = self.pick(lambda array: array.ndim > 0)
        if x is None:
            return False
        shape = self.env[x].shape
        axis = int(self.rng.integers(len(shape)))
        kind = self.rng.integers(8)
        if kind == 0:
            return self.add("Transpose", x, perm=self.rng.permutation(len(shape)).tolist())
        if kind == 1:
            return self.add("Flatten", x, axis=axis)
        if kind == 2:
            return self.add("Reshape", x, self.constant(np.array([*shape[:axis], -1, *shape[axis + 2 :]])))
        if kind == 3:
            step = int(self.rng.choice([1, 1, 2, -1]))
            first, last = (shape[axis] - 1, -shape[axis] - 1) if step < 0 else (int(self.rng.integers(2)), shape[axis])
            return self.add("Slice", x, *(self.constant(np.array([n])) for n in (first, last, axis, step)))
        if kind == 4:
            return shape[axis] % 2 == 0 and self.add("Split", x, outputs=2, axis=axis, num_outputs=2)
        if kind == 5:
            return self.add("Unsqueeze", x, self.constant(np.array([axis])))
        if kind == 6:
            return self.add("Expand", x, self.constant(np.array([2, *(1,) * len(shape)]))) and len(shape) < 5
        other = self.pick(lambda array: array.shape == shape)
        return self.add("Concat", x, other or x, axis=axis)

    def _neighbours(self) -> bool:
        """Sums of neighbouring rows: of two views of one memory, each of which holds most elements of the other."""
        x = self.pick(lambda array: array.ndim > 0 and len(array) > 1)
        if x is None or not self.add("Neg", x):
            return False
        x, rows, zero = self.made[-1], len(self.env[x]), self.constant(np.array([0]))
        for first in self.rng.permutation(2).tolist():
            self.add("Slice", x, *(self.constant(np.array([n])) for n in (first, rows - 1 + first)), zero)
        return self.add("Add", *self.made[-2:]) and self._after_the_last()

    def _reduce(self) -> bool:
        x = self.pick(lambda array: array.ndim > 1)
        if x is None:
            return False
        axis = int(self.rng.integers(self.env[x].ndim))
        op_type = str(self.rng.choice(["ReduceMean", "ReduceSum", "ReduceMax", "ReduceLogSumExp", "Softmax", "LogSoftmax"]))
        if "Soft" in op_type:
            return self.add(op_type, x, axis=axis)
        return self.add(op_type, x, self.constant(np.array([axis])), keepdims=int(self.rng.integers(2)))

    def _window(self) -> bool:
        x = self.pick(lambda array: array.ndim == 4)
        if x is None:
            return False
        channels, *sizes = self.env[x].shape[1:]
        kernel = [int(self.rng.integers(1, min(size, 3) + 1)) for size in sizes]
        attributes = {"kernel_shape": kernel, "strides": [int(self.rng.integers(1, 3))] * 2, "pads": [min(kernel) // 2] * 4}
        kind = self.rng.integers(6)
        if kind < 3:
            out = int(self.rng.integers(1, 5))
            bias = [self.weight(out)] if self.rng.random() < 0.7 else []
            return self.add("Conv", x, self.weight(out, channels, *kernel), *bias, **attributes)
        if kind == 3:
            return self.add("MaxPool", x, **attributes)
        return self.add("AveragePool", x, **attributes) if kind == 4 else self.add("GlobalAveragePool", x)

    def _norm(self) -> bool:
        layer = bool(self.rng.random() < 0.3)
        x = self.pick(lambda array: array.ndim in (2, 3, 4) and _varies(array, layer))
        if x is None:
            return False
        shape = self.env[x].shape
        if layer:
            return self.add("LayerNormalization", x, self.weight(shape[-1]), self.weight(shape[-1]))
        statistics = self.constant(self.rng.random(shape[1]), "m"), self.constant(self.rng.random(shape[1]) + 0.5, "v")
        return self.add("BatchNormalization", x, self.weight(shape[1]), self.weight(shape[1]), *statistics)

    def model(self, outputs: list[str], *, open_sizes: bool = False) -> onnx.ModelProto:
        """`open_sizes`: the sizes of the inputs have names in place of numbers."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        sizes = {
            name: [f"{name}_{axis}" if open_sizes else n for axis, n in enumerate(x.shape)] for name, x in self.feeds.items()
        }
        graph = helper.make_graph(
            self.nodes,
            "random",
            [helper.make_tensor_value_info(name, kind, shape) for name, shape in sizes.items()],
            [helper.make_tensor_value_info(name, kind, [None] * self.env[name].ndim) for name in outputs],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def _varies(array: Array, layer: bool) -> bool:
    """Whether what is normalised together is not almost the same, which would make errors of rounding large."""
    axes = (array.ndim - 1,) if layer else (0, *range(2, array.ndim))
    return bool(array.std(axis=axes).min() > 0.1)


def _stretches(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(small, large) == large
    except ValueError:
        return False


def random_graph(seed: int, nodes: int, dtype: Any = np.float32) -> RandomGraph:
    """With two images as feeds and so many nodes."""
    rng = np.random.default_rng(seed)
    graph = RandomGraph(rng, dtype)
    for name in ("x0", "x1"):
        shape = tuple(rng.integers(1, (6, 5, 9, 9)))
        graph.feeds[name] = graph.env[name] = rng.uniform(-2, 2, shape).astype(dtype)
    while len(graph.nodes) < nodes:
        graph.grow()
    return graph


def forward_model(graph: RandomGraph) -> onnx.ModelProto:
    """All tensors that no node reads are outputs, and a few that some do."""
    read = {name for node in graph.nodes for name in node.input}
    some = [name for name in graph.made if name not in read or graph.rng.random() < 0.15]
    return graph.model(some)


def model_with_loss(graph: RandomGraph, *, open_sizes: bool = False) -> onnx.ModelProto:
    """The mean of weighted ends of the graph is the output `loss`."""
    read = {name for node in graph.nodes for name in node.input}
    parts = []
    for name in [name for name in graph.made if name not in read]:
        weighted, mean = f"{name}_weighted", f"{name}_mean"
        graph.nodes += [
            helper.make_node("Mul", [name, graph.weight(*graph.env[name].shape)], [weighted]),
            helper.make_node("ReduceMean", [weighted], [mean], keepdims=0),
        ]
        parts.append(mean)
    graph.nodes.append(helper.make_node("Sum", parts, ["loss"]))
    graph.env["loss"] = np.zeros((), graph.dtype)
    return graph.model(["loss"], open_sizes=open_sizes)
