"""The gradient of a batch: over micro-batches where it is to be accumulated, over the ranks of a job where there are several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pullback.onnx.executor.context import Context
from pullback.onnx.executor.program import Program
from pullback.onnx.graph.description import TrainingDescription
from pullback.onnx.train.feeding import Feeds
from pullback.onnx.train.memory_order import flat
from pullback.onnx.train.metrics import Metric, scores_of
from pullback.onnx.train.mpi import Ranks
from pullback.onnx.train.weights import Weights
from pullback.rules import Array


@dataclass(frozen=True)
class BatchGradient:
    """Loss and metrics of a batch, the gradient of each parameter as flat memory, and the next running statistics."""

    loss: float
    scores: tuple[float, ...]
    gradients: Mapping[str, Array]
    running: Mapping[str, Array]


@dataclass(frozen=True)
class Part:
    """Rows that one run of the program takes, and their share in the batch's mean."""

    rows: slice
    weight: float
    together: bool  # whether the other ranks run other rows of the same micro-batch


def parts_of(rows: int, accumulate: int, ranks: Ranks | None) -> list[Part]:
    """This rank's rows of each micro-batch. One with fewer rows than ranks is run whole by all of them, and rank 0's counts."""
    parts = []
    for i in range(accumulate):
        first, end = i * rows // accumulate, (i + 1) * rows // accumulate
        count = end - first
        if not count:
            continue
        if ranks is None or count < ranks.size:
            parts.append(Part(slice(first, end), count / rows if ranks is None or ranks.first else 0.0, together=False))
        else:
            own = ranks.rows(count)
            parts.append(Part(slice(first + own.start, first + own.stop), (own.stop - own.start) / rows, together=True))
    return parts


class GradientRunner:
    """Runs a training graph. `names` says what is what in it."""

    def __init__(self, program: Program, names: TrainingDescription, ranks: Ranks | None) -> None:
        self.program, self.names, self.ranks = program, names, ranks
        weight = None if names.loss_weight is None else program.inputs[names.loss_weight]
        self.weight_dtype = None if weight is None else weight.dtype
        self.parameter_of = {output: parameter for parameter, output in names.gradients.items()}

    def run(
        self,
        feeds: Feeds,
        parameters: Weights,
        running: Mapping[str, Array],
        context: Context,
        accumulate: int,
        metrics: Sequence[Metric] = (),
    ) -> BatchGradient:
        """The mean gradient of the batch's rows, however they are split."""
        parts = parts_of(feeds.rows, accumulate, self.ranks)
        buckets = None if self.ranks is None else self.ranks.buckets()
        gradients: dict[str, Array] = {}
        means = np.zeros(1 + len(metrics), np.float64)
        for i, part in enumerate(parts):
            last = i == len(parts) - 1

            def arrived(name: str, array: Array, last: bool = last) -> None:
                parameter = self.parameter_of.get(name)
                if parameter is None:
                    return
                gradient = flat(array, parameters.axes[parameter])
                if parameter in gradients:
                    gradients[parameter] += gradient
                else:
                    gradients[parameter] = gradient if last else gradient.copy()
                if last and buckets is not None:
                    buckets.add(parameter, gradients[parameter])

            given = feeds.part(part.rows)
            weight = (
                {} if self.names.loss_weight is None else {self.names.loss_weight: np.array(part.weight, self.weight_dtype)}
            )
            here = Context(
                context.seed,
                context.step,
                part.rows.start,
                self.ranks.sum if self.ranks is not None and part.together else None,
            )
            with np.errstate(all="ignore"):  # a loss that is not finite is one error, and not a dozen warnings before it
                results = self.program.run({**given, **weight, **parameters.arrays, **running}, on_output=arrived, context=here)
            running = {name: results[output] for name, output in self.names.running.items()}
            scores = scores_of(metrics, results, self.names.outputs, given.get(self.names.target or ""))
            means += part.weight * np.array([float(results[self.names.loss]), *scores])
        if self.ranks is not None and buckets is not None:
            gradients, means = buckets.finish(), self.ranks.sum(means)
        return BatchGradient(float(means[0]), tuple(map(float, means[1:])), gradients, running)
