"""The trainer that `pullback train` is asked for: a new one, or with `--resume` that of the checkpoint, if the options fit it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pullback import settings
from pullback.cli.grads_command import LOSS, chosen_model
from pullback.cli.train_files import RequestError
from pullback.cli.train_options import EPOCHS, make_optimizer, make_schedule

if TYPE_CHECKING:
    from pullback.onnx.train.mpi import Ranks
    from pullback.onnx.train.trainer import Trainer


def make_trainer(options: argparse.Namespace, checkpoint: Path, ranks: Ranks | None) -> Trainer:
    """Options that are left out get their values: the usual ones, or those of the checkpoint."""
    if options.threads is not None or ranks is not None:
        shared = settings.get_num_threads() // (1 if ranks is None else ranks.neighbours())
        settings.set_num_threads(options.threads or max(1, shared))
    return _resumed(options, checkpoint, ranks) if options.resume else _new(options, ranks)


def _model(options: argparse.Namespace, seed: int) -> Any:
    from pullback.onnx.train.head import replace_head

    model = chosen_model(options.model, seed)
    return model if options.classes is None else replace_head(model, options.classes, seed)


def _new(options: argparse.Namespace, ranks: Ranks | None) -> Trainer:
    from pullback.onnx.train.trainer import Trainer

    options.epochs, options.seed = options.epochs or EPOCHS, options.seed or 0
    return Trainer(
        _model(options, options.seed), options.loss or LOSS, make_optimizer(options), options.seed, trainable=options.train_only,
        frozen=tuple(options.freeze), schedule=make_schedule(options, options.epochs), clip_norm=options.clip_norm,
        accumulate=options.accumulate or 1, ranks=ranks,
    )  # fmt: skip


def _resumed(options: argparse.Namespace, checkpoint: Path, ranks: Ranks | None) -> Trainer:
    from pullback.onnx.train.trainer import Trainer

    given = make_schedule(options, options.epochs or EPOCHS) if options.schedule is not None else None
    trainer = Trainer.load(checkpoint, schedule=given, ranks=ranks)
    _check_settings(options, trainer, checkpoint)
    options.seed = trainer.settings.seed
    _check_model(options, trainer, checkpoint)
    own = trainer.settings.schedule
    length = getattr(own, "length", None)
    options.epochs = options.epochs or int(length or EPOCHS)
    if given is not None:
        own = make_schedule(options, options.epochs)
    elif length is not None:  # the same over all epochs that are asked for now
        own = replace(own, length=options.epochs)  # type: ignore[call-arg]
    trainer.settings = replace(trainer.settings, schedule=own)
    options.batch = options.batch or trainer.batch_size
    if trainer.epoch > options.epochs:
        raise RequestError(
            f"{checkpoint} has {trainer.epoch} epochs already, and --epochs counts all of them: --epochs {2 * trainer.epoch}, "
            "for example, trains on"
        )
    return trainer


def _check_settings(options: argparse.Namespace, trainer: Trainer, checkpoint: Path) -> None:
    """Refuse options that ask for something else than what the checkpoint goes on with."""
    own, optimizer = trainer.settings, trainer.settings.optimizer
    asked = {
        "--loss": (options.loss, own.loss),
        "--train-only": (options.train_only, None if own.trainable is None else list(own.trainable)),
        "--freeze": (options.freeze or None, list(own.frozen)),
        "--optimizer": (options.optimizer, type(optimizer).__name__.lower()),
        "--clip-norm": (options.clip_norm, own.clip_norm),
        "--accumulate": (options.accumulate, own.accumulate),
        "--seed": (options.seed, own.seed),
        "--nesterov": (options.nesterov or None, getattr(optimizer, "nesterov", False)),
        **{
            f"--{name.replace('_', '-')}": (getattr(options, name), getattr(optimizer, name, None))
            for name in ("lr", "momentum", "weight_decay")
        },
    }
    for name, (given, kept) in asked.items():
        if given is not None and given != kept:
            raise RequestError(
                f"{name} {_text(given)}: {checkpoint} was made with {_text(kept)} and goes on with it. Leave {name} out, or "
                "train the model that came of it with other settings"
            )


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)


def _check_model(options: argparse.Namespace, trainer: Trainer, checkpoint: Path) -> None:
    """Refuse the checkpoint of another model: other inputs, or parameters of the same names with other shapes."""
    from pullback.onnx.train.inference_model import places_of

    def differs(what: str) -> RequestError:
        model = "the network for digits" if options.model is None else options.model
        return RequestError(f"{checkpoint} is the checkpoint of another model than {model}: {what}")

    graph, kept = _model(options, options.seed).graph, trainer.stored_model.graph
    places = places_of(graph)
    inputs, theirs = ([v.name for v in g.input if v.name not in places] for g in (graph, kept))
    if inputs != theirs:
        raise differs(f"its inputs are {', '.join(theirs)}, not {', '.join(inputs)}")
    for name, array in trainer.parameters.arrays.items():
        if name in places and tuple(places[name].dims) != array.shape:
            raise differs(f"'{name}' has shape {array.shape} there, not {tuple(places[name].dims)}")
    if not any(name in places for name in trainer.parameters):
        raise differs(f"it trains {', '.join(list(trainer.parameters)[:3])}, which this one has not")
