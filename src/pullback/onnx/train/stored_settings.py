"""Settings of a trainer, and how a checkpoint holds them: kinds by name, numbers as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from pullback.nearest import nearest
from pullback.onnx.checks import names_of, number, whole
from pullback.onnx.errors import OnnxError
from pullback.onnx.train.metrics import METRICS, Metric, find_metrics
from pullback.onnx.train.optimizers import OPTIMIZERS, SGD, Optimizer
from pullback.onnx.train.schedules import SCHEDULES, Constant, Schedule
from pullback.shown import shown

STANDARD = SGD(lr=0.01, momentum=0.9)


@dataclass(frozen=True)
class Settings:
    """What a trainer was asked for."""

    loss: str
    optimizer: Optimizer
    seed: int
    trainable: tuple[str, ...] | None
    frozen: tuple[str, ...]
    schedule: Schedule
    clip_norm: float | None
    clip_value: float | None
    accumulate: int
    metrics: tuple[Metric, ...]


def _meant(value: Any, kinds: Mapping[str, Any], usual: str) -> str:
    """The kind that a name, or a class instead of an object of it, probably stands for."""
    return nearest(value.__name__ if isinstance(value, type) else value, list(kinds)) or usual


def checked_settings(
    loss: str,
    optimizer: Optimizer | None,
    seed: int,
    trainable: str | Sequence[str] | None,
    frozen: str | Sequence[str],
    schedule: Schedule | None,
    clip_norm: float | None,
    clip_value: float | None,
    accumulate: int,
    metrics: Sequence[Any] | None,
) -> Settings:
    """The settings, if they make sense."""
    if not isinstance(loss, str):
        raise OnnxError(f"Trainer: loss is {shown(loss)}; it must be the name of a loss or of an output of the model")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise OnnxError(
            f"Trainer: optimizer is {shown(optimizer)}; write it as optimizer=px.{_meant(optimizer, OPTIMIZERS, 'SGD')}(lr=0.05). "
            f"There are {', '.join(OPTIMIZERS)}"
        )
    if schedule is not None and not isinstance(schedule, Schedule):
        raise OnnxError(
            f"Trainer: schedule is {shown(schedule)}; write it as schedule=px.{_meant(schedule, SCHEDULES, 'Cosine')}(10), over 10 "
            f"epochs. There are {', '.join(SCHEDULES)}, and Schedules of your own"
        )
    for name, value in (("clip_norm", clip_norm), ("clip_value", clip_value)):
        if value is not None:
            number("Trainer", name, value)
    return Settings(
        loss,
        STANDARD if optimizer is None else optimizer,
        whole("Trainer", "seed", seed, 0),
        None if trainable is None else names_of("trainable", trainable),
        names_of("frozen", frozen),
        Constant() if schedule is None else schedule,
        None if clip_norm is None else float(clip_norm),
        None if clip_value is None else float(clip_value),
        whole("Trainer", "accumulate", accumulate, 1),
        find_metrics(metrics, loss),
    )


def stored(settings: Settings) -> dict[str, Any]:
    """As JSON. Schedules and metrics of the user's own are there by name alone."""
    kinds = {name: {"kind": type(value).__name__, **asdict(value)}
             for name, value in (("optimizer", settings.optimizer), ("schedule", settings.schedule))}  # fmt: skip
    plain = {each.name: getattr(settings, each.name) for each in fields(settings)}
    return plain | kinds | {"metrics": [metric.name for metric in settings.metrics]}


def _kind(stored: Mapping[str, Any], kinds: Mapping[str, Any], what: str) -> Any:
    values = dict(stored)
    name = values.pop("kind")
    if name not in kinds:
        raise OnnxError(f"the checkpoint has a {what} of its own, {name}: give it again, as Trainer.load(path, {what}=...)")
    return kinds[name](**values)


def restored(about: Mapping[str, Any], schedule: Schedule | None, metrics: Sequence[Any] | None) -> dict[str, Any]:
    """The keywords of a Trainer from a checkpoint; what the user gives again wins."""
    keywords = dict(about)
    keywords["optimizer"] = _kind(about["optimizer"], OPTIMIZERS, "optimizer")
    keywords["schedule"] = schedule if schedule is not None else _kind(about["schedule"], SCHEDULES, "schedule")
    unknown = [name for name in about["metrics"] if name not in METRICS]
    if unknown and metrics is None:
        raise OnnxError(
            f"the checkpoint has a metric of its own, {unknown[0]}: give it again, as Trainer.load(path, metrics=[...])"
        )
    keywords["metrics"] = about["metrics"] if metrics is None else metrics
    return keywords
