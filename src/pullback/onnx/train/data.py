"""Data in the forms that people have them: arrays, .npz, a pair of .npy, a folder of images, or batches of their own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pullback.onnx.checks import array_of, whole
from pullback.onnx.errors import OnnxError
from pullback.onnx.executor.read import Argument
from pullback.onnx.train.batches import ArrayRows, Data, GivenBatches, RowData, Rows
from pullback.onnx.train.images import ImageFolder
from pullback.rules import Array
from pullback.shown import shown

INPUT_KEYS = ("x", "images", "inputs", "data", "x_train")
TARGET_KEYS = ("y", "labels", "target", "targets", "y_train")
BATCH_SIZE = 32
FORMS = (
    "give (x, target) as arrays, ({input: array, ...}, target), a path to an .npz file or to a folder of images, "
    "a pair of paths to .npy files, or an iterable of batches (x, target)"
)

Specs = Mapping[str, Argument]


def fixed_batch(specs: Specs) -> int | None:
    """The batch size that the model's inputs declare, if it is a number."""
    sizes = {spec.shape[0] for spec in specs.values() if spec.shape}
    return next((size for size in sizes if isinstance(size, int)), None)


def open_data(
    data: Any, specs: Specs, *, batch_size: int | None = None, seed: int = 0, has_target: bool = True, parts: int = 1
) -> Data:
    """The data as batches for a model with these inputs, each to be run in so many parts. `batch_size` None: the model's, or 32."""
    if isinstance(data, RowData | GivenBatches):
        return data
    rows = _rows(data, specs, has_target)
    if rows is None:
        if not (callable(data) or isinstance(data, Iterable)):
            raise OnnxError(f"these are no data: {shown(data)}; {FORMS}")
        return GivenBatches(data, has_target=has_target)
    if not len(rows):
        raise OnnxError("the data set is empty: it has no rows")
    fixed = fixed_batch(specs)
    own = None if fixed is None else fixed * parts
    size = (own or BATCH_SIZE) if batch_size is None else whole("data", "batch_size", batch_size, 1)
    if own is not None and size != own:
        times = f", {parts} times, in parts" if parts > 1 else ""
        raise OnnxError(f"batch_size is {size}, but the model takes batches of exactly {fixed} rows{times}: leave batch_size out, "
                        "or export the model with a dynamic batch axis")  # fmt: skip
    return RowData(rows, size, seed, whole=fixed is not None)


def _rows(data: Any, specs: Specs, has_target: bool) -> Rows | None:
    """A data set with numbered rows; None where it is batches."""
    if isinstance(data, ImageFolder):
        return data.fitted(specs)
    if isinstance(data, str | os.PathLike):
        return _from_path(Path(data), specs, has_target)
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, str | os.PathLike) for part in data):
        return array_rows(_mapped(Path(data[0])), _mapped(Path(data[1])), specs)
    if isinstance(data, tuple) and len(data) == 2:
        return array_rows(data[0], data[1], specs)
    if isinstance(data, Mapping):
        return _from_keys(data, specs, has_target, "the mapping")
    if not has_target and isinstance(data, np.ndarray):
        return array_rows(data, None, specs)
    if isinstance(data, np.ndarray):
        raise OnnxError(f"there is no target: the data are one array of shape {data.shape}; {FORMS}")
    return None


def _from_path(path: Path, specs: Specs, has_target: bool) -> Rows:
    if path.is_dir():
        return ImageFolder(path).fitted(specs)
    if not path.exists():
        raise OnnxError(f"there is no file or folder '{path}'; {FORMS}")
    if path.suffix.lower() == ".npz":
        try:
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except Exception as error:
            raise OnnxError(f"'{path}' cannot be read as an .npz file: {error}") from error
        return _from_keys(arrays, specs, has_target, f"'{path}'")
    if path.suffix.lower() == ".npy" and not has_target:
        return array_rows(_mapped(path), None, specs)
    if path.suffix.lower() == ".npy":
        raise OnnxError(f"'{path}' has inputs or targets alone: give a pair of paths (x.npy, y.npy)")
    raise OnnxError(f"'{path}' is no kind of file that is read here: an .npz file, two .npy files, or a folder of images")


def _mapped(path: Path) -> Array:
    """An .npy file mapped into memory: a data set may be larger than it."""
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise OnnxError(f"there is no file '{path}'") from None
    except Exception as error:
        raise OnnxError(f"'{path}' cannot be read as an .npy file: {error}") from error
    if not isinstance(array, np.ndarray):
        raise OnnxError(f"'{path}' is an .npz file, with several arrays: give its path alone")
    return array


def _from_keys(arrays: Mapping[str, Any], specs: Specs, has_target: bool, what: str) -> Rows:
    """Arrays by name: the model's own input names, or x and y, images and labels."""
    names = list(specs)
    if set(names) <= set(arrays):
        inputs = {name: arrays[name] for name in names}
    else:
        key = next((key for key in INPUT_KEYS if key in arrays), None)
        if key is None or len(names) != 1:
            wanted = (
                " and ".join(map(repr, names))
                if len(names) > 1
                else " or ".join(map(repr, dict.fromkeys(["x", "images", *names])))
            )
            raise OnnxError(f"{what} has no inputs: it has {_listed(arrays)}; name them {wanted}")
        inputs = {names[0]: arrays[key]}
    target = next((arrays[key] for key in TARGET_KEYS if key in arrays and key not in specs), None)
    if target is None and has_target:
        raise OnnxError(f"{what} has no target: it has {_listed(arrays)}; name it 'y' or 'labels'")
    return array_rows(inputs, target if has_target else None, specs)


def _listed(arrays: Mapping[str, Any]) -> str:
    return ", ".join(repr(name) for name in arrays) or "no arrays"


def by_name(inputs: Any, specs: Specs) -> Mapping[str, Any]:
    """Inputs as a mapping: one array belongs to the model's one input."""
    if not specs:
        raise OnnxError("the model has no inputs, so it has no rows to train on: export it with one")
    if isinstance(inputs, Mapping):
        return inputs
    if len(specs) != 1:
        raise OnnxError(f"the model has the inputs {', '.join(specs)}: give them by name, as {{name: array}}")
    return {next(iter(specs)): inputs}


def array_rows(inputs: Any, target: Any, specs: Specs) -> ArrayRows:
    """Arrays with one row for each example, all of the same length."""
    arrays = {name: array_of(f"input '{name}'", x) for name, x in by_name(inputs, specs).items()}
    if not arrays:
        raise OnnxError(f"the data have no inputs; the model's are {', '.join(specs)}")
    y = None if target is None else array_of("the target", target)
    named: Sequence[tuple[str, Array]] = [*((f"input '{name}'", x) for name, x in arrays.items())]
    if y is not None:
        named = [*named, ("the target", y)]
    first, length = named[0][0], None
    for name, x in named:
        if not x.ndim:
            raise OnnxError(f"{name} is a single number; its first axis must count the rows of the data")
        if length is None:
            length = len(x)
        if len(x) != length:
            raise OnnxError(f"{name} has {len(x)} rows, {first} has {length}; they must be the same")
    return ArrayRows(arrays, y)
