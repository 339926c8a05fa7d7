"""`pullback train`: train an ONNX model, or with no arguments a small network on handwritten digits, and write what came of it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from pullback import settings
from pullback.cli.grads_command import add_graph_options, check_model, chosen_model
from pullback.cli.output_files import check_written
from pullback.cli.surroundings import INTERRUPTED
from pullback.cli.train_files import RequestError, Written, files_of, need
from pullback.cli.train_inputs import data_of
from pullback.cli.train_options import add_options, check_options, make_optimizer, make_schedule
from pullback.cli.train_progress import Display, Interruption, ending_between_steps
from pullback.cli.train_summary import print_beginning, print_summary

if TYPE_CHECKING:
    from pullback.onnx.train.mpi import Ranks
    from pullback.onnx.train.trainer import Trainer

EXAMPLES = """examples:
  pullback train                                       a small CNN on 1,797 handwritten digits, in seconds
  pullback train model.onnx --data train.npz --valid valid.npz --epochs 20 --out trained.onnx
  pullback train model.onnx --data x.npy y.npy --loss mse --optimizer sgd --lr 0.01 --schedule step:5
  pullback train resnet18.onnx --data photos/train --valid photos/valid --classes 5 --freeze 'conv1.*' --freeze 'layer[123].*'
  pullback train model.onnx --data train.npz --valid valid.npz --epochs 100 --early-stopping 8 --checkpoint run.safetensors
  pullback train model.onnx --data train.npz --epochs 100 --checkpoint run.safetensors --resume     after a break
  mpiexec -n 4 pullback train model.onnx --data train.npz     each batch shared by 4 processes (pip install 'pullback[mpi]')

Data are an .npz with x and y (or images and labels, or the model's own input names), inputs and targets as two .npy files, or a
folder with a folder of images for each class (pip install 'pullback[images]'). Inputs have the model's shape, (N, C, H, W).
Ctrl-C ends training after the step that runs and keeps the checkpoint. Exit status 1 if training failed, 2 for a bad request.
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "train",
        help="train an ONNX model on the CPU; without arguments a small network on handwritten digits",
        description="Trains an ONNX model and writes the trained model, a picture of the curves and a checkpoint.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_graph_options(parser)
    add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from pullback.onnx.errors import OnnxError
    from pullback.onnx.train.mpi import world

    try:
        check_options(options)
        check_model(options.model)
        need("onnx", "safetensors")
        schedule = make_schedule(options.schedule, options.epochs, options.warmup)
        ranks = world()
        if ranks is None or ranks.first:
            options.into.mkdir(parents=True, exist_ok=True)
        written = files_of(options.model, options.into, options.out, options.checkpoint, options.curves)
        if ranks is None or ranks.first:
            check_written((written.model, written.checkpoint, written.curves))
        if options.resume and not written.checkpoint.exists():
            raise ValueError(f"there is no checkpoint {written.checkpoint} to go on from; leave out --resume to begin")
    except (ValueError, ImportError, OSError) as error:
        return _complain(error, 2)
    try:
        with ranks.job() if ranks is not None else nullcontext():
            return _train(options, schedule, written, ranks)
    except (OnnxError, ImportError) as error:
        return _complain(error, 1)
    except RequestError as error:
        return _complain(error, 2)


def _train(options: argparse.Namespace, schedule: Any, written: Written, ranks: Ranks | None) -> int:
    from pullback.onnx.errors import OnnxError

    trainer = _trainer(options, schedule, written, ranks)
    data, valid = data_of(options)
    opened = trainer.open_data(data, options.batch, training=True)
    quiet, began, first = ranks is not None and not ranks.first, time.monotonic(), trainer.epoch
    display = Display(options.epochs, opened.count, quiet)
    if not quiet:
        print_beginning(options, trainer, ranks)
    # Ranks that end after different steps would wait for each other for ever: there Ctrl-C ends the job, as mpiexec has it.
    block = ending_between_steps() if ranks is None else nullcontext(Interruption())
    try:
        with (
            block as interruption,
            display.shown(trainer),
            np.errstate(all="ignore"),
        ):  # a loss that is not finite has its own message
            trainer.fit(
                opened, options.epochs - trainer.epoch, valid=valid, batch_size=options.batch, patience=options.early_stopping,
                checkpoint=written.checkpoint, on_step=called(display.step, interruption.check),
                on_epoch=called(display.epoch, interruption.check),
            )  # fmt: skip
    except KeyboardInterrupt:
        if ranks is not None:
            raise
        if interruption.between_steps:
            trainer.save(written.checkpoint)
            return _complain(f"interrupted after step {trainer.steps}; --resume goes on from {written.checkpoint}", INTERRUPTED)
        if trainer.epoch == first:
            raise
        return _complain(f"interrupted; {written.checkpoint} has everything up to epoch {trainer.epoch}", INTERRUPTED)
    except OnnxError as error:
        if trainer.epoch == first:
            raise
        raise OnnxError(f"{error}. {written.checkpoint} has everything up to epoch {trainer.epoch}") from error
    trainer.export(written.model)
    if not quiet:
        _draw(trainer, written, options)
        print_summary(options, trainer, written, time.monotonic() - began)
    return 0


def _trainer(options: argparse.Namespace, schedule: Any, written: Written, ranks: Ranks | None) -> Trainer:
    """A new one, or that of the checkpoint."""
    from pullback.onnx.train.head import replace_head
    from pullback.onnx.train.trainer import Trainer

    if options.threads is not None or ranks is not None:
        shared = settings.get_num_threads() // (1 if ranks is None else ranks.neighbours())
        settings.set_num_threads(options.threads or max(1, shared))
    if options.resume:
        trainer = Trainer.load(written.checkpoint, schedule=schedule, ranks=ranks)
        if trainer.epoch >= options.epochs:
            done = f"the checkpoint {written.checkpoint} has {trainer.epoch} epochs behind it"
            raise RequestError(f"{done}; --epochs {options.epochs} is no more: ask for more in all")
        return trainer
    model = chosen_model(options.model, options.seed)
    if options.classes is not None:
        model = replace_head(model, options.classes, options.seed)
    return Trainer(
        model, options.loss, make_optimizer(options), options.seed, trainable=options.train_only, frozen=tuple(options.freeze),
        schedule=schedule, clip_norm=options.clip_norm, accumulate=options.accumulate, ranks=ranks,
    )  # fmt: skip


def _draw(trainer: Trainer, written: Written, options: argparse.Namespace) -> None:
    from pullback.onnx.drawing.curves import draw_curves

    if written.curves is not None:
        draw_curves(trainer.history, written.curves, f"Training of {written.model.stem}")


def called(*functions: Callable[[Trainer], None]) -> Callable[[Trainer], None]:
    """One function that calls several."""

    def call(trainer: Trainer) -> None:
        for function in functions:
            function(trainer)

    return call


def _complain(error: object, status: int) -> int:
    print(f"pullback train: {error}", file=sys.stderr)
    return status
