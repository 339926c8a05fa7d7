"""What a checkpoint holds of a trainer, and how a trainer takes it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx

from pullback.onnx.train.checkpoint import Checkpoint
from pullback.onnx.train.history import History
from pullback.onnx.train.inference_model import filled
from pullback.onnx.train.stored_settings import stored
from pullback.rules import Array

if TYPE_CHECKING:
    from pullback.onnx.train.trainer import Trainer


def checkpoint_of(trainer: Trainer) -> Checkpoint:
    """All that a run needs to go on."""
    arrays = {"parameter": trainer.parameters.copies(), "running": trainer.running, "best": trainer.best or {}}
    arrays |= {f"optimizer.{state}": values for state, values in trainer.optimizer_state().items()}
    about = {
        **_place(trainer),
        "batch_size": trainer.batch_size,
        "epoch_mean": trainer.epoch_mean.state(),
        "watch": trainer.watch,
        "class_names": trainer.class_names,
        "history": trainer.history.state(),
    }
    return Checkpoint(trainer.stored_model.SerializeToString(), arrays, about)


def summary_of(trainer: Trainer) -> dict[str, Any]:
    """What people may want to read of it."""
    shapes = {name: list(array.shape) for name, array in trainer.parameters.arrays.items()}
    return {**_place(trainer), "epochs": trainer.history.epochs, "parameters": shapes}


def _place(trainer: Trainer) -> dict[str, Any]:
    return {
        "settings": stored(trainer.settings),
        "steps": trainer.steps,
        "epoch": trainer.epoch,
        "batch": trainer.batch,
    }


def model_of(found: Checkpoint) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model of a checkpoint, and the values in it that training changed."""
    values = {**found.arrays["parameter"], **found.arrays.get("running", {})}
    return filled(onnx.ModelProto.FromString(found.model), values), values


def restore_place(trainer: Trainer, found: Checkpoint) -> None:
    """Counters, history and the best weights."""
    about = found.about
    trainer.steps, trainer.epoch, trainer.batch = (int(about[name]) for name in ("steps", "epoch", "batch"))
    trainer.saved_epoch = trainer.epoch
    trainer.batch_size = about["batch_size"]
    if trainer.batch:
        trainer.epoch_mean.restore(about["epoch_mean"])
    trainer.watch = (about["watch"][0], bool(about["watch"][1]))
    trainer.class_names = tuple(about["class_names"])
    trainer.history = History.of(about["history"])
    trainer.best = dict(found.arrays["best"]) if found.arrays.get("best") else None
