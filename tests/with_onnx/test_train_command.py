"""`pullback train`: the digits, models and data of the user's own, checkpoints, and what goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import pullback as pb
import pullback.onnx as px
from pullback.cli import main
from pullback.onnx import digits

RNG = np.random.default_rng(0)
TINY = (1, 4, 4)  # images of the tests: bright in the upper or the lower half


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    before = pb.get_num_threads()
    yield
    pb.set_num_threads(before)


def tiny_model(path: Path, classes: int = 2) -> Path:
    """A convolution, a maximum, a dense layer."""
    weights = {
        "conv.weight": RNG.normal(size=(3, 1, 3, 3)),
        "head.weight": RNG.normal(size=(classes, 12)) / 3,
        "head.bias": np.zeros(classes),
    }
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("MaxPool", ["r"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "head.weight", "head.bias"], ["scores"], "head", transB=1),
    ]
    shapes = {"x": ["N", *TINY], "scores": ["N", classes]}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    tensors = [numpy_helper.from_array(weight.astype(np.float32), name) for name, weight in weights.items()]
    graph = helper.make_graph(nodes, "tiny", values[:1], values[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def halves(rows: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(rows) % 2
    x = RNG.random((rows, *TINY)).astype(np.float32) * 0.2
    x[labels == 0, :, :2] += 0.8
    x[labels == 1, :, 2:] += 0.8
    return x, labels


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own with a model and data; kernels do not matter."""
    monkeypatch.chdir(tmp_path)
    tiny_model(tmp_path / "tiny.onnx")
    for name, rows in (("train", 40), ("valid", 16)):
        x, y = halves(rows)
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
        np.save(tmp_path / f"{name}_x.npy", x)
        np.save(tmp_path / f"{name}_y.npy", y)
    return tmp_path


def train(*options: str) -> int:
    with pb.backend("reference"):
        return main(["train", *options])


def test_without_arguments_the_digits_are_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = tmp_path / "a" / "new folder"
    assert main(["train", "--into", str(into), "--epochs", "4"]) == 0
    out = capsys.readouterr().out
    assert out.count("\nepoch ") == 4
    files = [into / name for name in ("digits.onnx", "digits.safetensors", "digits-curves.png")]
    assert all(str(file) in out and file.stat().st_size for file in files)
    data = digits.load(0)
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(files[0], providers=["CPUExecutionProvider"])
    right = (session.run(None, {"images": data.valid_x})[0].argmax(1) == data.valid_y).mean()
    assert right >= 0.97
    assert f"{100 * right:.2f} %" in out


@pytest.mark.parametrize("data", [["--data", "train.npz", "--valid", "valid.npz"],
                                  ["--data", "train_x.npy", "train_y.npy", "--valid", "valid_x.npy", "valid_y.npy"]])  # fmt: skip
def test_a_model_and_data_of_ones_own(here: Path, data: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        train("tiny.onnx", *data, "--epochs", "8", "--lr", "0.02", "--batch", "8", "--out", "done.onnx", "--curves", "c.svg")
        == 0
    )
    assert {path.name for path in here.glob("*") if path.suffix in (".svg", ".safetensors")} == {"c.svg", "done.safetensors"}
    x, y = (np.load("valid.npz")[name] for name in "xy")
    with pb.backend("reference"):
        scores = px.Session("done.onnx").run(None, {"x": x})[0]
    assert (scores.argmax(1) == y).mean() == 1
    assert "held-out data" in capsys.readouterr().out


def test_options_reach_the_trainer(here: Path) -> None:
    options = [
        "--optimizer",
        "sgd",
        "--lr",
        "0.03",
        "--momentum",
        "0.8",
        "--nesterov",
        "--weight-decay",
        "0.001",
        "--seed",
        "5",
    ]
    more = ["--schedule", "step:3", "--clip-norm", "2", "--accumulate", "2", "--freeze", "conv.*", "--loss", "cross_entropy"]
    assert train("tiny.onnx", "--data", "train.npz", "--epochs", "2", "--threads", "1", *options, *more) == 0
    settings = json.loads(Path("tiny-trained.json").read_text())["settings"]
    optimizer = settings["optimizer"]
    assert [optimizer[name] for name in ("kind", "lr", "momentum", "nesterov", "weight_decay")] == [
        "SGD",
        0.03,
        0.8,
        True,
        0.001,
    ]
    assert (settings["schedule"]["kind"], settings["schedule"]["every"]) == ("StepDecay", 3)
    assert (settings["seed"], settings["clip_norm"], settings["accumulate"], settings["frozen"]) == (5, 2, 2, ["conv.*"])
    before, after = (px_weights(Path(name)) for name in ("tiny.onnx", "tiny-trained.onnx"))
    assert np.array_equal(before["conv.weight"], after["conv.weight"])
    assert not np.array_equal(before["head.weight"], after["head.weight"])


