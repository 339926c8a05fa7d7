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
from pullback.onnx.train.batches import Batch
from pullback.onnx.train.data import by_name, fixed_batch
from pullback.rules import Array
from pullback.shown import shown


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


class Feeder:
    """Checks what a model is given. `classes`: how many there are, where that is known and targets are class numbers."""

    def __init__(self, inputs: Mapping[str, Argument], target: Argument | None, classes: int | None) -> None:
        self.inputs, self.target, self.classes = inputs, target, classes
        self.fixed = fixed_batch(inputs)

    def feeds(self, batch: Batch) -> Feeds:
        """The batch, if it fits the model."""
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
                raise OnnxError("there is no target; this loss compares the output with one")
            arrays[self.target.name] = self._checked("the target", self.target, batch.target, batch)
            self.check_classes(arrays[self.target.name], batch)
        elif batch.target is not None:
            raise OnnxError("there is a target, but the loss is an output of the model and takes none")
        for name, array in arrays.items():
            if len(array) != rows:
                raise OnnxError(f"'{name}' has {len(array)} rows; the other inputs of the batch have {rows}")
        return Feeds(arrays, rows if batch.total is None else batch.total, batch.held)

    def _checked(self, what: str, spec: Argument, value: Any, batch: Batch) -> Array:
        array = np.asarray(array_of(what, value))
        wanted = spec.dtype if spec.dtype is not None else array.dtype
        if array.dtype.kind not in "biuf" and wanted.kind in "biuf":
            raise OnnxError(f"{what} has dtype {array.dtype}; it must be numbers, of dtype {wanted}")
        if array.dtype.kind == "f" and wanted.kind in "iu":
            soft = ", or loss='soft_cross_entropy' for shares of the classes" if array.ndim > len(spec.shape or ()) else ""
            raise OnnxError(f"{what} has dtype {array.dtype}; it must be whole numbers: use .astype(np.{wanted}){soft}")
        shape = spec.shape
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
            sizes = ", ".join("rows" if place == 0 else str(size or "any") for place, size in enumerate(shape or ()))
            raise OnnxError(f"{what} has shape {array.shape}; the model takes ({sizes})")
        if self.fixed is not None and len(array) % self.fixed:
            raise OnnxError(
                f"{what} has {len(array)} rows; the model takes exactly {self.fixed}: export it with a dynamic batch axis"
            )
        bad = _not_finite(array)
        if bad is not None:
            raise OnnxError(f"{what} holds NaN or infinity in {batch.place(bad[0])}, at index {bad[1:]}: clean the data first")
        return array.astype(wanted, copy=False)

    def check_classes(self, target: Array, batch: Batch) -> None:
        """Class numbers must be at least 0 and below the number of classes."""
        classes = self.classes
        if target.dtype.kind not in "iu":
            return
        wrong = (target < 0) | (target >= classes) if classes is not None else target < 0
        if wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            within = f", at index {place[1:]}," if len(place) > 1 else ""
            range_ = f"0 to {classes - 1}" if classes is not None else "at least 0"
            raise OnnxError(
                f"the target of {batch.place(place[0])}{within} is class {int(target[place])}; the model has "
                f"{f'{classes} classes, so ' if classes is not None else ''}class numbers must be {range_}"
            )
