"""Names that people try first in pullback.onnx: they work, or one line says what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import cnn, mlp, rows_for_cnn, rows_for_mlp

import pullback.onnx as px
from pullback.onnx.hints import ATTRIBUTES, KEYWORDS, NAMES, PLACES

x, y = rows_for_mlp()


def trainer(**settings: Any) -> Any:
    return px.Trainer(mlp(), **settings)


@pytest.mark.parametrize(
    ("guess", "kind", "said"),
    [
        (lambda: px.InferenceSession, AttributeError, r"write px\.Session\(model\)"),
        (lambda: px.Traner, AttributeError, "did you mean 'Trainer'"),
        (lambda: trainer(lr=0.1), TypeError, r"there is no 'lr'; it belongs to the optimizer, as optimizer=px\.SGD"),
        (lambda: trainer(freeze="w1"), TypeError, "it is called 'frozen' here"),
        (lambda: trainer(epochs=3), TypeError, "it belongs to fit"),
        (lambda: trainer(acumulate=3), TypeError, "did you mean 'accumulate'"),
        (lambda: trainer(optimizer="adamw"), px.OnnxError, r"write it as optimizer=px\.AdamW\(lr="),
        (lambda: trainer(optimizer=px.SGD), px.OnnxError, r"write it as optimizer=px\.SGD\(lr="),
        (lambda: trainer(schedule="cosine"), px.OnnxError, r"write it as schedule=px\.Cosine"),
        (lambda: trainer(loss="CrossEntropy"), px.OnnxError, "did you mean 'cross_entropy'"),
        (lambda: trainer().train(), AttributeError, r"write fit\(\(x, target\), epochs=10\)"),
        (lambda: trainer().parameter, AttributeError, "did you mean 'parameters'"),
        (lambda: trainer().fit(x, y), px.OnnxError, r"inputs and targets are one argument, as fit\(\(x, target\)"),
        (lambda: trainer().fit(x, y, epochs=2), TypeError, r"inputs and targets are one argument, as fit\(\(x, target\)"),
        (lambda: trainer().fit((x, y), validation_data=1), TypeError, "it is called 'valid' here"),
        (lambda: trainer().evaluate(x, y), TypeError, r"evaluate\(\(x, target\)\)"),
        (lambda: trainer().fit([x, y]), px.OnnxError, r"whole arrays are given as a tuple, \(x, target\)"),
        (lambda: trainer().predict((x, y)), px.OnnxError, r"without targets: predict\(x\)"),
        (lambda: px.SGD(learning_rate=0.1), TypeError, "SGD: there is no 'learning_rate'; it is called 'lr' here"),
        (lambda: px.Cosine(T_max=3), TypeError, "it is called 'length' here"),
        (lambda: px.Trainer(3), px.OnnxError, r"the model is 3; .*torch\.onnx\.export"),
        (lambda: px.Trainer("run.safetensors"), px.OnnxError, r"is a checkpoint.*px\.Trainer\.load"),
    ],
)
def test_a_guess_is_answered_with_what_to_write(guess: Callable[[], Any], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        guess()


def test_hints_name_what_there_is() -> None:
    t = trainer()
    assert not [name for name in NAMES if name in px.__all__]
    assert not [name for name in ATTRIBUTES if hasattr(t, name)]
    assert not hasattr(t, "__array__")
    named = {word.partition("(")[0] for word in " ".join(NAMES.values()).replace("=", " ").split() if word.startswith("px.")}
    assert all(hasattr(px, word.split(".")[1].rstrip(",")) for word in named)
    assert not set(PLACES) - set(KEYWORDS) - {"momentum", "weight_decay", "nesterov", "shuffle", "optimizer", "metrics", "seed"}


def test_predict_gives_what_the_exported_model_gives() -> None:
    t = px.Trainer(cnn(dropout=0.5), optimizer=px.SGD(lr=0.1))
    images, labels = rows_for_cnn(12)
    t.step(images, labels)
    [wanted] = px.Session(t.model()).run(None, {"x": images})
    np.testing.assert_array_equal(t.predict(images), wanted)
    np.testing.assert_allclose(t.predict({"x": images.tolist()}, batch_size=5), wanted, rtol=1e-5)
    with pytest.raises(px.OnnxError, match="there are 12 rows; the model takes batches of exactly 5"):
        px.Trainer(mlp(batch=5)).predict(rows_for_mlp(12)[0])


def test_a_softmax_before_the_cross_entropy_is_warned_of() -> None:
    model = mlp()
    model.graph.node.append(onnx.helper.make_node("Softmax", ["y"], ["shares"]))
    model.graph.output[0].name = "shares"
    with pytest.warns(UserWarning, match="'shares' is a Softmax, and the loss cross_entropy applies one itself") as seen:
        px.Trainer(model)
    assert seen[0].filename == __file__
