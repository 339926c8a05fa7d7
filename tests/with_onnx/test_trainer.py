"""The trainer: steps by hand, micro-batches, threads, metrics, schedules, early stopping, what is refused, what is exported."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import CLASSES, cnn, mlp, model_of, rows_for_cnn, rows_for_mlp

import pullback as pb
import pullback.onnx as px
from pullback.onnx.train.metrics import Metric
from pullback.onnx.train.schedules import Cosine, ReduceOnPlateau, StepDecay
from pullback.rules import Array


def same(a: Any, b: Any) -> None:
    """The same names with the same bits."""
    assert list(a) == list(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_a_step_is_the_gradient_times_the_rate() -> None:
    model, (x, y) = mlp(dtype=np.float64), rows_for_mlp(dtype=np.float64)
    t = px.Trainer(model, optimizer=px.SGD(lr=0.1))
    before = dict(t.parameters)
    loss, gradients = px.gradients(model, x, y)
    assert t.step(x, y) == loss
    for name, gradient in gradients.items():
        np.testing.assert_allclose(t.parameters[name], before[name] - 0.1 * gradient, rtol=1e-14, atol=1e-16)
    assert t.step({"x": x}, y) < loss
    assert t.history.norms[0] == pytest.approx(np.sqrt(sum((g**2).sum() for g in gradients.values())))


def test_gradients_agree_with_differences_of_the_loss() -> None:
    model, (x, y) = mlp(dtype=np.float64), rows_for_mlp(7, dtype=np.float64)
    _, gradients = px.gradients(model, x, y)
    t = px.Trainer(model)
    for name, place in (("w1", (2, 1)), ("b2", (0,))):
        values = t.parameters[name]
        losses = []
        for change in (1e-5, -1e-5):
            moved = values.copy()
            moved[place] += change
            t.parameters[name] = moved
            losses.append(t.evaluate((x, y))["loss"])
        t.parameters[name] = values
        assert gradients[name][place] == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-6)


@pytest.mark.parametrize("optimizer", [px.SGD(lr=0.1, momentum=0.9), px.Adam(lr=0.01)], ids=["sgd", "adam"])
def test_micro_batches_give_what_the_large_batch_gives(optimizer: Any) -> None:
    x, y = rows_for_mlp(7, dtype=np.float64)
    whole, parts = (px.Trainer(mlp(dtype=np.float64), optimizer=optimizer, accumulate=k) for k in (1, 3))
    for _ in range(3):
        assert parts.step(x, y) == pytest.approx(whole.step(x, y), rel=1e-13)
    for name in whole.parameters:
        np.testing.assert_allclose(parts.parameters[name], whole.parameters[name], rtol=1e-9, atol=1e-12)


def test_dropout_is_the_same_in_micro_batches() -> None:
    x, y = rows_for_mlp(9, dtype=np.float64)
    whole, parts = (px.Trainer(mlp(dropout=0.5, dtype=np.float64), accumulate=k, seed=5) for k in (1, 2))
    other = px.Trainer(mlp(dropout=0.5, dtype=np.float64), seed=6)
    losses = [t.step(x, y) for t in (whole, parts, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-13)
    assert losses[0] != pytest.approx(losses[2], rel=1e-3)


def test_the_same_bits_for_any_number_of_threads() -> None:
    x, y = rows_for_cnn()
    results = []
    for n in (1, 2, 5):
        with pb.threads(n):
            t = px.Trainer(cnn(dropout=0.2), optimizer=px.AdamW(lr=0.01), clip_norm=0.5)
            t.fit((x, y), epochs=2, batch_size=7, valid=(x, y))
        results.append((t.values(), t.history.losses, t.history["valid_loss"]))
    for values, losses, valid in results[1:]:
        same(results[0][0], values)
        assert losses == results[0][1]
        assert valid == results[0][2]


def test_fit_learns_and_writes_down_what_it_saw() -> None:
    x, y = rows_for_cnn(60)
    t = px.Trainer(cnn(), optimizer=px.SGD(lr=0.1, momentum=0.9), schedule=Cosine(6, warmup=1), metrics=["accuracy", "top5"])
    seen: list[tuple[int, int, int]] = []
    h = t.fit((x, y), epochs=6, valid=(x, y), batch_size=16, on_step=lambda t: seen.append((t.epoch, t.batch, t.steps)))
    assert h is t.history
    assert h["loss"][-1] < 0.7 * h["loss"][0]
    assert h["valid_accuracy"][-1] > 0.7
    assert h["valid_top5"] == [1.0] * 6  # of three classes
    assert seen[:5] == [(0, 1, 1), (0, 2, 2), (0, 3, 3), (0, 4, 4), (1, 1, 5)]
    assert len(h.losses) == t.steps == 24
    assert h.rates[:5] == pytest.approx([0, 0.025, 0.05, 0.075, 0.1])
    assert t.evaluate((x, y), batch_size=7) == pytest.approx({k: h["valid_" + k][-1] for k in ("loss", "accuracy", "top5")})


def test_metrics_are_means_over_rows_whatever_the_batches() -> None:
    x, y = rows_for_mlp(10)

    def margin(output: Array, target: Array) -> Array:
        return output.max(1)

    t = px.Trainer(mlp(), metrics=["accuracy", margin, Metric("worst", lambda o, t: o.min(), higher_is_better=False)])
    (scores,) = px.Session(mlp()).run(None, {"x": x})
    figures = t.evaluate((x, y), batch_size=4)
    assert figures["accuracy"] == pytest.approx((scores.argmax(1) == y).mean())
    assert figures["margin"] == pytest.approx(scores.max(1).mean())
    assert figures["worst"] == pytest.approx(sum(n * scores[i : i + 4].min() for i, n in ((0, 4), (4, 4), (8, 2))) / 10)
    with pytest.raises(px.OnnxError, match="no metric 'acuracy'; did you mean 'accuracy'"):
        px.Trainer(mlp(), metrics=["acuracy"])


@pytest.mark.parametrize(("loss", "metric"), [("mse", "rmse"), ("l1", "mae"), ("huber", "mse"), ("bce_with_logits", None)])
def test_other_losses(loss: str, metric: str | None) -> None:
    x, y = rows_for_mlp(20)
    target = np.eye(CLASSES, dtype=np.float32)[y]
    t = px.Trainer(mlp(), loss=loss, optimizer=px.Adam(lr=0.02), metrics=metric and [metric])
    (scores,) = px.Session(mlp()).run(None, {"x": x})
    figures = t.evaluate((x, target))
    error = scores.astype(np.float64) - target
    if metric is None:
        assert figures["binary_accuracy"] == pytest.approx(((scores > 0) == (target > 0.5)).mean())
    else:
        by_hand = {"rmse": np.sqrt((error**2).mean()), "mae": np.abs(error).mean(), "mse": (error**2).mean()}
        assert figures[metric] == pytest.approx(by_hand[metric], rel=1e-5)
    first = figures["loss"]
    t.fit((x, target), epochs=15)
    assert t.evaluate((x, target))["loss"] < first * 0.8


def test_soft_labels() -> None:
    x, y = rows_for_mlp(20)
    hard, soft = px.Trainer(mlp()), px.Trainer(mlp(), loss="soft_cross_entropy")
    assert soft.step(x, np.eye(CLASSES, dtype=np.float32)[y]) == pytest.approx(hard.step(x, y), rel=1e-6)
    with pytest.raises(px.OnnxError, match="must be whole numbers"):
        hard.step(x, np.eye(CLASSES, dtype=np.float32)[y])


def test_a_loss_that_the_model_has_itself() -> None:
    w = np.random.default_rng(0).standard_normal((4, 1))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Mul", ["p", "p"], ["q"]),
        helper.make_node("ReduceMean", ["q"], ["y"], keepdims=0),
    ]
    t = px.Trainer(model_of(nodes, {"w": w}, ["N", 4], []), loss="y", optimizer=px.SGD(lr=0.05))
    x, _ = rows_for_mlp(12)
    h = t.fit(x, epochs=5, batch_size=5, valid=x)
    assert h["valid_loss"][-1] < h["valid_loss"][0]
    assert t.evaluate(x)["loss"] == pytest.approx(np.mean((x @ t.parameters["w"]) ** 2), rel=1e-5)
    with pytest.raises(px.OnnxError, match="takes none"):
        t.step(x, np.zeros(12))


def test_frozen_parameters_stay_as_they_are() -> None:
    x, y = rows_for_cnn(12)
    t = px.Trainer(cnn(), frozen=["conv.*", "norm.*"], optimizer=px.SGD(lr=0.1))
    assert set(t.parameters) == {"head.w", "head.b"}
    assert t.running == {}
    t.fit((x, y), epochs=2)
    changed = {p.name: onnx.numpy_helper.to_array(p) for p in t.model().graph.initializer}
    first = {p.name: onnx.numpy_helper.to_array(p) for p in cnn().graph.initializer}
    assert {name for name in first if not np.array_equal(first[name], changed[name])} == {"head.w", "head.b"}


def test_early_stopping_gives_the_best_parameters_back() -> None:
    x, y = rows_for_mlp(16)
    wrong = (y + 1) % CLASSES  # what is learned makes this worse
    t = px.Trainer(mlp(), optimizer=px.SGD(lr=0.3))
    kept: list[dict[str, Array]] = []
    h = t.fit((x, y), epochs=50, valid=(x, wrong), patience=3, on_epoch=lambda t: kept.append(t.values()))
    assert h.stopped_early
    best = int(np.argmin(h["valid_loss"]))
    assert len(h.epochs) == best + 4 < 50
    same(t.values(), kept[best])
    higher = px.Trainer(mlp(), optimizer=px.SGD(lr=0.3))
    h = higher.fit((x, y), epochs=40, valid=(x, y), patience=2, watch="valid_accuracy")
    assert higher.evaluate((x, y))["accuracy"] == max(h["valid_accuracy"])
    with pytest.raises(px.OnnxError, match="no figure 'valid_acc' to watch; did you mean 'valid_accuracy'"):
        t.fit((x, y), valid=(x, y), patience=1, watch="valid_acc")


def test_schedules_set_the_rate() -> None:
    x, y = rows_for_mlp(8)
    t = px.Trainer(mlp(), optimizer=px.SGD(lr=0.5), schedule=StepDecay(2, 0.1, by="step"))
    for _ in range(5):
        t.step(x, y)
    assert t.history.rates == pytest.approx([0.5, 0.5, 0.05, 0.05, 0.005])
    flat = px.Trainer(mlp(), optimizer=px.SGD(lr=0.0), schedule=ReduceOnPlateau(gamma=0.5, patience=0))
    flat.fit((x, y), epochs=3)
    assert flat.settings.optimizer.lr == 0.0
    assert flat.settings.schedule.factor(0, flat.history.watched(*flat.watch)) == 0.25


def test_clipping_by_the_norm_of_all_gradients() -> None:
    model, (x, y) = mlp(dtype=np.float64), rows_for_mlp(dtype=np.float64)
    t = px.Trainer(model, optimizer=px.SGD(lr=1.0), clip_norm=0.01)
    before = dict(t.parameters)
    t.step(x, y)
    moved = np.sqrt(sum(((t.parameters[name] - before[name]) ** 2).sum() for name in before))
    assert moved == pytest.approx(0.01, rel=1e-3)
    by_value = px.Trainer(model, optimizer=px.SGD(lr=1.0), clip_value=0.001)
    by_value.step(x, y)
    assert max(np.abs(by_value.parameters[name] - before[name]).max() for name in before) == pytest.approx(0.001)


def test_a_loss_that_is_not_finite_changes_nothing() -> None:
    x, y = rows_for_mlp(8)
    t = px.Trainer(mlp(), optimizer=px.SGD(lr=1e30))
    t.step(x, y)
    before, running = dict(t.parameters), t.steps
    with pytest.raises(px.OnnxError, match=r"the loss is (nan|inf) at step 2 \(learning rate 1e\+30\): .*clip_norm=1.0"):
        t.step(x, y)
    same(t.parameters, before)
    assert t.steps == running == 1


def test_wrong_requests_are_refused() -> None:
    x, y = rows_for_mlp(8)
    t = px.Trainer(mlp())
    with pytest.raises(px.OnnxError, match="row 5 of the data is class 3; the model has 3 classes"):
        t.fit((x, np.where(np.arange(8) == 5, 3, y)))
    with pytest.raises(px.OnnxError, match="the data set is empty"):
        t.fit((x[:0], y[:0]))
    with pytest.raises(px.OnnxError, match="holds NaN or infinity in row 1 of the data"):
        t.evaluate((np.where(np.arange(8)[:, None] == 1, np.nan, x), y))
    with pytest.raises(px.OnnxError, match=r"optimizer is 'sgd'; write it as optimizer=px\.SGD"):
        px.Trainer(mlp(), optimizer="sgd")  # type: ignore[arg-type]
    with pytest.raises(px.OnnxError, match="accumulate is 0"):
        px.Trainer(mlp(), accumulate=0)
    with pytest.raises(px.OnnxError, match="epochs is -1"):
        t.fit((x, y), epochs=-1)
    with pytest.raises(px.OnnxError, match="checkpoint_steps needs a path"):
        t.fit((x, y), checkpoint_steps=1)


def test_a_model_with_a_fixed_batch() -> None:
    x, y = rows_for_mlp(10)
    t = px.Trainer(mlp(batch=4))
    assert len(t.fit((x, y), epochs=1).losses) == 2
    with pytest.warns(UserWarning, match="2 rows at the end are not evaluated"):
        t.evaluate((x, y))
    with pytest.raises(px.OnnxError, match="has 3 rows; the model takes exactly 4"):
        t.step(x[:3], y[:3])

    in_parts = px.Trainer(mlp(batch=4), accumulate=2)
    assert len(in_parts.fit((x, y), batch_size=8, valid=(x[:8], y[:8])).losses) == 1


def test_batches_of_the_users_own_train_as_rows_in_order() -> None:
    x, y = rows_for_mlp(10)
    batches = [(x[:4], y[:4]), (x[4:8], y[4:8]), (x[8:], y[8:])]
    results = []
    for data in ((x, y), batches, lambda: iter(batches)):
        t = px.Trainer(mlp())
        t.fit(data, epochs=2, batch_size=4, shuffle=False, valid=data)
        results.append(t)
    for t in results[1:]:
        same(t.parameters, results[0].parameters)
        assert t.history["valid_loss"] == results[0].history["valid_loss"]


def test_a_folder_of_images_trains_and_its_classes_are_kept(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for part, kinds in (("train", ("cat", "dog")), ("valid", ("cat", "dog")), ("other", ("cat", "bird"))):
        for place, kind in enumerate(kinds):
            (tmp_path / part / kind).mkdir(parents=True)
            for i in range(3):
                shade = np.full((2, 3, 3), 200 * place + i, np.uint8)
                image.fromarray(shade).save(tmp_path / part / kind / f"{i}.png")
    nodes = [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("Gemm", ["f", "w", "b"], ["y"])]
    weights = {"w": np.random.default_rng(0).standard_normal((18, 2)) * 0.1, "b": np.zeros(2)}
    t = px.Trainer(model_of(nodes, weights, ["N", 3, 2, 3], ["N", 2]), optimizer=px.SGD(lr=0.3))
    assert t.fit(tmp_path / "train", epochs=30, valid=tmp_path / "valid")["valid_accuracy"][-1] == 1
    t.save(tmp_path / "run")
    assert px.Trainer.load(tmp_path / "run").class_names == ("cat", "dog")
    assert {entry.key: entry.value for entry in t.model().metadata_props} == {"class_names": '["cat", "dog"]'}
    with pytest.raises(px.OnnxError, match="the class 'bird' is in one of the folders"):
        t.fit(tmp_path / "train", valid=tmp_path / "other")


@pytest.mark.parametrize("opset", [11, 17])
def test_the_exported_model_gives_what_the_trainer_gives(tmp_path: Path, opset: int) -> None:
    """In inference mode, with the names, shapes and opset of the model; a filter from a Constant node is trained too."""
    model = cnn(dropout=0.5)
    model.opset_import[0].version = opset
    if opset == 11:
        dropout = next(node for node in model.graph.node if node.op_type == "Dropout")
        del dropout.input[1:]
        model.graph.initializer.remove(next(each for each in model.graph.initializer if each.name == "ratio"))
    weight = next(each for each in model.graph.initializer if each.name == "conv.w")
    model.graph.node.insert(0, helper.make_node("Constant", [], ["conv.w"], value=weight))
    model.graph.initializer.remove(weight)
    x, y = rows_for_cnn(20)
    t = px.Trainer(model, optimizer=px.SGD(lr=0.1))
    t.fit((x, y), epochs=2, batch_size=8)
    file = tmp_path / "trained.onnx"
    t.export(file)
    exported = onnx.load(file)
    onnx.checker.check_model(exported, full_check=True)
    assert [entry.version for entry in exported.opset_import if not entry.domain] == [opset]
    assert (exported.graph.input, exported.graph.output) == (model.graph.input, model.graph.output)
    (scores,) = px.Session(file).run(None, {"x": x})
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    assert t.evaluate((x, y))["loss"] == pytest.approx(-np.log(shares[np.arange(20), y]).mean(), rel=1e-5)
    (untrained,) = px.Session(model).run(None, {"x": x})
    assert np.abs(scores - untrained).max() > 0.1
    if find_spec("onnxruntime"):
        import onnxruntime

        (theirs,) = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"]).run(None, {"x": x})
        np.testing.assert_allclose(scores, theirs, rtol=1e-4, atol=1e-5)
