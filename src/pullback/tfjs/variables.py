"""TF.js's variables: named tensors that stay between steps, and that `variable_grads` differentiates with respect to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import numpy.typing as npt

from pullback.forking import FRONT_END, lock_free_in_children
from pullback.rules import Array
from pullback.settings import during
from pullback.tfjs.tensors import as_tensor, dtype_name, js_text

_recorded: ContextVar[dict[int, Any]] = ContextVar("pullback_tfjs_variables", default={})  # noqa: B039 (never changed)
_numbers = count()
_lock = lock_free_in_children(FRONT_END)
_known: WeakValueDictionary[str, Variable] = WeakValueDictionary()


class Variable:
    """A tensor with a name that can be assigned to. Ops take it as it is; `value` is for NumPy's functions."""

    def __init__(self, initial: npt.ArrayLike, trainable: bool = True, name: str | None = None) -> None:
        self._tensor = as_tensor("variable", "initialValue", initial).copy()
        self.trainable = trainable
        self.name = str(next(_numbers)) if name is None else name
        with _lock:
            if self.name in _known:
                raise ValueError(f"Variable with name {self.name} was already registered")
            _known[self.name] = self

    @property
    def value(self) -> Any:
        """The tensor, as recorded inside `variable_grads`."""
        return _recorded.get().get(id(self), self._tensor)

    @property
    def tensor(self) -> Array:
        """The plain tensor."""
        return self._tensor

    def assign(self, new: npt.ArrayLike) -> None:
        """Replace the value by one of the same dtype and shape."""
        tensor = as_tensor("assign", "newValue", new)
        if tensor.dtype != self._tensor.dtype:
            raise TypeError(
                f"dtype of the new value ({dtype_name(tensor.dtype)}) and previous value ({dtype_name(self._tensor.dtype)}) "
                "must match"
            )
        if tensor.shape != self._tensor.shape:
            raise ValueError(
                f"shape of the new value ({js_text(tensor.shape)}) and previous value ({js_text(self._tensor.shape)}) must match"
            )
        self._tensor = tensor.copy()

    def __repr__(self) -> str:
        return f"Variable({self.name!r}, {dtype_name(self._tensor.dtype)}, shape {self._tensor.shape})"


def variable(initial: npt.ArrayLike, trainable: bool = True, name: str | None = None) -> Variable:
    """A new variable; it is forgotten when nothing refers to it any more."""
    return Variable(initial, trainable, name)


def all_variables() -> list[Variable]:
    """Every variable that is still in use."""
    with _lock:
        return list(_known.values())


@contextmanager
def recorded_as(variables: Sequence[Variable], values: Sequence[Any]) -> Iterator[None]:
    """Inside the block these variables have these values."""
    with during(_recorded, _recorded.get() | {id(v): value for v, value in zip(variables, values, strict=True)}):
        yield
