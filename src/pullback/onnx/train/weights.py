"""The arrays that training changes: parameters by name, each in memory of its own that optimizers see as flat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np

from pullback.nearest import did_you_mean
from pullback.onnx.errors import OnnxError
from pullback.onnx.executor.memory import memory_order
from pullback.onnx.train.memory_order import dense_copy, flat
from pullback.rules import Array
from pullback.shown import shown


class Weights(MutableMapping[str, Array]):
    """A mapping of names to arrays. Reading gives a copy, which later steps do not change; writing checks shape and dtype.

    `arrays` are the live ones, in whatever order their axes lie in memory; `memory` are the same as flat views.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.arrays = {name: dense_copy(array) for name, array in arrays.items()}
        self.axes = {name: memory_order(array)[0] for name, array in self.arrays.items()}
        self.memory = {name: flat(array, self.axes[name]) for name, array in self.arrays.items()}

    def _known(self, name: str) -> Array:
        if name not in self.arrays:
            raise KeyError(f"there is no parameter {shown(name)}{did_you_mean(name, list(self.arrays), 'Parameters')}")
        return self.arrays[name]

    def __getitem__(self, name: str) -> Array:
        return np.array(self._known(name), order="C")

    def __setitem__(self, name: str, value: Any) -> None:
        array, new = self._known(name), np.asarray(value)
        if new.shape != array.shape or new.dtype != array.dtype:
            raise OnnxError(
                f"parameter '{name}' has shape {array.shape} and dtype {array.dtype}; it cannot become an array of shape "
                f"{new.shape} and dtype {new.dtype}"
            )
        np.copyto(array, new)

    def __delitem__(self, name: str) -> None:
        raise OnnxError("parameters cannot be removed: freeze them, as Trainer(..., frozen=[name])")

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def __contains__(self, name: object) -> bool:
        return name in self.arrays

    def __repr__(self) -> str:
        listed = ", ".join(f"{name}: {'x'.join(map(str, array.shape)) or 'scalar'}" for name, array in self.arrays.items())
        return f"Weights({listed})"

    def copies(self) -> dict[str, Array]:
        """All of them, in C order."""
        return {name: self[name] for name in self}
