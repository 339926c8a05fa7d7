"""gradients: the loss of a model on one batch, and the gradient of every trainable parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pullback.onnx.executor.context import Context
from pullback.onnx.executor.program import Program
from pullback.onnx.executor.read import argument
from pullback.onnx.graph.description import describe
from pullback.onnx.graph.training_graph import training_graph
from pullback.onnx.train.batches import Batch
from pullback.onnx.train.feeding import Feeder
from pullback.onnx.train.graphs import class_count
from pullback.rules import Array


def gradients(
    model: Any,
    inputs: Any,
    target: Any = None,
    loss: str = "cross_entropy",
    *,
    trainable: str | Sequence[str] | None = None,
    frozen: str | Sequence[str] = (),
    seed: int = 0,
    output: str | None = None,
    ignore_index: int | None = None,
    delta: float = 1.0,
) -> tuple[float, dict[str, Array]]:
    """The loss of a batch and {parameter: gradient}, of a model in training mode.

    `inputs`: an array, or {name: array} for a model with several inputs; `target` is left out where the loss is an output of the
    model. `output`, `ignore_index`, `delta`: as of `training_graph`. `seed` decides what Dropout drops. For many batches use
    Trainer, which prepares the model once.
    """
    graph = training_graph(model, loss, trainable, frozen, output=output, ignore_index=ignore_index, delta=delta)
    names = describe(graph)
    given = {value.name: value for value in graph.graph.input}
    program = Program(graph, (names.loss, *names.gradients.values()))
    own = {name: argument(given[name]) for name in program.required if name != names.target}
    target_spec = None if names.target is None else argument(given[names.target])
    feeder = Feeder(own, target_spec, class_count(graph, loss, output), ignore_index)
    feeds = feeder.feeds(Batch(inputs, target))
    results = program.run(feeds.arrays, context=Context(seed))
    return float(results[names.loss]), {
        name: np.asarray(results[output], order="C") for name, output in names.gradients.items()
    }
