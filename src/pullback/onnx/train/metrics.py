"""Metrics: means over the rows of a data set of what a prediction is worth, by name or as functions of (output, target)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.nearest import did_you_mean
from pullback.onnx.errors import OnnxError
from pullback.rules import Array
from pullback.shown import shown

Score = Callable[[Array, Array], Any]
CLASS_AXIS = 1


@dataclass(frozen=True)
class Metric:
    """`score(output, target)` gives values whose mean is taken, over all rows; `finish` is applied to that mean."""

    name: str
    score: Score
    higher_is_better: bool = True
    finish: Callable[[float], float] = float


def _classes(output: Array, target: Array) -> Array:
    """The right class of each place: soft labels mean their largest."""
    return target.argmax(CLASS_AXIS) if target.ndim == output.ndim and target.dtype.kind == "f" else target


def accuracy(output: Array, target: Array) -> Array:
    """Whether the class with the largest output is the right one."""
    return np.asarray(output.argmax(CLASS_AXIS) == _classes(output, target))


def top5(output: Array, target: Array) -> Array:
    """Whether the right class is among the five with the largest outputs."""
    right = np.expand_dims(_classes(output, target), CLASS_AXIS)
    own = np.take_along_axis(output, right, CLASS_AXIS)
    return np.asarray((output > own).sum(CLASS_AXIS) < 5)


def binary_accuracy(output: Array, target: Array) -> Array:
    """Whether a logit has the sign of its target (0 or 1)."""
    return np.asarray((output > 0) == (target > 0.5))


def squared_error(output: Array, target: Array) -> Array:
    return np.asarray((output.astype(np.float64) - target) ** 2)


def absolute_error(output: Array, target: Array) -> Array:
    return np.abs(output.astype(np.float64) - target)


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", accuracy),
        Metric("top5", top5),
        Metric("binary_accuracy", binary_accuracy),
        Metric("mse", squared_error, higher_is_better=False),
        Metric("rmse", squared_error, higher_is_better=False, finish=math.sqrt),
        Metric("mae", absolute_error, higher_is_better=False),
    )
}
OF_LOSS = {"cross_entropy": ("accuracy",), "soft_cross_entropy": ("accuracy",), "bce_with_logits": ("binary_accuracy",)}


def find_metrics(asked: Sequence[Any] | None, loss: str) -> tuple[Metric, ...]:
    """Metrics by name or as functions; None: those that go with the loss."""
    if isinstance(asked, str | Metric) or callable(asked):
        asked = (asked,)
    if asked is not None and not isinstance(asked, Iterable):
        raise OnnxError(f"metrics is {shown(asked)}; it must be a list of names or functions, as ['accuracy']")
    found = []
    for each in OF_LOSS.get(loss, ()) if asked is None else asked:
        if isinstance(each, Metric):
            found.append(each)
        elif callable(each):
            found.append(Metric(getattr(each, "__name__", "metric").strip("<>"), each))
        elif each in METRICS:
            found.append(METRICS[each])
        else:
            near = did_you_mean(each, list(METRICS), "Metrics")
            raise OnnxError(f"there is no metric {shown(each)}{near}, or any function of (output, target)")
    names = [metric.name for metric in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise OnnxError(f"two metrics are called {twice[0]!r}: give one another name, as Metric(name, function)")
    return tuple(found)


def scores_of(
    metrics: Sequence[Metric], results: Mapping[str, Array], outputs: Sequence[str], target: Array | None
) -> list[float]:
    """The mean of each metric over a batch, from the first output; a function of the user's may give it itself, or values."""
    return [] if target is None else [_mean(metric, metric.score(results[outputs[0]], target)) for metric in metrics]


def _mean(metric: Metric, values: Any) -> float:
    try:
        return float(np.mean(values))
    except (TypeError, ValueError) as error:
        raise OnnxError(
            f"metric {metric.name!r} gave {shown(values)}; it must give a number, or an array of numbers"
        ) from error


class Mean:
    """The loss and metrics of many batches, weighted by their rows; sums are float64."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self.metrics = metrics
        self.rows = 0
        self.sums = np.zeros(1 + len(metrics), np.float64)

    def add(self, rows: int, loss: float, scores: Sequence[float]) -> None:
        """A batch: its mean loss and mean scores."""
        self.rows += rows
        self.sums += rows * np.array([loss, *scores])

    def state(self) -> list[float]:
        """Numbers that hold all of it, for a checkpoint in the middle of an epoch."""
        return [float(self.rows), *map(float, self.sums)]

    def restore(self, state: Sequence[float]) -> None:
        if len(state) != 1 + len(self.sums):
            raise OnnxError(
                "the checkpoint is of the middle of an epoch with other metrics: give the same, as Trainer.load(metrics=...)"
            )
        self.rows, self.sums = int(state[0]), np.array(state[1:], np.float64)

    def result(self) -> dict[str, float]:
        loss, *means = self.sums / max(self.rows, 1)
        return {"loss": float(loss)} | {m.name: m.finish(float(mean)) for m, mean in zip(self.metrics, means, strict=True)}
