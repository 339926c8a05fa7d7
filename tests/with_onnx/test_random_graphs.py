"""Random graphs, forward and training, by the planned executor and node by node: the same values, and feeds as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import onnx
import pytest
from random_graphs import by_nodes, forward_model, model_with_loss, random_graph

import pullback as pb
import pullback.onnx as px
from pullback.onnx.executor import program
from pullback.onnx.executor.program import Program
from pullback.onnx.ops import activations, elementwise
from pullback.rules import Array


def orders(array: Array, rng: np.random.Generator) -> Iterator[Array]:
    """The same values lying otherwise in memory: in C order, with the axes in another order, with gaps."""
    yield array
    axes = rng.permutation(array.ndim)
    yield np.ascontiguousarray(array.transpose(axes)).transpose(np.argsort(axes))
    spaced = np.full((*array.shape[:-1], array.shape[-1] * 2), np.nan, array.dtype)
    spaced[..., ::2] = array
    yield spaced[..., ::2]


def check(model: onnx.ModelProto, feeds: dict[str, Array], rng: np.random.Generator, tolerance: float) -> None:
    """Each memory order of the feeds twice in a row, so that both the first run and its plan are looked at."""
    names = [value.name for value in model.graph.output]
    expected = by_nodes(model, feeds)
    ready = Program(model)
    for given in zip(*(orders(array, rng) for array in feeds.values()), strict=True):
        fed = dict(zip(feeds, given, strict=True))
        for run in range(3):
            results = ready.run(fed)
            for name in names:
                scale = 1 + np.abs(expected[name]).max()
                np.testing.assert_allclose(
                    results[name], expected[name], rtol=0, atol=tolerance * scale, err_msg=f"{name} of run {run}"
                )
                results[name] += 1  # nobody else may see this
            for name, array in fed.items():
                np.testing.assert_array_equal(array, feeds[name], err_msg=f"feed {name} was changed by run {run}")
    assert ready._plans, "no shape depends on values, so the graph has plans"


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_planned_runs_give_what_the_nodes_give(backend: str, joined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not joined:
        monkeypatch.setattr(program, "fused", lambda nodes, outputs: nodes)
    for module in (activations, elementwise):  # on the native passes, however small
        monkeypatch.setattr(module, "NATIVE_FROM", 1)
    with pb.backend(backend) if backend == "reference" else nullcontext():
        for seed in range(30):
            graph = random_graph(seed, 12)
            check(forward_model(graph), graph.feeds, graph.rng, 1e-5)
        for seed in range(100, 115):
            graph = random_graph(seed, 8)
            check(px.training_graph(model_with_loss(graph), "loss"), graph.feeds, graph.rng, 1e-4)
