"""Training graphs of random models against finite differences, in float64."""

from __future__ import annotations

import numpy as np
from random_graphs import model_with_loss, random_graph

import pullback as pb
import pullback.onnx as px
from pullback.onnx.executor.program import Program
from pullback.onnx.graph.description import describe

STEP = 1e-6


def check(seed: int, nodes: int, *, open_sizes: bool) -> int:
    """Each parameter's gradient along one random direction; how many there were."""
    graph = random_graph(seed, nodes, np.float64)
    training = px.training_graph(model_with_loss(graph, open_sizes=open_sizes), "loss")
    names, ready = describe(training), Program(training)
    results = ready.run(graph.feeds)
    for parameter, output in names.gradients.items():
        value = graph.weights[parameter]
        direction = graph.rng.standard_normal(value.shape)
        ends = [float(ready.run({**graph.feeds, parameter: value + step * direction})["loss"]) for step in (STEP, -STEP)]
        slope = (results[output] * direction).sum()
        np.testing.assert_allclose(
            (ends[0] - ends[1]) / (2 * STEP), slope, rtol=1e-5, atol=1e-6, err_msg=f"{parameter} of seed {seed}"
        )
    return len(names.gradients)


def test_gradients_of_random_models_are_slopes() -> None:
    with pb.backend("reference"):
        assert sum(check(seed, 10, open_sizes=seed % 2 == 1) for seed in range(40)) > 150
