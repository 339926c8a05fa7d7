"""Parameters that an exporter made one because their values were equal, each with an initializer of its own again.

PyTorch's exporter of programs and tf2onnx write equal tensors once. The scales of all fresh normalisations, their biases and their
running statistics are equal then, but not the same: trained as one tensor they would stay equal for ever.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx

from pullback.onnx.executor.read import to_array
from pullback.onnx.graph.tensor_type import FLOATS

SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
SCOPES = "pkg.torch.onnx.name_scopes"
OF_EXPORTED_PROGRAMS = "node_"  # begins the names of nodes that PyTorch's newer exporter writes
WEIGHTED = (
    "Conv", "ConvTranspose", "Gemm", "BatchNormalization", "LayerNormalization", "GroupNormalization", "InstanceNormalization",
)  # fmt: skip
LEAVES = {1: "weight", 2: "bias", 3: "running_mean", 4: "running_var"}  # names in PyTorch of the inputs of these


def torch_tensors(graph: onnx.GraphProto) -> dict[str, str]:
    """Of a model that PyTorch exported as a program: what each of its tensors was, PARAMETER or BUFFER, by name."""
    text = next((entry.value for entry in graph.metadata_props if entry.key == SIGNATURE), "")
    return {name: kind for kind, name in re.findall(r": (PARAMETER|BUFFER)\b[^\n]*?target='([^']*)'", text)}


def filled(tensor: onnx.TensorProto) -> bool:
    """Whether all entries are the same number."""
    values = to_array(tensor)
    return values.size > 0 and bool((values == values.flat[0]).all())


@dataclass(frozen=True)
class Use:
    """An input of a node. `owner`: the module of PyTorch, or the node, that has a tensor there of its own."""

    node: onnx.NodeProto
    place: int
    owner: str

    @property
    def key(self) -> tuple[str, int]:
        """Uses with the same key are of one tensor. Scale, bias and statistics of a batch normalisation are always four."""
        several = self.node.op_type == "BatchNormalization" or (self.owner and self.node.op_type in WEIGHTED)
        return self.owner, self.place if several else 0

    def wish(self, name: str) -> str:
        """The name that the tensor probably had."""
        leaf = LEAVES.get(self.place, "weight") if self.node.op_type in WEIGHTED else name.rpartition(".")[2]
        return f"{self.owner}.{leaf}"


def untie(model: onnx.ModelProto) -> None:
    """Change a model in place. What is shared and has different values in it stays shared: that cannot be chance."""
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type in FLOATS and tensor.dims}
    uses: dict[str, dict[tuple[str, int], list[Use]]] = defaultdict(lambda: defaultdict(list))
    merged = model.producer_name == "tf2onnx" or (
        model.producer_name == "pytorch" and any(node.name.startswith(OF_EXPORTED_PROGRAMS) for node in graph.node)
    )
    for number, node in enumerate(graph.node):
        owner = torch_scopes(node)[-2] or (f"{node.name}{number}" if merged else "")
        for place, name in enumerate(node.input):
            if name in tensors:
                use = Use(node, place, owner)
                uses[name][use.key].append(use)
    expected = torch_tensors(graph)
    names = {name for node in graph.node for name in (*node.input, *node.output)} | set(tensors)
    for name, groups in uses.items():
        if len(groups) > 1 and filled(tensors[name]):
            _separate(graph, tensors[name], list(groups.values()), expected, names)


def torch_scopes(node: onnx.NodeProto) -> list[str]:
    """The modules of PyTorch around a node, the one it is of, and its operator; two empty names where it does not say."""
    text = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "")
    try:
        return ["", "", *map(str, ast.literal_eval(text))]
    except (SyntaxError, ValueError, TypeError):
        return ["", ""]


def _separate(
    graph: onnx.GraphProto,
    tensor: onnx.TensorProto,
    groups: Iterable[list[Use]],
    expected: Mapping[str, str],
    names: set[str],
) -> None:
    """A copy for each group of uses but the one that the tensor has its name of, else the first."""
    ordered = sorted(groups, key=lambda group: group[0].wish(tensor.name) != tensor.name)
    for group in ordered[1:]:
        wish, count = group[0].wish(tensor.name), 0
        name = wish if tensor.name in expected and wish in expected else tensor.name
        while name in names:
            count += 1
            name = f"{tensor.name}_{count}"
        names.add(name)
        copy = graph.initializer.add()
        copy.CopyFrom(tensor)
        copy.name = name
        for use in group:
            use.node.input[use.place] = name
