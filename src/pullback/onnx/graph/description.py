"""What the inputs and outputs of a training graph are, written into the model's metadata and read from there."""

from __future__ import annotations

import json
from dataclasses import dataclass

import onnx

from pullback.onnx.errors import OnnxError

VERSION = "1"


@dataclass(frozen=True)
class TrainingDescription:
    """`target` is None where the model computes its own loss. `gradients`: parameter -> output. `running`: initializer -> output.

    `loss_weight`: an input that all gradients are multiplied by, where the graph has one.
    """

    loss: str
    target: str | None
    parameters: tuple[str, ...]
    gradients: dict[str, str]
    running: dict[str, str]
    outputs: tuple[str, ...]
    loss_weight: str | None = None


def write_description(model: onnx.ModelProto, description: TrainingDescription) -> None:
    onnx.helper.set_model_props(
        model,
        {
            **{entry.key: entry.value for entry in model.metadata_props},
            "pullback.version": VERSION,
            "pullback.loss": description.loss,
            "pullback.target": description.target or "",
            "pullback.parameters": json.dumps(list(description.parameters)),
            "pullback.gradients": json.dumps(description.gradients),
            "pullback.running": json.dumps(description.running),
            "pullback.outputs": json.dumps(list(description.outputs)),
            "pullback.loss_weight": description.loss_weight or "",
        },
    )


def is_training_graph(model: onnx.ModelProto) -> bool:
    return any(entry.key == "pullback.loss" for entry in model.metadata_props)


def describe(model: onnx.ModelProto) -> TrainingDescription:
    """What `training_graph` wrote of a model."""
    props = {entry.key: entry.value for entry in model.metadata_props}
    if "pullback.loss" not in props:
        raise OnnxError("this model is no training graph of pullback; make one with pullback.onnx.training_graph(model)")
    if props["pullback.version"] != VERSION:
        raise OnnxError(
            f"this training graph has version {props['pullback.version']} of pullback's description, known is {VERSION}; "
            "make it again from the model"
        )
    return TrainingDescription(
        props["pullback.loss"],
        props["pullback.target"] or None,
        tuple(json.loads(props["pullback.parameters"])),
        dict(json.loads(props["pullback.gradients"])),
        dict(json.loads(props["pullback.running"])),
        tuple(json.loads(props["pullback.outputs"])),
        props.get("pullback.loss_weight") or None,
    )
