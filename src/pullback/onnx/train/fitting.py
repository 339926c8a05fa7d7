"""Whole training runs: epochs of steps, validation, early stopping, checkpoints on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pullback.nearest import did_you_mean
from pullback.onnx.checks import whole
from pullback.onnx.errors import OnnxError
from pullback.onnx.hints import DATA
from pullback.onnx.train.batches import Data, RowData
from pullback.onnx.train.history import History
from pullback.onnx.train.images import ImageFolder
from pullback.shown import shown

if TYPE_CHECKING:
    from pullback.onnx.train.trainer import Trainer

OnStep = Callable[["Trainer"], None]
OnEpoch = Callable[["Trainer"], None]
VALID = "valid_"


def fit(
    trainer: Trainer,
    data: Any,
    epochs: int,
    *,
    valid: Any,
    batch_size: int | None,
    shuffle: bool,
    patience: int | None,
    watch: str | None,
    checkpoint: str | Path | None,
    checkpoint_steps: int | None,
    on_step: OnStep | None,
    on_epoch: OnEpoch | None,
) -> History:
    """See Trainer.fit."""
    if not isinstance(epochs, int) and hasattr(epochs, "__len__"):
        raise OnnxError(f"fit: epochs is {shown(epochs)}; {DATA}")
    end = trainer.epoch + whole("fit", "epochs", epochs, 0)
    if patience is not None:
        whole("fit", "patience", patience, 1)
    if checkpoint_steps is not None:
        whole("fit", "checkpoint_steps", checkpoint_steps, 1)
        if checkpoint is None:
            raise OnnxError("fit: checkpoint_steps needs a path to write to, as checkpoint='run.safetensors'")
    if checkpoint is not None and not Path(checkpoint).absolute().parent.is_dir():
        raise OnnxError(f"fit: there is no folder '{Path(checkpoint).parent}' to write the checkpoint to")
    for name, called in (("on_step", on_step), ("on_epoch", on_epoch)):
        if called is not None and not callable(called):
            raise OnnxError(f"fit: {name} is {shown(called)}; it must be a function of the trainer")
    opened = trainer.open_data(data, batch_size, training=True)
    _check_position(trainer, opened)
    validation = None if valid is None else trainer.open_data(valid, batch_size, training=False)
    names, others = class_names(opened), class_names(validation)
    if names and others and names != others:
        raise OnnxError(
            f"the class '{min(set(names) ^ set(others))}' is in one of the folders for training and validation alone"
        )
    trainer.class_names = names or trainer.class_names
    trainer.watch = _watched(trainer, watch, valid is not None)
    trainer.history.stopped_early = False
    while trainer.epoch < end and not trainer.history.stopped_early:
        _epoch(trainer, opened, shuffle, checkpoint, checkpoint_steps, on_step)
        if validation is not None:
            figures = trainer.evaluate(validation)
            trainer.history.epochs[-1] |= {VALID + name: value for name, value in figures.items()}
        _watch(trainer, patience)
        if on_epoch is not None:
            on_epoch(trainer)
        if checkpoint is not None:
            trainer.save(checkpoint)
    if patience is not None and trainer.best is not None:
        trainer.restore(trainer.best)
    return trainer.history


def class_names(data: Data | None) -> tuple[str, ...]:
    """The classes of a folder of images in the order of their numbers; () for other data."""
    return data.rows.class_names if isinstance(data, RowData) and isinstance(data.rows, ImageFolder) else ()


def _check_position(trainer: Trainer, opened: Data) -> None:
    """An epoch that a checkpoint has broken off goes on with batches of the same size."""
    size = opened.size if isinstance(opened, RowData) else None
    if trainer.batch and trainer.batch_size != size:
        raise OnnxError(
            f"the checkpoint was written after batch {trainer.batch} of an epoch with batch_size={trainer.batch_size}; "
            f"with batch_size={size} the rest of that epoch would be other rows"
        )
    trainer.batch_size = size


def _watched(trainer: Trainer, watch: str | None, validated: bool) -> tuple[str, bool]:
    """The figure that early stopping and ReduceOnPlateau look at, and whether more of it is better."""
    metrics = {metric.name: metric.higher_is_better for metric in trainer.settings.metrics}
    known = {"loss": False} | metrics
    if validated:
        known |= {VALID + name: higher for name, higher in known.items()}
    name = watch or (VALID + "loss" if validated else "loss")
    if name not in known:
        raise OnnxError(f"fit: there is no figure {name!r} to watch{did_you_mean(name, list(known), 'Figures')}")
    return name, known[name]


def _epoch(
    trainer: Trainer, opened: Data, shuffle: bool, checkpoint: str | Path | None, every: int | None, on_step: OnStep | None
) -> None:
    """The rest of an epoch, all of it mostly."""
    start = time.perf_counter()
    for batch in opened.batches(trainer.epoch if shuffle else None, trainer.batch, trainer.needed):
        within = trainer.batch / opened.count if opened.count else 0.0
        rows, result = trainer.step_on(batch, within_epoch=within, scored=True)
        trainer.epoch_mean.add(rows, result.loss, result.scores)
        trainer.batch += 1
        if on_step is not None:
            on_step(trainer)
        if every is not None and checkpoint is not None and trainer.steps % every == 0:
            trainer.save(checkpoint)
    figures = trainer.epoch_mean.result()
    trainer.epoch_mean = trainer.new_mean()
    trainer.epoch, trainer.batch = trainer.epoch + 1, 0
    seconds = time.perf_counter() - start
    place = {"epoch": trainer.epoch, "step": trainer.steps, "rate": trainer.history.rates[-1], "seconds": seconds}
    trainer.history.epochs.append(place | figures)


def _watch(trainer: Trainer, patience: int | None) -> None:
    """Keep the best parameters, and stop after so many epochs without better ones."""
    if patience is None:
        return
    values = trainer.history.watched(*trainer.watch)
    best = min(range(len(values)), key=values.__getitem__)
    if best == len(values) - 1:
        trainer.best = trainer.values()
    trainer.history.stopped_early = len(values) - 1 - best >= patience
