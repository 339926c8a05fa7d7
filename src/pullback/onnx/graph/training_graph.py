"""training_graph: reverse mode over a model, giving an ONNX graph of its loss and the gradients of its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from pullback.nearest import did_you_mean
from pullback.onnx.errors import OnnxError
from pullback.onnx.executor.read import read_node
from pullback.onnx.executor.registry import MICROSOFT, PULLBACK
from pullback.onnx.graph.choose import Names, chosen
from pullback.onnx.graph.description import TrainingDescription, is_training_graph, write_description
from pullback.onnx.graph.emit import Builder, Value
from pullback.onnx.graph.folded_norms import warn_of_folded_norms
from pullback.onnx.graph.losses import LOSSES, LossOptions
from pullback.onnx.graph.prepare import Prepared, drop_unused, names_in, prepare
from pullback.onnx.graph.rules import RULES, STOPS, Rule
from pullback.onnx.graph.tensor_type import TensorType
from pullback.onnx.graph.training_mode import to_training_mode
from pullback.onnx.graph.view import NodeView
from pullback.onnx.model_files import ModelLike, load_model


def training_graph(
    model: ModelLike,
    loss: str = "cross_entropy",
    trainable: Names = None,
    frozen: Names = (),
    *,
    output: str | None = None,
    ignore_index: int | None = None,
    delta: float = 1.0,
    weighted: bool = False,
) -> onnx.ModelProto:
    """The graph that computes a model's loss and the gradient of every trainable parameter.

    `model`: a path, bytes or a ModelProto, which is not changed. `loss`: "cross_entropy" (class numbers; classes on axis 1),
    "soft_cross_entropy" (shares of the classes), "mse", "l1", "huber" (with `delta`), "bce_with_logits", or the name of a scalar
    output of the model. `trainable`, `frozen`: names or patterns such as "layer4.*"; by default all weights, and frozen wins.
    `output`: the output that the loss is of, by default the first. `ignore_index`: a class number that does not count.
    `weighted`: with an input more, a number that all gradients are multiplied by: the share of these rows in a larger batch.

    Inputs: those of the model, the target, the parameters (as defaults that a feed may override). Outputs: the loss, the outputs of
    the model, `<parameter>_grad` for each parameter, then the next running statistics of batch normalisations. `describe` of
    pullback.onnx.graph.description says which is which.
    """
    source = load_model(model)
    if is_training_graph(source):
        raise OnnxError("this model is a training graph already; give the model it was made from")
    warn_of_folded_norms(source)
    ready = prepare(source)
    reverse = _Reverse(ready, chosen(ready, trainable, frozen), weighted)
    return reverse.run(loss, output, LossOptions(ignore_index, delta))


@dataclass
class _Reverse:
    """One differentiation: `depends` are the tensors that change smoothly with a trainable parameter."""

    ready: Prepared
    parameters: list[str]
    weighted: bool = False
    loss_weight: str | None = None
    gradients: dict[str, list[Value]] = field(default_factory=dict)
    final: dict[str, str] = field(default_factory=dict)
    final_outputs: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.graph, self.types = self.ready.graph, self.ready.types
        self.depends = self._depends()
        self.running = to_training_mode(self.ready, self.depends)
        self.nodes = [(node, read_node(node, self._opsets())) for node in self.graph.node]
        of_model = frozenset(names_in(self.graph))
        self.g = Builder(self.ready.opset, dict(self.types), set(of_model), of_model=of_model)

    def _opsets(self) -> dict[str, int]:
        return {"": self.ready.opset, MICROSOFT: 1}

    def _depends(self) -> set[str]:
        depends = set(self.parameters)
        for node in self.graph.node:
            rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx", MICROSOFT) else None
            if node.op_type in STOPS or not any(name in depends and _has(rule, i) for i, name in enumerate(node.input)):
                continue
            depends.update(name for name in node.output if name and self._smooth(name))
        return depends

    def _smooth(self, name: str) -> bool:
        kind = self.types.get(name)
        return kind is None or not kind.dtype or kind.floating

    def run(self, loss: str, output: str | None, options: LossOptions) -> onnx.ModelProto:
        own = [value.name for value in self.graph.output]
        loss_name, target = self._seed(loss, output, options)
        for proto, node in reversed(self.nodes):
            self._step(proto, node)
        parameters = self._trained(loss_name)
        gradients = {name: self._as_output(name) for name in parameters}
        outputs = [name for name in own if name != loss_name]
        description = TrainingDescription(
            loss_name, target, tuple(parameters), gradients, self.running, tuple(outputs), self.loss_weight
        )
        return self._model(description)

    # the loss

    def _seed(self, loss: str, output: str | None, options: LossOptions) -> tuple[str, str | None]:
        """Append the loss; its name and that of the target."""
        own = [value.name for value in self.graph.output]
        if not isinstance(loss, str) or loss not in LOSSES:
            if loss not in own:
                known = [*LOSSES, *own]
                raise OnnxError(f"no loss and no output of the model is called {loss!r}{did_you_mean(loss, known, 'Known')}")
            shape = self.types[loss].shape
            if not self.types[loss].floating or (shape is not None and any(size != 1 for size in shape)):
                raise OnnxError(f"the output '{loss}' of the model is no loss: it has shape {shape}, a loss is one number")
            one = self.g.constant(np.ones([1] * len(shape or ())), self.types[loss].dtype)
            self.gradients[loss] = [self._weighted(one)]
            return loss, None
        name = output or own[0]
        if name not in own:
            raise OnnxError(f"no output of the model is called {name!r}{did_you_mean(name, own, 'Outputs')}")
        if not self.types[name].floating:
            raise OnnxError(f"the output '{name}' of the model is not of floating point, so no loss can be made of it")
        scores, kind = self.g.value(name), LOSSES[loss]
        target = self.g.value(self.g.unique("target"))
        self.g.types[target.name] = kind.target(self.types[name])
        self.g.scope = "loss"
        value, gradient = kind.run(self.g, scores, target, options)
        self.graph.input.append(target.type.value_info(target.name))
        self.gradients[name] = [self.g.typed(self._weighted(gradient), scores.type)]
        self.g.types[value.name] = TensorType(scores.dtype, ())
        return self.g.rename(value, "loss"), target.name

    def _weighted(self, gradient: Value) -> Value:
        """A gradient of the loss times the input that says how much the loss counts, where there is to be one."""
        if not self.weighted:
            return gradient
        self.loss_weight = self.g.unique("loss_weight")
        kind = self.g.types[self.loss_weight] = TensorType(gradient.dtype, ())
        self.graph.input.append(kind.value_info(self.loss_weight))
        self.graph.initializer.append(helper.make_tensor(self.loss_weight, kind.dtype, (), [1]))
        return gradient * self.g.value(self.loss_weight)

    # back through the nodes

    def _step(self, proto: onnx.NodeProto, node: Any) -> None:
        rule = RULES.get(node.op_type)
        wanted = tuple(name in self.depends and _has(rule, i) for i, name in enumerate(node.inputs))
        if node.op_type in STOPS or not any(wanted):
            return
        dys = tuple(self._finished(name) for name in node.outputs)
        if not any(dys):
            return
        if rule is None or node.domain not in ("", MICROSOFT):
            raise OnnxError(
                f"{node.title}: there is no gradient of {node.op_type}, and parameters before it are to be trained; freeze them "
                "(frozen=...), choose others (trainable=...), or replace the node"
            )
        self.g.scope = f"{node.name}_Grad"
        view = NodeView(self.g, node, proto, dys, wanted, self.ready.constant_of)
        for name, want, gradient in zip(node.inputs, wanted, rule.run(view), strict=False):
            if want and gradient is not None:
                self.gradients.setdefault(name, []).append(gradient)

    def _finished(self, name: str) -> Value | None:
        """The whole gradient of a tensor: the sum of those that its readers gave."""
        if name in self.final:
            return self.g.value(self.final[name])
        parts = self.gradients.pop(name, None)
        if not parts:
            return None
        total = parts[0]
        if len(parts) > 1:
            total = self.g.op.Sum(*parts)
            self.g.nodes[-1].name = self.g.unique(f"AccumulateGrad_{name}")
        if name in self.types and total.name in self.g.made:
            self.g.types[total.name] = self.types[name]
        if total.name in self.g.made and total.name not in self.g.renamed:
            self.g.rename(total, f"{name}_grad")
        self.final[name] = total.name
        return total

    # the model

    def _trained(self, loss: str) -> list[str]:
        """The parameters that got a gradient: one on which the loss does not depend is not trained."""
        trained = [name for name in self.parameters if self.gradients.get(name) or name in self.final]
        if not trained:
            raise OnnxError(
                f"the loss '{loss}' depends on no trainable parameter: "
                + ("it has none, or all are frozen" if not self.parameters else f"not on {', '.join(self.parameters[:5])}")
            )
        return trained

    def _as_output(self, parameter: str) -> str:
        """The name of a parameter's gradient, which is a tensor of its own."""
        total = self._finished(parameter)
        assert total is not None
        wish = f"{parameter}_grad"
        made = self.g.renamed.get(total.name)
        if made is None or made in self.final_outputs or not made.startswith(wish):
            self.g.scope = parameter
            total = self.g.typed(self.g.op.Identity(total), self.types[parameter])
            made = self.g.rename(total, wish)
        self.final_outputs.add(made)
        return made

    def _model(self, description: TrainingDescription) -> onnx.ModelProto:
        model, g, graph = self.ready.model, self.g, self.graph
        nodes: list[onnx.NodeProto] = []
        for name in (*(value.name for value in graph.input), *self.ready.tensors):
            nodes += g.following.pop(name, [])
        for proto, _ in self.nodes:
            nodes.append(proto)
            for name in proto.output:
                nodes += g.following.pop(name, [])
        nodes = g.finished([*nodes, *g.nodes])
        copies = [onnx.NodeProto() for _ in nodes]
        for copy, node in zip(copies, nodes, strict=True):
            copy.CopyFrom(node)
        del graph.node[:]
        graph.node.extend(copies)
        graph.initializer.extend(g.initializers)
        for name in (*description.parameters, *description.running):
            graph.input.append(self.types[name].value_info(name))
        outputs = {value.name: value for value in graph.output}
        del graph.output[:]
        known = [description.loss, *description.outputs, *description.gradients.values(), *description.running.values()]
        graph.output.extend(outputs.get(name) or g.types[name].value_info(name) for name in known)
        drop_unused(graph)
        self._value_infos(known)
        self._imports(model)
        write_description(model, description)
        return model

    def _value_infos(self, outputs: Sequence[str]) -> None:
        """The type of every tensor that is known."""
        del self.graph.value_info[:]
        done = {*outputs, *(value.name for value in self.graph.input)}
        for node in self.graph.node:
            for name in node.output:
                kind = self.g.types.get(name)
                if name and name not in done and kind is not None and kind.dtype and kind.shape is not None:
                    self.graph.value_info.append(kind.value_info(name))
                    done.add(name)

    def _imports(self, model: onnx.ModelProto) -> None:
        used = {(node.domain, node.op_type) for node in self.graph.node}
        for name, (_, function) in self.g.functions.items():
            if (PULLBACK, name) in used:
                model.functions.append(function)
        known = {entry.domain for entry in model.opset_import}
        model.opset_import.extend(
            helper.make_opsetid(domain, 1) for domain in (MICROSOFT, PULLBACK) if domain in {d for d, _ in used} - known
        )
        model.producer_name = "pullback"


def _has(rule: Rule | None, place: int) -> bool:
    return rule is None or rule.has(place)
