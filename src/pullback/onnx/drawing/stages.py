"""A training graph cut into stages: a forward node, the backward nodes that it brings about, and what passes between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import ModelProto, NodeProto

from pullback.onnx.executor.read import read_node, static_shape
from pullback.onnx.graph.description import describe

GRADIENT = "_grad"
TIMES = "\u00d7"
FAMILIES = {
    "convolution": ("Conv", "ConvTranspose"),
    "pooling": ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool"),
    "normalization": (
        "BatchNormalization", "BatchNormInternal", "LayerNormalization", "GroupNormalization", "InstanceNormalization",
    ),
    "activation": (
        "Relu", "LeakyRelu", "PRelu", "Elu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Gelu", "Softplus", "Mish",
    ),
    "dense": ("Gemm", "MatMul", "Einsum"),
    "loss": ("SoftmaxCrossEntropyLoss",),
}  # fmt: skip
PASSED_ON = "passed on"  # beside a node whose gradient needs no node of its own
UNSEEN = ("Constant", "Identity")  # nodes that compute nothing


@dataclass
class Part:
    """A forward node: its op, what tells it from others of the op, and the ops of its backward nodes in the order they run."""

    op: str
    detail: str
    backward: list[str] = field(default_factory=list)


@dataclass
class Stage:
    """One part, or several that follow each other. `reads`: the stages whose results it takes.

    `kept`: tensors of the forward pass that its backward nodes read. `repeats`: how often it comes, with the others of its `group`.
    """

    parts: list[Part]
    name: str
    shape: str
    parameters: list[tuple[str, str, str]] = field(default_factory=list)  # name, shape, name of the gradient
    kept: list[str] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    repeats: int = 1
    group: int | None = None

    @property
    def has_backward(self) -> bool:
        return any(part.backward for part in self.parts)


@dataclass(frozen=True)
class Stages:
    """`inputs`: names and shapes of what is fed. `numbers`: how many there are in all parameters."""

    name: str
    loss: str
    inputs: list[tuple[str, str]]
    stages: list[Stage]
    forward_nodes: int
    backward_nodes: int
    parameters: int
    numbers: int


def shape_text(sizes: Sequence[int | str | None] | None) -> str:
    """Sizes with a sign between them, with the names of open sizes; ? where nothing is known."""
    if sizes is None:
        return "?"
    return TIMES.join("?" if size is None else str(size) for size in sizes) or "scalar"


def counted(ops: Sequence[str]) -> str:
    """Ops in the order they come first, with how often they come."""
    return ", ".join(op if times == 1 else f"{op} {TIMES}{times}" for op, times in Counter(ops).items())


def make_stages(model: ModelProto) -> Stages:
    """The stages of a training graph, in the order of its forward nodes."""
    graph, told = model.graph, describe(model)
    shapes = {value.name: shape_text(static_shape(value)) for value in (*graph.value_info, *graph.input, *graph.output)}
    weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    makers = {output: number for number, node in enumerate(graph.node) for output in node.output if output}
    forward = _ancestors(graph.node, makers, [told.loss, *told.outputs, *told.running.values()])
    owners = _owners(graph.node, makers, forward, told.loss)
    number_of: dict[int, int] = {}  # the stage of a forward node
    stages: list[Stage] = []
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    for number, node in enumerate(graph.node):
        if number not in forward or node.op_type in UNSEEN:
            continue
        mine = [name for name in node.input if name in told.gradients]
        number_of[number] = len(stages)
        weight = weights.get(node.input[1]) if len(node.input) > 1 else None
        stages.append(
            Stage(
                [Part(node.op_type, _detail(read_node(node, opsets).attrs, weight, node.op_type))],
                node.name or node.output[0],
                shapes.get(node.output[0], "?"),
                [(name, shape_text(weights.get(name)), told.gradients[name]) for name in mine],
            )
        )
    for number, node in enumerate(graph.node):
        stage = number_of.get(owners.get(number, -1) if number not in forward else number)
        if stage is None:
            continue
        if number in forward:
            stages[stage].reads = sorted({number_of[m] for m in _sources(node, makers, graph.node) if m in number_of})
        else:
            stages[stage].parts[0].backward.append(node.op_type)
            used = [name for name in node.input if makers.get(name, -1) in forward or (name in shapes and name not in makers)]
            stages[stage].kept += [name for name in used if name not in weights and name not in stages[stage].kept]
    _mark_passing(stages)
    fed = [(value.name, shapes[value.name]) for value in graph.input if value.name not in weights]
    count = sum(_size(weights[name]) for name in told.gradients if name in weights)
    return Stages(graph.name, told.loss, fed, stages, len(forward), len(graph.node) - len(forward), len(told.gradients), count)


def _ancestors(nodes: Sequence[NodeProto], makers: Mapping[str, int], names: Sequence[str]) -> set[int]:
    """The nodes that these tensors need."""
    found: set[int] = set()
    wanted = [makers[name] for name in names if name in makers]
    while wanted:
        number = wanted.pop()
        if number not in found:
            found.add(number)
            wanted += [makers[name] for name in nodes[number].input if name in makers]
    return found


def _sources(node: NodeProto, makers: Mapping[str, int], nodes: Sequence[NodeProto]) -> list[int]:
    """The nodes whose results a node takes, past those that compute nothing."""
    found: list[int] = []
    for name in node.input:
        number = makers.get(name)
        if number is None:
            continue
        found += _sources(nodes[number], makers, nodes) if nodes[number].op_type in UNSEEN else [number]
    return found


def _owners(nodes: Sequence[NodeProto], makers: Mapping[str, int], forward: set[int], loss: str) -> dict[int, int]:
    """For each backward node the forward node that it belongs to, which its name begins with; sums belong to what is summed."""
    by_scope = {f"{nodes[number].name}_Grad": number for number in forward}
    owners = {}
    for number, node in enumerate(nodes):
        summed = node.output[0].removesuffix(GRADIENT)
        scope = node.name.rpartition("/")[0]
        owner = makers.get(summed) if node.name.startswith("AccumulateGrad") else by_scope.get(scope)
        if scope == "loss" and owner is None:
            owner = makers[loss]
        if number not in forward and owner in forward:
            owners[number] = owner
    return owners


def _mark_passing(stages: list[Stage]) -> None:
    """Find the stages whose gradient is that of their result, so that no node is needed for it."""
    behind = [False] * len(stages)  # whether something that has a backward node comes before, or after
    ahead = [False] * len(stages)
    for number, stage in enumerate(stages):
        behind[number] = any(behind[read] or stages[read].parts[0].backward for read in stage.reads)
    for number in reversed(range(len(stages))):
        for read in stages[number].reads:
            ahead[read] = ahead[read] or ahead[number] or bool(stages[number].parts[0].backward)
    for stage, before, after in zip(stages, behind, ahead, strict=True):
        if before and after and not stage.parts[0].backward:
            stage.parts[0].backward.append(PASSED_ON)


def _detail(attrs: Mapping[str, Any], weight: tuple[int, ...] | None, op_type: str) -> str:
    """What distinguishes a node of a window op from others of its kind: window, stride, dilation, groups."""
    window = attrs.get("kernel_shape") or (weight[2:] if weight and op_type.startswith("Conv") else ())
    parts = [TIMES.join(map(str, window))] if window else []
    for name, word in (("strides", "stride"), ("dilations", "dilation")):
        values = attrs.get(name) or []
        if any(value != 1 for value in values):
            parts.append(f"{word} {values[0] if len(set(values)) == 1 else TIMES.join(map(str, values))}")
    if attrs.get("group", 1) > 1:
        parts.append(f"{attrs['group']} groups")
    return ", ".join(parts)


def _size(shape: Sequence[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
