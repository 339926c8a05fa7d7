"""What `pullback train` says before it begins and when it is done: the model, the figures, the files, and what to do with them."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from pullback import settings
from pullback.cli.console import print_table
from pullback.cli.train_files import INSTALL, Written
from pullback.cli.train_progress import figure
from pullback.onnx.drawing.curves import VALID, figure_names

if TYPE_CHECKING:
    from pullback.onnx.train.mpi import Ranks
    from pullback.onnx.train.trainer import Trainer


def print_beginning(options: argparse.Namespace, trainer: Trainer, ranks: Ranks | None) -> None:
    name = "a small CNN on handwritten digits" if options.model is None else str(options.model)
    sizes = [array.size for array in trainer.parameters.arrays.values()]
    threads = settings.get_num_threads()
    where = f"{threads} thread{'s' if threads > 1 else ''}" + (f" in each of {ranks.size} processes" if ranks else "")
    how = f"{trainer.settings.loss}, {type(trainer.settings.optimizer).__name__}"
    what = f"{len(sizes)} parameters of {sum(sizes):,} numbers, {how}"
    print(f"training {name}: {what}, {where}")
    if trainer.epoch == options.epochs:
        print(
            f"nothing is left to train: the checkpoint has all {trainer.epoch} epochs; more with --epochs {2 * trainer.epoch}"
        )
    elif trainer.steps:
        print(f"going on after step {trainer.steps}, in epoch {trainer.epoch + 1}")


def print_summary(options: argparse.Namespace, trainer: Trainer, written: Written, seconds: float) -> None:
    """The figures of the epoch whose weights were kept, the files, and the next commands."""
    history, kept = trainer.history, _kept_epoch(trainer)
    found = history.epochs[kept - 1]
    rows = [
        (name.replace("_", " "), *(_shown(name, found.get(key)) for key in (name, VALID + name)))
        for name in figure_names([found])
    ]
    early = f", ended early: no better one than epoch {kept}" if history.stopped_early else ""
    epochs = f"{len(history.epochs)} epoch{'s' if len(history.epochs) > 1 else ''}"
    print(f"{epochs}, {trainer.steps} steps in {seconds:.1f} s{early}")
    print_table("", (f"after epoch {kept}", "training data", "held-out data"), rows)
    print(f"model       {written.model}")
    print(f"checkpoint  {written.checkpoint}")
    print(f"curves      {written.curves or f'none: they need matplotlib, {INSTALL}'}")
    print("\nwhat to do next:")
    print(f"  train on      the same command with --epochs {2 * options.epochs} --resume")
    print(
        f"  run it        import pullback.onnx as px; px.Session({str(written.model)!r}).run(None, inputs), or any ONNX runtime"
    )
    print(f"  look into it  pullback grads {shlex.quote(str(written.model))} --picture graph.svg")


def _shown(name: str, value: float | None) -> str:
    return "" if value is None else figure(name, value)


def _kept_epoch(trainer: Trainer) -> int:
    """The best epoch where the best weights were put back, or else the last."""
    if trainer.best is None:
        return len(trainer.history.epochs)
    watched = trainer.history.watched(*trainer.watch)
    return watched.index(min(watched)) + 1
