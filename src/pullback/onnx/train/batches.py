"""Batches: rows of arrays in an order that (seed, epoch) alone decides, or whatever an iterable of the user's gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pullback.onnx.errors import OnnxError
from pullback.rules import Array
from pullback.shown import shown


@dataclass(frozen=True)
class Batch:
    """Inputs by name (or one array, for a model with one input), the target, and which rows of the data set they are.

    `held`: where only a part of the batch was read, which of its rows, of `total` in all.
    """

    inputs: Any
    target: Any
    rows: Array | None = None
    number: int = 0
    held: tuple[slice, ...] | None = None
    total: int | None = None

    def place(self, row: int) -> str:
        """Where a row of the batch comes from, for messages."""
        return f"row {row} of batch {self.number}" if self.rows is None else f"row {int(self.rows[row])} of the data"


def shuffled(count: int, seed: int, epoch: int) -> Array:
    """The numbers below `count` in an order that depends on seed and epoch alone, the same with every version of NumPy."""
    keys = np.random.Philox(key=[seed & (2**64 - 1), epoch]).random_raw(count)
    return np.argsort(keys, kind="stable")


Needed = Callable[[int], tuple[slice, ...]]  # which rows of a batch of so many have to be read


class Data(Protocol):
    """What a trainer reads batches from."""

    count: int | None  # batches of an epoch, where that is known

    def batches(self, epoch: int | None, start: int = 0, needed: Needed | None = None) -> Iterator[Batch]:
        """Those of an epoch from number `start` on; `epoch` None: in the order of the rows. Rows not needed may be left out."""


class Rows(Protocol):
    """A data set with numbered rows: arrays, or images on disk."""

    def __len__(self) -> int: ...

    def take(self, rows: Array) -> tuple[Any, Any]:
        """The inputs and the target of some rows."""


@dataclass(frozen=True)
class ArrayRows:
    """Inputs and target in memory, or in files that are mapped into it."""

    inputs: Mapping[str, Array]
    target: Array | None

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def take(self, rows: Array) -> tuple[dict[str, Array], Array | None]:
        # Sorted within the batch would read mapped files more quickly, and change the order of sums: the same bits matter more.
        return {name: x[rows] for name, x in self.inputs.items()}, None if self.target is None else self.target[rows]


class RowData:
    """Batches of `size` rows; the last one may be smaller, unless `whole` (a model that takes no other size)."""

    def __init__(self, rows: Rows, size: int, seed: int, *, whole: bool = False) -> None:
        self.rows, self.size, self.seed = rows, size, seed
        self.used = len(rows) // size * size if whole else len(rows)
        if not self.used:
            raise OnnxError(f"the data have {len(rows)} rows, fewer than a batch of {size}, and the model takes no other size")
        self.count: int | None = -(-self.used // size)

    def batches(self, epoch: int | None, start: int = 0, needed: Needed | None = None) -> Iterator[Batch]:
        order = np.arange(len(self.rows)) if epoch is None else shuffled(len(self.rows), self.seed, epoch)
        for number in range(start, self.count or 0):
            rows = order[: self.used][number * self.size : (number + 1) * self.size]
            total, held = len(rows), None if needed is None else needed(len(rows))
            if held is not None:
                rows = np.concatenate([rows[part] for part in held])
            inputs, target = self.rows.take(rows)
            yield Batch(inputs, target, rows, number, held, total)


class GivenBatches:
    """Batches that an iterable gives, in its order: pairs (inputs, target), or inputs alone where the loss takes no target."""

    def __init__(self, source: Iterable[Any] | Callable[[], Iterable[Any]], *, has_target: bool) -> None:
        self.source, self.has_target, self.used = source, has_target, False
        self.count: int | None = len(source) if isinstance(source, Sized) else None
        if self.count == 0:
            raise OnnxError("the data set is empty: the list of batches has no entry")

    def batches(self, epoch: int | None, start: int = 0, needed: Needed | None = None) -> Iterator[Batch]:
        source = self.source() if callable(self.source) else self.source
        if not isinstance(source, Iterable):
            raise OnnxError(f"the function that gives the data gave {shown(source)}, which is no iterable of batches")
        if isinstance(source, Iterator) and not callable(self.source):
            if self.used:
                raise OnnxError(
                    "the data are a generator, which gives its batches once; for more than one pass give a list of batches, "
                    "or a function without arguments that returns a new generator"
                )
            self.used = True
        number = -1
        for number, entry in enumerate(source):
            if number >= start:
                yield self._batch(entry, number)
        if number < 0:
            raise OnnxError("the data set is empty: the iterable gave no batch")

    def _batch(self, entry: Any, number: int) -> Batch:
        if not self.has_target:
            alone = isinstance(entry, tuple | list) and len(entry) == 1
            return Batch(entry[0] if alone else entry, None, None, number)
        if not isinstance(entry, tuple | list) or len(entry) != 2:
            raise OnnxError(
                f"batch {number} is {shown(entry)}; it must be a pair (inputs, target); "
                "whole arrays are given as a tuple, (x, target)"
            )
        return Batch(entry[0], entry[1], None, number)
