"""`pullback train`: train an ONNX model, or with no arguments a small network on handwritten digits, and write what came of it."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from pullback.cli.grads_command import add_graph_options, check_model
from pullback.cli.surroundings import INTERRUPTED
from pullback.cli.train_files import RequestError, Written, files_of, need, prepare_files
from pullback.cli.train_inputs import data_of
from pullback.cli.train_options import EPOCHS, add_options, check_options, make_schedule
from pullback.cli.train_progress import Display, Interruption, ending_between_steps
from pullback.cli.train_summary import print_beginning, print_summary
from pullback.cli.train_trainer import make_trainer

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

    quiet = False
    try:
        ranks = world()
        quiet = ranks is not None and not ranks.first
        check_options(options)
        check_model(options.model)
        need("onnx", "safetensors")
        make_schedule(options, options.epochs or EPOCHS)
        written = files_of(options.model, options.into, options.out, options.checkpoint, options.curves)
    except (ValueError, ImportError, OSError) as error:
        return 2 if quiet else _complain(error, 2)
    try:
        with ranks.job() if ranks is not None else nullcontext(), _warnings_as_notes(quiet):
            if not quiet:
                prepare_files(written, options.into, resume=options.resume, demo=options.model is None)
            return _train(options, written, ranks)
    except (OnnxError, ImportError) as error:
        return _complain(error, 1)
    except RequestError as error:
        return _complain(error, 2)


def _train(options: argparse.Namespace, written: Written, ranks: Ranks | None) -> int:
    from pullback.onnx.errors import OnnxError

    trainer = make_trainer(options, written.checkpoint, ranks)
    data, valid = data_of(options)
    opened = trainer.open_data(data, options.batch, training=True)
    try:
        valid = valid if valid is None else trainer.open_data(valid, options.batch, training=False)
    except OnnxError as error:
        raise OnnxError(f"--valid: {error}") from error
    quiet, began = ranks is not None and not ranks.first, time.monotonic()
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
        trainer.export(written.model)
    except KeyboardInterrupt:
        if interruption.between_steps:
            trainer.save(written.checkpoint)
            return _complain(f"interrupted after step {trainer.steps}; --resume goes on from {written.checkpoint}", INTERRUPTED)
        if not quiet:
            _complain(f"interrupted{_kept(trainer, written)}", INTERRUPTED)
        if ranks is not None:
            raise
        return INTERRUPTED
    except OnnxError as error:
        raise OnnxError(f"{error}{_kept(trainer, written)}") from error
    if not quiet:
        _draw(trainer, written)
        print_summary(options, trainer, written, time.monotonic() - began)
    return 0


def _kept(trainer: Trainer, written: Written) -> str:
    """The end of a sentence about what went wrong."""
    if trainer.saved_epoch is None:
        return ""
    return f". {written.checkpoint} has everything up to epoch {trainer.saved_epoch}: --resume goes on from it"


@contextmanager
def _warnings_as_notes(quiet: bool) -> Iterator[None]:
    """Warnings inside the block are a line each, without the place in the library that they come from."""

    def show(message: object, *_: object, **__: object) -> None:
        if not quiet:
            print(f"pullback train: note: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _draw(trainer: Trainer, written: Written) -> None:
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
