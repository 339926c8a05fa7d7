"""Trainer: a model, its training graph ready to run, an optimizer and its state; one step, whole fits, checkpoints, export."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import onnx

from pullback.cpu.engine.memory import trim
from pullback.onnx.errors import OnnxError
from pullback.onnx.executor.context import Context
from pullback.onnx.hints import unknown_attribute, with_hints
from pullback.onnx.model_files import save_model
from pullback.onnx.train.batch_gradient import BatchGradient, GradientRunner, parts_of
from pullback.onnx.train.batches import Batch, Data, RowData
from pullback.onnx.train.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from pullback.onnx.train.checkpoint_content import checkpoint_of, model_of, restore_place, summary_of
from pullback.onnx.train.clipping import clipped
from pullback.onnx.train.data import open_data
from pullback.onnx.train.evaluation import Evaluator
from pullback.onnx.train.feeding import Feeder
from pullback.onnx.train.fitting import OnEpoch, OnStep, fit
from pullback.onnx.train.graphs import build_graphs
from pullback.onnx.train.history import History
from pullback.onnx.train.inference_model import filled
from pullback.onnx.train.memory_order import flat, unflat
from pullback.onnx.train.metrics import Mean
from pullback.onnx.train.mpi import Ranks, check_same
from pullback.onnx.train.optimizers import Optimizer
from pullback.onnx.train.schedules import Schedule
from pullback.onnx.train.stored_settings import checked_settings, restored, stored
from pullback.onnx.train.weights import Weights
from pullback.rules import Array
from pullback.shown import shown


class Trainer:
    """Trains an ONNX model on the CPU.

    `loss`: "cross_entropy", "soft_cross_entropy", "mse", "l1", "huber", "bce_with_logits", or the name of a scalar output of the
    model. `trainable`, `frozen`: names or patterns of parameters, such as "layer4.*". `clip_norm`, `clip_value`: bounds of the
    norm of all gradients together and of each entry. `accumulate`: micro-batches that each batch is run in, to save memory.
    `metrics`: names or functions of (output, target). `ranks`: those of an MPI job (`pullback.onnx.train.mpi.world()`).

    The same seed, data and settings give the same bits with any number of threads.
    """

    @with_hints
    def __init__(
        self,
        model: Any,
        loss: str = "cross_entropy",
        optimizer: Optimizer | None = None,
        seed: int = 0,
        *,
        trainable: str | Sequence[str] | None = None,
        frozen: str | Sequence[str] = (),
        schedule: Schedule | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        accumulate: int = 1,
        metrics: Sequence[Any] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.settings = checked_settings(
            loss, optimizer, seed, trainable, frozen, schedule, clip_norm, clip_value, accumulate, metrics
        )
        if ranks is not None and not isinstance(ranks, Ranks):
            raise OnnxError(f"Trainer: ranks is {shown(ranks)}; it must be what pullback.onnx.train.mpi.world() gives")
        self.ranks = ranks
        split = ranks is not None or accumulate > 1
        self._graphs, parameters, running = build_graphs(model, self.settings, split=split)
        self._runner = GradientRunner(self._graphs.program, self._graphs.names, ranks)
        self.parameters = Weights(self._graphs.program.arranged(parameters))
        del parameters
        trim()  # what reading the model took: several times its size
        self._running = Weights(running)
        if ranks is not None:
            check_same(ranks, "another model or other settings", self._digest())
        self._state = {name: [np.zeros_like(memory) for _ in self.settings.optimizer.state_names]
                       for name, memory in self.parameters.memory.items()}  # fmt: skip
        self._feeder = Feeder(self._graphs.inputs, self._graphs.target, self._graphs.classes)
        self._evaluator = Evaluator(self._graphs, self._feeder, self.settings.metrics, ranks)
        self.steps = self.epoch = self.batch = 0  # updates done; epochs done; batches done of the epoch that runs
        self.batch_size: int | None = None
        self.history = History()
        self.best: dict[str, Array] | None = None
        self.saved_epoch: int | None = None  # epochs in the checkpoint that it wrote last or came from
        self.class_names: tuple[str, ...] = ()
        self.watch: tuple[str, bool] = ("loss", False)
        self.epoch_mean = self.new_mean()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            unknown_attribute(name, type(self))

    @property
    def loss(self) -> str:
        return self.settings.loss

    def _digest(self) -> int:
        """A number that tells models and settings apart."""
        digest = zlib.crc32(json.dumps(stored(self.settings), sort_keys=True).encode())
        for name, memory in (*self.parameters.memory.items(), *self._running.memory.items()):
            digest = zlib.crc32(memory.data, zlib.crc32(name.encode(), digest))
        return digest

    @property
    def stored_model(self) -> onnx.ModelProto:
        """The model without the values that training changes."""
        return self._graphs.stored

    @property
    def running(self) -> dict[str, Array]:
        """The running statistics of BatchNormalization, as copies."""
        return self._running.copies()

    def rate(self, within_epoch: float = 0.0) -> float:
        """The learning rate of the next step."""
        schedule = self.settings.schedule
        at = float(self.steps) if schedule.by == "step" else self.epoch + within_epoch
        return self.settings.optimizer.lr * schedule.factor(at, self.history.watched(*self.watch))

    def step(self, x: Any, target: Any = None) -> float:
        """One update from one batch; its loss before the update. Inputs: an array, or a mapping of names to arrays."""
        return self.step_on(Batch(x, target))[1].loss

    def step_on(self, batch: Batch, *, within_epoch: float = 0.0, scored: bool = False) -> tuple[int, BatchGradient]:
        """One update, and how many rows it is from; nothing is changed where the loss or a gradient is not finite."""
        rate = self.rate(within_epoch)
        feeds = self._feeder.feeds(batch)
        metrics = self.settings.metrics if scored and self._graphs.target is not None else ()
        context = Context(self.settings.seed, self.steps)
        result = self._runner.run(feeds, self.parameters, self._running.arrays, context, self.settings.accumulate, metrics)
        gradients, norm, scale = clipped(result.gradients, self.settings.clip_norm, self.settings.clip_value)
        if not (math.isfinite(result.loss) and math.isfinite(norm)):
            self._not_finite(result.loss, rate)
        self.steps += 1
        with np.errstate(all="ignore"):  # what overflows here is seen in the next loss
            for name, memory in self.parameters.memory.items():
                self.settings.optimizer.update(memory, gradients[name], self._state[name], rate, self.steps, scale)
        for name, array in result.running.items():
            self._running[name] = array
        self.history.losses.append(result.loss)
        self.history.rates.append(rate)
        self.history.norms.append(norm)
        return feeds.rows, result

    def _not_finite(self, loss: float, rate: float) -> None:
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the loss is {loss:.6g}, but its gradient is not finite"
        raise OnnxError(
            f"{what} at step {self.steps + 1} (learning rate {rate:g}): the parameters are as they were before this step. "
            "Lower the learning rate, clip gradients (clip_norm=1.0; --clip-norm 1), or look for extreme values in the data"
        )

    @with_hints
    def fit(
        self,
        data: Any,
        epochs: int = 1,
        *,
        valid: Any = None,
        batch_size: int | None = None,
        shuffle: bool = True,
        patience: int | None = None,
        watch: str | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_steps: int | None = None,
        on_step: OnStep | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> History:
        """Train for so many epochs more, the unfinished one of a checkpoint being the first; the history of all there were.

        `patience`: stop after so many epochs in which `watch` ("valid_loss", or "loss" without `valid`) has not become better; the
        best parameters are back at the end. `checkpoint`: a path that is written after each epoch, and every `checkpoint_steps`.
        `on_step(trainer)` and `on_epoch(trainer)` are called after each; the history has the figures.
        """
        return fit(self, data, epochs, valid=valid, batch_size=batch_size, shuffle=shuffle, patience=patience, watch=watch,
                   checkpoint=checkpoint, checkpoint_steps=checkpoint_steps, on_step=on_step, on_epoch=on_epoch)  # fmt: skip

    def open_data(self, data: Any, batch_size: int | None, *, training: bool) -> Data:
        """Data as batches for this model."""
        parts = (1 if self.ranks is None else self.ranks.size) * (self.settings.accumulate if training else 1)
        if self._feeder.fixed is not None and not training:
            batch_size = None  # there is one size, and training may run several parts of it
        opened = open_data(data, self._graphs.inputs, batch_size=batch_size, seed=self.settings.seed,
                           has_target=self._graphs.target is not None, parts=parts)  # fmt: skip
        if isinstance(opened, RowData) and opened is not data:
            self._feeder.check_rows(opened)
        return opened

    def needed(self, rows: int) -> tuple[slice, ...]:
        """The rows of a batch that this rank trains on."""
        return tuple(part.rows for part in parts_of(rows, self.settings.accumulate, self.ranks))

    def new_mean(self) -> Mean:
        """The figures of an epoch that begins."""
        return Mean(self.settings.metrics if self._graphs.target is not None else ())

    @with_hints
    def evaluate(self, data: Any, *, batch_size: int | None = None) -> dict[str, float]:
        """The mean loss and metrics over the rows of a data set, in inference mode."""
        return self._evaluator.evaluate(self.open_data(data, batch_size, training=False), self.parameters, self._running)

    def predict(self, x: Any, *, batch_size: int | None = None) -> Array:
        """The model's first output in inference mode, with the weights of the moment. Inputs as for `step`, or a path."""
        return self._evaluator.predict(x, self.parameters, self._running, batch_size)

    def values(self) -> dict[str, Array]:
        """Everything that training has changed in the model: parameters and running statistics."""
        return self.parameters.copies() | self._running.copies()

    def optimizer_state(self) -> dict[str, dict[str, Array]]:
        """The state arrays of the optimizer by their names there, then by parameter."""
        return {
            state: {
                name: np.array(unflat(self._state[name][place], array.shape, self.parameters.axes[name]), order="C")
                for name, array in self.parameters.arrays.items()
            }
            for place, state in enumerate(self.settings.optimizer.state_names)
        }

    def restore_state(self, found: Checkpoint) -> None:
        """Take the optimizer's state and the place in the run from a checkpoint."""
        for place, state in enumerate(self.settings.optimizer.state_names):
            for name, array in found.arrays[f"optimizer.{state}"].items():
                self._state[name][place][...] = flat(array, self.parameters.axes[name])
        restore_place(self, found)

    def restore(self, values: dict[str, Array]) -> None:
        """Take values that `values` gave."""
        for name, array in values.items():
            (self.parameters if name in self.parameters else self._running)[name] = array

    def model(self) -> onnx.ModelProto:
        """The trained model in inference mode, with the names, inputs, outputs and opset it came with.

        Of a folder of images, the names of the classes are in its metadata as `class_names`, in JSON.
        """
        model = filled(self._graphs.inference, self.values())
        if self.class_names:
            kept = {entry.key: entry.value for entry in model.metadata_props}
            onnx.helper.set_model_props(model, kept | {"class_names": json.dumps(self.class_names)})
        return model

    def export(self, path: str | Path) -> None:
        """Write the trained model as ONNX, whole or not at all."""
        if self.ranks is None or self.ranks.first:
            save_model(self.model(), path)
        if self.ranks is not None:
            self.ranks.barrier()

    def save(self, path: str | Path) -> None:
        """Write a checkpoint: one .safetensors file with everything, whole or not at all, and a readable .json beside it."""
        if self.ranks is None or self.ranks.first:
            write_checkpoint(Path(path), checkpoint_of(self), summary_of(self))
        if self.ranks is not None:
            self.ranks.barrier()
        self.saved_epoch = self.epoch

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        schedule: Schedule | None = None,
        metrics: Sequence[Any] | None = None,
        ranks: Ranks | None = None,
    ) -> Trainer:
        """The trainer that `save` wrote, ready to go on. Schedules and metrics of your own have to be given again."""
        found = read_checkpoint(Path(path))
        try:
            model, values = model_of(found)
            trainer = cls(model, **restored(found.about["settings"], schedule, metrics), ranks=ranks)
            trainer.restore(values)
            trainer.restore_state(found)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, OnnxError):
                raise
            raise OnnxError(f"the checkpoint '{path}' cannot be used: {type(error).__name__}: {error}") from error
        return trainer
