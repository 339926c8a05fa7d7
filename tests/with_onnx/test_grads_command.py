"""`pullback grads`: the table, the ONNX file and the picture of a training graph."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import pullback.onnx as px
from pullback.cli import main
from pullback.onnx import digits
from pullback.onnx.drawing.collapse import collapsed
from pullback.onnx.drawing.layout import make_scene
from pullback.onnx.drawing.stages import PASSED_ON, Part, Stage, make_stages
from pullback.pictures.svg import svg_text


def test_the_table_has_each_node_beside_its_backward_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grads"]) == 0
    text = capsys.readouterr().out
    pairs = {"Conv 3": "ConvGrad", "MaxPool 2": "MaxPoolGrad", "AveragePool 2": "AveragePoolGrad", "Relu ": "ReluGrad"}
    for forward, backward in (pairs | {"SoftmaxCrossEntropyLoss ": "SoftmaxCrossEntropyLossGrad"}).items():
        assert re.search(rf"^ *{forward}.* {backward} ", text, re.MULTILINE), (forward, backward)
    assert re.search(r"head\.weight +10.256", text)
    assert "write it with --out" in text


def test_the_graph_and_the_pictures_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(digits.small_cnn(), tmp_path / "m.onnx")
    graph, picture = tmp_path / "g.onnx", tmp_path / "g.svg"
    options = ["--freeze", "conv1.*", "--theme", "both"]
    assert main(["grads", str(tmp_path / "m.onnx"), "--out", str(graph), "--picture", str(picture), *options]) == 0
    outputs = [output.name for output in onnx.load(graph).graph.output]
    assert "conv2.weight_grad" in outputs
    assert "conv1.weight_grad" not in outputs
    assert "ConvGrad" in picture.read_text()
    assert (tmp_path / "g-dark.svg").read_text() != picture.read_text()
    out = capsys.readouterr().out
    assert all(str(path) in out for path in (graph, picture, tmp_path / "g-dark.svg"))


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        (["no.onnx"], 2, "no.onnx"),
        (["--picture", "a.gif"], 2, "a .svg or .png file"),
        (["--out", "no/such/folder/g.onnx"], 2, "there is no folder"),
        (["--freeze", "conv9.*"], 1, "conv9"),
        (["--loss", "crossentropy"], 1, "cross_entropy"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    options: list[str], status: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["grads", *options]) == status
    complaint = capsys.readouterr().err
    assert complaint.startswith("pullback grads: ")
    assert complaint.count("\n") == 1
    assert sentence in complaint


def residual(blocks: int) -> onnx.ModelProto:
    """Blocks of two convolutions with an Add around them."""
    nodes, weights, x = [], [], "x"
    for number in range(blocks):
        for part in "ab":
            name = f"{number}{part}"
            weights.append(helper.make_tensor(f"w{name}", TensorProto.FLOAT, (2, 2, 1, 1), [0.5] * 4))
            source = x if part == "a" else f"r{number}a"
            nodes.append(helper.make_node("Conv", [source, f"w{name}"], [f"c{name}"], f"conv{name}"))
            nodes.append(helper.make_node("Relu", [f"c{name}"], [f"r{name}"], f"relu{name}"))
        nodes.append(helper.make_node("Add", [f"r{number}b", x], [f"y{number}"], f"add{number}"))
        x = f"y{number}"
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 2, 4, 4]) for name in ("x", x)]
    graph = helper.make_graph(nodes, "residual", value[:1], value[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_gradient_that_needs_no_node_is_passed_on_and_a_skip_has_its_sum() -> None:
    stages = make_stages(px.training_graph(residual(2), loss="mse")).stages
    by_name = {stage.name: stage for stage in stages}
    assert by_name["add1"].parts[0].backward == [PASSED_ON]
    assert by_name["add0"].parts[0].backward == ["Sum"]  # read by the next block and by its Add
    assert by_name["add1"].reads == [stages.index(by_name["add0"]), stages.index(by_name["relu1b"])]
    assert by_name["conv1a"].kept == ["y0"]
    assert by_name["conv1a"].parameters == [("w1a", "2\u00d72\u00d71\u00d71", "w1a_grad")]


def test_a_large_graph_is_drawn_without_repeats() -> None:
    few, many = (make_stages(px.training_graph(residual(blocks), loss="mse")).stages for blocks in (2, 9))
    assert collapsed(few) == few
    seen = collapsed(many)
    assert len(seen) < len(few)
    repeated = [stage for stage in seen if stage.group is not None]
    assert [part.op for part in repeated[0].parts] == ["Conv", "Relu"]
    assert repeated[0].repeats >= 7
    svg = svg_text(make_scene(make_stages(px.training_graph(residual(9), loss="mse"))), "auto")
    assert f"{repeated[0].repeats} times" in svg


def test_stages_that_differ_are_all_drawn() -> None:
    stages = [Stage([Part("Conv", f"{n}", ["ConvGrad"])], f"c{n}", "N", reads=[n - 1] if n else []) for n in range(30)]
    assert len(collapsed(stages)) == 30
