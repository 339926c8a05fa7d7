"""Evaluation and prediction: the mean loss and metrics of a model in inference mode over a data set, and its outputs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np

from pullback.onnx.errors import OnnxError
from pullback.onnx.executor.program import Program
from pullback.onnx.train.batches import Data, RowData
from pullback.onnx.train.data import open_data
from pullback.onnx.train.feeding import Feeder
from pullback.onnx.train.graphs import Graphs
from pullback.onnx.train.images import ImageFolder
from pullback.onnx.train.inference_model import as_inputs
from pullback.onnx.train.metrics import Mean, Metric, scores_of
from pullback.onnx.train.mpi import Ranks
from pullback.onnx.train.weights import Weights
from pullback.rules import Array


class Evaluator:
    """Runs the forward graph with the parameters of the moment; each rank of a job has its rows of each batch."""

    def __init__(self, graphs: Graphs, feeder: Feeder, metrics: Sequence[Metric], ranks: Ranks | None) -> None:
        self.graphs, self.feeder, self.metrics, self.ranks = graphs, feeder, metrics, ranks
        self._forward: Program | None = None

    def _own(self, rows: int) -> slice:
        """This rank's rows of a batch; of one with fewer rows than ranks all are rank 0's, and the others read them in vain."""
        return slice(0, rows) if self.ranks is None or rows < self.ranks.size else self.ranks.rows(rows)

    def predict(self, data: Any, parameters: Weights, running: Weights, batch_size: int | None) -> Array:
        """The first output for each row, in order."""
        graphs, inputs = self.graphs, self.feeder.inputs
        if isinstance(data, tuple):
            raise OnnxError("predict takes inputs alone, without targets: predict(x)")
        rows = data if isinstance(data, Mapping | str | PathLike | ImageFolder) else np.asarray(data)
        opened = open_data(rows, inputs, batch_size=batch_size, has_target=False)
        if isinstance(opened, RowData) and opened.used < len(opened.rows):
            raise OnnxError(
                f"there are {len(opened.rows)} rows; the model takes batches of exactly {opened.size}: export it with a dynamic "
                "batch axis"
            )
        if self._forward is None:
            model = as_inputs(graphs.inference, (*parameters, *running))
            self._forward = Program(model, graphs.names.outputs[:1])
        feeder, values = Feeder(inputs, None, None), {**parameters.arrays, **running.arrays}
        found = []
        for batch in opened.batches(None):
            feeds = feeder.feeds(replace(batch, target=None))
            with np.errstate(all="ignore"):
                [output] = self._forward.run({**feeds.arrays, **values}).values()
            found.append(output)
        return np.concatenate(found)

    def evaluate(self, opened: Data, parameters: Weights, running: Weights) -> dict[str, float]:
        if isinstance(opened, RowData) and opened.used < len(opened.rows) and (self.ranks is None or self.ranks.first):
            left = len(opened.rows) - opened.used
            warnings.warn(
                f"the model takes batches of {opened.size} rows alone: {left} rows at the end are not evaluated", stacklevel=4
            )
        mean = Mean(self.metrics if self.graphs.target is not None else ())
        values = {**parameters.arrays, **running.arrays}
        for batch in opened.batches(None, needed=lambda rows: (self._own(rows),)):
            feeds = self.feeder.feeds(batch)
            own = self._own(feeds.rows)
            if self.ranks is not None and not self.ranks.first and feeds.rows < self.ranks.size:
                continue
            given = feeds.part(own)
            with np.errstate(all="ignore"):  # what is not finite is seen in the loss
                results = self.graphs.evaluation.run({**given, **values})
            target = None if self.graphs.target is None else given[self.graphs.target.name]
            scores = scores_of(self.metrics, results, self.graphs.names.outputs, target)
            mean.add(own.stop - own.start, float(results[self.graphs.evaluated_loss]), scores)
        if self.ranks is not None:
            mean.restore(self.ranks.sum(np.array(mean.state(), np.float64)).tolist())
        return mean.result()
