"""Optimizers against textbook loops in float64, over any order of memory; settings that make no sense are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pullback.onnx import SGD, Adam, AdamW, OnnxError
from pullback.onnx.executor.memory import memory_order
from pullback.onnx.train.clipping import clipped
from pullback.onnx.train.memory_order import dense_copy, flat, unflat
from pullback.onnx.train.optimizers import Optimizer
from pullback.onnx.train.weights import Weights
from pullback.rules import Array


def sgd_by_hand(p: float, gradients: list[float], s: SGD) -> float:
    buffer = 0.0
    for t, g in enumerate(gradients, 1):
        g = g + s.weight_decay * p
        if s.momentum:
            buffer = g if t == 1 else s.momentum * buffer + (1 - s.dampening) * g
            g = g + s.momentum * buffer if s.nesterov else buffer
        p -= s.lr * g
    return p


def adam_by_hand(p: float, gradients: list[float], s: Adam) -> float:
    m = v = 0.0
    b1, b2 = s.betas
    for t, g in enumerate(gradients, 1):
        if isinstance(s, AdamW):
            p -= s.lr * s.weight_decay * p
        else:
            g = g + s.weight_decay * p
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        p -= s.lr * (m / (1 - b1**t)) / (math.sqrt(v / (1 - b2**t)) + s.eps)
    return p


SETTINGS = [
    SGD(lr=0.1),
    SGD(lr=0.1, momentum=0.9),
    SGD(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.05),
    SGD(lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.01),
    Adam(lr=0.01),
    Adam(lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1),
    AdamW(lr=0.02),
    AdamW(lr=0.02, weight_decay=0.3),
]


def after(optimizer: Optimizer, p: Array, gradients: list[Array]) -> Array:
    p, state = p.copy(), [np.zeros_like(p) for _ in optimizer.state_names]
    for step, g in enumerate(gradients, 1):
        optimizer.update(p, g, state, optimizer.lr, step)
    return p


@pytest.mark.parametrize("optimizer", SETTINGS, ids=repr)
def test_formula(optimizer: Any) -> None:
    rng = np.random.default_rng(0)
    p, gradients = rng.standard_normal(5), [rng.standard_normal(5) for _ in range(4)]
    by_hand = adam_by_hand if isinstance(optimizer, Adam) else sgd_by_hand
    expected = [by_hand(float(p[i]), [float(g[i]) for g in gradients], optimizer) for i in range(5)]
    np.testing.assert_allclose(after(optimizer, p, gradients), expected, rtol=1e-12)


def test_defaults_are_pytorchs() -> None:
    assert SGD() == SGD(1e-3, 0.0, 0.0, 0.0, False)
    assert Adam() == Adam(1e-3, (0.9, 0.999), 1e-8, 0.0)
    assert AdamW() == AdamW(1e-3, (0.9, 0.999), 1e-8, 1e-2)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SGD(lr=-1), "SGD: lr is -1; it must be a number, at least 0"),
        (lambda: SGD(lr=float("nan")), "SGD: lr is nan"),
        (lambda: SGD(lr="fast"), "SGD: lr is 'fast'"),  # type: ignore[arg-type]
        (lambda: SGD(momentum=-0.1), "momentum is -0.1"),
        (lambda: SGD(nesterov=True), "nesterov=True needs momentum above 0"),
        (lambda: SGD(momentum=0.9, dampening=0.1, nesterov=True), "dampening 0"),
        (lambda: Adam(betas=(0.9, 1.0)), r"Adam: betas\[1\] is 1.0; it must be a number, at least 0 and below 1"),
        (lambda: AdamW(betas=0.9), "AdamW: betas is 0.9; it must be a pair"),  # type: ignore[arg-type]
        (lambda: Adam(eps=-1e-8), "eps is -1e-08"),
    ],
)
def test_settings_are_checked(make: Any, said: str) -> None:
    with pytest.raises(OnnxError, match=said):
        make()


def test_filters_are_updated_in_their_own_memory_order() -> None:
    """A filter that lies as (*k, C, M) ends with the values of one in C order, and still lies so."""
    rng = np.random.default_rng(0)
    w, g = rng.standard_normal((5, 3, 2, 2)), rng.standard_normal((5, 3, 2, 2))
    as_last = np.ascontiguousarray(w.transpose(2, 3, 1, 0)).transpose(3, 2, 0, 1)
    results = []
    for start in (w, as_last):
        weights = Weights({"w": start})
        SGD(lr=0.1).update(weights.memory["w"], flat(g, weights.axes["w"]), [], 0.1, 1)
        assert weights.arrays["w"].strides == start.strides
        results.append(weights["w"])
    np.testing.assert_allclose(results[0], w - 0.1 * g, rtol=1e-13)
    np.testing.assert_array_equal(results[0], results[1])


def test_memory_order_of_gaps_and_of_single_axes() -> None:
    gaps = np.arange(24.0).reshape(4, 6)[:, ::2].T
    copy = dense_copy(gaps)
    assert memory_order(copy)[0] == (1, 0)
    assert np.shares_memory(flat(copy, (1, 0)), copy)
    np.testing.assert_array_equal(unflat(flat(copy, (1, 0)), copy.shape, (1, 0)), gaps)
    one = dense_copy(np.ones((3, 1, 1, 2)))
    assert np.shares_memory(flat(one, memory_order(one)[0]), one)
    assert flat(np.array(2.0), ()).shape == (1,)


def test_weights_are_copied_out_and_checked_on_the_way_in() -> None:
    weights = Weights({"w": np.zeros((2, 3), np.float32)})
    weights["w"][0, 0] = 5  # of a copy
    assert weights["w"][0, 0] == 0
    weights["w"] = np.ones((2, 3), np.float32)
    assert weights.memory["w"].sum() == 6
    with pytest.raises(OnnxError, match=r"'w' has shape \(2, 3\) and dtype float32; .* \(3, 2\) and dtype float32"):
        weights["w"] = np.ones((3, 2), np.float32)
    with pytest.raises(OnnxError, match="dtype float64"):
        weights["w"] = np.ones((2, 3))
    with pytest.raises(KeyError, match="no parameter 'W1'; did you mean 'w'"):
        weights["W1"] = np.ones((2, 3), np.float32)
    with pytest.raises(OnnxError, match="frozen"):
        del weights["w"]
    assert "w" in weights
    assert len(weights) == 1


def test_clipping() -> None:
    g = {"a": np.array([3.0, -4.0]), "b": np.array([12.0])}
    same, norm, scale = clipped(g, None, None)
    assert (norm, scale) == (13.0, 1.0)
    assert same is g
    assert clipped(g, 6.5, None)[2] == pytest.approx(0.5, rel=1e-6)
    assert clipped(g, 20.0, None)[2] == 1.0
    cut, norm, _ = clipped(g, None, 3.5)
    np.testing.assert_array_equal(cut["a"], [3.0, -3.5])
    assert norm == pytest.approx(math.sqrt(9 + 2 * 3.5**2))
    assert g["b"][0] == 12.0
    assert math.isnan(clipped({"a": np.array([np.nan, 1.0])}, 1.0, None)[1])
