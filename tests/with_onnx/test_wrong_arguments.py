"""What users pass wrongly to sessions, trainers and graphs: one clear error each, before anything has run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx_models import mlp, model_of, rows_for_mlp

import pullback.onnx as px

MODEL = mlp()
X, Y = rows_for_mlp()
SCALAR = model_of([helper.make_node("ReduceMean", ["h"], ["y"], keepdims=0), helper.make_node("MatMul", ["x", "w"], ["h"])][::-1],
                  {"w": np.ones((4, 3))}, ["N", 4], [])  # fmt: skip
NO_OUTPUT = mlp()
del NO_OUTPUT.graph.output[:]
CONSTANT = model_of([helper.make_node("Relu", ["w"], ["y"])], {"w": np.ones((4, 3))}, ["N", 4], [4, 3])
del CONSTANT.graph.input[:]


def fit(**options: Any) -> Any:
    return px.Trainer(MODEL).fit((X, Y), **options)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: px.Session(None), "the model is None; it must be a path, the bytes of a file or a ModelProto"),
        (lambda: px.Trainer(3), "the model is 3"),
        (lambda: px.Session(NO_OUTPUT), "the model has no outputs"),
        (lambda: px.Session(MODEL, seed="a"), "Session: seed is 'a'"),  # type: ignore[arg-type]
        (lambda: px.Session(MODEL).run(None, {"x": [[1], [1, 2]]}), "input 'x' is no array"),
        (lambda: px.Session(CONSTANT).run(None, 3), "inputs must be a mapping"),  # type: ignore[arg-type]
        (lambda: px.Trainer(MODEL, loss=["mse"]), r"Trainer: loss is \['mse'\]"),  # type: ignore[arg-type]
        (lambda: px.training_graph(MODEL, ["mse"]), "no loss and no output"),  # type: ignore[arg-type]
        (lambda: px.training_graph(MODEL, "huber", delta="a"), "delta is 'a'"),  # type: ignore[arg-type]
        (lambda: px.training_graph(MODEL, "huber", delta=0), "delta is 0"),
        (lambda: px.training_graph(MODEL, ignore_index=1.5), "ignore_index is 1.5"),  # type: ignore[arg-type]
        (lambda: px.training_graph(SCALAR), r"cross_entropy takes scores of shape \(rows, classes, ...\)"),
        (lambda: px.Trainer(SCALAR, loss="mse").step(X, Y), "An output of one number is a loss"),
        (lambda: px.Trainer(MODEL, trainable=3), "trainable has 3 for a parameter"),  # type: ignore[arg-type]
        (lambda: px.Trainer(MODEL, frozen=["w1", None]), "frozen has None"),  # type: ignore[list-item]
        (lambda: px.Trainer(MODEL, metrics=3), "metrics is 3"),  # type: ignore[arg-type]
        (lambda: px.Trainer(MODEL, ranks=3), "ranks is 3"),  # type: ignore[arg-type]
        (lambda: px.Trainer(MODEL).step([[1], [1, 2]], Y), "input 'x' is no array"),
        (lambda: px.Trainer(MODEL).step(X, np.eye(3)[Y]), "or the loss soft_cross_entropy"),
        (lambda: px.Trainer(MODEL).fit(({}, Y)), "the data have no inputs; the model's are x"),
        (lambda: px.Trainer(MODEL).fit((X, [[1], [1, 2]])), "the target is no array"),
        (lambda: px.Trainer(MODEL).fit(lambda: 3), "gave 3, which is no iterable"),
        (lambda: px.Trainer(MODEL, metrics=[lambda output, target: None]).fit((X, Y)), "metric 'lambda' gave None"),
        (lambda: fit(on_step=3), "on_step is 3"),
        (lambda: fit(checkpoint="/there/is/none/run.safetensors"), "there is no folder '/there/is/none'"),
        (lambda: px.Trainer(CONSTANT, loss="mse").step({}, Y), "the model has no inputs"),
        (lambda: px.replace_head(MODEL, 4, seed="a"), "replace_head: seed is 'a'"),  # type: ignore[arg-type]
        (lambda: px.replace_head(CONSTANT, 4), "has constants alone"),
    ],
)  # fmt: skip
def test_one_clear_error(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(px.OnnxError, match=sentence):
        call()


def test_one_name_of_an_output_is_enough() -> None:
    (y,) = px.Session(MODEL).run("y", {"x": X})
    assert y.shape == (len(X), 3)


def test_settings_in_numbers_of_numpy_can_be_saved(tmp_path: Path) -> None:
    optimizer = px.Adam(lr=np.float32(0.125), betas=(np.float64(0.5), 0.75))  # type: ignore[arg-type]
    schedule = px.Cosine(length=np.int64(3))
    trainer = px.Trainer(MODEL, optimizer=optimizer, schedule=schedule, clip_norm=np.float32(1), seed=np.int64(2))  # type: ignore[arg-type]
    trainer.step(X, Y)
    trainer.save(tmp_path / "run.safetensors")
    loaded = px.Trainer.load(tmp_path / "run.safetensors")
    assert loaded.settings == trainer.settings
    assert loaded.settings.optimizer == px.Adam(lr=0.125, betas=(0.5, 0.75))
