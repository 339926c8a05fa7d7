"""Data for training in all their forms, the order they come in, and one clear error for each way they can be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pullback.onnx import OnnxError
from pullback.onnx.executor.read import Argument
from pullback.onnx.train.batches import Batch, RowData, shuffled
from pullback.onnx.train.data import open_data
from pullback.onnx.train.feeding import Feeder
from pullback.onnx.train.images import ImageFolder

FLOAT, INT = np.dtype("float32"), np.dtype("int64")
X = {"x": Argument("x", ("N", 4), FLOAT)}
TWO = {"a": Argument("a", ("N", 2), FLOAT), "b": Argument("b", ("N",), FLOAT)}
IMAGES = {"x": Argument("x", ("N", 3, 4, 6), FLOAT)}
FIXED = {"x": Argument("x", (4, 4), FLOAT)}

x = np.arange(40, dtype=np.float32).reshape(10, 4)
y = np.arange(10) % 3


def seen(data: Any, specs: Any = X, epoch: int | None = None, start: int = 0, **options: Any) -> list[list[float]]:
    """The targets of each batch."""
    return [list(map(float, batch.target)) for batch in open_data(data, specs, **options).batches(epoch, start)]


def test_shuffling_depends_on_seed_and_epoch_alone() -> None:
    """The numbers are pinned: they must not change with versions of NumPy, or resumed runs would see other batches."""
    assert shuffled(8, 3, 0).tolist() == [6, 1, 5, 2, 7, 4, 3, 0]
    assert shuffled(8, 3, 1).tolist() != shuffled(8, 3, 0).tolist()
    assert shuffled(8, 4, 0).tolist() != shuffled(8, 3, 0).tolist()
    assert sorted(shuffled(100, 0, 5).tolist()) == list(range(100))


def test_any_position_can_be_resumed() -> None:
    whole = seen((x, np.arange(10)), epoch=2, batch_size=4, seed=7)
    assert [len(batch) for batch in whole] == [4, 4, 2]
    assert sorted(row for batch in whole for row in batch) == list(range(10))
    assert seen((x, np.arange(10)), epoch=2, batch_size=4, seed=7, start=1) == whole[1:]
    assert seen((x, np.arange(10)), batch_size=4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "xy.npz", x=x, y=y)
    np.savez(tmp_path / "named.npz", images=x, labels=y)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    expected = seen((x, y), epoch=0)
    for data in (tmp_path / "xy.npz", str(tmp_path / "named.npz"), (tmp_path / "x.npy", tmp_path / "y.npy"), {"x": x, "y": y}):
        assert seen(data, epoch=0) == expected
    opened = open_data((tmp_path / "x.npy", tmp_path / "y.npy"), X)
    assert isinstance(opened, RowData)
    assert isinstance(opened.rows.inputs["x"], np.memmap)  # type: ignore[attr-defined]


def test_several_inputs_by_name() -> None:
    inputs = {"a": np.zeros((3, 2), np.float32), "b": np.ones(3, np.float32)}
    (batch,) = open_data((inputs, np.arange(3)), TWO).batches(None)
    assert set(batch.inputs) == {"a", "b"}
    (batch,) = open_data(inputs | {"target": np.arange(3)}, TWO).batches(None)
    assert batch.target.tolist() == [0, 1, 2]
    with pytest.raises(OnnxError, match="inputs a, b: give them by name"):
        open_data((x, y), TWO)


def test_batches_of_the_users_own() -> None:
    pairs = [(x[:4], y[:4]), (x[4:], y[4:])]
    for data in (pairs, lambda: iter(pairs), iter(pairs)):
        assert [len(batch) for batch in seen(data)] == [4, 6]
    assert [len(batch) for batch in seen(pairs, start=1)] == [6]
    once = open_data(iter(pairs), X)
    list(once.batches(0))
    with pytest.raises(OnnxError, match="a generator, which gives its batches once; for more than one pass give a list"):
        list(once.batches(1))
    with pytest.raises(OnnxError, match=r"batch 0 is .*; it must be a pair"):
        seen([x, y])


def test_a_model_with_a_fixed_batch_takes_whole_ones() -> None:
    assert [len(batch) for batch in seen((x, y), FIXED, epoch=0)] == [4, 4]
    assert [len(batch) for batch in seen((x, y), FIXED, epoch=0, parts=2)] == [8]
    with pytest.raises(OnnxError, match="batch_size is 5, but the model takes batches of exactly 4 rows"):
        open_data((x, y), FIXED, batch_size=5)
    with pytest.raises(OnnxError, match="10 rows, fewer than a batch of 12"):
        open_data((x, y), FIXED, parts=3)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ((x[:0], y[:0]), "the data set is empty: it has no rows"),
        ([], "the data set is empty: the list of batches"),
        ((x, y[:7]), "the target has 7 rows, input 'x' has 10"),
        ((np.float32(1), y), "input 'x' is a single number"),
        (x, "there is no target: the data are one array"),
        ({"x": x}, "the mapping has no target: it has 'x'; name it 'y' or 'labels'"),
        ({"pictures": x, "y": y}, "has no inputs: it has 'pictures', 'y'; name them 'x' or 'images'"),
        ("no/such/file.npz", "there is no file or folder 'no/such/file.npz'"),
        (("no.npy", "such.npy"), "there is no file 'no.npy'"),
        (5, "these are no data: 5; give"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_data_that_cannot_be_used(data: Any, said: str) -> None:
    with pytest.raises(OnnxError, match=said):
        open_data(data, X)


def test_broken_files(tmp_path: Path) -> None:
    for name, said in (("a.npz", "cannot be read as an .npz"), ("a.txt", "no kind of file"), ("a.npy", "give a pair of paths")):
        (tmp_path / name).write_bytes(b"nothing")
        with pytest.raises(OnnxError, match=said):
            open_data(tmp_path / name, X)
    with pytest.raises(OnnxError, match=r"cannot be read as an .npy"):
        open_data((tmp_path / "a.npy", tmp_path / "a.npy"), X)


def test_what_a_batch_must_be() -> None:
    feeder = Feeder(X, Argument("t", ("N",), INT), 3)
    good = feeder.feeds(Batch(x.astype(np.float64), y.astype(np.uint8)))
    assert (good.arrays["x"].dtype, good.arrays["t"].dtype, good.rows) == (FLOAT, INT, 10)
    assert feeder.feeds(Batch(x, y[:, None])).arrays["t"].shape == (10,)
    assert Feeder(X, Argument("t", ("N", 1), FLOAT), None).feeds(Batch(x, y)).arrays["t"].shape == (10, 1)
    bad = x.copy()
    bad[2, 1] = np.nan
    rows = np.arange(100, 110)
    cases: list[tuple[Batch, str]] = [
        (Batch(bad, y, rows), r"input 'x' holds NaN or infinity in row 102 of the data, at index \(1,\)"),
        (Batch(bad, y, None, 7), r"row 2 of batch 7"),
        (
            Batch(x, np.where(np.arange(10) == 4, 3, y), rows),
            "row 104 of the data is class 3; the model has 3 classes, so .* 0 to 2",
        ),
        (Batch(x, np.where(np.arange(10) == 4, -1, y), rows), "row 104 of the data is class -1"),
        (Batch(x, y.astype(np.float32)), "the target has dtype float32; it must be whole numbers"),
        (Batch(x[:, :3], y), r"input 'x' has shape \(10, 3\); the model takes \(rows, 4\)"),
        (Batch(x, y[:, None, None]), r"the target has shape \(10, 1, 1\); this loss takes \(rows,\)"),
        (Batch(x, np.eye(3)[y]), r"must be whole numbers\. These look like a value for each class: take target\.argmax\(1\)"),
        (Batch(x, y + 1), "count from 1: subtract 1"),
        (Batch(x, y * 2), r"replace_head\(model, classes=5\)"),
        (Batch((x, y), None), "one tuple: give two arguments"),
        (Batch(x, y[:9]), "'t' has 9 rows; the other inputs of the batch have 10"),
        (Batch(x, None), "there is no target"),
        (Batch({"z": x}, y), "there is no input 'z'"),
        (Batch({}, y), "input 'x' is missing"),
        (Batch(np.array([["a"] * 4]), y), "it must be numbers"),
        (Batch(x[:0], y[:0]), "batch 0 is empty"),
    ]
    for batch, said in cases:
        with pytest.raises(OnnxError, match=said):
            feeder.feeds(batch)
    with pytest.raises(OnnxError, match="the loss is an output of the model and takes none"):
        Feeder(X, None, None).feeds(Batch(x, y))


def test_large_finite_values_are_no_infinity() -> None:
    large = np.full((2, 4), 3e38, np.float32)
    assert Feeder(X, None, None).feeds(Batch(large, None)).rows == 2


def folder_of_images(root: Path) -> Path:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for kind, shade in (("cats", 0), ("dogs", 255)):
        for name in ("1.png", "more/2.png"):
            file = root / kind / name
            file.parent.mkdir(parents=True, exist_ok=True)
            image.fromarray(np.full((4, 6, 3), shade, np.uint8)).save(file)
    return root


def test_a_folder_of_images(tmp_path: Path) -> None:
    root = folder_of_images(tmp_path / "photos")
    (batch,) = open_data(root, IMAGES).batches(None)
    assert batch.inputs["x"].shape == (4, 3, 4, 6)
    assert batch.inputs["x"].dtype == FLOAT
    assert batch.inputs["x"].mean((1, 2, 3)).tolist() == [0, 0, 1, 1]
    assert batch.target.tolist() == [0, 0, 1, 1]
    folder = ImageFolder(root, size=(2, 3), mean=[0.5, 0.5, 1.0], std=0.5)
    assert folder.class_names == ("cats", "dogs")
    (batch,) = open_data(folder, {"x": Argument("x", ("N", None, None, None), FLOAT)}).batches(None)
    assert batch.inputs["x"].shape == (4, 3, 2, 3)
    assert batch.inputs["x"][2, :, 0, 0].tolist() == [1, 1, 0]
    gray = {"x": Argument("x", ("N", 1, 4, 6), FLOAT)}
    assert next(iter(open_data(root, gray).batches(None))).inputs["x"].shape == (4, 1, 4, 6)


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    root = folder_of_images(tmp_path / "photos")
    with pytest.raises(OnnxError, match="takes images of any size: say which"):
        open_data(root, {"x": Argument("x", ("N", 3, None, None), FLOAT)})
    with pytest.raises(OnnxError, match="has 2 axes"):
        open_data(root, X)
    (tmp_path / "empty").mkdir()
    with pytest.raises(OnnxError, match=r"the data set is empty: .* has no images in folders"):
        open_data(tmp_path / "empty", IMAGES)
    (root / "birds").mkdir()
    with pytest.raises(OnnxError, match=r"the class 'birds' of .* has no images"):
        open_data(root, IMAGES)
    (root / "birds" / "1.png").write_bytes(b"no image")
    with pytest.raises(OnnxError, match=r"birds/1.png' cannot be read as an image"):
        list(open_data(root, IMAGES).batches(None))
