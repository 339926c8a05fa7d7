"""The options of `pullback train`, and the optimizer and the schedule that they ask for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pullback.nearest import did_you_mean

OPTIMIZERS = {"adamw": 1e-3, "adam": 1e-3, "sgd": 0.05}  # with the learning rate that each begins with
SCHEDULES = ("cosine", "linear", "one-cycle", "constant", "step:EVERY", "plateau:PATIENCE")
OPTIMIZER, SCHEDULE, EPOCHS, BATCH, MOMENTUM = "adamw", "cosine", 10, 32, 0.9


def add_options(parser: argparse.ArgumentParser) -> None:
    _add_data(parser.add_argument_group("what to train on"))
    _add_optimizer(parser.add_argument_group("how to train"))
    files = parser.add_argument_group("what to write")
    files.add_argument(
        "--out", "--output", type=Path, metavar="FILE", help="the trained model (default MODEL-trained.onnx, or digits.onnx)"
    )
    files.add_argument("--into", type=Path, default=Path(), metavar="FOLDER", help="where files without a name of their own go")
    files.add_argument("--curves", type=Path, metavar="FILE", help="a .png or .svg picture of loss, metrics and learning rate")
    files.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="written after every epoch and when broken off (default: as --out, .safetensors)",
    )
    files.add_argument(
        "--resume", action="store_true", help="go on from the checkpoint, with the same bits as without the break"
    )


def _add_data(group: Any) -> None:
    group.add_argument(
        "--data",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="an .npz with x and y, two .npy files, or a folder of images by class",
    )
    group.add_argument(
        "--valid", type=Path, nargs="+", metavar="FILE", help="held-out data to judge each epoch by, in the same forms"
    )
    group.add_argument(
        "--size", type=image_size, metavar="HxW", help="of images, where the model takes any size: 224 or 224x320"
    )
    group.add_argument(
        "--mean", type=float, nargs="+", metavar="X", help="of images from 0 to 1: subtracted; one number, or one a channel"
    )
    group.add_argument("--std", type=float, nargs="+", metavar="X", help="of images: divided by, after --mean")
    group.add_argument("--classes", type=int, metavar="N", help="a fresh last layer for so many classes (transfer learning)")


def _add_optimizer(group: Any) -> None:
    rates = ", ".join(f"{name} {rate:g}" for name, rate in OPTIMIZERS.items())
    group.add_argument("--epochs", type=int, metavar="N", help=f"times through the data (default {EPOCHS})")
    group.add_argument(
        "--batch", "--batch-size", type=int, metavar="N", help=f"rows in a step (default {BATCH}, or the model's own)"
    )
    group.add_argument("--optimizer", type=str.lower, choices=OPTIMIZERS, help=f"default {OPTIMIZER}")
    group.add_argument("--lr", "--learning-rate", type=float, metavar="X", help=f"learning rate ({rates})")
    group.add_argument("--momentum", type=float, metavar="X", help=f"of sgd (default {MOMENTUM})")
    group.add_argument("--nesterov", action="store_true", help="of sgd: look ahead along the momentum")
    group.add_argument("--weight-decay", type=float, metavar="X", help="default 0.01 for adamw, 0 for the others")
    group.add_argument(
        "--schedule",
        metavar="NAME",
        help=f"of the learning rate: {', '.join(SCHEDULES)} (epochs; default {SCHEDULE})",
    )
    group.add_argument("--warmup", type=float, metavar="N", help="epochs in which the learning rate rises (cosine, linear)")
    group.add_argument("--clip-norm", type=float, metavar="X", help="most that the norm of all gradients may be")
    group.add_argument(
        "--accumulate",
        type=int,
        metavar="N",
        help="parts that a batch is run in, one after the other, to save memory",
    )
    group.add_argument(
        "--early-stopping",
        type=int,
        metavar="N",
        help="end after so many epochs without a better one, and keep the best weights",
    )
    group.add_argument("--seed", type=int, metavar="N", help="of new weights, the order of rows and Dropout (default 0)")
    group.add_argument(
        "--threads", type=int, metavar="N", help="threads (default: all cores); the result has the same bits for any"
    )


def image_size(text: str) -> tuple[int, int]:
    """Height and width of images."""
    parts = text.split("x")
    if not 1 <= len(parts) <= 2 or not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size, such as 224 or 224x320")
    return int(parts[0]), int(parts[-1])


def check_options(options: argparse.Namespace) -> None:
    """A ValueError that names an option that cannot be meant so."""
    for name, least in (("epochs", 1), ("batch", 1), ("accumulate", 1), ("early_stopping", 1), ("threads", 1), ("classes", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ValueError(f"--{name.replace('_', '-')} {value}: at least {least}")
    if options.into.exists() and not options.into.is_dir():
        raise ValueError(f"--into {options.into}: that is a file, not a folder")
    if options.model is None and options.data is not None:
        raise ValueError("--data without a model: name the ONNX file to train, as pullback train model.onnx --data ...")
    if options.model is not None and options.data is None:
        raise ValueError("there are no data to train on: --data train.npz, --data x.npy y.npy, or --data folder/of/images")
    for name in ("data", "valid"):
        if len(getattr(options, name) or ()) > 2:
            raise ValueError(f"--{name} takes one .npz file or folder, or two .npy files: inputs and targets")
    if options.optimizer != "sgd" and not options.resume and (options.momentum is not None or options.nesterov):
        raise ValueError("--momentum and --nesterov are options of --optimizer sgd")
    if options.early_stopping is not None and options.model is not None and options.valid is None:
        raise ValueError("--early-stopping judges by held-out data: give them with --valid")


def make_optimizer(options: argparse.Namespace) -> Any:
    from pullback.onnx.train.optimizers import SGD, Adam, AdamW

    name = options.optimizer or OPTIMIZER
    given: dict[str, Any] = {"lr": OPTIMIZERS[name] if options.lr is None else options.lr}
    if options.weight_decay is not None:
        given["weight_decay"] = options.weight_decay
    if name != "sgd":
        return (AdamW if name == "adamw" else Adam)(**given)
    momentum = MOMENTUM if options.momentum is None else options.momentum
    return SGD(**given, momentum=momentum, nesterov=options.nesterov)


def make_schedule(options: argparse.Namespace, epochs: int) -> Any:
    """The schedule that the options ask for, over so many epochs."""
    from pullback.onnx.train.schedules import Constant, Cosine, Linear, OneCycle, ReduceOnPlateau, StepDecay

    text, warmup = options.schedule or SCHEDULE, options.warmup or 0.0
    name, _, number = text.partition(":")
    if number and not number.isdecimal():
        raise ValueError(f"--schedule {text}: {number!r} is not a number of epochs")
    if warmup and name not in ("cosine", "linear"):
        raise ValueError(f"--warmup goes with --schedule cosine or linear, not {name}")
    match name:
        case "cosine":
            return Cosine(epochs, warmup)
        case "linear":
            return Linear(epochs, warmup)
        case "one-cycle":
            return OneCycle(epochs)
        case "constant":
            return Constant()
        case "step":
            return StepDecay(int(number or max(epochs // 3, 1)))
        case "plateau":
            return ReduceOnPlateau(patience=int(number or 3))
    raise ValueError(f"--schedule {text}{did_you_mean(name, SCHEDULES, 'Schedules')}")
