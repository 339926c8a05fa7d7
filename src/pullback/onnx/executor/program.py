"""A graph ready to run: planned once for each set of shapes, tensors freed after their last use, results in place where safe.

The first run with new shapes goes node by node and keeps what does not depend on the values of the inputs (sizes, and what is
computed from them); later runs skip those nodes. It also sees where a result can take the memory of an input that dies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from pullback.onnx.errors import OnnxError
from pullback.onnx.executor.context import ALONE, Context
from pullback.onnx.executor.fusion import fused
from pullback.onnx.executor.layout import FEWEST_AXES, as_layout, channels_last, filter_as_last
from pullback.onnx.executor.liveness import Plan, Trace, planned
from pullback.onnx.executor.read import argument, opsets_of, read_node, static_shape, to_array
from pullback.onnx.executor.registry import Node, Op, find_op
from pullback.rules import Array

OnOutput = Callable[[str, Array], None]

# Ops of images, with the inputs that lie channels_last: converted once, ahead of the first that reads them.
IMAGES = {
    "Conv": (0,), "ConvRelu": (0,), "ConvTranspose": (0,), "MaxPool": (0,), "MaxPoolWinners": (0,), "AveragePool": (0,),
    "BatchNormInternal": (0,), "BatchNormRelu": (0,), "ConvGrad": (0, 1), "ConvTransposeGrad": (0, 1), "MaxPoolGrad": (0, 1),
    "MaxPoolGradFromWinners": (0, 1), "AveragePoolGrad": (0,), "BatchNormalizationGrad": (0, 1), "BatchNormReluGrad": (0, 1),
}  # fmt: skip
FILTERS = {"Conv": 1, "ConvRelu": 1, "ConvTranspose": 1, "ConvGrad": 2, "ConvTransposeGrad": 2}
OF_SHAPES = ("Shape", "Size")
RANDOM = ("Dropout", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")
MOST_PLANS = 32


class Program:
    """A graph, forward or training. `outputs`: those to compute, all where None.

    Nothing of the model itself is kept: a part of a protobuf message holds the whole of it in memory.
    """

    def __init__(self, model: onnx.ModelProto, outputs: Sequence[str] | None = None) -> None:
        graph, opsets = model.graph, opsets_of(model)
        self.outputs = tuple(value.name for value in graph.output) if outputs is None else tuple(outputs)
        defaults = {tensor.name: to_array(tensor) for tensor in graph.initializer}
        self.inputs = {value.name: argument(value) for value in graph.input}
        self.required = tuple(name for name in self.inputs if name not in defaults)
        self._declared = {value.name: static_shape(value) for value in (*graph.value_info, *graph.output, *graph.input)}
        nodes = self._needed([read_node(proto, opsets) for proto in graph.node])
        nodes, constants = self._fold(nodes, {name: a for name, a in defaults.items() if name not in self.inputs})
        self.nodes = fused(nodes, self.outputs)
        self._ops = [find_op(node) for node in self.nodes]
        self.filters = self._find_filters()
        changeable = {name: array for name, array in defaults.items() if name in self.inputs}
        self._defaults = self.arranged(constants | changeable)
        self._plans: dict[Any, Plan] = {}
        self._check_sources()

    def _needed(self, nodes: list[Node]) -> list[Node]:
        """Those that the outputs depend on; results that nobody reads lose their names."""
        wanted, kept = set(self.outputs), []
        for node in reversed(nodes):
            outputs = tuple(name if name in wanted else "" for name in node.outputs)
            if any(outputs):
                kept.append(Node(node.op_type, node.domain, node.name, node.inputs, outputs, node.attrs, node.opset))
                wanted.update(node.inputs)
        return kept[::-1]

    def _fold(self, nodes: list[Node], constants: dict[str, Array]) -> tuple[list[Node], dict[str, Array]]:
        """Run the nodes that have nothing but constants as inputs, once and for all."""
        left = []
        for node in nodes:
            op = find_op(node)
            if node.op_type in RANDOM or op.shaped or any(name and name not in constants for name in node.inputs):
                left.append(node)
            else:
                inputs = [constants[name] if name else None for name in node.inputs]
                with np.errstate(all="ignore"):
                    constants.update(self._run_node(node, op, inputs, ALONE, None, None))
        used = {name for node in left for name in node.inputs} | set(self.outputs)
        return left, {name: array for name, array in constants.items() if name in used}

    def _find_filters(self) -> frozenset[str]:
        """Names of tensors that nothing but convolutions read as filters, so that they may lie as the kernels want them."""
        places = [(name, FILTERS.get(n.op_type) == i) for n in self.nodes for i, name in enumerate(n.inputs) if name]
        others = {name for name, is_filter in places if not is_filter}
        return frozenset(name for name, is_filter in places if is_filter and name not in others)

    def _check_sources(self) -> None:
        known = set(self._defaults) | set(self.inputs)
        for node in self.nodes:
            for name in node.inputs:
                if name and name not in known:
                    raise OnnxError(f"{node.title}: nothing makes its input '{name}' before it; the graph is broken")
            known.update(node.outputs)
        missing = [name for name in self.outputs if name not in known]
        if missing:
            raise OnnxError(f"there is no output '{missing[0]}'; the outputs are {', '.join(self.outputs)}")

    def arranged(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The same values, with filters as the kernels read them; to be done once for parameters that are fed at every run."""
        return {
            name: filter_as_last(array) if name in self.filters and array.ndim >= FEWEST_AXES else array
            for name, array in arrays.items()
        }

    def run(
        self, feeds: Mapping[str, Array], *, on_output: OnOutput | None = None, context: Context = ALONE
    ) -> dict[str, Array]:
        """The outputs by name. `on_output` gets each as soon as it is there. Feeds replace initializers of the same name."""
        with np.errstate(all="ignore"):  # infinities and NaN are answers, as in the kernels
            return self._run(feeds, on_output, context)

    def _run(self, feeds: Mapping[str, Array], on_output: OnOutput | None, context: Context) -> dict[str, Array]:
        given = {name: np.asarray(array) for name, array in feeds.items()}
        key = tuple((name, array.shape, array.dtype, array.strides) for name, array in given.items())
        plan = self._plans.get(key)
        if plan is None:
            return self._first_run(key, given, on_output, context)
        env: list[Any] = [None] * plan.slots
        for slot, array in plan.constants:
            env[slot] = array
        for name, slot in plan.feeds:
            env[slot] = given[name]
        results = dict(plan.known)
        if on_output is not None:
            for name, array in results.items():
                on_output(name, array)
        for step in plan.steps:
            inputs = [None if slot < 0 else env[slot] for slot in step.inputs]
            out = None if step.out < 0 else inputs[step.out]
            answers = self._run_node(step.node, step.op, inputs, context, out, step.shape)
            for slot, name in step.outputs:
                env[slot] = answers[name]
                if name in plan.wanted:
                    results[name] = answers[name]
                    if on_output is not None:
                        on_output(name, answers[name])
            inputs = out = answers = None  # type: ignore[assignment]  # nothing but env holds tensors
            for slot in step.frees:
                env[slot] = None
        return self._collect(results, given, plan, on_output)

    def _first_run(self, key: Any, given: dict[str, Array], on_output: OnOutput | None, context: Context) -> dict[str, Array]:
        """Node by node, writing down what happens."""
        missing = [name for name in self.required if name not in given]
        if missing:
            raise OnnxError(f"input '{missing[0]}' is not given; the inputs are {', '.join(self.required)}")
        trace, results = Trace(self.outputs), {}
        env: dict[str, Array] = self._defaults | given
        trace.begin(given, self._defaults)
        for node, op in zip(self.nodes, self._ops, strict=True):
            for place in IMAGES.get(node.op_type, ()):
                name = node.inputs[place] if place < len(node.inputs) else ""
                if name and env[name].ndim >= FEWEST_AXES and not channels_last(env[name]):
                    env[name] = as_layout(env[name], last=True)
                    trace.converts(name, env[name])
            inputs = [env[name] if name else None for name in node.inputs]
            shape = self._shape(node, op, env, trace)
            answers = self._run_node(node, op, inputs, context, None, shape)
            static = node.op_type in OF_SHAPES or (
                node.op_type not in RANDOM and bool(node.inputs) and all(name in trace.static for name in node.inputs if name)
            )
            trace.ran(node, op, inputs, answers, static, shape)
            env.update(answers)
            for name in node.outputs:
                if name in self.outputs:
                    results[name] = answers[name]
                    if on_output is not None:
                        on_output(name, answers[name])
            for name in trace.dead(node, self.nodes):
                env.pop(name, None)
        plan = planned(trace, given, self._defaults)
        if trace.repeatable:
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        return self._collect(results, given, plan, on_output)

    def _collect(
        self, results: dict[str, Array], given: dict[str, Array], plan: Plan, on_output: OnOutput | None
    ) -> dict[str, Array]:
        """In the order asked for, each in memory of its own: what shares it with an input, a constant or another is copied."""
        collected = {}
        for name in self.outputs:
            if name in results:
                shared = name in plan.shared or not results[name].flags.writeable  # that is a stretched view
                collected[name] = results[name].copy(order="K") if shared else results[name]
                continue
            collected[name] = np.array(given[name] if name in given else self._defaults[name])
            if on_output is not None:
                on_output(name, collected[name])
        return collected

    def _shape(self, node: Node, op: Op, env: dict[str, Array], trace: Trace) -> tuple[int, ...] | None:
        """The shape of the tensor whose gradient a node makes: that of the tensor it names, else as the graph declares it."""
        if not op.shaped:
            return None
        source = node.attr("shape_of")
        if source is not None and source in trace.shapes:
            return trace.shapes[source]
        declared = self._declared.get(node.outputs[0])
        batch = env[node.inputs[0]].shape[0]
        sizes = tuple(batch if place == 0 else size for place, size in enumerate(declared or ()))
        if not sizes or not all(isinstance(size, int) for size in sizes):
            raise OnnxError(f"{node.title}: the graph does not declare the shape of '{node.outputs[0]}'")
        return sizes  # type: ignore[return-value]

    def _run_node(
        self, node: Node, op: Op, inputs: list[Any], context: Context, out: Array | None, shape: tuple[int, ...] | None
    ) -> dict[str, Array]:
        """The named results of a node."""
        keywords: dict[str, Any] = {}
        if out is not None:
            keywords["out"] = out
        if op.context:
            keywords["context"] = context
        if op.shaped:
            keywords["shape"] = shape
        try:
            result = op.run(node, *inputs, **keywords)
        except OnnxError:
            raise
        except (ValueError, TypeError, IndexError, NotImplementedError) as error:
            raise OnnxError(f"{node.title}: {error}") from error
        results = result if isinstance(result, tuple) else (result,)
        return {name: np.asarray(array) for name, array in zip(node.outputs, results, strict=False) if name}
