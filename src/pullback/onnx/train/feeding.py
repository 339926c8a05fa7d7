"""Batches as the program takes them: the declared types and sizes, targets in range, no NaN; each refusal says which and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.nearest import did_you_mean
from pullback.onnx.checks import array_of
from pullback.onnx.errors import OnnxError
from pullback.onnx.executor.read import Argument
from pullback.onnx.train.batches import ArrayRows, Batch, RowData
from pullback.onnx.train.data import by_name, fixed_batch
from pullback.rules import Array
from pullback.shown import shown

TARGET = "the target"


@dataclass(frozen=True)
class Feeds:
    """A checked batch: arrays by the names of the graph's inputs, the target's among them, and how many rows the batch has.

    `held`: those of its rows that the arrays have, one after the other; None for all.
    """

    arrays: dict[str, Array]
    rows: int
    held: tuple[slice, ...] | None = None

    def part(self, rows: slice) -> dict[str, Array]:
        """Some rows of the batch, which must be one of the parts that it holds."""
        if self.held is not None:
            before = sum(part.stop - part.start for part in self.held[: self.held.index(rows)])
            rows = slice(before, before + rows.stop - rows.start)
        return {name: array[rows] for name, array in self.arrays.items()}


def _not_finite(array: Array) -> tuple[int, ...] | None:
    """Where an array holds NaN or infinity first. The sum tells quickly that it holds none."""
    if array.dtype.kind != "f" or not array.size:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum(dtype=np.float64)):
            return None
    bad = np.argwhere(~np.isfinite(array))
    return tuple(int(i) for i in bad[0]) if len(bad) else None


def _reshaping(given: tuple[int, ...], wanted: tuple[int | str | None, ...]) -> str:
    """How the shape of an array becomes the wanted one, where that is plain."""
    if len(given) == len(wanted) > 2 and given[-1] == wanted[1]:
        order = (0, len(given) - 1, *range(1, len(given) - 1))
        return f". It seems to have its channels last: use x.transpose{order}"
    return ": give it an axis of rows first" if given and len(given) == len(wanted) - 1 else ""


class Feeder:
    """Checks what a model is given. `classes`: how many there are, where that is known and targets are class numbers.

    `ignored`: a class number that does not count, and need not be one of these.
    """

    def __init__(
        self, inputs: Mapping[str, Argument], target: Argument | None, classes: int | None, ignored: int | None = None
    ) -> None:
        self.inputs, self.target, self.classes, self.ignored = inputs, target, classes, ignored
        self.fixed = fixed_batch(inputs)

    def feeds(self, batch: Batch) -> Feeds:
        """The batch, if it fits the model."""
        if isinstance(batch.inputs, tuple) and batch.target is None:
            raise OnnxError("inputs and target came as one tuple: give two arguments, as step(x, target)")
        given = by_name(batch.inputs, self.inputs)
        for name in given:
            if name not in self.inputs:
                raise OnnxError(f"there is no input {shown(name)}{did_you_mean(name, list(self.inputs), 'The inputs')}")
        arrays = {}
        for name, spec in self.inputs.items():
            if name not in given:
                raise OnnxError(f"input '{name}' is missing; the inputs are {', '.join(self.inputs)}")
            arrays[name] = self._checked(f"input '{name}'", spec, given[name], batch)
        rows = len(next(iter(arrays.values())))
        if not rows:
            raise OnnxError(f"batch {batch.number} is empty: its inputs have no rows")
        if self.target is not None:
            if batch.target is None:
                raise OnnxError("there is no target; this loss compares the output with one: give two arguments, (x, target)")
            arrays[self.target.name] = self._checked(TARGET, self.target, batch.target, batch)
            self.check_classes(arrays[self.target.name], batch)
        elif batch.target is not None:
            raise OnnxError("there is a target, but the loss is an output of the model and takes none")
        for name, array in arrays.items():
            if len(array) != rows:
                raise OnnxError(f"'{name}' has {len(array)} rows; the other inputs of the batch have {rows}")
        return Feeds(arrays, rows if batch.total is None else batch.total, batch.held)

    def check_rows(self, data: RowData) -> None:
        """The first batch as a whole, and all values where they are in memory: better now than after hours."""
        first = np.arange(min(data.size, data.used))
        self.feeds(Batch(*data.rows.take(first), first))
        if not isinstance(data.rows, ArrayRows):
            return
        for name, array in {**data.rows.inputs, TARGET: data.rows.target}.items():
            if array is not None and not isinstance(array, np.memmap):
                batch = Batch(None, None, np.arange(len(array)))
                self._check_finite(TARGET if name == TARGET else f"input '{name}'", array, batch)
                if name == TARGET:
                    self.check_classes(array, batch)

    def _checked(self, what: str, spec: Argument, value: Any, batch: Batch) -> Array:
        array = np.asarray(array_of(what, value))
        wanted = spec.dtype if spec.dtype is not None else array.dtype
        if array.dtype.kind not in "biuf" and wanted.kind in "biuf":
            raise OnnxError(f"{what} has dtype {array.dtype}; it must be numbers, of dtype {wanted}")
        if array.dtype.kind == "f" and wanted.kind in "iu":
            to_do = self._one_hot(array) or f": use .astype(np.{wanted}), or for what is no classes another loss, such as mse"
            raise OnnxError(f"{what} has dtype {array.dtype}; it must be whole numbers{to_do}")
        shape = spec.shape
        if spec is self.target and shape and {array.shape[1:], shape[1:]} == {(), (1,)}:  # one number a row, either way
            array = array[:, None] if array.ndim == 1 else array[:, 0]
        fits = shape is None or (
            len(shape) == array.ndim
            and array.ndim > 0
            and all(not isinstance(size, int) or size == n for size, n in zip(shape[1:], array.shape[1:], strict=True))
        )
        if shape == ():
            raise OnnxError(
                f"{what} has no rows: the model takes a single number. An output of one number is a loss: loss='name'"
            )
        if not fits or not array.ndim:
            sizes = ["rows", *(str(size or "any") for size in (shape or ())[1:])]
            taken = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
            one_hot = self._one_hot(array) if spec is self.target else ""
            who = "this loss" if spec is self.target else "the model"
            raise OnnxError(
                f"{what} has shape {array.shape}; {who} takes {taken}{one_hot or _reshaping(array.shape, shape or ())}"
            )
        if self.fixed is not None and len(array) % self.fixed:
            raise OnnxError(
                f"{what} has {len(array)} rows; the model takes exactly {self.fixed}: export it with a dynamic batch axis"
            )
        self._check_finite(what, array, batch)
        return array.astype(wanted, copy=False)

    def _one_hot(self, array: Array) -> str:
        """A hint where an array for class numbers has an entry for each class."""
        if self.classes is None or array.ndim < 2 or not 1 < self.classes == array.shape[1]:
            return ""
        return ". These look like a value for each class: take target.argmax(1), or the loss soft_cross_entropy"

    def _check_finite(self, what: str, array: Array, batch: Batch) -> None:
        bad = _not_finite(array)
        if bad is not None:
            raise OnnxError(f"{what} holds NaN or infinity in {batch.place(bad[0])}, at index {bad[1:]}: clean the data first")

    def check_classes(self, target: Array, batch: Batch) -> None:
        """Class numbers must be at least 0 and below the number of classes."""
        if self.target is None or self.target.dtype is None or self.target.dtype.kind not in "iu" or not target.size:
            return
        classes, largest = self.classes, int(target.max())
        wrong = (target < 0) | (target >= classes) if classes is not None else target < 0
        if self.ignored is not None:
            wrong &= target != self.ignored
        if not wrong.any():
            return
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        within = f", at index {place[1:]}," if len(place) > 1 else ""
        said = f"the target of {batch.place(place[0])}{within} is class {int(target[place])}; "
        if classes is None:
            raise OnnxError(said + "class numbers must be at least 0")
        said += f"the model has {classes} classes, so class numbers must be 0 to {classes - 1}"
        if largest == classes and target.min() == 1:
            raise OnnxError(said + ". These seem to count from 1: subtract 1")
        if largest >= classes:
            said += f". replace_head(model, classes={largest + 1}) gives it more (--classes {largest + 1})"
        raise OnnxError(said)
