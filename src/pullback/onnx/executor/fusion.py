"""Neighbouring nodes that one kernel does in one pass over memory, as nodes of the executor's own (domain `FUSED`).

Each pattern names what it joins; a tensor between two of its nodes must have no other reader and be no output of the graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from pullback.onnx.executor.registry import FUSED, MICROSOFT, Node

BATCH_NORM, BATCH_NORM_GRAD = (MICROSOFT, "BatchNormInternal"), (MICROSOFT, "BatchNormalizationGrad")
RELU, RELU_GRAD = ("", "Relu"), (MICROSOFT, "ReluGrad")
ADD, SUM, CONV = ("", "Add"), ("", "Sum"), ("", "Conv")
MAX_POOL, MAX_POOL_GRAD = ("", "MaxPool"), ("", "MaxPoolGrad")


class _Graph:
    """The nodes with who makes and who reads each tensor; None in place of a node that has become part of another."""

    def __init__(self, nodes: Sequence[Node], outputs: Sequence[str]) -> None:
        self.nodes: list[Node | None] = list(nodes)
        self.outputs = frozenset(outputs)
        self.maker: dict[str, int] = {}
        self.readers: defaultdict[str, list[int]] = defaultdict(list)
        for place, node in enumerate(nodes):
            self.maker.update(dict.fromkeys(filter(None, node.outputs), place))
            for name in filter(None, node.inputs):
                self.readers[name].append(place)

    def made_by(self, name: str, kind: tuple[str, str]) -> int | None:
        """The place of the node of this kind that makes a tensor read by one place alone, as its first output."""
        place = self.maker.get(name)
        node = None if place is None else self.nodes[place]
        if node is None or (node.domain, node.op_type) != kind or node.outputs[0] != name or name in self.outputs:
            return None
        return place if len(self.readers[name]) == 1 else None

    def batch_norm(self, name: str, later: int) -> int | None:
        """The place of the batch normalization that makes a tensor, if all that it makes may as well be made at a later place."""
        place = self.made_by(name, BATCH_NORM)
        others = () if place is None else filter(None, self.node(place).outputs[1:])
        return place if all(reader > later for other in others for reader in self.readers[other]) else None

    def node(self, place: int) -> Node:
        node = self.nodes[place]
        assert node is not None
        return node

    def join(self, at: int, node: Node, *parts: int) -> None:
        """Put a node in place of several, at the place of one of them."""
        for place in (*parts, at):
            for name in filter(None, self.node(place).inputs):
                self.readers[name] = [reader for reader in self.readers[name] if reader != place]
            self.nodes[place] = None
        self.nodes[at] = node
        for name in filter(None, node.inputs):
            self.readers[name].append(at)
        self.maker.update(dict.fromkeys(filter(None, node.outputs), at))


def _batch_norm_add_relu(graph: _Graph, at: int, relu: Node) -> None:
    """Relu(Add(BatchNorm(x), shortcut)), Relu(BatchNorm(x)) and Relu(Add(a, b))."""
    if (norm := graph.batch_norm(relu.inputs[0], at)) is not None:
        first = graph.node(norm)
        node = replace(first, domain=FUSED, op_type="BatchNormRelu", outputs=(relu.outputs[0], *first.outputs[1:]))
        graph.join(at, node, norm)
        return
    add = graph.made_by(relu.inputs[0], ADD)
    if add is None:
        return
    a, b = graph.node(add).inputs
    for x, shortcut in ((a, b), (b, a)):
        if (norm := graph.batch_norm(x, at)) is not None:
            first = graph.node(norm)
            outputs = (relu.outputs[0], *first.outputs[1:])
            node = replace(first, domain=FUSED, op_type="BatchNormRelu", inputs=(*first.inputs, shortcut), outputs=outputs)
            graph.join(at, node, norm, add)
            return
    graph.join(at, replace(relu, domain=FUSED, op_type="AddRelu", inputs=(a, b)), add)


def _conv_relu(graph: _Graph, at: int, relu: Node) -> None:
    """Relu(Conv(x, w, bias)): the bias and the ReLU in one pass."""
    conv = graph.made_by(relu.inputs[0], CONV)
    if conv is not None and len(graph.node(conv).inputs) > 2 and graph.node(conv).inputs[2]:
        graph.join(at, replace(graph.node(conv), domain=FUSED, op_type="ConvRelu", outputs=relu.outputs), conv)


def _relu_grad(graph: _Graph, at: int, grad: Node) -> None:
    """ReluGrad(Sum(a, b), y), then BatchNormalizationGrad(ReluGrad(dy, y), ...)."""
    total = graph.made_by(grad.inputs[0], SUM)
    if total is not None and len(graph.node(total).inputs) == 2:
        inputs = (*graph.node(total).inputs, grad.inputs[1])
        graph.join(at, replace(grad, domain=FUSED, op_type="ReluGradOfSum", inputs=inputs), total)
        return
    masked = grad.outputs[0]
    readers = graph.readers[masked]
    norms = [place for place in readers if (n := graph.node(place)) and (n.domain, n.op_type) == BATCH_NORM_GRAD]
    if len(norms) != 1 or graph.node(norms[0]).inputs[0] != masked or masked in graph.node(norms[0]).inputs[1:]:
        return
    norm = graph.node(norms[0])
    if any(graph.maker.get(name, -1) > at for name in norm.inputs[1:]):
        return
    others = len(readers) > 1 or masked in graph.outputs
    outputs = (*norm.outputs, *[""] * (3 - len(norm.outputs)), masked if others else "")
    node = replace(
        norm, domain=FUSED, op_type="BatchNormReluGrad", inputs=(grad.inputs[0], *norm.inputs[1:], grad.inputs[1]), outputs=outputs
    )  # fmt: skip
    graph.join(at, node, norms[0])


def _max_pool(graph: _Graph, at: int, pool: Node) -> None:
    """MaxPool and its gradients, where these alone read its Indices: one byte for a winner instead of eight."""
    if not pool.wants(1) or pool.outputs[1] in graph.outputs or pool.attr("storage_order", 0):
        return
    readers = [graph.node(place) for place in graph.readers[pool.outputs[1]]]
    if not all((node.domain, node.op_type) == MAX_POOL_GRAD and node.attr("shape_of") == pool.inputs[0] for node in readers):
        return
    graph.nodes[at] = replace(pool, domain=FUSED, op_type="MaxPoolWinners")
    for place in graph.readers[pool.outputs[1]]:
        attrs = pool.attrs | {"shape_of": pool.inputs[0]}
        graph.nodes[place] = replace(
            graph.node(place), domain=FUSED, op_type="MaxPoolGradFromWinners", attrs=attrs, opset=pool.opset
        )


PATTERNS: tuple[tuple[tuple[str, str], Callable[[_Graph, int, Node], None]], ...] = (
    (RELU, _batch_norm_add_relu),
    (RELU, _conv_relu),
    (RELU_GRAD, _relu_grad),
    (MAX_POOL, _max_pool),
)


def fused(nodes: list[Node], outputs: Sequence[str]) -> list[Node]:
    """The same graph with fewer passes."""
    graph = _Graph(nodes, outputs)
    for kind, join in PATTERNS:
        for place, node in enumerate(graph.nodes):
            if node is not None and (node.domain, node.op_type) == kind:
                join(graph, place, node)
    return [node for node in graph.nodes if node is not None]