def px_weights(path: Path) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def test_a_fresh_head_for_a_folder_of_images(here: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for number, name in enumerate(("dark", "grey", "light")):
        for part in ("photos", "judged"):
            (here / part / name).mkdir(parents=True)
            for copy in range(4):
                image.fromarray(np.full((5, 6), 20 + 100 * number + copy, np.uint8)).save(here / part / name / f"{copy}.png")
    options = ["--classes", "3", "--epochs", "2", "--mean", "0.5", "--std", "0.25", "--size", "4"]
    assert train("tiny.onnx", "--data", "photos", "--valid", "judged", *options) == 0
    assert onnx.load("tiny-trained.onnx").graph.output[0].type.tensor_type.shape.dim[1].dim_value == 3
    (here / "judged" / "grey").rename(here / "judged" / "gray")
    assert train("tiny.onnx", "--data", "photos", "--valid", "judged", *options) == 2


def test_a_resumed_run_gives_the_same_model(here: Path) -> None:
    common = ("tiny.onnx", "--data", "train.npz", "--batch", "8", "--schedule", "constant")
    assert train(*common, "--epochs", "4", "--out", "whole.onnx") == 0
    assert train(*common, "--epochs", "2", "--out", "parts.onnx") == 0
    assert train(*common, "--epochs", "4", "--out", "parts.onnx", "--resume") == 0
    assert Path("whole.onnx").read_bytes() == Path("parts.onnx").read_bytes()


def test_early_stopping_says_which_epoch_was_kept(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--valid", "valid.npz", "--early-stopping", "1", "--lr", "0", "--epochs", "9")
    assert train("tiny.onnx", "--data", "train.npz", *options) == 0
    assert "2 epochs, 4 steps" in (out := capsys.readouterr().out)
    assert "no better one than epoch 1" in out


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        (["no.onnx", "--data", "train.npz"], 2, "there is no file 'no.onnx'"),
        (["tiny.onnx", "--data", "no.npz"], 2, "there is no file or folder 'no.npz'"),
        (["tiny.onnx"], 2, "no data to train on"),
        (["--data", "train.npz"], 2, "without a model"),
        (["--epochs", "0"], 2, "--epochs 0: at least 1"),
        (["--schedule", "cosin"], 2, "did you mean 'cosine'"),
        (["--schedule", "step:x"], 2, "'x' is not a number of epochs"),
        (["--warmup", "1", "--schedule", "constant"], 2, "--warmup goes with"),
        (["--momentum", "0.5"], 2, "options of --optimizer sgd"),
        (["--out", "no/folder/m.onnx"], 2, "there is no folder"),
        (["--into", "train.npz"], 2, "not a folder"),
        (["--resume"], 2, "no checkpoint digits.safetensors"),
        (["tiny.onnx", "--data", "train.npz", "--early-stopping", "2"], 2, "--valid"),
        (["tiny.onnx", "--data", "train_x.npy", "train_y.npy", "train_y.npy"], 2, "two .npy files"),
        (["tiny.onnx", "--data", "train_x.npy"], 1, "pair of paths"),
        (["tiny.onnx", "--data", "train.npz", "--freeze", "layer9"], 1, "layer9"),
        (["tiny.onnx", "--data", "train.npz", "--loss", "mean"], 1, "mean"),
        (["train.npz", "--data", "train.npz"], 1, "not an ONNX model"),
        (["tiny.onnx", "--data", "train.npz", "--lr", "1e30", "--optimizer", "SGD"], 1, "at step 2"),
        (["tiny.onnx", "train.npz"], 2, "'train.npz' is one argument too many"),
        (["tiny.onnx", "--data", "train.npz", "--optimiser", "sgd"], 2, "did you mean --optimizer?"),
        (["tiny.onnx", "--data", "train.npz", "--curves", "c.txt"], 2, "a picture is a .png or .svg file"),
        (["tiny.onnx", "--data", "train.npz", "--out", "."], 2, "--into . writes there"),
        (["tiny.onnx", "--data", "train.npz", "--out", "m.safetensors"], 2, "two files would be called m.safetensors"),
        (["tiny.onnx", "--data", "train.npz", "--valid", "tiny.onnx"], 1, "--valid: 'tiny.onnx' is no kind of file"),
        (["tiny.onnx", "--data", "train.npz", "--learning-rate", "-1"], 1, "lr is -1.0"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    here: Path, options: list[str], status: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(*options) == status
    complaint = capsys.readouterr().err
    assert complaint.startswith("pullback train: ")
    assert complaint.count("\n") == 1
    assert sentence in complaint


def test_a_resumed_run_keeps_what_the_checkpoint_was_made_with(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common, more = (
        ("tiny.onnx", "--data", "train.npz"),
        ("--seed", "3", "--batch", "8", "--optimizer", "sgd", "--schedule", "linear"),
    )
    assert train(*common, *more, "--epochs", "4", "--out", "whole.onnx") == 0
    first = px.Trainer("tiny.onnx", optimizer=px.SGD(lr=0.05, momentum=0.9), seed=3, schedule=px.Linear(4))
    with pb.backend("reference"):
        first.fit("train.npz", epochs=2, batch_size=8, checkpoint="tiny-trained.safetensors")
    assert train(*common) == 2
    assert "of a run that was broken off: --resume goes on from it" in capsys.readouterr().err
    assert train(*common, "--resume", "--lr", "0.3") == 2
    assert "--lr 0.3: tiny-trained.safetensors was made with 0.05" in capsys.readouterr().err
    assert train(*common, "--resume", "--classes", "5") == 2
    assert "another model than tiny.onnx: 'head.weight' has shape (2, 12) there, not (5, 12)" in capsys.readouterr().err
    assert train(*common, "--resume") == 0
    assert Path("whole.onnx").read_bytes() == Path("tiny-trained.onnx").read_bytes()
    Path("tiny-trained.onnx").unlink()  # as if it had been killed before it wrote the model
    assert train(*common, "--resume") == 0
    assert "nothing is left to train" in capsys.readouterr().out
    assert Path("whole.onnx").read_bytes() == Path("tiny-trained.onnx").read_bytes()
    assert train(*common, "--resume", "--epochs", "3") == 2
    assert "--epochs 8, for example, trains on" in capsys.readouterr().err


def test_what_is_said_to_be_kept_is_kept(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.load("valid_x.npy")
    x[13] = np.nan  # not in the first batch, and in a mapped file: nobody sees it before the first epoch is over
    np.save("valid_x.npy", x)
    common = ("tiny.onnx", "--data", "train.npz", "--epochs", "2", "--batch", "8", "--schedule", "constant")
    assert train(*common, "--valid", "valid_x.npy", "valid_y.npy") == 1
    assert "row 13" in (said := capsys.readouterr().err)
    assert "everything up to" not in said
    assert not Path("tiny-trained.safetensors").exists()

    def full(self: px.Trainer, path: Path) -> None:
        if self.epoch == 2:
            raise px.OnnxError("no room")
        save(self, path)

    save = px.Trainer.save
    monkeypatch.setattr(px.Trainer, "save", full)
    assert train(*common) == 1
    said = capsys.readouterr().err
    assert said == "pullback train: no room. tiny-trained.safetensors has everything up to epoch 1: --resume goes on from it\n"
    assert px.Trainer.load("tiny-trained.safetensors").epoch == 1


@pytest.mark.filterwarnings("default")
def test_a_warning_is_a_note(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx.load("tiny.onnx")
    model.graph.node.append(helper.make_node("Softmax", ["scores"], ["shares"]))
    model.graph.output[0].name = "shares"
    onnx.save(model, "soft.onnx")
    assert train("soft.onnx", "--data", "train.npz", "--epochs", "1") == 0
    said = capsys.readouterr().err
    assert said.startswith("pullback train: note: the model's output 'shares' is a Softmax, and the loss cross_entropy applies")
    assert said.count("\n") == 1


def test_a_loss_that_breaks_down_later_names_the_checkpoint(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = np.load("train_x.npy"), np.load("train_y.npy")
    assert train("tiny.onnx", "--data", "train.npz", "--epochs", "1", "--out", "m.onnx") == 0
    x[7] = np.nan
    np.savez("broken.npz", x=x, y=y)
    before = Path("m.safetensors").read_bytes()
    assert train("tiny.onnx", "--data", "broken.npz", "--epochs", "2", "--out", "m.onnx", "--resume") == 1
    assert Path("m.safetensors").read_bytes() == before
    assert "row 7 of the data" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")
def test_ctrl_c_keeps_a_checkpoint_that_goes_on(here: Path) -> None:
    arguments = ["train", "tiny.onnx", "--data", "train.npz", "--epochs", "100000", "--checkpoint", "run.safetensors"]
    environment = os.environ | {"PULLBACK_BACKEND": "reference"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-m", "pullback", *arguments], env=environment, **pipes)  # type: ignore[call-overload]
    assert process.stdout is not None
    while not process.stdout.readline().startswith("epoch"):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 130
    assert complaint.count("\n") == 1
    steps = int(complaint.partition("interrupted after step ")[2].partition(";")[0])
    assert "run.safetensors" in complaint
    assert px.Trainer.load("run.safetensors").steps == steps


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_sentence(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "full.svg").symlink_to("/dev/full")
    assert train("tiny.onnx", "--data", "train.npz", "--epochs", "1", "--curves", "full.svg") == 1
    assert capsys.readouterr().err == "pullback: No space left on device\n"
    assert Path("tiny-trained.onnx").exists()


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out
    assert all(word in text for word in ("mpiexec", "--resume", "--classes 5", ".npy", "pullback[images]"))
