"""The graphs of a trainer: the training graph, the forward graph with its loss for evaluation, the model to export."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx

from pullback.onnx.executor.program import Program
from pullback.onnx.executor.read import Argument, argument, opsets_of, to_array
from pullback.onnx.graph.description import TrainingDescription, describe
from pullback.onnx.graph.emit import Builder
from pullback.onnx.graph.losses import LOSSES, LossOptions
from pullback.onnx.graph.prepare import inference_form, names_in
from pullback.onnx.graph.training_graph import training_graph
from pullback.onnx.graph.types import types_of
from pullback.onnx.model_files import load_model
from pullback.onnx.train.inference_model import as_inputs, emptied, inference_mode, places_of
from pullback.onnx.train.stored_settings import Settings
from pullback.rules import Array

TWICE = {("Softmax", "cross_entropy"), ("Softmax", "soft_cross_entropy"), ("Sigmoid", "bce_with_logits")}
CLASS_NUMBERS = "cross_entropy"  # the loss whose targets are class numbers


@dataclass(frozen=True)
class Graphs:
    """`stored` is the model without the values that training changes, for checkpoints; `inference` the same in inference mode."""

    names: TrainingDescription
    program: Program
    inputs: Mapping[str, Argument]
    target: Argument | None
    classes: int | None
    stored: onnx.ModelProto
    inference: onnx.ModelProto
    evaluation: Program
    evaluated_loss: str


Values = dict[str, Array]


def build_graphs(source: Any, settings: Settings, *, split: bool) -> tuple[Graphs, Values, Values]:
    """The graphs, which hold no parameters, with the values of parameters and running statistics.

    `split`: batches are run in parts, each with a weight of its own. The model is read here and let go of as soon as may be: it
    is as large as its parameters.
    """
    model = load_model(source)
    _check_end(model, settings.loss)
    training = training_graph(model, settings.loss, settings.trainable, settings.frozen, weighted=split)
    names = describe(training)
    changed = (*names.parameters, *names.running)
    values = places_of(training.graph)
    parameters, running = ({name: to_array(values[name]) for name in each} for each in (names.parameters, names.running))
    del values
    training = as_inputs(training, changed)
    given = {value.name: argument(value) for value in training.graph.input}
    program = Program(training)
    own = {name: given[name] for name in program.required if name not in (*changed, names.target)}
    classes = class_count(training, settings.loss)
    del training
    if not all(name in places_of(model.graph) for name in changed):
        model = inference_form(model)  # which has weights under the names of the training graph
    model = emptied(model, changed)
    inference = inference_mode(model)
    evaluation, evaluated_loss = _with_loss(inference, settings.loss, names)
    graphs = Graphs(
        names,
        program,
        own,
        None if names.target is None else given[names.target],
        classes,
        model,
        inference,
        Program(as_inputs(evaluation, changed), (evaluated_loss, *names.outputs)),
        evaluated_loss,
    )
    return graphs, parameters, running


def _check_end(model: onnx.ModelProto, loss: str) -> None:
    """A warning where the model ends in what its loss begins with."""
    makers = {name: node for node in model.graph.node for name in node.output}
    last = makers.get(model.graph.output[0].name) if model.graph.output else None
    if last is not None and (last.op_type, loss) in TWICE:
        warnings.warn(
            f"the model's output '{last.output[0]}' is a {last.op_type}, and the loss {loss} applies one itself: training will be "
            "slow. Export the model without it",
            stacklevel=5,
        )


def class_count(training: onnx.ModelProto, loss: str, output: str | None = None) -> int | None:
    """How many classes a model with class numbers as targets has, where its output's shape says so."""
    scores = output or next(iter(describe(training).outputs), None)
    shape = next((argument(value).shape for value in training.graph.output if value.name == scores), None)
    if loss != CLASS_NUMBERS or shape is None or len(shape) < 2:
        return None
    return shape[1] if isinstance(shape[1], int) else None


def _with_loss(model: onnx.ModelProto, loss: str, names: TrainingDescription) -> tuple[onnx.ModelProto, str]:
    """A copy of a forward graph that computes its loss as well, and the loss's name."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if names.target is None:
        return copy, names.loss
    types = types_of(copy)
    builder = Builder(opsets_of(copy)[""], types, set(names_in(copy.graph)) | {names.target})
    scores, kind = builder.value(names.outputs[0]), LOSSES[loss]
    target = builder.value(names.target)
    builder.types[target.name] = kind.target(types[scores.name])
    value, _ = kind.run(builder, scores, target, LossOptions())
    copy.graph.node.extend(builder.finished(builder.nodes))
    copy.graph.initializer.extend(builder.initializers)
    copy.graph.input.append(target.type.value_info(target.name))
    return copy, value.name
