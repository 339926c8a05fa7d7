"""The digits and the network of the demo."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from pullback.onnx import digits


def test_the_digits_are_those_of_scikit_learn() -> None:
    theirs = pytest.importorskip("sklearn.datasets").load_digits()
    ours = digits.load(held_out=0)
    order = np.random.default_rng(0).permutation(len(theirs.images))
    assert np.array_equal(ours.train_x[:, 0] * digits.SHADES, theirs.images[order])
    assert np.array_equal(ours.train_y, theirs.target[order])


def test_the_split_is_seeded_and_leaves_nothing_out() -> None:
    one, again, other = digits.load(1), digits.load(1), digits.load(2)
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one.valid_x, other.valid_x)
    assert (one.train_x.shape, one.valid_x.shape) == ((1348, 1, 8, 8), (449, 1, 8, 8))
    assert (one.train_x.dtype, one.train_y.dtype) == (np.float32, np.int64)
    everything = np.concatenate([one.train_x, one.valid_x]).sum()
    assert everything == np.concatenate([other.train_x, other.valid_x]).sum()


def test_the_network_is_valid_and_runs_for_any_batch() -> None:
    model = digits.small_cnn(0)
    onnx.checker.check_model(model, full_check=True)
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = digits.load().valid_x
    for batch in (1, 5):
        assert session.run(None, {"images": x[:batch]})[0].shape == (batch, digits.CLASSES)


def test_the_seed_makes_the_weights() -> None:
    first, again, other = (digits.small_cnn(seed).SerializeToString() for seed in (0, 0, 1))
    assert first == again != other
